"""DynamicQuantizeLSTM against onnxruntime.

Weights are unsigned, since sums of mixed products may saturate in onnxruntime.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx_cases import check, refusal

HIDDEN = 8


def operands(directions: int, inputs: int = 5, columns: bool = False) -> dict[str, np.ndarray]:
    random = np.random.default_rng(directions)
    width = (directions, 4 * HIDDEN) if columns else (directions,)
    arrays = {"zw": np.zeros(width, np.uint8) + np.uint8(131), "zr": np.zeros(width, np.uint8) + np.uint8(125)}
    for name, rows in (("w", inputs), ("r", HIDDEN)):
        arrays[name] = random.integers(0, 256, (directions, rows, 4 * HIDDEN), np.uint8)
        arrays["s" + name] = random.uniform(0.002, 0.004, width).astype(np.float32)
    return arrays | {"b": random.standard_normal((directions, 8 * HIDDEN)).astype(np.float32)}


def lstm(attributes: str, rest: str = ', "", "", "", ""', shape: str = "7,3,5") -> str:
    return f"""(float[{shape}] x) => (float[s,d,n,h] y, float[d,n,h] yh, float[d,n,h] yc) {{
        y, yh, yc = com.microsoft.DynamicQuantizeLSTM <hidden_size = {HIDDEN}, {attributes}>
            (x, w, r, b{rest}, sw, zw, sr, zr) }}"""


def sample(*shape: int, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("steps", [1, 7])
def test_directions(direction, steps):
    count = 2 if direction == "bidirectional" else 1
    text = lstm(f'direction = "{direction}"', shape=f"{steps},3,5")
    check(text, operands(count) | {"x": sample(steps, 3, 5)}, domains=["com.microsoft"], rtol=1e-5)


@pytest.mark.parametrize("steps", [2, 5])
def test_open_sizes_and_given_states(steps):
    states = {"h0": 0.5 * sample(2, 3, HIDDEN), "c0": sample(2, 3, HIDDEN, seed=4)}
    text = lstm('direction = "bidirectional"', ', "", h0, c0, ""', shape="t,n,5")
    check(text, operands(2) | states | {"x": sample(steps, 3, 5)}, domains=["com.microsoft"], rtol=1e-5)


def test_scales_per_column():
    check(lstm('direction = "forward"'), operands(1, columns=True) | {"x": sample(7, 3, 5)}, domains=["com.microsoft"],
          rtol=1e-5)  # fmt: skip


def test_lengths_are_refused():
    text = lstm('direction = "forward"', ', lengths, "", "", ""')
    arrays = operands(1) | {"lengths": np.array([7, 6, 5], np.int32)}
    assert "lengths" in refusal(text, arrays, domains=["com.microsoft"])[0].message
