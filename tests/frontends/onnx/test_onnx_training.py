"""Steps of optimizers against their formulas."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_cases import check

DOMAIN = "ai.onnx.preview.training"
HEAD = "float r, int64 t, float[3] x, float[2] z, float[3] g, float[2] f, float[3] v, float[2] u"


@pytest.fixture
def arrays(rng):
    sizes = {"x": 3, "z": 2, "g": 3, "f": 2, "v": 3, "u": 2, "h": 3, "k": 2}
    return {name: rng.uniform(0.1, 1, size).astype("f") for name, size in sizes.items()}


@pytest.mark.parametrize("step", [0, 3])
@pytest.mark.parametrize("mode", ["standard", "nesterov"])
def test_momentum_of_two_tensors(arrays, step, mode):
    text = f"""({HEAD}) => (float[3] xn, float[2] zn, float[3] vn, float[2] un) {{ xn, zn, vn, un = {DOMAIN}.Momentum
               <alpha=0.9, beta=0.7, norm_coefficient=0.1, mode="{mode}"> (r, t, x, z, g, f, v, u) }}"""
    want, rate = {}, np.float32(0.2)
    for x, g, v in ("xgv", "zfu"):
        gradient = arrays[g] + 0.1 * arrays[x]
        new = 0.9 * arrays[v] + (0.7 if step else 1) * gradient
        want[f"{v}n"] = new.astype("f")
        want[f"{x}n"] = (arrays[x] - rate * (new if mode == "standard" else gradient + 0.9 * new)).astype("f")
    feeds = {k: arrays[k] for k in "xzgfvu"} | {"r": rate, "t": np.int64(step)}
    check(text, feeds, domains=(DOMAIN,), rtol=1e-6, want=want)


def test_adagrad(arrays):
    x, g, h = (arrays[k] for k in "xgh")
    new = h + (g + 0.5 * x) ** 2
    want = {"xn": x - 0.2 / (1 + 4 * 0.1) * (g + 0.5 * x) / (np.sqrt(new) + 0.01), "hn": new}
    text = f"""(float r, int64 t, float[3] x, float[3] g, float[3] h) => (float[3] xn, float[3] hn)
               {{ xn, hn = {DOMAIN}.Adagrad <decay_factor=0.1, norm_coefficient=0.5, epsilon=0.01> (r, t, x, g, h) }}"""
    feeds = {"r": np.float32(0.2), "t": np.int64(4), "x": x, "g": g, "h": h}
    check(text, feeds, domains=(DOMAIN,), rtol=1e-6, want={k: v.astype("f") for k, v in want.items()})


@pytest.mark.parametrize("step", [0, 5])
def test_adam(arrays, step):
    x, g, v, h = (arrays[k] for k in "xgvh")
    vn, hn = 0.8 * v + 0.2 * g, 0.9 * h + 0.1 * g * g
    rate = 0.2 * np.sqrt(1 - 0.9**step) / (1 - 0.8**step) if step else 0.2
    want = {"xn": 0.5 * (x - rate * vn / (np.sqrt(hn) + 0.01)), "vn": vn, "hn": hn}
    text = f"""(float r, int64 t, float[3] x, float[3] g, float[3] v, float[3] h)
               => (float[3] xn, float[3] vn, float[3] hn) {{ xn, vn, hn = {DOMAIN}.Adam
                  <alpha=0.8, beta=0.9, epsilon=0.01, norm_coefficient_post=0.5>
                  (r, t, x, g, v, h) }}"""
    feeds = {"r": np.float32(0.2), "t": np.int64(step), "x": x, "g": g, "v": v, "h": h}
    check(text, feeds, domains=(DOMAIN,), rtol=1e-5, want={k: a.astype("f") for k, a in want.items()})
