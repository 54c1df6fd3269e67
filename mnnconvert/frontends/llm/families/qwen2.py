"""Qwen 2 and 2.5: biases on queries, keys and values."""

from __future__ import annotations

from mnnconvert.frontends.llm.block import Decoder
from mnnconvert.frontends.llm.families.common import Config, basic, windows


def decoder(config: Config) -> Decoder:
    """Windows count where `use_sliding_window` says so: in the layers from `max_window_layers` on."""
    if not config.get("use_sliding_window"):
        return basic(config, windows=(0,) * int(config["num_hidden_layers"]))
    first = int(config.get("max_window_layers", 28))
    kinds = ["full_attention" if i < first else "sliding_attention" for i in range(int(config["num_hidden_layers"]))]
    return basic(config, windows=windows({**config, "layer_types": config.get("layer_types") or kinds}))
