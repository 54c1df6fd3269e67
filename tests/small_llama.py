"""A decoder of two layers with random weights, for tests of what compresses one."""

import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import quality_models

SIZES = quality_models.Llama(layers=2, width=64, heads=4, groups=2, base=1e4, epsilon=1e-5)
ROWS = {"attn_q": 64, "attn_k": 32, "attn_v": 32, "attn_output": 64, "ffn_gate": 96, "ffn_up": 96, "ffn_down": 64}


def llama_weight(name):
    """Random weights, gains with outliers, from the name alone."""
    random, kind = np.random.default_rng(sum(name.encode())), name.split(".")[-1]
    if kind.endswith("norm"):
        return np.exp(random.standard_normal(64)).astype(np.float32)
    columns = 96 if kind == "ffn_down" else 64
    return (random.standard_normal((ROWS[kind], columns)) / np.sqrt(columns)).astype(np.float32)


def write_llama(path, length):
    """The decoder as ONNX, for sequences of `length`."""
    quality_models.write_llama(path, SIZES, length, llama_weight)
