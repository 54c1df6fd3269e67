"""Convolution on blocked and plain maps against float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from blocked import blocked_shape, from_blocked, pack, to_blocked
from kernels import both, guarded

from mnnconvert.ops.convolution import Convolution
from mnnconvert.runtime_ref.cpu import library

pytestmark = pytest.mark.skipif(not library.runnable_levels(), reason="no compiled kernels")

IDENTITY, CLIP, SILU, LEAKY = 0, 1, 3, 8


def finish(y, activation, low, high):
    """The activation in float64."""
    if activation == CLIP:
        return np.clip(y, low, high)
    if activation == SILU:
        return y / (1 + np.exp(-y))
    return np.where(y < 0, y * low, y) if activation == LEAKY else y


def check(
    lib, rng, shape, outputs, kernel, op, activation=IDENTITY, plain=(False, False), extras=True, low=0.0, high=1.0
):
    """One convolution at one level; `plain` says whether x and y are."""
    x = rng.standard_normal(shape, dtype=np.float32)
    w = rng.standard_normal((outputs, shape[1] // op.group, *kernel), dtype=np.float32)
    bias = rng.standard_normal(outputs, dtype=np.float32)
    height, width = (op._out(i, shape[i + 2], kernel[i]) for i in (0, 1))
    y_shape = (shape[0], outputs, height, width)
    residual = rng.standard_normal(y_shape, dtype=np.float32)
    if not extras:
        bias, residual = np.zeros_like(bias), np.zeros_like(residual)
    sums = op.ref(x.astype(np.float64), w.astype(np.float64)) + bias.reshape(1, -1, 1, 1) + residual
    packed = pack(lib, guarded(w), op.group, plain[0])
    y = both(
        lib, "conv_f32", y_shape if plain[1] else blocked_shape(y_shape, lib.lanes),
        x=guarded(x if plain[0] else to_blocked(x, lib.lanes)), w=guarded(packed),
        bias=guarded(bias) if extras else None,
        residual=guarded(residual if plain[1] else to_blocked(residual, lib.lanes)) if extras else None,
        n=shape[0], inputs=shape[1], outputs=outputs, group=op.group, h=shape[2], width=shape[3], out_h=height,
        out_w=width, kernel_h=kernel[0], kernel_w=kernel[1], stride_h=op.strides[0], stride_w=op.strides[1],
        dilation_h=op.dilations[0], dilation_w=op.dilations[1], top=op.pads[0], left=op.pads[1], plain_x=plain[0],
        plain_y=plain[1], activation=activation, low=low, high=high,
    )  # fmt: skip
    got = y if plain[1] else from_blocked(y, outputs)
    want = finish(sums, activation, low, high)
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * np.abs(sums).max())


@pytest.mark.parametrize("plain", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("channels", [(1, 1), (3, 5), (17, 8), (8, 17), (63, 24), (16, 63), (32, 40)])
def test_pointwise(lib, rng, channels, plain):
    for size, strides in itertools.product([(1, 1), (1, 17), (7, 7), (5, 13)], [(1, 1), (2, 2)]):
        check(lib, rng, (2, channels[0], *size), channels[1], (1, 1), Convolution(strides=strides), plain=plain)


KERNELS = [
    ((3, 3), Convolution(pads=(1, 1, 1, 1))),
    ((3, 3), Convolution(pads=(1, 1, 1, 1), strides=(2, 2))),
    ((3, 3), Convolution(pads=(0, 1, 1, 0), strides=(2, 1))),
    ((3, 3), Convolution()),
    ((5, 3), Convolution(pads=(2, 4, 5, 1), dilations=(1, 2))),
    ((7, 7), Convolution(pads=(3, 3, 3, 3), strides=(2, 2))),
    ((1, 9), Convolution(pads=(0, 4, 0, 4))),
    ((2, 1), Convolution(pads=(1, 0, 3, 0), dilations=(3, 1))),
    ((1, 1), Convolution(pads=(1, 0, 2, 1), strides=(2, 3))),
]


@pytest.mark.parametrize("plain", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize(("kernel", "op"), KERNELS)
def test_windows(lib, rng, kernel, op, plain):
    for channels, size in itertools.product([(3, 8), (20, 17), (16, 32)], [(9, 9), (11, 23)]):
        check(lib, rng, (1, channels[0], *size), channels[1], kernel, op, plain=plain)


@pytest.mark.parametrize("activation", [IDENTITY, CLIP, SILU, LEAKY])
@pytest.mark.parametrize("plain_y", [False, True])
def test_activations(lib, rng, activation, plain_y):
    for extras in (True, False):
        op = Convolution(pads=(1, 1, 1, 1))
        check(lib, rng, (1, 19, 9, 8), 21, (3, 3), op, activation, (False, plain_y), extras, low=0.25, high=2.5)


@pytest.mark.parametrize(("group", "inputs", "outputs"), [(2, 32, 64), (4, 64, 64), (3, 48, 48)])
def test_groups_of_whole_blocks(lib, rng, group, inputs, outputs):
    op = Convolution(pads=(1, 1, 1, 1), group=group)
    check(lib, rng, (2, inputs, 6, 7), outputs, (3, 3), op)
    check(lib, rng, (2, inputs, 6, 7), outputs, (3, 3), op, plain=(True, False))


@pytest.mark.parametrize(("group", "inputs", "outputs"), [(2, 6, 10), (5, 15, 5), (3, 9, 60), (7, 7, 14)])
def test_odd_groups(lib, rng, group, inputs, outputs):
    op = Convolution(pads=(1, 1, 1, 1), group=group)
    check(lib, rng, (2, inputs, 6, 7), outputs, (3, 3), op, plain=(True, True))


LARGE = [  # several chunks and passes; a row wider than a chunk
    ((1, 320, 40, 41), 33, (1, 1), Convolution()),
    ((1, 150, 30, 31), 40, (3, 3), Convolution(pads=(1, 1, 1, 1))),
    ((1, 20, 12, 1500), 9, (5, 5), Convolution(pads=(2, 2, 2, 2))),
    ((1, 9, 3, 2100), 8, (1, 3), Convolution(strides=(1, 2))),
    ((1, 40, 24, 33), 17, (9, 9), Convolution(pads=(4, 4, 4, 4))),
    ((3, 4, 90, 91), 40, (7, 7), Convolution(pads=(3, 3, 3, 3), strides=(2, 2))),
]


@pytest.mark.parametrize("plain", [(False, False), (True, True)])
@pytest.mark.parametrize(("shape", "outputs", "kernel", "op"), LARGE)
def test_large(lib, rng, shape, outputs, kernel, op, plain):
    check(lib, rng, shape, outputs, kernel, op, plain=plain)


def test_nan_stays_and_padding_adds_nothing(lib, rng):
    """A NaN reaches the outputs whose window holds it, and no others."""
    x = rng.standard_normal((1, lib.lanes, 5, 6), dtype=np.float32)
    x[0, 1, 2, 3] = np.nan
    w = pack(lib, np.ones((lib.lanes, lib.lanes, 3, 3), np.float32), 1, False)
    y = both(
        lib, "conv_f32", (1, 1, 5, 6, lib.lanes), x=to_blocked(x, lib.lanes), w=w, n=1, inputs=lib.lanes,
        outputs=lib.lanes, group=1, h=5, width=6, out_h=5, out_w=6, kernel_h=3, kernel_w=3, stride_h=1, stride_w=1,
        dilation_h=1, dilation_w=1, top=1, left=1, plain_x=0, plain_y=0, activation=CLIP, low=0.0, high=np.inf,
    )  # fmt: skip
    where = np.zeros((5, 6), bool)
    where[1:4, 2:5] = True
    np.testing.assert_array_equal(np.isnan(y[0, 0]).all(-1), where)
    np.testing.assert_array_equal(np.isnan(y[0, 0]).any(-1), where)
