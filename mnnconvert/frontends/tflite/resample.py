"""Import rules of resizing, and of blocks of pixels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mnnconvert.frontends.common.moves import permuted
from mnnconvert.frontends.tflite.compose import FIX_SIZES, channels_first, channels_last, known_rank
from mnnconvert.frontends.tflite.model import BAD
from mnnconvert.frontends.tflite.node import TfliteNode
from mnnconvert.frontends.tflite.registry import tflite_op
from mnnconvert.ir import Builder, Dim, Value
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.padding import Padding
from mnnconvert.ops.resample import LINEAR, NEAREST, Interp, positions
from mnnconvert.ops.shape import Reshape
from mnnconvert.ops.slicing import StridedSlice
from mnnconvert.ops.vision import DepthToSpace, SpaceToDepth


def _flags(n: TfliteNode) -> tuple[bool, bool]:
    """Whether corners are aligned, and whether the centers of pixels are."""
    return bool(n.option("AlignCorners", False)), bool(n.option("HalfPixelCenters", False))


@tflite_op("RESIZE_BILINEAR")
def resize_bilinear(b: Builder, n: TfliteNode) -> Value:
    corners, half = _flags(n)
    rule = "AlignCorners" if corners else "HalfPixels" if half else "Asymmetric"
    return channels_last(b, b.add(Interp(LINEAR, rule), channels_first(b, n, n.input(0)), n.input(1)))


def nearest_rows(size: int, out: int, corners: bool, half: bool) -> np.ndarray:
    """Which row of `size` each of `out` rows is, in the float32 arithmetic of TFLite."""
    ends = corners and out > 1
    scale = np.float32(size - 1) / np.float32(out - 1) if ends else np.float32(size) / np.float32(out)
    at = (np.arange(out, dtype=np.float32) + np.float32(0.5 if half else 0)) * scale
    rows = np.floor(at + np.float32(0.5)) if corners else np.floor(at)
    return np.clip(rows, 0, size - 1).astype(np.int32)


@tflite_op("RESIZE_NEAREST_NEIGHBOR", moves=True, limits="aligned corners need known sizes")
def resize_nearest(b: Builder, n: TfliteNode) -> Value:
    """As MNN does it where that picks the same rows, else row by row."""
    x, (corners, half) = n.input(0), _flags(n)
    rule = "TensorflowHalfPixels" if half else "Asymmetric"
    sizes, outs = (x.shape or (None,) * 4)[1:3], n.constant(1)
    if outs is None or not all(isinstance(s, int) for s in sizes):
        if corners:
            raise n.refuse(f"{n.op} with aligned corners needs known sizes", hint=FIX_SIZES)
        return channels_last(b, b.add(Interp(NEAREST, rule), channels_first(b, n, x), n.input(1)))
    pairs = [(int(s), int(o)) for s, o in zip(sizes, outs.reshape(-1), strict=True) if isinstance(s, int)]
    rows = [nearest_rows(size, out, corners, half) for size, out in pairs]
    if not corners and all(_picks(size, out, rule, r) for (size, out), r in zip(pairs, rows, strict=True)):
        return channels_last(b, b.add(Interp(NEAREST, rule), channels_first(b, n, x), n.input(1)))
    for axis, picked in enumerate(rows, 1):
        x = b.add(GatherV2(), x, b.ints(picked), b.ints(axis))
    return x


def _picks(size: int, out: int, rule: str, rows: np.ndarray) -> bool:
    """Whether MNN's nearest resize picks these rows, with room for the rounding of its coordinates."""
    at = positions(size, out, out / size, rule)
    whole = np.float32(out / size) == out / size and float(out / size).is_integer() and rule == "Asymmetric"
    slack = 0 if whole else 1e-5 * np.maximum(1, np.abs(at))
    return all(np.array_equal(np.clip(np.floor(a), 0, size - 1), rows) for a in (at - slack, at + slack))


@tflite_op("DEPTH_TO_SPACE", moves=True)
def depth_to_space(b: Builder, n: TfliteNode) -> Value:
    return channels_last(b, b.add(DepthToSpace(int(n.option("BlockSize", 1))), channels_first(b, n, n.input(0))))


@tflite_op("SPACE_TO_DEPTH", moves=True)
def space_to_depth(b: Builder, n: TfliteNode) -> Value:
    return channels_last(b, b.add(SpaceToDepth(int(n.option("BlockSize", 1))), channels_first(b, n, n.input(0))))


def _known(n: TfliteNode, x: Value) -> list[int]:
    """All sizes behind the batch; refused where one is not known."""
    known_rank(n, x)
    sizes = [d for d in (x.shape or ())[1:] if isinstance(d, int)]
    if len(sizes) + 1 != x.rank:
        raise n.refuse(f"{n.op} needs the sizes of its operand", hint=FIX_SIZES)
    return sizes


@tflite_op("SPACE_TO_BATCH_ND", moves=True, limits="blocks and sizes must be known")
def space_to_batch(b: Builder, n: TfliteNode) -> Value:
    """Blocks of pixels, padded first, become images of the batch; the place in the block is the slower part."""
    blocks, pads = n.ints(1, "the blocks"), n.ints(2, "the pads")
    x = n.input(0)
    _known(n, x)
    rank, count = known_rank(n, x), len(blocks)
    if any(pads):
        x = b.add(Padding(), x, b.ints([0, 0, *pads, *(0,) * (2 * (rank - 1 - count))]))
    sizes = _known(n, x)
    if any(s % k for s, k in zip(sizes, blocks, strict=False)):
        raise n.refuse(f"SPACE_TO_BATCH_ND of {sizes} in blocks of {list(blocks)}", reference=BAD)
    split = [d for s, k in zip(sizes, blocks, strict=False) for d in (s // k, k)]
    x = b.add(Reshape((-1, *split, *sizes[count:])), x)
    inside, outside = [2 + 2 * i for i in range(count)], [1 + 2 * i for i in range(count)]
    x = permuted(b, x, [*inside, 0, *outside, *range(1 + 2 * count, rank + count)])
    return b.add(Reshape((-1, *(s // k for s, k in zip(sizes, blocks, strict=False)), *sizes[count:])), x)


@tflite_op("BATCH_TO_SPACE_ND", moves=True, limits="blocks and sizes must be known")
def batch_to_space(b: Builder, n: TfliteNode) -> Value:
    """The inverse: images of the batch become blocks of pixels, which are cropped last."""
    blocks, crops = n.ints(1, "the blocks"), n.ints(2, "the crops")
    x = n.input(0)
    sizes, count = _known(n, x), len(blocks)
    rank = known_rank(n, x)
    x = b.add(Reshape((*blocks, -1, *sizes)), x)
    order = [count, *(axis for i in range(count) for axis in (count + 1 + i, i))]
    x = permuted(b, x, [*order, *range(2 * count + 1, rank + count)])
    grown = [s * k for s, k in zip(sizes, blocks, strict=False)]
    x = b.add(Reshape((-1, *grown, *sizes[count:])), x)
    return _cropped(b, x, grown, crops)


def _cropped(b: Builder, x: Value, sizes: Sequence[Dim], crops: tuple[int, ...]) -> Value:
    if not any(crops):
        return x
    ends = [s - c if isinstance(s, int) else 0 for s, c in zip(sizes, crops[1::2], strict=True)]
    axes = range(1, 1 + len(sizes))
    return b.add(StridedSlice(), x, b.ints(crops[::2]), b.ints(ends), b.ints(list(axes)))
