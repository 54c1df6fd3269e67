"""Joins, splits, slices and masks of ONNX against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_cases import check, refusal

X = np.arange(4 * 8 * 6, dtype=np.float32).reshape(4, 8, 6)
FAR = 2**63 - 1


def test_concat_with_empty_and_negative_axis(rng):
    a, c = rng.random((2, 3), np.float32), rng.random((2, 1), np.float32)
    check("(float[2,3] a, float[2,1] c) => (float y) { y = Concat <axis=-1> (a, c, a) }", {"a": a, "c": c}, rtol=0)
    arrays = {"a": np.zeros((0, 3), np.float32), "c": rng.random((2, 3), np.float32)}
    check("(float[n,3] a, float[2,3] c) => (float y) { y = Concat <axis=0> (a, c) }", arrays, rtol=0)


@pytest.mark.parametrize(("text", "opset"), [
    ("a, b, c = Split <axis=1, num_outputs=3> (x)", 18),
    ("a, b, c = Split <axis=-1> (x)", 13),
    ("a, b, c = Split <axis=1, split=[1,5,2]> (x)", 11),
    ("a, b, c = Split <axis=1> (x, s)", 13),
    ("a, b, c = Split <axis=1> (x, z)", 13),
    ("a, b, c = Split <axis=1> (x, d)", 13),
])  # fmt: skip
@pytest.mark.parametrize("shape", ["4,8,6", "n,m,6"])
def test_split(text, opset, shape):
    arrays = {"x": X, "s": np.array([3, 4, 1]), "z": np.array([8, 0, 0]), "d": np.array([2, 2, 4])}
    inputs = f"(float[{shape}] x{', int64[3] d' if ', d)' in text else ''})"
    used = {k: v for k, v in arrays.items() if k == "x" or f", {k})" in text}
    check(f"{inputs} => (float a, float b, float c) {{ {text} }}", used, opset=opset, rtol=0)


@pytest.mark.parametrize(("starts", "ends", "axes", "steps"), [
    ([1, 0], [3, FAR], [0, 2], [1, 2]),
    ([-1], [-FAR - 1], [-2], [-3]),
    ([5], [0], [1], [-1]),
    ([-3], [FAR], [1], [1]),
    ([0], [-2], [1], [2]),
    ([9], [3], [1], [-2]),
    ([3], [3], [1], [1]),
])  # fmt: skip
@pytest.mark.parametrize("shape", ["4,8,6", "n,m,6"])
def test_slice(starts, ends, axes, steps, shape):
    arrays = {"x": X, "s": np.array(starts), "e": np.array(ends), "a": np.array(axes), "t": np.array(steps)}
    check(f"(float[{shape}] x) => (float y) {{ y = Slice(x, s, e, a, t) }}", arrays, rtol=0)


@pytest.mark.parametrize("end", [0, 4, 99, -1])
def test_slice_end_known_at_run_time(end):
    arrays = {"x": X, "s": np.array([0]), "a": np.array([1]), "e": np.array([end])}
    check("(float[4,8,6] x, int64[1] e) => (float y) { y = Slice(x, s, e, a) }", arrays, rtol=0)


def test_slice_of_opset_one_and_without_axes():
    check(
        "(float[4,8,6] x) => (float y) { y = Slice <starts=[1,-4], ends=[9,-1], axes=[0,1]> (x) }",
        {"x": X},
        opset=9,
        rtol=0,
    )
    check(
        "(float[4,8,6] x) => (float y) { y = Slice(x, s, e) }",
        {"x": X, "s": np.array([1, 2]), "e": np.array([3, 9])},
        rtol=0,
    )
    arrays = {"x": X, "s": np.array([1, 2]), "e": np.array([3, 9]), "t": np.array([1, 2])}
    check('(float[4,8,6] x) => (float y) { y = Slice(x, s, e, "", t) }'.replace('""', ""), arrays, rtol=0)


@pytest.mark.parametrize("shape", [[2, 3, 4], [1], [3, 1], [1, 1, 1, 4]])
def test_expand(shape, rng):
    x = rng.random((3, 1), np.float32)
    check("(float[3,1] x) => (float y) { y = Expand(x, s) }", {"x": x, "s": np.array(shape)}, rtol=0)
    check("(float[n,1] x, int64[k] s) => (float y) { y = Expand(x, s) }", {"x": x, "s": np.array(shape)}, rtol=0)


def test_expand_to_the_shape_of_another(rng):
    arrays = {"x": rng.random((1, 3), np.float32), "z": rng.random((5, 3), np.float32)}
    check("(float[1,m] x, float[n,m] z) => (float y) { s = Shape(z) y = Expand(x, s) }", arrays, rtol=0)


def test_tile(rng):
    check("(float[2,3] x) => (float y) { y = Tile(x, r) }", {"x": X[0, :2, :3], "r": np.array([2, 3])}, rtol=0)
    check(
        "(float[n,3] x, int64[2] r) => (float y) { y = Tile(x, r) }", {"x": X[0, :2, :3], "r": np.array([2, 0])}, rtol=0
    )


@pytest.mark.parametrize("k", [None, 0, 2, -1, -9, 9])
@pytest.mark.parametrize("upper", [0, 1])
def test_trilu(k, upper):
    arrays = {"x": X} if k is None else {"x": X, "k": np.array(k)}
    text = f"y = Trilu <upper={upper}> (x{'' if k is None else ', k'})"
    check(f"(float[n,8,m] x) => (float y) {{ {text} }}", arrays, rtol=0)


@pytest.mark.parametrize(("batch", "time"), [(1, 0), (0, 1)])
def test_reverse_sequence(batch, time):
    lengths = np.array([1, 0, 3, 4, 2, 4, 1, 1][: 8 if batch else 4])
    text = f"y = ReverseSequence <batch_axis={batch}, time_axis={time}> (x, l)"
    want = X.copy()
    for i, length in enumerate(lengths):
        at = (slice(0, length), i) if batch else (i, slice(0, length))
        want[at] = X[at][::-1]
    check(f"(float[4,8,6] x, int64[k] l) => (float y) {{ {text} }}", {"x": X, "l": lengths}, rtol=0, want={"y": want})


def test_parts_that_do_not_fit_are_refused():
    found = refusal("(float[2,5] x) => (float a, float b) { a, b = Split <axis=1> (x, s) }", {"s": np.array([2, 2])})
    assert found[0].reference == "shape-mismatch"
