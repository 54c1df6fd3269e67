"""Gemma 3: a Gemma 2 with norms over heads, five sliding layers to a full one, and other rotations in these."""

from __future__ import annotations

from mnnconvert.frontends.llm.block import Decoder
from mnnconvert.frontends.llm.families.common import Config, turning
from mnnconvert.frontends.llm.families.gemma2 import SIZE, gemma

PATTERN = 6
LOCAL_BASE, GLOBAL_BASE = 1e4, 1e6


def decoder(config: Config) -> Decoder:
    """Of a text model, or the text part of a larger one."""
    pattern = int(config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or PATTERN)
    size = int(config.get("head_dim") or SIZE)
    parameters = config.get("rope_parameters") or {}
    if "full_attention" in parameters:
        full, local = (turning(config, size, settings=parameters[f"{kind}_attention"]) for kind in ("full", "sliding"))
    else:
        full = turning(config, size, GLOBAL_BASE)
        local = turning({}, size, settings={"rope_theta": config.get("rope_local_base_freq") or LOCAL_BASE})
    layers = range(int(config["num_hidden_layers"]))
    kinds = config.get("layer_types") or [
        "sliding_attention" if (i + 1) % pattern else "full_attention" for i in layers
    ]
    rotary = tuple(local if kind == "sliding_attention" else full for kind in kinds)
    return gemma({**config, "layer_types": kinds}, pattern, rotary=rotary, head_norms=True)
