"""Families of architectures: each reads a configuration into a `Decoder`. What is not listed is refused by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mnnconvert.errors import ConversionError
from mnnconvert.frontends.llm.block import Decoder
from mnnconvert.frontends.llm.families import gemma2, gemma3, llama, mistral, phi3, qwen2, qwen3

FAMILIES: dict[str, Callable[[Mapping[str, Any]], Decoder]] = {
    "llama": llama.decoder, "mistral": mistral.decoder, "qwen2": qwen2.decoder, "qwen3": qwen3.decoder,
    "gemma2": gemma2.decoder, "gemma3": gemma3.decoder, "gemma3_text": gemma3.decoder, "phi3": phi3.decoder,
}  # fmt: skip
"""By `model_type`."""


def decoder_of(config: Mapping[str, Any]) -> Decoder:
    """The decoder that a configuration describes. Raises `llm-unsupported`, `bad-checkpoint`."""
    kind = config.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        raise ConversionError.of("llm-unsupported", f"models of type '{kind}' are not known here",
                                 hint=f"the types are {', '.join(FAMILIES)}")  # fmt: skip
    try:
        return family(config)
    except KeyError as error:
        raise ConversionError.of("bad-checkpoint", f"the configuration lacks {error}") from error
    except (TypeError, ValueError, ZeroDivisionError, AttributeError, OverflowError) as error:
        raise ConversionError.of("bad-checkpoint", f"the configuration cannot be used: {error}") from error
