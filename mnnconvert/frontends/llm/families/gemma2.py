"""Gemma 2: norms before and after, gains that count from 1, scaled embeddings, capped logits, alternating windows."""

from __future__ import annotations

from typing import Any

from mnnconvert.errors import Diagnostic
from mnnconvert.frontends.llm.block import Decoder
from mnnconvert.frontends.llm.families.common import Config, basic, windows

PATTERN = 2
SIZE = 256


def decoder(config: Config) -> Decoder:
    """As configured, but for the cap on scores, which MNN's attention does not have; a note says so."""
    return gemma(config, PATTERN)


def gemma(config: Config, pattern: int, **special: Any) -> Decoder:
    """What Gemma 2 and 3 share; every `pattern`-th layer sees all keys."""
    config = {**config, "head_dim": config.get("head_dim") or SIZE, "hidden_act": "gelu_pytorch_tanh",
              "tie_word_embeddings": config.get("tie_word_embeddings", True)}  # fmt: skip
    cap = config.get("attn_logit_softcapping")
    note = Diagnostic(
        "llm-score-cap",
        f"scores of attention are not capped at {cap}, as MNN's attention cannot: far smaller ones do not change",
    )
    return basic(
        config, windows=windows(config, pattern), sandwich=True, norm_offset=1.0,
        embedding_scale=float(config["hidden_size"]) ** 0.5,
        score_scale=float(config.get("query_pre_attn_scalar") or SIZE) ** -0.5,
        logit_cap=float(config.get("final_logit_softcapping") or 0), notes=(note,) if cap else (), **special,
    )  # fmt: skip
