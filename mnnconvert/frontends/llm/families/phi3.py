"""Phi 3 and Phi 4 mini: joined projections, which stay joined, and heads that may be rotated in part."""

from __future__ import annotations

from mnnconvert.frontends.llm.block import Decoder
from mnnconvert.frontends.llm.families import mistral
from mnnconvert.frontends.llm.families.common import Config


def decoder(config: Config) -> Decoder:
    """A Mistral, but for the weights, from which the difference is read."""
    return mistral.decoder(config)
