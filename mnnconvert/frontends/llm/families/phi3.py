"""Phi 3 and Phi 4 mini: joined projections, which stay joined, and heads that may be rotated in part."""

from __future__ import annotations

from dataclasses import replace

from mnnconvert.errors import Diagnostic
from mnnconvert.frontends.llm.block import Decoder
from mnnconvert.frontends.llm.families import mistral
from mnnconvert.frontends.llm.families.common import Config


def decoder(config: Config) -> Decoder:
    """A Mistral, but for the weights, from which the difference is read. Of two sets of factors for rotations the one
    for short texts is taken, and a note says up to which length it is meant."""
    made = mistral.decoder(config)
    settings = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if (settings.get("rope_type") or settings.get("type")) != "longrope":
        return made
    context = settings.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
    note = Diagnostic("llm-short-context", f"the file is for texts of up to {context} tokens, not for longer ones")
    return replace(made, notes=(note,))
