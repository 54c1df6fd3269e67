"""A 1x1 convolution with the depthwise one after it: to the bit what the two kernels make one after the other."""

from __future__ import annotations

import numpy as np
import pytest
from blocked import blocked_shape, to_blocked
from kernels import both, guarded

from mnnconvert.ops.convolution import Convolution
from mnnconvert.runtime_ref.cpu import library
from mnnconvert.runtime_ref.windows import Window, window_of

pytestmark = pytest.mark.skipif(not library.runnable_levels(), reason="no compiled kernels")

IDENTITY, CLIP, SILU = 0, 1, 3


def pack(lib, name, size, w, **params):
    packed = np.full(size, np.nan, np.float32)
    lib.call(name, w=guarded(w), packed=packed, kernel_h=w.shape[2], kernel_w=w.shape[3], **params)
    return guarded(packed)


def check(lib, rng, shape, channels, kernel=(3, 3), activations=(CLIP, IDENTITY), biases=True, **attributes):
    n, inputs, h, width = shape
    op = Convolution(group=channels, **attributes)
    between = (n, channels, h, width)
    out = (n, channels, *(op._out(i, shape[i + 2], kernel[i]) for i in (0, 1)))
    w = rng.standard_normal((channels, inputs, 1, 1), dtype=np.float32)
    taps = rng.standard_normal((channels, 1, *kernel), dtype=np.float32)
    whole = -(-channels // lib.lanes) * lib.lanes
    after = window_of(op, between, taps.shape, out).params
    x = guarded(to_blocked(rng.standard_normal(shape, dtype=np.float32), lib.lanes))
    bias, taps_bias = (guarded(rng.standard_normal(channels, dtype=np.float32)) if biases else None for _ in range(2))
    w = pack(lib, "conv_pack", whole * inputs, w, outputs=channels, inputs=inputs, group=1, plain_x=0)
    taps = pack(lib, "depthwise_pack", whole * kernel[0] * kernel[1], taps, channels=channels)
    first, last = (dict(zip(("activation", "low", "high"), (a, -0.5, 1.5), strict=True)) for a in activations)
    middle = both(
        lib, "conv_f32", blocked_shape(between, lib.lanes), x=x, w=w, bias=bias, residual=None, n=n, inputs=inputs,
        outputs=channels, group=1, plain_x=0, plain_y=0, **first,
        **Window(h, width, h, width, 1, 1, 1, 1, 1, 1, 0, 0).params,
    )  # fmt: skip
    want = both(
        lib, "depthwise_f32", blocked_shape(out, lib.lanes), x=middle, w=taps, bias=taps_bias, residual=None, n=n,
        channels=channels, **last, **after,
    )  # fmt: skip
    got = both(
        lib, "expand_depthwise_f32", blocked_shape(out, lib.lanes), x=x, w=w, bias=bias, taps=taps, taps_bias=taps_bias,
        n=n, inputs=inputs, channels=channels, inner=first["activation"], inner_low=-0.5, inner_high=1.5, **last,
        **after,
    )  # fmt: skip
    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("kernel", [(3, 3), (5, 5), (7, 2), (1, 1)])
@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (3, 1)])
def test_kernels(lib, rng, kernel, strides):
    pads = (kernel[0] // 2, kernel[1] // 2) * 2
    for shape, channels in (((1, 16, 70, 61), 24), ((2, 17, 5, 9), 40), ((1, 24, 1, 3), 8)):
        check(lib, rng, shape, channels, kernel, pads=pads, strides=strides)


def test_strips_of_wide_maps(lib, rng):
    """A strip is one row of results where the rows between are long."""
    check(lib, rng, (1, 16, 9, 2100), 17, pads=(1, 1, 1, 1))
    check(lib, rng, (1, 16, 9, 2100), 17, pads=(0, 0, 1, 1), strides=(2, 2))


@pytest.mark.parametrize("inputs", [16, 31, 256])
def test_sums(lib, rng, inputs):
    check(lib, rng, (1, inputs, 12, 13), 33, pads=(1, 1, 1, 1))


@pytest.mark.parametrize("activations", [(IDENTITY, CLIP), (SILU, SILU), (CLIP, CLIP)])
def test_activations(lib, rng, activations):
    for biases in (False, True):
        check(lib, rng, (1, 16, 33, 30), 48, activations=activations, biases=biases, pads=(1, 1, 1, 1))


def test_more_padding_than_image(lib, rng):
    """Some results see no row of the image at all."""
    check(lib, rng, (1, 16, 2, 3), 16, pads=(6, 6, 6, 6))
    check(lib, rng, (1, 16, 2, 3), 16, pads=(6, 6, 6, 6), dilations=(3, 2), strides=(2, 2))
