"""Mistral: a Llama whose layers may all see the last keys only."""

from __future__ import annotations

from mnnconvert.frontends.llm.block import Decoder
from mnnconvert.frontends.llm.families.common import Config, basic, windows


def decoder(config: Config) -> Decoder:
    """Every layer has the window, if there is one."""
    layers = int(config["num_hidden_layers"])
    return basic(config, windows=windows({**config, "layer_types": ["sliding_attention"] * layers}))
