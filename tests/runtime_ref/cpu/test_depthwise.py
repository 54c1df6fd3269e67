"""Depthwise convolution on blocked maps against float64."""

from __future__ import annotations

import numpy as np
import pytest
from blocked import blocked_shape, from_blocked, to_blocked
from kernels import both, guarded

from mnnconvert.ops.convolution import Convolution
from mnnconvert.runtime_ref.cpu import library

pytestmark = pytest.mark.skipif(not library.runnable_levels(), reason="no compiled kernels")

IDENTITY, CLIP, SILU = 0, 1, 3


def check(lib, rng, shape, kernel, activation=IDENTITY, residual=False, **attributes):
    op = Convolution(group=shape[1], **attributes)
    x = rng.standard_normal(shape, dtype=np.float32)
    w = rng.standard_normal((shape[1], 1, *kernel), dtype=np.float32)
    bias = rng.standard_normal(shape[1], dtype=np.float32)
    height, width = (op._out(i, shape[i + 2], kernel[i]) for i in (0, 1))
    more = rng.standard_normal((*shape[:2], height, width), dtype=np.float32) * residual
    packed = np.full((-(-shape[1] // lib.lanes), *kernel, lib.lanes), np.nan, np.float32)
    lib.call("depthwise_pack", w=guarded(w), packed=packed, channels=shape[1], kernel_h=kernel[0], kernel_w=kernel[1])
    y = both(
        lib, "depthwise_f32", blocked_shape((*shape[:2], height, width), lib.lanes),
        x=guarded(to_blocked(x, lib.lanes)), w=guarded(packed), bias=guarded(bias),
        residual=guarded(to_blocked(more, lib.lanes)) if residual else None,
        n=shape[0], channels=shape[1], h=shape[2], width=shape[3], out_h=height, out_w=width, kernel_h=kernel[0],
        kernel_w=kernel[1], stride_h=op.strides[0], stride_w=op.strides[1], dilation_h=op.dilations[0],
        dilation_w=op.dilations[1], top=op.pads[0], left=op.pads[1], activation=activation, low=-0.5, high=1.5,
    )  # fmt: skip
    sums = op.ref(x.astype(np.float64), w.astype(np.float64)) + bias.reshape(1, -1, 1, 1) + more
    want = np.clip(sums, -0.5, 1.5) if activation == CLIP else sums
    want = sums / (1 + np.exp(-sums)) if activation == SILU else want
    np.testing.assert_allclose(from_blocked(y, shape[1]), want, rtol=0, atol=2e-6 * np.abs(sums).max())


@pytest.mark.parametrize("kernel", [(3, 3), (5, 5), (3, 5), (1, 3), (7, 7), (2, 4), (9, 1), (1, 1)])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_kernels(lib, rng, kernel, stride):
    pads = (kernel[0] // 2, kernel[1] // 2) * 2
    for size in ((9, 1), (7, 7), (10, 9), (11, 33)):
        check(lib, rng, (1, 17, *size), kernel, pads=pads, strides=(stride, stride))


@pytest.mark.parametrize("width", [3, 4, 8, 15, 16, 17, 25, 63])
def test_widths(lib, rng, width):
    for pads in ((0, 0, 0, 0), (1, 1, 1, 1), (0, 0, 2, 2), (3, 5, 0, 1)):
        for stride in (1, 2):
            check(lib, rng, (2, 8, 5, width), (3, 3), pads=pads, strides=(1, stride))


@pytest.mark.parametrize("dilations", [(2, 1), (1, 2), (3, 3)])
def test_dilations(lib, rng, dilations):
    check(lib, rng, (1, 5, 12, 19), (3, 3), pads=(2, 3, 1, 3), dilations=dilations)


@pytest.mark.parametrize("activation", [IDENTITY, CLIP, SILU])
def test_epilogue(lib, rng, activation):
    check(lib, rng, (2, 40, 14, 14), (3, 3), activation, residual=True, pads=(1, 1, 1, 1))


def test_rows_without_an_image(lib, rng):
    """Windows that lie in the padding alone give the bias."""
    check(lib, rng, (1, 3, 2, 2), (2, 2), pads=(4, 5, 4, 6))
