"""Rotary positions: the frequencies of a head's pairs, with the published ways to stretch them to longer contexts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mnnconvert.errors import ConversionError


@dataclass(frozen=True)
class Rotary:
    """Angles are position * `frequencies` (one per pair); cosine and sine are multiplied by `scale`. In texts of more
    than `positions` tokens (0: of any length) they would be others."""

    frequencies: tuple[float, ...]
    scale: float = 1.0
    positions: int = 0


def rotary(size: int, base: float, scaling: Mapping[str, Any] | None = None, positions: int = 0) -> Rotary:
    """The rotation of the first `size` elements of a head: frequencies base^(-2i / size), i = 0 .. size / 2 - 1.

    `scaling` is `rope_scaling` of a configuration: its type is default, linear, llama3, yarn or longrope; any other is
    refused (`llm-unsupported`). `positions` is the trained context where the scaling does not name it.
    """
    plain = base ** (-np.arange(0, size, 2) / size)
    settings = dict(scaling or {})
    kind = settings.get("rope_type") or settings.get("type") or "default"
    if kind == "default":
        return Rotary(tuple(plain.tolist()))
    if kind == "linear":
        return Rotary(tuple((plain / settings["factor"]).tolist()))
    if kind == "factors":  # of GGUF files
        return Rotary(tuple((plain / np.asarray(settings["factors"])).tolist()))
    if kind in ("longrope", "su"):
        return _longrope(plain, settings, positions)
    if kind == "llama3":
        return Rotary(tuple(_llama3(plain, settings).tolist()))
    if kind == "yarn":
        return _yarn(plain, size, base, settings, positions)
    raise ConversionError.of("llm-unsupported", f"positions are scaled by '{kind}', which is not known here",
                             hint="default, linear, llama3, yarn and longrope are")  # fmt: skip


def _llama3(plain: np.ndarray, settings: Mapping[str, Any]) -> np.ndarray:
    """Llama 3.1: waves longer than the trained context are stretched by the factor, short ones stay, others between.

    With wavelength w and context c, the share of the plain frequency is (c / w - low) / (high - low), clamped to 0..1.
    """
    context, low, high = (
        float(settings[n]) for n in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    )
    share = np.clip((context * plain / (2 * np.pi) - low) / (high - low), 0, 1)
    stretched: np.ndarray = (1 - share) * plain / settings["factor"] + share * plain
    return stretched


def _yarn(plain: np.ndarray, size: int, base: float, settings: Mapping[str, Any], positions: int) -> Rotary:
    """YaRN (arXiv 2309.00071, section 3.2): pairs that turn more than beta_fast times in the trained context stay,
    those below beta_slow are stretched, with a ramp between; attention is scaled by 0.1 ln(factor) + 1."""
    context = float(settings.get("original_max_position_embeddings") or positions)
    factor = float(settings["factor"])

    def pair(turns: float) -> float:
        return size * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair(settings.get("beta_fast") or 32), pair(settings.get("beta_slow") or 1)
    if settings.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    ramp = np.clip((np.arange(size // 2) - low) / max(high - low, 0.001), 0, 1)
    scale = settings.get("attention_factor")
    if scale is None:
        scale = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    return Rotary(tuple((plain / factor * ramp + plain * (1 - ramp)).tolist()), float(scale))


def _longrope(plain: np.ndarray, settings: Mapping[str, Any], positions: int) -> Rotary:
    """LongRoPE (arXiv 2402.13753): a factor for each pair. Those for texts within the trained context are taken."""
    context = float(settings["original_max_position_embeddings"] or positions)
    stretch = float(settings.get("factor") or positions / context)
    scale = settings.get("attention_factor")
    if scale is None:
        scale = math.sqrt(1 + math.log(stretch) / math.log(context)) if stretch > 1 else 1.0
    return Rotary(tuple((plain / np.asarray(settings["short_factor"])).tolist()), float(scale), int(context))
