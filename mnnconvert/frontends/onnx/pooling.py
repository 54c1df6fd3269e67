"""Import rules of pooling.

MNN pools planes without dilation and volumes with symmetric pads only, and its ceil mode keeps a last window that
starts in the padding. What differs is expressed with explicit pads, with rows picked by index, and with a constant
ratio.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mnnconvert.frontends.common.compose import calc, cast
from mnnconvert.frontends.common.run_time import interleaved
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.frontends.onnx.spatial import (
    FIX_SIZES,
    Window,
    spatial_sizes,
    vector,
    window,
    with_axis,
    without_axis,
)
from mnnconvert.ir import F32, Builder, Dim, Value
from mnnconvert.ops.elementwise import Binary, Unary
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.padding import Padding
from mnnconvert.ops.pooling import Pooling, Pooling3D
from mnnconvert.ops.reduction import Reduction
from mnnconvert.ops.scatter import ScatterNd
from mnnconvert.ops.shape import Reshape

LOWEST = float(np.finfo(np.float32).min)


def _window(n: OnnxNode, x: Value) -> tuple[Window, tuple[Dim, ...], bool]:
    """The window, the sizes it runs over, and whether the output size is rounded up by MNN itself.

    Where the sizes are known, rounding up becomes pads at the far end, and no window starts behind the image.
    """
    sizes = spatial_sizes(n, x)
    kernel = vector(n, "kernel_shape", len(sizes), 0)
    if min(kernel) < 1:
        raise n.refuse(f"kernel_shape of {n.op_type} is {list(kernel)}")
    win = window(n, kernel, sizes)
    if not n.attr("ceil_mode", 0) or win.same or n.attr("auto_pad", "NOTSET") not in ("NOTSET", ""):
        return win, sizes, False
    rows = list(zip(win.end, win.strides, win.extent, strict=True))
    if any(not isinstance(size, int) and s > 1 for size, s in zip(sizes, win.strides, strict=True)):
        if len(sizes) < 3 and all(e + s <= k for e, s, k in rows):
            return win, sizes, True
        raise n.refuse(f"ceil_mode of {n.op_type} needs the sizes of the operand here", hint=FIX_SIZES)
    return (
        replace(win, end=tuple(_ceiled(*row) for row in zip(sizes, win.begin, *zip(*rows, strict=True), strict=True))),
        sizes,
        False,
    )


def _ceiled(size: Dim, begin: int, end: int, stride: int, extent: int) -> int:
    """The far pad with which rounding down gives what rounding up gives, without windows that start in that pad."""
    if not isinstance(size, int):
        return end
    out = -(-(size + begin + end - extent) // stride) + 1
    if (out - 1) * stride >= size + begin:
        out -= 1
    return max(0, (out - 1) * stride + extent - size - begin)


def _sizes(n: OnnxNode, sizes: Sequence[Dim], what: str) -> tuple[int, ...]:
    """The sizes as numbers; refuses where one is not known."""
    if not all(isinstance(size, int) for size in sizes):
        raise n.refuse(f"{what} of {n.op_type} needs the sizes of the operand", hint=FIX_SIZES)
    return tuple(size for size in sizes if isinstance(size, int))


def _pad(b: Builder, x: Value, begin: Sequence[int], end: Sequence[int], value: float) -> Value:
    """x with explicit elements around its spatial axes."""
    if not any((*begin, *end)):
        return x
    pairs = [0, 0, 0, 0, *(p for pair in zip(begin, end, strict=True) for p in pair)]
    return b.add(Padding(), x, b.ints(pairs), b.floats(value))


def _picked(win: Window, sizes: Sequence[int]) -> list[np.ndarray]:
    """Along each axis, the padded positions that the windows touch, window by window."""
    picks = []
    for size, k, s, d, extent, p, q in zip(
        sizes, win.kernel, win.strides, win.dilations, win.extent, win.begin, win.end, strict=True
    ):
        out = (size + p + q - extent) // s + 1
        picks.append((np.arange(out)[:, None] * s + np.arange(k) * d).reshape(-1))
    return picks


def _apart(
    b: Builder, x: Value, win: Window, sizes: Sequence[int], fill: float
) -> tuple[Value, Window, list[np.ndarray]]:
    """A dilated window as one that neither overlaps nor is dilated, over rows picked by index."""
    picks = _picked(win, sizes)
    x = _pad(b, x, win.begin, win.end, fill)
    for axis, pick in enumerate(picks, 2):
        x = b.add(GatherV2(), x, b.ints(pick), b.ints(axis))
    zeros = (0,) * len(sizes)
    return x, Window(win.kernel, win.kernel, (1,) * len(sizes), zeros, zeros), picks


def _pool(b: Builder, x: Value, win: Window, kind: str, ceil: bool, count: str = "EXCLUDE_PADDING") -> Value:
    """Pooling with pads that MNN takes: any on planes, symmetric ones on volumes."""
    if len(win.kernel) == 3:
        return b.add(Pooling3D(kind, win.kernel, win.strides, win.begin), x)
    if len(win.kernel) == 1:
        return without_axis(b, _pool(b, with_axis(b, x), win.flat(), kind, ceil, count))
    (ky, kx), (sy, sx), (t, l), (d, r) = win.kernel, win.strides, win.begin, win.end
    mode = "SAME" if win.same else "CAFFE"
    return b.add(Pooling(kind, (ky, kx), (sy, sx), (t, l, d, r), mode, ceil, count), x)


def _direct(win: Window) -> bool:
    """Whether MNN takes this window as it is."""
    return max(win.dilations) == 1 and (len(win.kernel) < 3 or (win.begin == win.end and not win.same))


@onnx_op("MaxPool", limits="indices only on one or two axes of known size")
def max_pool(b: Builder, n: OnnxNode) -> tuple[Value, ...]:
    dtype = n.input(0).dtype
    x = cast(b, n.input(0), F32)
    win, sizes, ceil = _window(n, x)
    if n.wants(1):
        y, indices = _with_indices(b, n, x, win, _sizes(n, x.shape or (), "the second output"))
        return cast(b, y, dtype), indices
    return (cast(b, _max(b, n, x, win, sizes, ceil), dtype),)


def _max(b: Builder, n: OnnxNode, x: Value, win: Window, sizes: Sequence[Dim], ceil: bool) -> Value:
    if _direct(win):
        return _pool(b, x, win, "MAXPOOL", ceil)
    fixed = _sizes(n, sizes, "this window")
    if max(win.dilations) > 1:
        x, win, _ = _apart(b, x, win, fixed, LOWEST)
        return _pool(b, x, win, "MAXPOOL", False)
    x = _pad(b, x, win.begin, win.end, LOWEST)
    return _pool(b, x, replace(win, begin=(0, 0, 0), end=(0, 0, 0)), "MAXPOOL", False)


def _with_indices(b: Builder, n: OnnxNode, x: Value, win: Window, shape: Sequence[int]) -> tuple[Value, Value]:
    """The maxima and where they are, as flat positions in the whole operand.

    MNN gives positions in a plane; a table turns them into ONNX's, which undoes picked rows and the storage order.
    """
    count, sizes = len(win.kernel), shape[2:]
    n.limited(*shape[:2])
    n.limited(*sizes)
    n.limited(*win.kernel)
    if count > 2:
        raise n.refuse("the second output of MaxPool is not supported on volumes")
    begin = win.begin
    if max(win.dilations) > 1:
        x, win, picks = _apart(b, x, win, sizes, LOWEST)
    else:  # the positions of MNN are wrong when it pads itself
        picks = [np.arange(p + size + q) for p, size, q in zip(begin, sizes, win.end, strict=True)]
        x, win = _pad(b, x, begin, win.end, LOWEST), replace(win, begin=(0,) * count, end=(0,) * count)
    picks = [p - start for p, start in zip(picks, begin, strict=True)]
    if count == 1:
        x, win, picks, sizes = with_axis(b, x), win.flat(), [*picks, np.zeros(1, int)], (*sizes, 1)
    (ky, kx), (sy, sx), (t, l), (d, r) = win.kernel, win.strides, win.begin, win.end
    y, plane = b.add(Pooling("MAXPOOL", (ky, kx), (sy, sx), (t, l, d, r), indices=True), x, names=("", ""))
    rows, columns = picks[0][:, None], picks[1]
    table = rows + columns * sizes[0] if n.attr("storage_order", 0) else rows * sizes[1] + columns
    found = plane
    if not np.array_equal(table.reshape(-1), np.arange(table.size)):
        found = b.add(GatherV2(), b.ints(table.reshape(-1)), plane, b.ints(0))
    starts = np.arange(math.prod(shape[:2])).reshape(*shape[:2], 1, 1) * math.prod(sizes)
    found = b.add(Binary("ADD"), found, b.ints(starts)) if starts.any() else found
    return (without_axis(b, y), without_axis(b, found)) if count == 1 else (y, found)


@onnx_op("AveragePool", limits="count_include_pad, dilations and ceil_mode may need known sizes")
def average_pool(b: Builder, n: OnnxNode) -> Value:
    return averaged(b, n, n.input(0))


def averaged(b: Builder, n: OnnxNode, x: Value) -> Value:
    """The means of x [N,C,...] in the windows of the node."""
    win, sizes, ceil = _window(n, x)
    include = bool(n.attr("count_include_pad", 0))
    margin = _declared_pads(n, win)
    padded = any(map(any, margin))
    if _direct(win) and not (include and padded):
        return _pool(b, x, win, "AVEPOOL", ceil)
    if _direct(win) and include and len(win.kernel) < 3 and not win.same and margin[0] == margin[1]:
        return _pool(b, x, win, "AVEPOOL", ceil, "INCLUDE_PADDING")
    fixed = _sizes(n, sizes, "this window")
    n.limited(*fixed)
    n.limited(*win.kernel)
    ratio = _ratio(win, fixed, margin if include else None)
    x, win = _full_windows(b, x, win, fixed)
    y = _pool(b, x, win, "AVEPOOL", False)
    return y if np.all(ratio == 1) else b.add(Binary("MUL"), y, b.floats(ratio))


def _declared_pads(n: OnnxNode, win: Window) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Pads (begin, end) as the model gives them, without what rounding up adds."""
    count = len(win.kernel)
    pads = vector(n, "pads", 2 * count, 0)
    explicit = n.attr("auto_pad", "NOTSET") in ("NOTSET", "")
    return (pads[:count], pads[count:]) if explicit else (win.begin, win.end)


