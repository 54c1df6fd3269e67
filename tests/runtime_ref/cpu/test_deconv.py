"""Transposed convolution on blocked maps against the reference."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from blocked import blocked_shape, from_blocked, to_blocked
from kernels import both, guard, guarded, lib  # noqa: F401

from mnnconvert.ops.deconvolution import Deconvolution
from mnnconvert.runtime_ref.cpu import library

pytestmark = pytest.mark.skipif(not library.runnable_levels(), reason="no compiled kernels")

IDENTITY, CLIP, LEAKY = 0, 1, 8


def packed(lib, w, op, few):  # noqa: F811
    """Weights as the kernel of `op` takes them."""
    inputs, per_group, kernel_y, kernel_x = w.shape
    lanes = lib.lanes
    if few:
        columns = per_group * kernel_y * kernel_x
        panel = lanes if columns <= lanes else 2 * lanes
        array, unhurt = guard((-(-columns // panel), -(-inputs // lanes) * lanes, panel))
        lib.call("deconv_few_pack", w=guarded(w), packed=array, inputs=inputs, columns=columns)
    elif per_group == 1 and op.group == inputs:
        array, unhurt = guard((-(-inputs // lanes), kernel_y, kernel_x, lanes))
        lib.call(
            "deconv_depthwise_pack", w=guarded(w), packed=array, channels=inputs, kernel_y=kernel_y, kernel_x=kernel_x
        )
    else:
        outputs = per_group * op.group
        array, unhurt = guard((-(-outputs // (2 * lanes)), kernel_y, kernel_x, -(-inputs // lanes) * lanes, 2 * lanes))
        lib.call("deconv_pack", w=guarded(w), packed=array, inputs=inputs, outputs=outputs, group=op.group,
                 kernel_y=kernel_y, kernel_x=kernel_x)  # fmt: skip
    unhurt()
    return array


def check(lib, rng, shape, per_group, kernel, op, activation=IDENTITY, extras=True, few=False):  # noqa: F811
    """One transposed convolution at one level."""
    outputs = per_group * op.group
    x = rng.standard_normal(shape, dtype=np.float32)
    w = rng.standard_normal((shape[1], per_group, *kernel), dtype=np.float32)
    bias = rng.standard_normal(outputs, dtype=np.float32)
    sums = op.ref(x.astype(np.float64), w.astype(np.float64))
    residual = rng.standard_normal(sums.shape, dtype=np.float32)
    if extras:
        sums = sums + bias.reshape(1, -1, 1, 1) + residual
    depthwise = per_group == 1 and op.group == shape[1]
    channels = {"channels": outputs} if depthwise else {"inputs": shape[1], "outputs": outputs}
    kernel_name = "deconv_few" if few else "deconv_depthwise" if depthwise else "deconv"
    y = both(
        lib, kernel_name, sums.shape if few else blocked_shape(sums.shape, lib.lanes), **channels,
        x=guarded(to_blocked(x, lib.lanes)), packed=guarded(packed(lib, w, op, few)),
        bias=guarded(bias) if extras else None,
        residual=guarded(residual if few else to_blocked(residual, lib.lanes)) if extras else None,
        images=shape[0], height=shape[2], width=shape[3], out_height=sums.shape[2], out_width=sums.shape[3],
        kernel_y=kernel[0], kernel_x=kernel[1],
        stride_y=op.strides[0], stride_x=op.strides[1], dilation_y=op.dilations[0], dilation_x=op.dilations[1],
        top=op.pads[0], left=op.pads[1], activation=activation, low=0.25, high=2.0,
    )  # fmt: skip
    want = sums
    if activation:
        want = np.clip(sums, 0.25, 2.0) if activation == CLIP else np.where(sums < 0, sums * 0.25, sums)
    np.testing.assert_allclose(y if few else from_blocked(y, outputs), want, rtol=0, atol=2e-6 * np.abs(sums).max())


WINDOWS = [
    ((2, 2), Deconvolution(strides=(2, 2))),
    ((3, 3), Deconvolution(strides=(2, 2), pads=(1, 1, 1, 1), out_pads=(1, 1))),
    ((4, 4), Deconvolution(strides=(2, 2), pads=(1, 1, 1, 1))),
    ((3, 2), Deconvolution(strides=(2, 3), pads=(1, 0, 0, 1))),
    ((1, 1), Deconvolution(strides=(3, 2), out_pads=(2, 1))),
    ((5, 3), Deconvolution(pads=(2, 0, 1, 1), dilations=(2, 3))),
    ((3, 3), Deconvolution(strides=(2, 1), dilations=(2, 1), pads=(0, 2, 3, 0))),
    ((4, 5), Deconvolution(strides=(6, 7), pads=(2, 3, 0, 4))),
]
SIZES = [(1, 4), (3, 5), (17, 7), (5, 40)]


@pytest.mark.parametrize(("kernel", "op"), WINDOWS)
def test_windows(lib, rng, kernel, op):  # noqa: F811
    for channels, size in itertools.product([(3, 5), (20, 17), (16, 40)], SIZES):
        if all(op._out(i, size[i], kernel[i]) > 0 for i in (0, 1)):
            check(lib, rng, (2, channels[0], *size), channels[1], kernel, op)


@pytest.mark.parametrize(("kernel", "op"), WINDOWS)
def test_depthwise(lib, rng, kernel, op):  # noqa: F811
    for channels, size in itertools.product([3, 20], SIZES):
        grouped = Deconvolution(op.strides, op.dilations, op.pads, op.out_pads, group=channels)
        check(lib, rng, (2, channels, *size), 1, kernel, grouped)


@pytest.mark.parametrize(("kernel", "op"), WINDOWS)
def test_few_outputs(lib, rng, kernel, op):  # noqa: F811
    for channels, size in itertools.product([(3, 1), (20, 3)], [(3, 5), (17, 7), (35, 40)]):
        if all(op._out(i, size[i], kernel[i]) > 0 for i in (0, 1)):
            check(lib, rng, (2, channels[0], *size), channels[1], kernel, op, few=True)


@pytest.mark.parametrize(("inputs", "group", "per_group"), [(4, 2, 3), (34, 2, 17), (6, 6, 2)])
def test_groups(lib, rng, inputs, group, per_group):  # noqa: F811
    check(lib, rng, (1, inputs, 5, 6), per_group, (3, 3), Deconvolution(strides=(2, 2), group=group))


@pytest.mark.parametrize("activation", [IDENTITY, CLIP, LEAKY])
@pytest.mark.parametrize("extras", [True, False])
def test_epilogue(lib, rng, activation, extras):  # noqa: F811
    op = Deconvolution(strides=(2, 2), pads=(1, 1, 1, 1))
    check(lib, rng, (1, 8, 7, 7), 24, (4, 4), op, activation, extras)
    check(lib, rng, (1, 8, 7, 7), 2, (4, 4), op, activation, extras, few=True)
    check(lib, rng, (1, 8, 7, 7), 1, (4, 4), Deconvolution((2, 2), (1, 1), (1, 1, 1, 1), group=8), activation, extras)


def test_blocks_of_rows(lib, rng):  # noqa: F811
    """So many channels that the rows are split in blocks."""
    check(lib, rng, (1, 256, 12, 30), 9, (3, 3), Deconvolution(strides=(2, 2), pads=(1, 1, 1, 1)))
