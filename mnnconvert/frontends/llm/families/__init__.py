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


MOST = {"num_hidden_layers": 1 << 12, "num_attention_heads": 1 << 12, "num_key_value_heads": 1 << 12,
        "head_dim": 1 << 12, "hidden_size": 1 << 20, "intermediate_size": 1 << 22, "vocab_size": 1 << 24,
        "sliding_window": 1 << 31, "max_position_embeddings": 1 << 31}  # fmt: skip
"""Sizes that may be, by key; what says more is damaged."""


def _check_sizes(config: Mapping[str, Any]) -> None:
    """ValueError for a size that is no whole number, or none that could be."""
    for name, most in MOST.items():
        value = config.get(name)
        if value is not None and (not isinstance(value, int) or not 0 < value <= most):
            raise ValueError(f"{name} is {value!r}")


def decoder_of(config: Mapping[str, Any]) -> Decoder:
    """The decoder that a configuration describes. Raises `llm-unsupported`, `bad-checkpoint`."""
    kind = config.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        raise ConversionError.of("llm-unsupported", f"models of type '{kind}' are not known here",
                                 hint=f"the types are {', '.join(FAMILIES)}")  # fmt: skip
    try:
        _check_sizes(config)
        return family(config)
    except KeyError as error:
        raise ConversionError.of("bad-checkpoint", f"the configuration lacks {error}") from error
    except (TypeError, ValueError, ZeroDivisionError, AttributeError, OverflowError) as error:
        raise ConversionError.of("bad-checkpoint", f"the configuration cannot be used: {error}") from error