def _full_windows(b: Builder, x: Value, win: Window, sizes: Sequence[int]) -> tuple[Value, Window]:
    """x with zeros around it, and a window that no longer meets any padding."""
    if max(win.dilations) > 1:
        x, win, _ = _apart(b, x, win, sizes, 0.0)
        return x, win
    zeros = (0,) * len(sizes)
    return _pad(b, x, win.begin, win.end, 0.0), replace(win, begin=zeros, end=zeros)


def _ratio(win: Window, sizes: Sequence[int], margin: tuple[Sequence[int], Sequence[int]] | None) -> np.ndarray:
    """Elements of the window over elements that count, for every output: [1, 1, out...]."""
    result = np.ones((), np.float64)
    for axis, size in enumerate(sizes):
        k, s, d, begin = win.kernel[axis], win.strides[axis], win.dilations[axis], win.begin[axis]
        low, high = (-margin[0][axis], size + margin[1][axis]) if margin else (0, size)
        out = (size + begin + win.end[axis] - win.extent[axis]) // s + 1
        at = np.arange(out)[:, None] * s - begin + np.arange(k) * d
        counted = np.maximum(1, ((at >= low) & (at < high)).sum(1))
        result = np.multiply.outer(result, k / counted)
    return result.astype(np.float32).reshape(1, 1, *result.shape)


