"""Import rules of ops that join, repeat, cut out and mask."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mnnconvert.frontends.common.compose import calc, cast, widened
from mnnconvert.frontends.common.run_time import scalar_size
from mnnconvert.frontends.common.tensors import INT32_MAX, INT32_MIN
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.ir import Builder, Dim, Value
from mnnconvert.ir.types import normal_axis
from mnnconvert.ops.arrange import BroadcastTo, Concat, ReverseSequence, Tile
from mnnconvert.ops.elementwise import Select
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.generators import Range
from mnnconvert.ops.shape import Reshape, Unsqueeze
from mnnconvert.ops.slicing import Slice, StridedSlice


@onnx_op("Concat")
def concat(b: Builder, n: OnnxNode) -> Value:
    """Operands without elements on the axis are left out."""
    values = n.inputs
    axis = n.attr("axis", 1)
    full = [v for v in values if v.shape is None or v.shape[axis] != 0] or values[:1]
    return full[0] if len(full) == 1 else b.add(Concat(axis), *full)


@onnx_op("Split")
def split(b: Builder, n: OnnxNode) -> tuple[Value, ...]:
    """Parts of given sizes, or as equal as possible; sizes that are not known cut one part after the other."""
    x, axis, count = n.input(0), n.attr("axis", 0), n.output_count
    if count == 1:
        return (x,)
    if n.has(1) and n.constant(1) is None:
        return parts_of(b, x, axis, n.input(1), count)
    sizes = n.attr("split") if not n.has(1) else tuple(int(s) for s in n.required_constant(1, "the sizes").reshape(-1))
    size = x.shape[normal_axis(axis, len(x.shape))] if x.shape is not None else None
    if not sizes and n.opset >= 18 and n.has_attr("num_outputs"):
        return _equal_parts(b, n, x, axis, size)
    if not sizes or (isinstance(size, int) and size == count * sizes[0] and len(set(sizes)) == 1):
        return tuple(b.add(Slice(axis, parts=count), x, names=[""] * count))
    return _sized_parts(b, x, axis, sizes)


def _sized_parts(b: Builder, x: Value, axis: int, sizes: Sequence[int]) -> tuple[Value, ...]:
    """A split, unless a part is empty: the runtime splits off no empty parts, but slices them."""
    if 0 not in sizes:
        return tuple(b.add(Slice(axis, tuple(sizes)), x, names=[""] * len(sizes)))
    cuts = [b.ints([c]) for c in np.cumsum((0, *sizes))]
    return tuple(_cut(b, x, axis, cuts[i], cuts[i + 1]) for i in range(len(sizes)))


def _equal_parts(b: Builder, n: OnnxNode, x: Value, axis: int, size: Dim) -> tuple[Value, ...]:
    """All parts as large as the first; the last takes what is left."""
    count = n.attr("num_outputs")
    if count != n.output_count:
        raise n.refuse(f"Split has {n.output_count} outputs and num_outputs {count}", reference="bad-onnx-node")
    if isinstance(size, int):
        part = -(-size // count)
        sizes = tuple(max(0, min(part, size - i * part)) for i in range(count))
        return _sized_parts(b, x, axis, sizes)
    part_size = calc(b, "FLOORDIV", calc(b, "ADD", scalar_size(b, x, axis), count - 1), count)
    cuts = [b.add(Unsqueeze((0,)), calc(b, "MUL", part_size, i)) for i in range(count + 1)]
    return tuple(_cut(b, x, axis, cuts[i], cuts[i + 1]) for i in range(count))


def parts_of(b: Builder, x: Value, axis: int, sizes: Value, count: int) -> tuple[Value, ...]:
    """So many parts, of sizes that a run knows."""
    cuts = [b.ints([0])]
    for i in range(count):
        cuts.append(calc(b, "ADD", cuts[-1], b.add(GatherV2(), sizes, b.ints([i]), b.ints(0))))
    return tuple(_cut(b, x, axis, cuts[i], cuts[i + 1]) for i in range(count))


def _cut(b: Builder, x: Value, axis: int, start: Value, end: Value) -> Value:
    return b.add(StridedSlice(), x, start, end, b.ints([axis]))


def _bounds(values: object) -> np.ndarray:
    return np.clip(np.asarray(values, np.int64), INT32_MIN, INT32_MAX).astype(np.int32)


@onnx_op("Slice", since=10)
def slice_(b: Builder, n: OnnxNode) -> Value:
    """Bounds may be far outside ("to the end"): they are clamped to 32 bits, which changes nothing."""
    x = n.input(0)
    bounds = []
    for i in range(1, 5):
        if n.has(i):
            array = n.vector(i)
            bounds.append(n.input(i) if array is None else b.constant(_bounds(array)))
        elif i == 3 and n.has(4):
            count = bounds[0].shape[0] if bounds[0].shape else None
            if not isinstance(count, int):
                raise n.refuse("Slice has steps without axes, and how many is not known at conversion")
            bounds.append(b.ints(np.arange(count)))
    return b.add(StridedSlice(), x, *bounds)


@onnx_op("Slice")
def slice_by_attributes(b: Builder, n: OnnxNode) -> Value:
    starts = n.attr("starts", ())
    axes = n.attr("axes", tuple(range(len(starts))))
    return b.add(StridedSlice(), n.input(0), *(b.constant(_bounds(v)) for v in (starts, n.attr("ends", ()), axes)))


@onnx_op("Expand", since=8)
def expand(b: Builder, n: OnnxNode) -> Value:
    x, shape = n.input(0), n.input(1)
    if shape.shape == (0,):
        return x
    return b.add(BroadcastTo(), x, shape)


@onnx_op("Tile", since=6)
def tile(b: Builder, n: OnnxNode) -> Value:
    x = n.input(0)
    return x if x.rank == 0 else b.add(Tile(), x, n.input(1))


@onnx_op("Tile")
def tile_one_axis(b: Builder, n: OnnxNode) -> Value:
    """Before opset 6: so many tiles on one axis."""
    x = n.input(0)
    tiles, axis = (int(n.required_constant(i, what).reshape(-1)[0]) for i, what in ((1, "the tiles"), (2, "the axis")))
    if x.rank is None:
        raise n.refuse("Tile on one axis needs a tensor of known rank")
    return b.add(Tile(), x, b.ints([tiles if i == normal_axis(axis, x.rank) else 1 for i in range(x.rank)]))


@onnx_op("Trilu")
def trilu(b: Builder, n: OnnxNode) -> Value:
    """The upper or lower triangle: a comparison of row and column numbers selects x or 0."""
    x = n.input(0)
    k = b.ints(0) if not n.has(1) else b.add(Reshape(()), n.input(1))
    rows = b.add(Range(), b.ints(0), scalar_size(b, x, -2), b.ints(1))
    columns = b.add(Range(), b.ints(0), scalar_size(b, x, -1), b.ints(1))
    offset = calc(b, "SUB", columns, b.add(Unsqueeze((1,)), rows))
    inside = calc(b, "GREATER_EQUAL" if n.attr("upper", 1) else "LESS_EQUAL", offset, k)
    wide = widened(b, x)
    return cast(b, b.add(Select(), inside, wide, b.constant(np.zeros((), wide.dtype))), x.dtype)


@onnx_op("ReverseSequence")
def reverse_sequence(b: Builder, n: OnnxNode) -> Value:
    """A length of 0 becomes 1, which reverses as little: the runtime fails on a 0."""
    lengths = calc(b, "MAXIMUM", n.input(1), 1)
    return b.add(ReverseSequence(n.attr("batch_axis", 1), n.attr("time_axis", 0)), n.input(0), lengths)
