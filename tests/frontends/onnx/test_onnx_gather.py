"""Picking by index and by condition: ONNX against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_cases import check

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("indices", [[0, 1, -1], [[1], [-2]], -1, [-2], 1])
@pytest.mark.parametrize("shape", ["2,3,4", "a,b,c"])
def test_gather(axis, indices, shape):
    text = f"(float[{shape}] x) => (float y) {{ y = Gather <axis={axis}> (x, i) }}"
    check(text, {"x": X, "i": np.array(indices)}, rtol=0)


def test_gather_with_fed_indices_of_other_types():
    check(
        "(uint8[3,4] x, int32 i) => (uint8 y) { y = Gather(x, i) }",
        {"x": X[0].astype(np.uint8), "i": np.int32(-2)},
        rtol=0,
    )
    check(
        "(bool[3] x, int64[2] i) => (bool y) { y = Gather(x, i) }",
        {"x": np.array([True, False, True]), "i": np.array([2, 1])},
        rtol=0,
    )


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_elements(axis):
    indices = np.array([[[0, 1, -1, -2]]] * 2).reshape(2, 1, 4)
    check(
        f"(float[2,3,4] x) => (float y) {{ y = GatherElements <axis={axis}> (x, i) }}", {"x": X, "i": indices}, rtol=0
    )


def test_gather_elements_of_unknown_rank():
    text = """(float[a,b] x, int64[r] shape, int64[n,m] i) => (float y) {
        t = Reshape(x, shape)
        y = GatherElements <axis=1> (t, i)
    }"""
    check(text, {"x": X[0], "shape": np.array([2, 6]), "i": np.array([[5, 0], [1, -1]])}, rtol=0)


@pytest.mark.parametrize(("batch", "indices"), [
    (0, [[0, 2], [1, -1]]), (0, [[[1]], [[-1]]]), (0, [[1, 2, 3]]),
    (1, [[2], [-1]]), (1, [[[1, 1]], [[2, 0]]]), (2, [[[1], [0], [3]], [[2], [-2], [0]]]),
])  # fmt: skip
@pytest.mark.parametrize("shape", ["2,3,4", "a,b,c"])
def test_gather_nd(batch, indices, shape):
    text = f"(float[{shape}] x) => (float y) {{ y = GatherND <batch_dims={batch}> (x, i) }}"
    check(text, {"x": X, "i": np.array(indices)}, rtol=0)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_one_hot_counts_from_the_end_and_ignores_the_rest(axis):
    arrays = {"i": np.array([[0, 4, -1], [2, 7, -9]]), "d": np.array([5]), "v": np.array([-1, 2], np.float32)}
    check(f"(int64[2,3] i) => (float y) {{ y = OneHot <axis={axis}> (i, d, v) }}", arrays, rtol=0)


def test_one_hot_types_and_scalar():
    arrays = {"i": np.array([1.0, 3.0], np.float32), "d": np.float32(4), "v": np.array([0, 1], np.int64)}
    want = {"y": np.array([[0, 1, 0, 0], [0, 0, 0, 1]])}
    check("(float[2] i) => (int64 y) { y = OneHot(i, d, v) }", arrays, rtol=0, want=want)
    arrays = {"i": np.array(2), "d": np.array(3), "v": np.array([7, 1], np.int32)}
    want = {"y": np.array([7, 7, 1], np.int32)}
    check("(int64 i, int64 d) => (int32 y) { y = OneHot(i, d, v) }", arrays, rtol=0, want=want)


@pytest.mark.parametrize(
    ("kind", "dtype"), [("float", np.float32), ("bool", np.bool_), ("int64", np.int64), ("uint8", np.uint8)]
)
def test_non_zero(kind, dtype):
    x = np.array([[0, 1, 0, 2], [0, 0, 0, 0], [3, 0, 0, 4]]).astype(dtype)
    check(f"({kind}[n,4] x) => (int64 y) {{ y = NonZero(x) }}", {"x": x}, rtol=0)


def test_non_zero_of_a_scalar_and_of_nothing():
    check("(float x) => (int64 y) { y = NonZero(x) }", {"x": np.float32(3)}, rtol=0)
    check("(float[3] x) => (int64 y) { y = NonZero(x) }", {"x": np.zeros(3, np.float32)}, rtol=0)


def test_non_zero_feeds_gather_nd():
    text = "(float[3,4] x) => (float y) { nz = NonZero(x) at = Transpose <perm=[1,0]> (nz) y = GatherND(x, at) }"
    check(text, {"x": X[0] % 3}, rtol=0)


@pytest.mark.parametrize("attribute", ["", "<axis=0>", "<axis=1>", "<axis=-1>"])
def test_compress(attribute):
    condition = np.array([False, True, True])
    check(
        f"(float[3,4] x, bool[3] c) => (float y) {{ y = Compress {attribute} (x, c) }}",
        {"x": X[0], "c": condition},
        rtol=0,
    )
