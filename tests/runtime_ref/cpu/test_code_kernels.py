"""Kernels on maps of 8-bit codes give the bits of the numpy definitions."""

from __future__ import annotations

import numpy as np
import pytest
from blocked import to_blocked
from kernels import both, guarded

from mnnconvert.ops.base import OPS
from mnnconvert.ops.integer import ConvInt8
from mnnconvert.ops.quantization import FloatToInt8, Int8ToFloat
from mnnconvert.runtime_ref import memory
from mnnconvert.runtime_ref.cpu import library

pytestmark = pytest.mark.skipif(not library.runnable_levels(), reason="no compiled kernels")

SAME, PLAIN, BLOCKED = 0, 1, 2


def padded(channels, lib):
    return -(-channels // lib.lanes) * lib.lanes


def to_last(x, lib):
    """[N,C,H,W] with its channels last, in whole vectors; what is beyond C is noise."""
    n, c, *sizes = x.shape
    y = np.random.default_rng(9).integers(-128, 128, (n, *sizes, padded(c, lib))).astype(np.int8)
    y[..., :c] = np.moveaxis(x, 1, -1)
    return y


def from_last(y, channels):
    return np.moveaxis(y[..., :channels], -1, 1)


def codes(rng, *shape):
    """Codes of the whole range, many of them extreme."""
    x = rng.integers(-128, 128, shape)
    return np.where(rng.random(shape) < 0.2, rng.choice([-128, 127], shape), x).astype(np.int8)


def window(op, x, w):
    out = [op.window._out(i, x.shape[i + 2], w.shape[i + 2]) for i in (0, 1)]
    return {
        "h": x.shape[2], "width": x.shape[3], "out_h": out[0], "out_w": out[1], "kernel_h": w.shape[2],
        "kernel_w": w.shape[3], "stride_h": op.strides[0], "stride_w": op.strides[1], "dilation_h": op.dilations[0],
        "dilation_w": op.dilations[1], "top": op.pads[0], "left": op.pads[1], "zero": op.zero, "lowest": op.low,
        "highest": op.high,
    }  # fmt: skip


def check_conv(lib, rng, x_shape, w_shape, shifted=True, positive=False, **attributes):
    op = ConvInt8(**attributes)
    x, w = codes(rng, *x_shape), codes(rng, *w_shape)
    x = np.abs(np.maximum(x, -127)) if positive else x
    outputs, (_, per_group, kernel_h, kernel_w) = w_shape[0], w_shape
    start = rng.integers(-5000, 5000, outputs).astype(np.int32)
    scale = (rng.uniform(0.2, 1.5, outputs) / (300 * (per_group * kernel_h * kernel_w) ** 0.5)).astype(np.float32)
    shift = rng.uniform(-20, 20, outputs).astype(np.float32) if shifted else None
    depthwise = op.group > 1
    numbers = np.zeros((3, padded(outputs, lib)), np.float32)
    kind = "depthwise_codes" if depthwise else "conv_codes"
    size = padded(outputs, lib) * (4 if depthwise else 2 * -(-per_group // 4) * 4) * kernel_h * kernel_w
    packed = memory.aligned((size,), np.uint8)
    named = {"channels": outputs} if depthwise else {"inputs": per_group, "outputs": outputs, "positive": positive}
    lib.call(f"{kind}_pack", w=guarded(w), start=guarded(start), scale=guarded(scale),
             shift=None if shift is None else guarded(shift), packed=packed, numbers=numbers, kernel_h=kernel_h,
             kernel_w=kernel_w, **named)  # fmt: skip
    sizes = window(op, x, w)
    y = both(lib, kind, (x.shape[0], sizes["out_h"], sizes["out_w"], padded(outputs, lib)), np.int8,
             x=guarded(to_last(x, lib)), w=packed, numbers=guarded(numbers), n=len(x), **named, **sizes)  # fmt: skip
    want = op.ref(x, w, start, scale, *([] if shift is None else [shift]))
    assert len(np.unique(want)) > 10 or want.size < 100
    np.testing.assert_array_equal(from_last(y, outputs), want)


@pytest.mark.parametrize("channels", [1, 3, 5, 17, 63])
@pytest.mark.parametrize("outputs", [1, 5, 17, 63])
def test_channels(lib, rng, channels, outputs):
    check_conv(lib, rng, (1, channels, 7, 9), (outputs, channels, 3, 3), pads=(1, 1, 1, 1), zero=7)
    check_conv(lib, rng, (2, channels, 5, 6), (outputs, channels, 1, 1), shifted=False)
    check_conv(lib, rng, (1, channels, 6, 7), (outputs, channels, 3, 2), positive=True, pads=(1, 0, 0, 1), zero=127)


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (5, 2), (1, 7), (7, 7)])
@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (3, 1)])
@pytest.mark.parametrize("dilations", [(1, 1), (2, 3)])
def test_windows(lib, rng, kernel, strides, dilations):
    for pads in ((0, 0, 0, 0), (2, 1, 0, 3)):
        steps = {"strides": strides, "dilations": dilations}
        check_conv(lib, rng, (1, 6, 15, 21), (9, 6, *kernel), pads=pads, zero=-128, low=-100, high=90, **steps)