@onnx_op("LpPool", limits="windows with pads need known sizes")
def lp_pool(b: Builder, n: OnnxNode) -> Value:
    """(sum |x|^p)^(1/p): the mean over windows padded with zeros, times the size of the window."""
    x, p = n.input(0), float(n.attr("p", 2))
    win, sizes, ceil = _window(n, x)
    x = _power(b, x, p)
    if ceil or win.same or max((*win.dilations, *(q + 1 for q in win.pads))) > 1:
        x, win = _full_windows(b, x, win, _sizes(n, sizes, "this window"))
    y = b.add(Binary("MUL"), _pool(b, x, win, "AVEPOOL", False), b.floats(math.prod(win.kernel)))
    return _root(b, y, p)


def _power(b: Builder, x: Value, p: float) -> Value:
    """|x|^p."""
    if p == 2:
        return b.add(Unary("SQUARE"), x)
    x = b.add(Unary("ABS"), x)
    return x if p == 1 else b.add(Binary("POW"), x, b.floats(p))


def _root(b: Builder, x: Value, p: float) -> Value:
    """x^(1/p)."""
    if p == 2:
        return b.add(Unary("SQRT"), x)
    return x if p == 1 else b.add(Binary("POW"), x, b.floats(1 / p))


@onnx_op("GlobalAveragePool", "GlobalMaxPool")
def global_pool(b: Builder, n: OnnxNode) -> Value:
    x, largest = n.input(0), n.op_type == "GlobalMaxPool"
    if x.rank == 4:
        return b.add(Pooling("MAXPOOL" if largest else "AVEPOOL", whole=True), x)
    return b.add(Reduction("MAXIMUM" if largest else "MEAN", _spatial_axes(n, x), True), x)


