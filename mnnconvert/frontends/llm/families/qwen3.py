"""Qwen 3: a Qwen 2 with norms over each head of queries and keys."""

from __future__ import annotations

from dataclasses import replace

from mnnconvert.frontends.llm.block import Decoder
from mnnconvert.frontends.llm.families import qwen2
from mnnconvert.frontends.llm.families.common import Config


def decoder(config: Config) -> Decoder:
    """Heads have 128 elements where the configuration does not say it."""
    return replace(qwen2.decoder({**config, "head_dim": config.get("head_dim") or 128}), head_norms=True)