@pytest.mark.parametrize("size", [(1, 1), (1, 17), (63, 1), (64, 63), (3, 400)])
def test_sizes(lib, rng, size):
    check_conv(lib, rng, (1, 4, *size), (8, 4, 3, 3), pads=(1, 1, 1, 1))
    check_conv(lib, rng, (2, 8, *size), (4, 8, 1, 1), strides=(2, 2))


def test_many_channels(lib, rng):
    check_conv(lib, rng, (1, 2050, 3, 5), (24, 2050, 1, 1))
    check_conv(lib, rng, (1, 600, 4, 90), (16, 600, 3, 3), pads=(1, 1, 1, 1), zero=127)


def test_extreme_codes(lib, rng):
    x, w = np.full((1, 64, 5, 5), -128, np.int8), np.full((8, 64, 3, 3), -128, np.int8)
    numbers, packed = (
        np.zeros((3, padded(8, lib)), np.float32),
        memory.aligned((padded(8, lib) * 2 * 64 * 9,), np.uint8),
    )
    start, scale = np.zeros(8, np.int32), np.full(8, 1e-5, np.float32)
    lib.call("conv_codes_pack", w=w, start=start, scale=scale, shift=None, packed=packed, numbers=numbers, inputs=64,
             outputs=8, kernel_h=3, kernel_w=3, positive=False)  # fmt: skip
    op = ConvInt8()
    y = both(lib, "conv_codes", (1, 3, 3, padded(8, lib)), np.int8, x=to_last(x, lib), w=packed, numbers=numbers, n=1,
             inputs=64, outputs=8, positive=False, **window(op, x, w))  # fmt: skip
    assert (from_last(y, 8) == round(128 * 128 * 64 * 9 * 1e-5)).all()


