"""Import rule of DeformConv: sampled with GridSample, then a convolution over the samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mnnconvert.frontends.common.compose import calc, reshape
from mnnconvert.frontends.common.moves import permuted, sliced
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.frontends.onnx.spatial import FIX_SIZES, Window, window
from mnnconvert.ir import Builder, Value
from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.convolution import Convolution
from mnnconvert.ops.vision import GridSample


@onnx_op("DeformConv", since=19, limits="images with two axes; their sizes must be known")
def deform_conv(b: Builder, n: OnnxNode) -> Value:
    """Every element k of the kernel samples x bilinearly at its place plus an offset, with zeros outside.

    The samples of channel c are channels c*K .. c*K+K-1 of what a convolution with a 1x1 kernel then weighs.
    """
    x, w, groups = n.input(0), n.input(1), n.attr("offset_group", 1)
    channels, *sizes = _known(n, x, 1)
    outputs, inputs, *kernel = _known(n, w, 0)
    if groups < 1 or channels % groups:
        raise n.refuse(f"offset_group of DeformConv is {groups}, with {channels} channels")
    win, area, each = window(n, kernel, sizes), math.prod(kernel), channels // groups
    sampled = []
    for i in range(groups):
        part = sliced(b, x, 1, i * each, (i + 1) * each)
        part = b.add(GridSample("BILINEAR", "ZEROS", False), part, _grid(b, n, win, sizes, i))
        sampled.append(calc(b, "MUL", part, _mask(b, n, win, sizes, i)) if n.has(4) else part)
    stacked = b.add(Concat(1), *sampled) if groups > 1 else sampled[0]
    stacked = reshape(b, stacked, (0, channels * area, *_outs(win, sizes)))
    bias = n.input(3) if n.has(3) else b.constant(np.zeros(outputs, np.float32))
    return b.add(Convolution(group=n.attr("group", 1)), stacked, reshape(b, w, (outputs, inputs * area, 1, 1)), bias)


def _known(n: OnnxNode, x: Value, first: int) -> list[int]:
    """Sizes of an image or kernel from an axis on."""
    sizes = [d for d in (x.shape or ())[first:] if isinstance(d, int)]
    if x.rank != 4 or len(sizes) != 4 - first:
        raise n.refuse("DeformConv needs an image with two axes, and its sizes", hint=FIX_SIZES)
    return sizes


def _outs(win: Window, sizes: Sequence[int]) -> list[int]:
    """Height and width of the result."""
    padded = [size + p + q for size, p, q in zip(sizes, win.begin, win.end, strict=True)]
    return [(size - extent) // s + 1 for size, extent, s in zip(padded, win.extent, win.strides, strict=True)]


def _grid(b: Builder, n: OnnxNode, win: Window, sizes: Sequence[int], group: int) -> Value:
    """Where the kernel elements of an offset group sample: [N, K * outH, outW, (x, y)], as GridSample counts."""
    outs, area = _outs(win, sizes), math.prod(win.kernel)
    offsets = sliced(b, n.input(2), 1, group * area * 2, (group + 1) * area * 2)
    offsets = permuted(b, reshape(b, offsets, (0, area, 2, outs[0] * outs[1])), (0, 1, 3, 2))  # [N, K, pixels, (y, x)]
    places = np.empty((*win.kernel, *outs, 2), np.float32)
    for axis in range(2):
        taps = np.arange(win.kernel[axis]) * win.dilations[axis] - win.begin[axis]
        starts = np.arange(outs[axis]) * win.strides[axis]
        at = np.add.outer(taps, starts)
        places[..., axis] = at[:, None, :, None] if axis == 0 else at[None, :, None, :]
    points = calc(b, "ADD", offsets, places.reshape(1, area, -1, 2))
    scale = np.array([2 / size for size in sizes], np.float32)  # the pixel p is at (2p + 1) / size - 1
    grid = calc(b, "ADD", calc(b, "MUL", points, scale), scale / 2 - 1)
    swapped = b.add(Concat(3), sliced(b, grid, 3, 1, 2), sliced(b, grid, 3, 0, 1))
    return reshape(b, swapped, (0, area * outs[0], outs[1], 2))


def _mask(b: Builder, n: OnnxNode, win: Window, sizes: Sequence[int], group: int) -> Value:
    """The weights of the samples of an offset group: [N, 1, K * outH, outW]."""
    outs, area = _outs(win, sizes), math.prod(win.kernel)
    mask = sliced(b, n.input(4), 1, group * area, (group + 1) * area)
    return reshape(b, mask, (0, 1, area * outs[0], outs[1]))
