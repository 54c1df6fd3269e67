"""Scatters of ONNX with every reduction, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_cases import check

REDUCTIONS = ["none", "add", "mul", "max", "min"]


def _indices(reduction: str) -> np.ndarray:
    """Repeats only where the result does not depend on the order."""
    return np.array([[0, 2, -1], [1, -3, -4]]) if reduction == "none" else np.array([[0, 2, 0], [1, -3, 1]])


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("shape", ["4,4", "n,m"])
def test_scatter_elements(reduction, axis, shape, rng):
    arrays = {"x": rng.random((4, 4), np.float32), "i": _indices(reduction), "u": rng.random((2, 3), np.float32) + 0.5}
    text = f'y = ScatterElements <axis={axis}, reduction="{reduction}"> (x, i, u)'
    check(f"(float[{shape}] x, float[2,3] u) => (float y) {{ {text} }}", arrays, opset=18, rtol=1e-6)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(
    ("indices", "updates"), [([[1], [3], [-3]], (3, 3, 2)), ([[[0, 1]], [[-1, -1]]], (2, 1, 2)), ([[2, 1, 0]], (1,))]
)
@pytest.mark.parametrize("shape", ["4,3,2", "n,m,k"])
def test_scatter_nd(reduction, indices, updates, shape, rng):
    if reduction == "none":
        indices = np.unique(np.array(indices) % [4, 3, 2][: np.shape(indices)[-1]], axis=0)
        updates = (*indices.shape[:-1], *updates[np.ndim(indices) - 1 :])
    arrays = {"x": rng.random((4, 3, 2), np.float32), "i": np.array(indices), "u": rng.random(updates, np.float32)}
    inputs = f"(float[{shape}] x, float[{','.join(map(str, updates))}] u)"
    check(f'{inputs} => (float y) {{ y = ScatterND <reduction="{reduction}"> (x, i, u) }}', arrays, opset=18, rtol=1e-6)


@pytest.mark.parametrize("reduction", ["max", "min"])
def test_integers_and_indices_known_at_run_time(reduction):
    arrays = {
        "x": np.array([5, -5, 7, 2**30 + 1]),
        "i": np.array([[0], [0], [-1], [1]]),
        "u": np.array([9, -9, 2**30, -6]),
    }
    text = f'y = ScatterND <reduction="{reduction}"> (x, i, u)'
    check(f"(int64[4] x, int64[4,1] i, int64[4] u) => (int64 y) {{ {text} }}", arrays, opset=18, rtol=0)


def test_scatter_of_opset_nine_and_narrow_types(rng):
    arrays = {"x": np.zeros((3, 3), np.float32), "i": np.array([[1, 0, 2]]), "u": rng.random((1, 3), np.float32)}
    check("(float[3,3] x, float[1,3] u) => (float y) { y = Scatter <axis=0> (x, i, u) }", arrays, opset=9, rtol=0)
    arrays = {"x": np.zeros(4, np.uint8), "i": np.array([1, -1]), "u": np.array([200, 7], np.uint8)}
    check("(uint8[4] x, uint8[2] u) => (uint8 y) { y = ScatterElements(x, i, u) }", arrays, rtol=0)


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_tensor_scatter(mode, rng):
    past, update = rng.random((2, 1, 4, 3), np.float32), rng.random((2, 1, 2, 3), np.float32)
    first = np.array([1, 3 if mode == "circular" else 2])
    want = past.copy()
    for i in range(2):
        for t in range(2):
            want[i, :, (first[i] + t) % 4] = update[i, :, t]
    text = f'y = TensorScatter <mode="{mode}"> (p, u, f)'
    check(f"(float[b,1,4,3] p, float[b,1,t,3] u, int64[b] f) => (float y) {{ {text} }}",
          {"p": past, "u": update, "f": first}, opset=24, rtol=0, want={"y": want})  # fmt: skip
