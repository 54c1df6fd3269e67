"""Import rules of image ops: depth to space, local normalisation, folding windows, regions, sampling at points."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from mnnconvert.frontends.common.compose import calc, cast, reshape
from mnnconvert.frontends.common.moves import permuted
from mnnconvert.frontends.onnx.fold import columns_to_image
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.frontends.onnx.spatial import FIX_SIZES, vector, with_axis, without_axis
from mnnconvert.ir import F32, I32, Builder, Value
from mnnconvert.ops.convolution import Convolution
from mnnconvert.ops.deconvolution import Col2Im, Deconvolution
from mnnconvert.ops.elementwise import Binary, Unary
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.reduction import Reduction
from mnnconvert.ops.resample import cubic_kernel
from mnnconvert.ops.shape import Unsqueeze
from mnnconvert.ops.vision import LRN, DepthToSpace, GridSample, ROIAlign, SpaceToDepth


def _wide(b: Builder, x: Value) -> Value:
    """x in a type that can be moved about: 8-bit integers become int32."""
    return x if x.dtype == F32 else cast(b, x, I32)


@onnx_op("DepthToSpace")
def depth_to_space(b: Builder, n: OnnxNode) -> Value:
    x = n.input(0)
    return cast(b, b.add(DepthToSpace(n.attr("blocksize"), _order(n)), _wide(b, x)), x.dtype)


def _order(n: OnnxNode) -> str:
    mode = str(n.attr("mode", "DCR"))
    if mode not in ("DCR", "CRD"):
        raise n.refuse(f"mode of {n.op_type} is {mode!r}, which ONNX does not have")
    return mode


@onnx_op("SpaceToDepth", limits="mode CRD needs a known number of channels")
def space_to_depth(b: Builder, n: OnnxNode) -> Value:
    x, block = n.input(0), n.attr("blocksize")
    y = b.add(SpaceToDepth(block), _wide(b, x))
    if _order(n) == "CRD":
        channels = _numbers(n, x, 1)[0]
        n.limited(channels, block, block)
        order = np.arange(channels * block**2).reshape(block**2, channels).T.reshape(-1)
        y = b.add(GatherV2(), y, b.ints(order), b.ints(1))
    return cast(b, y, x.dtype)


def _numbers(n: OnnxNode, x: Value, first: int, last: int | None = None) -> list[int]:
    """Sizes first .. last of x (one by default), which must be known."""
    sizes = (x.shape or ())[first : first + 1 if last is None else last]
    if not sizes or not all(isinstance(size, int) for size in sizes):
        raise n.refuse(f"{n.op_type} needs the sizes of its operand here", hint=FIX_SIZES)
    return [size for size in sizes if isinstance(size, int)]


@onnx_op("LRN", limits="rank 3 or 4; an even size needs a known number of channels")
def lrn(b: Builder, n: OnnxNode) -> Value:
    x, size = n.input(0), n.attr("size")
    op = LRN(size, n.attr("alpha", 0.0001), n.attr("beta", 0.75), n.attr("bias", 1.0))
    if x.rank not in (3, 4):
        raise n.refuse(f"LRN of an operand of rank {x.rank} is not supported")
    if x.rank == 3:
        return without_axis(b, _normalised(b, n, with_axis(b, x), op))
    return _normalised(b, n, x, op)


def _normalised(b: Builder, n: OnnxNode, x: Value, op: LRN) -> Value:
    """LRN; with an even size the window has one channel more behind than in front, as a product with a band matrix."""
    if op.size % 2:
        return b.add(op, x)
    channels = _numbers(n, x, 1)[0]
    n.limited(channels, channels)
    offset = np.arange(channels)[None] - np.arange(channels)[:, None]
    band = (offset >= -((op.size - 1) // 2)) & (offset <= op.size // 2)
    weight = (band * (op.alpha / op.size)).astype(np.float32)[..., None, None]
    bias = b.constant(np.full(channels, op.bias, np.float32))
    total = b.add(Convolution(), b.add(Unary("SQUARE"), x), b.constant(weight), bias)
    return calc(b, "REALDIV", x, calc(b, "POW", total, op.beta))


@onnx_op("Col2Im", limits="the number of axes must be known")
def col2im(b: Builder, n: OnnxNode) -> Value:
    sizes, kernel = n.vector(1), n.vector(2)
    if sizes is None or kernel is None or len(sizes) != 2:
        shape = n.input(1).shape
        if not shape or not isinstance(shape[0], int):
            raise n.refuse("the number of axes of the image of Col2Im must be known")
        return columns_to_image(b, n, shape[0])
    image, block = sizes.tolist(), kernel.tolist()
    if len(block) != 2:
        raise n.refuse(f"Col2Im has a block of {len(block)} axes for an image of 2")
    (sy, sx), (dy, dx) = vector(n, "strides", 2, 1), vector(n, "dilations", 2, 1)
    top, left, bottom, right = vector(n, "pads", 4, 0)
    if (dy, dx) != (1, 1):
        return _folded(b, n, image, block)
    op = Col2Im((block[0], block[1]), (sy, sx), (dy, dx), (top, left, bottom, right))
    return b.add(op, n.input(0), b.ints(image))


def _folded(b: Builder, n: OnnxNode, image: list[int], block: list[int]) -> Value:
    """Col2Im with dilations, which MNN computes wrong, as a transposed convolution that spreads every element once."""
    x, area = n.input(0), math.prod(block)
    channels = _numbers(n, x, 1)[0] // area
    strides, dilations, pads = vector(n, "strides", 2, 1), vector(n, "dilations", 2, 1), vector(n, "pads", 4, 0)
    extent = [(k - 1) * d + 1 for k, d in zip(block, dilations, strict=True)]
    padded = [size + pads[i] + pads[i + 2] for i, size in enumerate(image)]
    out = [(size - e) // s + 1 for size, e, s in zip(padded, extent, strides, strict=True)]
    spare = [size - (o - 1) * s - e for size, o, s, e in zip(padded, out, strides, extent, strict=True)]
    n.limited(channels, area, channels, area)
    spread = np.eye(channels * area, dtype=np.float32).reshape(channels * area, channels, *block)
    (sy, sx), (dy, dx), (t, l, d, r) = strides, dilations, pads
    op = Deconvolution((sy, sx), (dy, dx), (t, l, d, r), (spare[0], spare[1]))
    zeros = b.constant(np.zeros(channels, np.float32))
    return b.add(op, reshape(b, x, (0, 0, *out)), b.constant(spread), zeros)


@onnx_op("RoiAlign", since=10, limits="mode max needs a sampling ratio and the sizes of the image")
def roi_align_10(b: Builder, n: OnnxNode) -> Value:
    return _roi_align(b, n, aligned=False)


@onnx_op("RoiAlign", since=16, limits="mode max needs a sampling ratio and the sizes of the image")
def roi_align_16(b: Builder, n: OnnxNode) -> Value:
    return _roi_align(b, n, n.attr("coordinate_transformation_mode", "half_pixel") == "half_pixel")


def _roi_align(b: Builder, n: OnnxNode, aligned: bool) -> Value:
    height, width = n.attr("output_height", 1), n.attr("output_width", 1)
    n.limited(max(height, width, 1), max(n.attr("sampling_ratio", 0), 1))
    op = ROIAlign(height, width, n.attr("spatial_scale", 1.0), n.attr("sampling_ratio", 0) or -1, aligned)
    if n.attr("mode", "avg") == "avg":
        return b.add(op, n.input(0), n.input(1), n.input(2))
    if op.sampling < 1:
        raise n.refuse("RoiAlign in mode max needs a sampling_ratio")
    return _roi_max(b, n, op)


def _roi_max(b: Builder, n: OnnxNode, op: ROIAlign) -> Value:
    """The maximum of the four weighted corners of all samples of a bin, as the operator text defines it."""
    x, s = n.input(0), op.sampling
    channels, *sizes = _numbers(n, x, 1, 4)
    down = _bins(b, op, n.input(1), 1, sizes[0], op.height, (0, -1, 1))
    across = _bins(b, op, n.input(1), 0, sizes[1], op.width, (0, 1, -1))
    pixels = _Pixels.of(b, x, channels, sizes)
    start = calc(b, "MUL", reshape(b, n.input(2), (-1, 1, 1)), sizes[0] * sizes[1])
    best: Value | None = None
    for (row, wy), (column, wx) in itertools.product(down, across):
        value = pixels.at(b, start, [row, column])
        value = calc(b, "MUL", value, b.add(Unsqueeze((3,)), calc(b, "MUL", wy, wx)))
        best = value if best is None else b.add(Binary("MAXIMUM"), best, value)
    assert best is not None  # there are four corners
    cells = reshape(b, best, (-1, op.height, s, op.width * s * channels))
    cells = b.add(Reduction("MAXIMUM", (2,), False), cells)
    cells = reshape(b, cells, (-1, op.height, op.width, s, channels))
    return permuted(b, b.add(Reduction("MAXIMUM", (3,), False), cells), (0, 3, 1, 2))


def _bins(
    b: Builder, op: ROIAlign, rois: Value, column: int, size: int, bins: int, shape: tuple[int, int, int]
) -> list[tuple[Value, Value]]:
    """Both neighbours of every sample along one axis: whole coordinates and weights, shaped to broadcast."""
    first, last = (
        calc(b, "MUL", b.add(GatherV2(), rois, b.ints([i]), b.ints(1)), op.scale) for i in (column, column + 2)
    )
    length = b.add(Binary("SUB"), last, first)
    if op.aligned:
        first = calc(b, "SUB", first, 0.5)
    else:
        length = calc(b, "MAXIMUM", length, 1.0)
    count = bins * op.sampling
    at = b.add(Binary("ADD"), calc(b, "MUL", length, ((np.arange(count) + 0.5) / count)[None]), first)
    shown = cast(
        b, b.add(Binary("MUL"), calc(b, "GREATER_EQUAL", at, -1.0), calc(b, "LESS_EQUAL", at, float(size))), F32
    )
    at = calc(b, "MINIMUM", calc(b, "MAXIMUM", at, 0.0), float(size - 1))
    low = b.add(Unary("FLOOR"), at)
    part = b.add(Binary("SUB"), at, low)
    high = calc(b, "MINIMUM", calc(b, "ADD", low, 1.0), float(size - 1))
    rest = b.add(Binary("SUB"), b.floats(1.0), part)
    pairs = ((low, rest), (high, part))
    return [(reshape(b, at, shape), reshape(b, b.add(Binary("MUL"), w, shown), shape)) for at, w in pairs]


@dataclass
class _Pixels:
    """The pixels of all images as rows [N * pixels, C], to be picked by flat position."""

    rows: Value
    sizes: list[int]

    @classmethod
    def of(cls, b: Builder, x: Value, channels: int, sizes: list[int]) -> _Pixels:
        last = permuted(b, x, (0, *range(2, len(sizes) + 2), 1))
        return cls(reshape(b, last, (-1, channels)), sizes)

    def at(self, b: Builder, start: Value, places: list[Value]) -> Value:
        """Pixels [..., C] at whole float coordinates inside of the image; `start` is where each image begins."""
        flat: Value | None = None
        for place, size in zip(places, self.sizes, strict=True):
            index = cast(b, place, I32)
            flat = index if flat is None else b.add(Binary("ADD"), calc(b, "MUL", flat, size), index)
        assert flat is not None  # an image has axes
        return b.add(GatherV2(), self.rows, b.add(Binary("ADD"), flat, start), b.ints(0))


@onnx_op("GridSample", since=16, limits="nearest, cubic and reflection need the sizes of the image")
def grid_sample(b: Builder, n: OnnxNode) -> Value:
    x, grid = n.input(0), n.input(1)
    mode, padding = n.attr("mode", "linear"), n.attr("padding_mode", "zeros")
    aligned = bool(n.attr("align_corners", 0))
    if mode in ("linear", "bilinear") and padding in ("zeros", "border"):
        return b.add(GridSample("BILINEAR", "ZEROS" if padding == "zeros" else "CLAMP", aligned), x, grid)
    if padding not in ("zeros", "border", "reflection"):
        raise n.refuse(f"padding_mode of GridSample is {padding!r}")
    images, channels, *sizes = _numbers(n, x, 0, x.rank)
    taps = [_neighbours(b, n, grid, len(sizes) - 1 - i, size, mode, padding, aligned) for i, size in enumerate(sizes)]
    pixels = _Pixels.of(b, x, channels, sizes)
    n.limited(images)
    start = b.ints((np.arange(images) * int(np.prod(sizes))).reshape(-1, *(1,) * len(sizes)))
    total: Value | None = None
    for corner in itertools.product(*taps):
        value = pixels.at(b, start, [at for at, _ in corner])
        for _, weight in corner:
            value = (
                value if weight is None else b.add(Binary("MUL"), value, b.add(Unsqueeze((len(sizes) + 1,)), weight))
            )
        total = value if total is None else b.add(Binary("ADD"), total, value)
    assert total is not None  # every axis has neighbours
    return permuted(b, total, (0, len(sizes) + 1, *range(1, len(sizes) + 1)))


def _neighbours(
    b: Builder, n: OnnxNode, grid: Value, column: int, size: int, mode: str, padding: str, aligned: bool
) -> list[tuple[Value, Value | None]]:
    """The whole coordinates that a point mixes along one axis, brought inside, and their weights (None: 1)."""
    g = b.add(GatherV2(), grid, b.constant(np.asarray(column, np.int32)), b.ints((grid.rank or 0) - 1))
    g = calc(b, "ADD", g, 1.0)
    at = (
        calc(b, "MUL", g, (size - 1) / 2)
        if aligned
        else calc(b, "MUL", calc(b, "SUB", calc(b, "MUL", g, float(size)), 1.0), 0.5)
    )
    if mode == "nearest":
        return [_inside(b, _half_even(b, at), None, size, padding, aligned)]
    low = b.add(Unary("FLOOR"), at)
    part = b.add(Binary("SUB"), at, low)
    if mode in ("linear", "bilinear"):
        rest = b.add(Binary("SUB"), b.floats(1.0), part)
        pairs = [(low, rest), (calc(b, "ADD", low, 1.0), part)]
    elif mode in ("cubic", "bicubic"):
        pairs = [(calc(b, "ADD", low, float(i)), _cubic(b, part, i)) for i in (-1, 0, 1, 2)]
    else:
        raise n.refuse(f"the mode of GridSample is {mode!r}")
    return [_inside(b, place, weight, size, padding, aligned) for place, weight in pairs]


def _half_even(b: Builder, x: Value) -> Value:
    """x rounded to the nearest whole number, ties to the even one."""
    up = calc(b, "ADD", x, 0.5)
    whole = b.add(Unary("FLOOR"), up)
    odd = b.add(Binary("SUB"), whole, calc(b, "MUL", b.add(Unary("FLOOR"), calc(b, "MUL", whole, 0.5)), 2.0))
    tie = cast(b, b.add(Binary("EQUAL"), up, whole), F32)
    return b.add(Binary("SUB"), whole, b.add(Binary("MUL"), odd, tie))


def _cubic(b: Builder, part: Value, offset: int) -> Value:
    """Weight of the neighbour at `offset` for the fraction `part`: the cubic kernel with a = -0.75 as a polynomial."""
    at = np.array([0.0, 0.25, 0.5, 1.0])
    third, second, first, zeroth = np.polyfit(at, cubic_kernel(np.abs(offset - at), -0.75), 3)
    y = calc(b, "ADD", calc(b, "MUL", part, third), second)
    y = calc(b, "ADD", calc(b, "MUL", y, part), first)
    return calc(b, "ADD", calc(b, "MUL", y, part), zeroth)


def _inside(
    b: Builder, at: Value, weight: Value | None, size: int, padding: str, aligned: bool
) -> tuple[Value, Value | None]:
    """A whole coordinate brought into the image; with zeros, what lies outside has no weight."""
    if padding == "zeros":
        shown = b.add(Binary("MUL"), calc(b, "GREATER_EQUAL", at, 0.0), calc(b, "LESS_EQUAL", at, float(size - 1)))
        mask = cast(b, shown, F32)
        weight = mask if weight is None else b.add(Binary("MUL"), weight, mask)
    if padding == "reflection" and size > 1:
        low, span = (0.0, size - 1.0) if aligned else (-0.5, float(size))
        turn = calc(b, "FLOORMOD", b.add(Unary("ABS"), calc(b, "SUB", at, low)), 2 * span)
        back = b.add(Unary("ABS"), calc(b, "SUB", turn, span))
        at = b.add(Binary("SUB"), b.floats(span + low), back)
    return calc(b, "MINIMUM", calc(b, "MAXIMUM", at, 0.0), float(size - 1)), weight
