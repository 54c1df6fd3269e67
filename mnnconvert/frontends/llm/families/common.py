"""What the configurations of all families say alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mnnconvert.errors import ConversionError, Diagnostic
from mnnconvert.frontends.llm.block import Decoder
from mnnconvert.frontends.llm.rotary import Rotary, rotary

Config = Mapping[str, Any]
ACTIVATIONS = {"silu": "SILU", "gelu_pytorch_tanh": "GELU", "gelu_new": "GELU", "gelu": "GELU_STANDARD"}


def basic(config: Config, **special: Any) -> Decoder:
    """A decoder with the sizes that every configuration has; `special` replaces fields. Raises KeyError, ValueError."""
    width, heads, layers = (int(config[n]) for n in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    groups = int(config.get("num_key_value_heads") or heads)
    size = int(config.get("head_dim") or width // heads)
    if min(width, heads, layers, groups, size) < 1 or heads % groups or size % 2:
        raise ValueError(f"{layers} layers of {heads} heads on {groups} key heads of {size} elements")
    fields: dict[str, Any] = {
        "vocabulary": int(config["vocab_size"]), "width": width, "inner": int(config["intermediate_size"]),
        "heads": heads, "groups": groups, "size": size, "epsilon": float(config["rms_norm_eps"]),
        "rotary": (turning(config, size),) * layers if "rotary" not in special else (), "windows": windows(config),
        "activation": activation(config), "tied": bool(config.get("tie_word_embeddings", False)),
    }  # fmt: skip
    made = Decoder(**(fields | special))
    return made if not made.positions else replace(made, notes=(*made.notes, _short(made.positions)))


def _short(positions: int) -> Diagnostic:
    note = f"the file is for texts of up to {positions} tokens: positions turn differently in longer ones (longrope)"
    return Diagnostic("llm-short-context", note)


def activation(config: Config) -> str:
    """MNN's function for the configured one. Raises `llm-unsupported`."""
    name = config.get("hidden_activation") or config.get("hidden_act") or "silu"
    if name not in ACTIVATIONS:
        raise ConversionError.of("llm-unsupported", f"the activation '{name}' is not known here",
                                 hint=f"{', '.join(ACTIVATIONS)} are")  # fmt: skip
    return ACTIVATIONS[name]


def turning(config: Config, size: int, base: float = 10000.0, settings: Config | None = None) -> Rotary:
    """The rotation of positions: of `rope_parameters`, or of `rope_theta` and `rope_scaling` in older files."""
    if settings is None:
        settings = config.get("rope_parameters") or config.get("rope_scaling") or {}
    base = float(settings.get("rope_theta") or config.get("rope_theta") or base)
    share: Any = settings.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    if not 0 < share <= 1:
        raise ValueError(f"{share} of each head is rotated")
    positions = int(config.get("max_position_embeddings") or 0)
    context = settings.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
    return rotary(int(size * share), base, {**settings, "original_max_position_embeddings": context}, positions)


def windows(config: Config, pattern: int = 0) -> tuple[int, ...]:
    """Keys that each layer sees: `layer_types` say which layers have the `sliding_window`, or else all but every
    `pattern`-th one; with neither none has. A window that holds the whole context is none."""
    layers, window = int(config["num_hidden_layers"]), config.get("sliding_window")
    kinds = config.get("layer_types")
    if not window or window >= (config.get("max_position_embeddings") or window + 1):
        return (0,) * layers
    if kinds:
        slides = [kind == "sliding_attention" for kind in kinds[:layers]]
    else:
        slides = [bool(pattern) and (i + 1) % pattern != 0 for i in range(layers)]
    return tuple(int(window) if slide else 0 for slide in slides)
