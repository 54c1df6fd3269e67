"""Import rules of pooling. Caffe rounds the number of windows up, and drops a last one that begins behind the pads."""

from __future__ import annotations

import math

import numpy as np

from mnnconvert.frontends.caffe.node import CaffeNode, Params
from mnnconvert.frontends.caffe.registry import caffe_op
from mnnconvert.frontends.caffe.text import BAD
from mnnconvert.frontends.caffe.windows import Ints, Window, window
from mnnconvert.frontends.common.compose import calc, cast, reshape
from mnnconvert.frontends.common.moves import reduced, squeezed, unsqueezed
from mnnconvert.ir import F32, I32, Builder, Value
from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.pooling import Pooling, Pooling3D
from mnnconvert.ops.scatter import ScatterNd
from mnnconvert.ops.shape import Reshape

FUNCTIONS = {"MAX": "MAXPOOL", "AVE": "AVEPOOL"}


def _function(n: CaffeNode, p: Params) -> str:
    chosen = p.choice("pool", "MAX", "AVE", "STOCHASTIC")
    if chosen not in FUNCTIONS:
        raise n.refuse(f"pool of {n.op} is {chosen}, which draws lots")
    return FUNCTIONS[chosen]


def _rounds_up(p: Params) -> bool:
    """Whether the number of windows is rounded up, which forks and later versions may change."""
    floor = p.choice("round_mode", "CEIL", "FLOOR") == "FLOOR"
    return p.flag("ceil_mode", not floor)