@pytest.mark.parametrize("kernel", [(3, 3), (5, 5), (1, 1), (2, 4), (7, 7)])
@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (1, 3)])
def test_depthwise(lib, rng, kernel, strides):
    for channels, size in ((1, (9, 1)), (5, (7, 7)), (17, (11, 33))):
        for pads, dilations in (((kernel[0] // 2, kernel[1] // 2) * 2, (1, 1)), ((3, 7, 4, 6), (2, 1))):
            check_conv(lib, rng, (2, channels, *size), (channels, 1, *kernel), group=max(channels, 2), strides=strides,
                       pads=pads, dilations=dilations, zero=-5) if channels > 1 else None  # fmt: skip


@pytest.mark.parametrize("function", ["MAXPOOL", "AVEPOOL"])
@pytest.mark.parametrize("kernel", [(2, 2), (3, 3), (1, 5), (7, 6)])
def test_pooling(lib, rng, function, kernel):
    for channels in (1, 5, 17, 63):
        for strides, pads in (((1, 1), (0, 0, 0, 0)), ((2, 3), (1, 2, 1, 2))):
            op = OPS["Pooling"](function, kernel, strides, pads)
            x = codes(rng, 2, channels, 7, 9)
            (kh, sh, top, out_h), (kw, sw, left, out_w) = op.window(0, 7), op.window(1, 9)
            shape = (2, out_h, out_w, padded(channels, lib))
            sizes = {"n": 2, "channels": channels, "h": 7, "width": 9, "out_h": out_h, "out_w": out_w, "kernel_h": kh,
                     "kernel_w": kw, "stride_h": sh, "stride_w": sw, "top": top, "left": left}  # fmt: skip
            y = both(lib, "pool_codes", shape, np.int8, x=guarded(to_last(x, lib)), mean=function == "AVEPOOL", **sizes)
            np.testing.assert_array_equal(from_last(y, channels), op.ref(x))


def halves(rng, *shape):
    """Floats of which many lie half way between two codes at a step of 1/8."""
    return (rng.integers(-1300, 1300, shape) / 16).astype(np.float32)


@pytest.mark.parametrize("channels", [1, 3, 5, 17, 63])
@pytest.mark.parametrize("pixels", [(1, 1), (3, 5), (17, 1), (7, 9), (21, 40)])
@pytest.mark.parametrize("layout", [SAME, PLAIN, BLOCKED])
def test_between_floats_and_codes(lib, rng, channels, pixels, layout):
    shape, count = (2, channels, *pixels), int(np.prod(pixels))
    x, q = halves(rng, *shape), codes(rng, *shape)
    x.reshape(2, -1)[:, 0] = np.nan, -np.inf
    stored = to_blocked(x, lib.lanes) if layout == BLOCKED else x
    last = shape if layout == SAME else (2, *pixels, padded(channels, lib))
    y = both(lib, "floats_to_codes", last, np.int8, x=guarded(stored), batch=2, channels=channels, pixels=count,
             layout=layout, lowest=-100, highest=120, factor=8.0, offset=-7.0)  # fmt: skip
    got = y if layout == SAME else from_last(y, channels)
    np.testing.assert_array_equal(got, FloatToInt8((8.0,), (-7.0,), -100, 120).ref(x))

    back = both(lib, "codes_to_floats", stored.shape, np.float32, x=guarded(q if layout == SAME else to_last(q, lib)),
                batch=2, channels=channels, pixels=count, layout=layout, factor=0.3, zero=-7.0)  # fmt: skip
    want = Int8ToFloat((0.3,), (-7.0,)).ref(q)
    if layout == BLOCKED:
        filled = padded(channels, lib)
        back = np.moveaxis(back, -1, 2).reshape(2, filled, *pixels)[:, :channels]
    np.testing.assert_array_equal(back, want)


@pytest.mark.parametrize("function", ["ADD", "SUB", "MUL"])
@pytest.mark.parametrize("count", [1, 5, 17, 63, 70000])
def test_arithmetic(lib, rng, function, count):
    a, b = codes(rng, count), codes(rng, count)
    for low in (-np.inf, 0.0):
        y = both(lib, "binary_codes", (count,), np.int8, x0=guarded(a), x1=guarded(b), count=count,
                 function=["ADD", "SUB", "MUL"].index(function), lowest=-128, highest=127, scale0=0.25, zero0=3.0,
                 scale1=0.1, zero1=-8.0, low=low, factor=5.0, offset=-2.0)  # fmt: skip
        values = Int8ToFloat((0.25,), (3.0,)).ref(a), Int8ToFloat((0.1,), (-8.0,)).ref(b)
        both_ = OPS["Binary"](function, activation=int(low == 0)).ref(*values)
        np.testing.assert_array_equal(y, FloatToInt8((5.0,), (-2.0,)).ref(both_))
