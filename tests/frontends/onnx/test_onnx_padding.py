"""Import of Pad and CenterCropPad against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_cases import check, refusal

ALL_MODES = ["constant", "reflect", "edge", "wrap"]


def noise(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def ints(*values):
    return np.array(values, np.int64)


@pytest.mark.parametrize("pads", [(1, 0, 0, 0, 1, 1), (0, 1, 2, 1, 0, 3), (0, 0, -1, 0, 0, 1), (0, -1, 2, 0, 1, -2)])
@pytest.mark.parametrize("mode", ALL_MODES)
def test_modes(mode, pads):
    text = f'(float[2,4,5] x) => (float[a,b,c] y) {{ y = Pad <mode="{mode}"> (x, pads) }}'
    check(text, {"x": noise(2, 4, 5), "pads": ints(*pads)}, opset=19, rtol=0)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_open_sizes(mode):
    text = f'(float[n,c,s] x) => (float[a,b,d] y) {{ y = Pad <mode="{mode}"> (x, pads) }}'
    for shape in ((2, 4, 5), (3, 3, 7)):
        check(text, {"x": noise(*shape), "pads": ints(0, 1, 2, 1, 0, 1)}, opset=18, rtol=0)


@pytest.mark.parametrize("value", [0.5, -3.0])
def test_value_and_axes(value):
    text = "(float[2,3,4] x) => (float[a,b,c] y) <int64[2] axes = {-1, 0}> { y = Pad(x, pads, v, axes) }"
    check(text, {"x": noise(2, 3, 4), "pads": ints(1, 0, 2, 1), "v": np.float32(value)}, opset=18, rtol=0)


def test_wrap_on_one_axis():
    text = '(float[2,5] x) => (float[2,8] y) <int64[1] axes = {-1}> { y = Pad <mode="wrap"> (x, pads, "", axes) }'
    check(text, {"x": noise(2, 5), "pads": ints(2, 1)}, opset=19, rtol=0)


@pytest.mark.parametrize("kind", ["int64", "int32", "uint8"])
def test_integers(kind):
    text = f"({kind}[2,3] x) => ({kind}[a,b] y) {{ y = Pad(x, pads, v) }}"
    arrays = {"x": np.arange(6).reshape(2, 3).astype(kind), "pads": ints(1, 0, 0, 2), "v": np.array(7, kind)}
    check(text, arrays, opset=18, rtol=0)


def test_amounts_that_are_fed():
    text = "(float[2,3] x, int64[4] pads) => (float[a,b] y) { y = Pad(x, pads) }"
    for pads in ((0, 0, 0, 0), (1, 2, 0, 3), (0, -1, 1, 0)):
        check(text, {"x": noise(2, 3), "pads": ints(*pads)}, opset=18, rtol=0)


def test_value_that_is_fed():
    text = "(float[2,3] x, float v) => (float[a,b] y) { y = Pad(x, pads, v) }"
    check(text, {"x": noise(2, 3), "v": np.float32(0.25), "pads": ints(1, 0, 0, 1)}, opset=18, rtol=0)


def test_opset_2_has_attributes():
    text = '(float[2,3] x) => (float[a,b] y) { y = Pad <pads=[0, 1, 1, 0], value=2.5, mode="constant"> (x) }'
    check(text, {"x": noise(2, 3)}, opset=2, rtol=0)


def test_reflecting_too_much_is_refused_with_the_largest_amount():
    text = '(float[3,4] x) => (float[6,4] y) <int64[4] pads = {3, 0, 0, 0}> { y = Pad <mode="reflect"> (x, pads) }'
    (problem,) = refusal(text, opset=13)
    assert "Pad" in problem.message and "axis 0" in problem.message and "largest amount is 2" in problem.message


def test_wrap_of_open_sizes_is_refused():
    text = '(float[n,4] x) => (float[m,4] y) <int64[4] pads = {1, 0, 0, 0}> { y = Pad <mode="wrap"> (x, pads) }'
    (problem,) = refusal(text, opset=19)
    assert "wrap" in problem.message


@pytest.mark.parametrize(("shape", "axes"), [((5, 8), (0, 1)), ((9, 3), (0, 1)), ((4,), (-1,)), ((8, 8), (1, 0))])
def test_center_crop_pad(shape, axes):
    x, want = noise(6, 5), noise(6, 5)
    for size, axis in zip(shape, axes, strict=True):
        have = want.shape[axis]
        before = abs(size - have) // 2
        grow = [(0, 0), (0, 0)]
        grow[axis] = (before, size - have - before)
        want = np.pad(want, grow) if size > have else np.take(want, range(before, before + size), axis)
    text = f"(float[6,5] x) => (float[a,b] y) {{ y = CenterCropPad <axes={list(axes)}> (x, s) }}"
    check(text, {"x": x, "s": ints(*shape)}, opset=18, rtol=0, want={"y": want})


@pytest.mark.parametrize("mode", ["constant", "edge"])
def test_amounts_that_are_fed_for_integers(mode):
    text = f'(int64[2,3] x, int64[4] pads) => (int64[a,b] y) {{ y = Pad <mode="{mode}"> (x, pads) }}'
    check(text, {"x": np.arange(6).reshape(2, 3), "pads": ints(1, 0, 0, 2)}, opset=18, rtol=0)