def pool_out(size: int, kernel: int, stride: int, pad: int, ceil: bool) -> int:
    """How many windows there are along an axis."""
    rest = size + 2 * pad - kernel
    out = (-(-rest // stride) if ceil else rest // stride) + 1
    return out - 1 if pad and (out - 1) * stride >= size + pad else out


@caffe_op("Pooling", "Pooling3D", limits="not stochastic; volumes only with windows that tile the padded image")
def pooling(b: Builder, n: CaffeNode) -> Value | tuple[Value, ...]:
    p, x = n.params("pooling3d_param" if "pooling3d_param" in n.layer.settings else "pooling_param"), n.input()
    function = _function(n, p)
    ceil, rank = _rounds_up(p), n.rank(x, 3)
    if p.flag("global_pooling", False):
        p.ignore("kernel_size", "kernel_h", "kernel_w", "stride", "stride_h", "stride_w", "pad", "pad_h", "pad_w")
        return _whole(b, n, x, function)
    win = window(n, p, x)
    if any(pad >= k for pad, k in zip(win.pads, win.kernel, strict=True)) or max(win.dilations) > 1:
        raise n.refuse(f"{n.op} with pads {list(win.pads)} around windows of {list(win.kernel)}")
    if rank == 5:
        return _volumes(b, n, x, function, win, ceil)
    if rank == 3:
        flat = Window((*win.kernel, 1), (*win.strides, 1), (*win.pads, 0), (1, 1))
        return squeezed(b, pooled(b, n, unsqueezed(b, x, 3), function, flat, ceil)[0], 3)
    return pooled(b, n, x, function, win, ceil, n.output_count > 1)


def _whole(b: Builder, n: CaffeNode, x: Value, function: str) -> Value:
    if n.output_count > 1:
        raise n.refuse("global pooling with a second result")
    if n.rank(x) == 4:
        return b.add(Pooling(function, whole=True), x)
    return reduced(b, "MAXIMUM" if function == "MAXPOOL" else "MEAN", x, *range(2, n.rank(x)))


def _far_pads(win: Window, sizes: Ints, ceil: bool) -> Ints:
    """The pads behind each axis with which rounding down gives the number of windows that Caffe has."""
    rows = list(zip(sizes, win.kernel, win.strides, win.pads, strict=True))
    outs = [pool_out(*row, ceil) for row in rows]
    if min(outs) < 1:
        raise ValueError(f"windows of {list(win.kernel)} do not fit an image of {list(sizes)}")
    return tuple((out - 1) * s + k - size - p for out, (size, k, s, p) in zip(outs, rows, strict=True))


def pooled(
    b: Builder, n: CaffeNode, x: Value, function: str, win: Window, ceil: bool, indices: bool = False
) -> tuple[Value, ...]:
    """Pooling of planes; with `indices` also where the maxima are, row * W + column, as float32.

    A mean divides by what a window covers of the image and of pads as wide as those in front.
    """
    (ky, kx), (sy, sx), (t, l) = win.kernel, win.strides, win.pads
    d, r = (max(0, pad) for pad in _far_pads(win, n.sizes(x, 2), ceil))
    if not indices:
        return (b.add(Pooling(function, (ky, kx), (sy, sx), (t, l, d, r), count="INCLUDE_PADDING"), x),)
    if function != "MAXPOOL":
        raise n.refuse("the second result of Pooling is where the maxima are, not of a mean")
    y, places = b.add(Pooling(function, (ky, kx), (sy, sx), (t, l, d, r), indices=True), x, names=("", ""))
    return y, cast(b, places, F32)


def _volumes(b: Builder, n: CaffeNode, x: Value, function: str, win: Window, ceil: bool) -> Value:
    if n.output_count > 1:
        raise n.refuse("the second result of Pooling over volumes")
    sizes = n.sizes(x, 2)
    far = _far_pads(win, sizes, ceil)
    uneven = any(e > p for e, p in zip(far, win.pads, strict=True))
    if uneven or (function == "AVEPOOL" and any(win.pads)):
        raise n.refuse(f"{n.op} over {list(sizes)} with windows {list(win.kernel)} that reach beyond the image")
    return b.add(Pooling3D(function, win.kernel, win.strides, win.pads), x)


@caffe_op("SPP")
def spatial_pyramid(b: Builder, n: CaffeNode) -> Value:
    """Pooling into 1, 2 x 2, 4 x 4 ... bins, all in one row for each image."""
    p, x = n.params("spp_param"), n.input()
    function, height, sizes = _function(n, p), p.integer("pyramid_height", 0), n.sizes(x, 2)
    if not 1 <= height <= 16 or n.rank(x) != 4:
        raise n.refuse(f"SPP of {height} levels of an operand of rank {n.rank(x)}")
    levels = [_level(b, n, x, function, sizes, 1 << level) for level in range(height)]
    return b.add(Concat(1), *levels) if height > 1 else levels[0]


def _level(b: Builder, n: CaffeNode, x: Value, function: str, sizes: Ints, bins: int) -> Value:
    kernel = tuple(-(-size // bins) for size in sizes)
    pads = tuple((k * bins - size + 1) // 2 for k, size in zip(kernel, sizes, strict=True))
    if any(pad >= k for pad, k in zip(pads, kernel, strict=True)):
        raise n.refuse(f"SPP divides an image of {list(sizes)} into {bins} x {bins} bins")
    y = pooled(b, n, x, function, Window(kernel, kernel, pads, (1, 1)), True)[0]
    return reshape(b, y, (0, -1))


def unpooled(b: Builder, n: CaffeNode, x: Value, places: Value, sizes: tuple[int, int]) -> Value:
    """Every maximum back to its place row * W + column in a plane of these sizes; zeros elsewhere."""
    images, channels, *_ = n.sizes(x)
    if n.sizes(places) != n.sizes(x):
        raise n.refuse(f"{n.op} has {list(n.sizes(places))} places for {list(n.sizes(x))} values", reference=BAD)
    planes, area = images * channels, sizes[0] * sizes[1]
    n.limited(planes)
    starts = b.ints(np.arange(planes)[:, None] * area)
    flat = calc(b, "ADD", reshape(b, cast(b, places, I32), (planes, -1)), starts)
    values = b.add(Reshape((-1,)), x)
    y = b.add(ScatterNd(), reshape(b, flat, (-1, 1)), values, b.ints([math.prod((planes, area))]))
    return reshape(b, y, (images, channels, *sizes))
