"""Llama 2 and 3, SmolLM, TinyLlama and others of the type."""

from __future__ import annotations

from mnnconvert.frontends.llm.block import Decoder
from mnnconvert.frontends.llm.families.common import Config, basic


def decoder(config: Config) -> Decoder:
    """Full attention in every layer; biases where the checkpoint has some."""
    return basic(config)