def _spatial_axes(n: OnnxNode, x: Value) -> tuple[int, ...]:
    if x.rank is None:
        raise n.refuse(f"the rank of the operand of {n.op_type} is not known", hint=FIX_SIZES)
    return tuple(range(2, x.rank))


@onnx_op("GlobalLpPool")
def global_lp_pool(b: Builder, n: OnnxNode) -> Value:
    x, p = n.input(0), float(n.attr("p", 2))
    return _root(b, b.add(Reduction("SUM", _spatial_axes(n, x), True), _power(b, x, p)), p)


@onnx_op("MaxUnpool", limits="sizes must be known")
def max_unpool(b: Builder, n: OnnxNode) -> Value:
    """Every maximum back to its flat position; a larger output_shape adds zeros at the far ends."""
    x = n.input(0)
    images, channels, *sizes = _sizes(n, x.shape or (), "the result")
    count = len(sizes)
    kernel, strides = vector(n, "kernel_shape", count, 0), vector(n, "strides", count, 1)
    pads = vector(n, "pads", 2 * count, 0)
    rows = zip(sizes, kernel, strides, pads[:count], pads[count:], strict=True)
    shape = [images, channels, *((size - 1) * s + k - p - q for size, k, s, p, q in rows)]
    places, values = b.add(Reshape((-1, 1)), n.input(1)), b.add(Reshape((-1,)), x)
    y = b.add(Reshape(tuple(shape)), b.add(ScatterNd(), places, values, b.ints([math.prod(shape)])))
    if not n.has(2):
        return y
    if n.constant(2) is None:
        more = calc(b, "SUB", n.input(2), b.ints(shape))
        return b.add(Padding(), y, interleaved(b, b.ints([0] * len(shape)), more), b.floats(0.0))
    wanted = n.required_constant(2, "the output shape").reshape(-1).tolist()
    return _pad(b, y, (0,) * count, [w - have for w, have in zip(wanted[2:], shape[2:], strict=True)], 0.0)
