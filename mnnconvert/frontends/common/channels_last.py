"""Windows and planes of models whose channels are the last axis; in the graph they are the second."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mnnconvert.frontends.common.moves import permuted
from mnnconvert.frontends.common.nodes import FIX_SIZES, SourceNode, known_rank, known_sizes
from mnnconvert.ir import Builder, Dim, Value
from mnnconvert.ops.gather import GatherND, GatherV2
from mnnconvert.ops.padding import Padding
from mnnconvert.ops.resample import LINEAR, NEAREST, Interp, positions
from mnnconvert.ops.shape import ExpandDims, Permute, Reshape
from mnnconvert.ops.slicing import StridedSlice
from mnnconvert.ops.windows import same_pads

Ints = tuple[int, ...]


def channels_first(b: Builder, n: SourceNode, x: Value) -> Value:
    """[N, spatial.., C] as [N, C, spatial..]."""
    rank = known_rank(n, x)
    return permuted(b, x, (0, rank - 1, *range(1, rank - 1)))


def channels_last(b: Builder, y: Value) -> Value:
    """[N, C, spatial..] as [N, spatial.., C]."""
    rank = y.rank or 4
    return permuted(b, y, (0, *range(2, rank), 1))


def window_pads(
    n: SourceNode, same: bool, sizes: Sequence[Dim], kernel: Ints, strides: Ints, dilations: Ints
) -> tuple[Ints, Ints] | None:
    """Pads before and after of the rules SAME and VALID; None where they depend on sizes that are not known."""
    if min((*strides, *dilations, *kernel)) < 1:
        raise n.refuse(f"{n.op} has the kernel {list(kernel)}, strides {list(strides)}, dilations {list(dilations)}")
    if not same:
        return (0,) * len(kernel), (0,) * len(kernel)
    rows = list(zip(sizes, kernel, strides, dilations, strict=True))
    if any(not isinstance(size, int) and stride > 1 for size, _, stride, _ in rows):
        return None
    pads = [same_pads(s if isinstance(s, int) else 1 << 20, k, stride, d) for s, k, stride, d in rows]
    return tuple(p[0] for p in pads), tuple(p[1] for p in pads)


def crop_to(
    n: SourceNode, sizes: Sequence[Dim], kernel: Ints, strides: Ints, outs: Sequence[int], same: bool
) -> tuple[Ints, Ints, Ints]:
    """Pads before and after, and what enlarges the far end, with which a transposed convolution has these sizes."""
    begin, end, extra = [], [], []
    for size, k, s, out in zip(sizes, kernel, strides, outs, strict=True):
        if not isinstance(size, int):
            raise n.refuse(f"{n.op} needs the sizes of its operand", hint=FIX_SIZES)
        total = (size - 1) * s + k - out
        first = max(0, total) // 2 if same else 0
        begin.append(first)
        end.append(max(0, total - first))
        extra.append(max(0, first - total))
    return tuple(begin), tuple(end), tuple(extra)


def resized_bilinear(b: Builder, n: SourceNode, x: Value, sizes: Value, corners: bool, half: bool) -> Value:
    """Planes [N,H,W,C] in the sizes (H, W) of an int32 vector."""
    rule = "AlignCorners" if corners else "HalfPixels" if half else "Asymmetric"
    return channels_last(b, b.add(Interp(LINEAR, rule), channels_first(b, n, x), sizes))


def nearest_rows(size: int, out: int, corners: bool, half: bool) -> np.ndarray:
    """Which row of `size` each of `out` rows is, in the float32 arithmetic of TensorFlow and TFLite."""
    ends = corners and out > 1
    scale = np.float32(size - 1) / np.float32(out - 1) if ends else np.float32(size) / np.float32(out)
    at = (np.arange(out, dtype=np.float32) + np.float32(0.5 if half else 0)) * scale
    rows = np.floor(at + np.float32(0.5)) if corners else np.floor(at)
    return np.clip(rows, 0, size - 1).astype(np.int32)


def resized_nearest(
    b: Builder, n: SourceNode, x: Value, sizes: Value, outs: np.ndarray | None, corners: bool, half: bool
) -> Value:
    """As MNN does it where that picks the same rows, else row by row. `outs` is the content of `sizes` if known."""
    rule = "TensorflowHalfPixels" if half else "Asymmetric"
    given = (x.shape or (None,) * 4)[1:3]
    if outs is None or not all(isinstance(s, int) for s in given):
        if corners:
            raise n.refuse(f"{n.op} with aligned corners needs known sizes", hint=FIX_SIZES)
        return channels_last(b, b.add(Interp(NEAREST, rule), channels_first(b, n, x), sizes))
    pairs = [(int(s), int(o)) for s, o in zip(given, outs.reshape(-1), strict=True) if isinstance(s, int)]
    rows = [nearest_rows(size, out, corners, half) for size, out in pairs]
    if not corners and all(_picks(size, out, rule, r) for (size, out), r in zip(pairs, rows, strict=True)):
        return channels_last(b, b.add(Interp(NEAREST, rule), channels_first(b, n, x), sizes))
    for axis, picked in enumerate(rows, 1):
        x = b.add(GatherV2(), x, b.ints(picked), b.ints(axis))
    return x


def _picks(size: int, out: int, rule: str, rows: np.ndarray) -> bool:
    """Whether MNN's nearest resize picks these rows, with room for the rounding of its coordinates."""
    at = positions(size, out, out / size, rule)
    whole = np.float32(out / size) == out / size and float(out / size).is_integer() and rule == "Asymmetric"
    slack = 0 if whole else 1e-5 * np.maximum(1, np.abs(at))
    return all(np.array_equal(np.clip(np.floor(a), 0, size - 1), rows) for a in (at - slack, at + slack))


def space_to_batch(b: Builder, n: SourceNode, x: Value, blocks: Ints, pads: Ints) -> Value:
    """Blocks of pixels, padded first, become images of the batch; the place in the block is the slower part."""
    known_sizes(n, x)
    rank, count = known_rank(n, x), len(blocks)
    if any(pads):
        x = b.add(Padding(), x, b.ints([0, 0, *pads, *(0,) * (2 * (rank - 1 - count))]))
    sizes = known_sizes(n, x)
    if any(s % k for s, k in zip(sizes, blocks, strict=False)):
        raise n.refuse(f"{n.op} of {sizes} in blocks of {list(blocks)}", reference=n.broken)
    split = [d for s, k in zip(sizes, blocks, strict=False) for d in (s // k, k)]
    x = b.add(Reshape((-1, *split, *sizes[count:])), x)
    inside, outside = [2 + 2 * i for i in range(count)], [1 + 2 * i for i in range(count)]
    x = permuted(b, x, [*inside, 0, *outside, *range(1 + 2 * count, rank + count)])
    return b.add(Reshape((-1, *(s // k for s, k in zip(sizes, blocks, strict=False)), *sizes[count:])), x)


def batch_to_space(b: Builder, n: SourceNode, x: Value, blocks: Ints, crops: Ints) -> Value:
    """The inverse: images of the batch become blocks of pixels, which are cropped last."""
    sizes, count = known_sizes(n, x), len(blocks)
    rank = known_rank(n, x)
    x = b.add(Reshape((*blocks, -1, *sizes)), x)
    order = [count, *(axis for i in range(count) for axis in (count + 1 + i, i))]
    x = permuted(b, x, [*order, *range(2 * count + 1, rank + count)])
    grown = [s * k for s, k in zip(sizes, blocks, strict=False)]
    x = b.add(Reshape((-1, *grown, *sizes[count:])), x)
    return _cropped(b, x, grown, crops)


def _cropped(b: Builder, x: Value, sizes: Sequence[Dim], crops: Ints) -> Value:
    if not any(crops):
        return x
    ends = [s - c if isinstance(s, int) else 0 for s, c in zip(sizes, crops[1::2], strict=True)]
    axes = range(1, 1 + len(sizes))
    return b.add(StridedSlice(), x, b.ints(crops[::2]), b.ints(ends), b.ints(list(axes)))


def batched_gather(b: Builder, n: SourceNode, x: Value, indices: Value, axis: int, batch: int) -> Value:
    """Slices along an axis, where `batch` leading axes of both operands pair up.

    The gathered axis goes right behind the batches, whole rows are gathered there, and the axis goes back to its place.
    """
    rank, places = known_rank(n, x), known_rank(n, indices)
    front = (*range(batch), axis, *(i for i in range(batch, rank) if i != axis))
    moved = x if front == tuple(range(rank)) else b.add(Permute(front), x)
    rows = b.add(GatherND(batch), moved, b.add(ExpandDims(places), indices))
    between = axis - batch  # axes that stood between the batches and the gathered one
    extra = places - batch
    order = (
        *range(batch), *range(batch + extra, batch + extra + between), *range(batch, batch + extra),
        *range(batch + extra + between, rank - 1 + extra),
    )  # fmt: skip
    return rows if order == tuple(range(len(order))) else b.add(Permute(order), rows)
