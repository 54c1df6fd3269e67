"""Import rules of ops that pick elements by index or by condition."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mnnconvert.frontends.common.compose import calc, cast, widened
from mnnconvert.frontends.common.run_time import scalar_size
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.ir import F32, I32, Builder, Dim, Value
from mnnconvert.ir.types import normal_axis
from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.gather import GatherElements, GatherND, GatherV2, OneHot
from mnnconvert.ops.generators import Range
from mnnconvert.ops.search import Where
from mnnconvert.ops.shape import Permute, Reshape, Squeeze
from mnnconvert.ops.slicing import StridedSlice


def from_start(b: Builder, indices: Value, sizes: Sequence[Dim]) -> Value:
    """Known indices counted from the start. `sizes` has one size, or one for each element of the last axis."""
    known = indices.constant
    if known is None or not (known < 0).any() or not all(isinstance(s, int) for s in sizes):
        return indices
    return b.ints(np.where(known < 0, known + np.asarray(sizes, np.int64), known).reshape(known.shape))


def axis_size(x: Value, axis: int) -> Dim:
    return None if x.shape is None else x.shape[normal_axis(axis, len(x.shape))]


@onnx_op("Gather")
def gather(b: Builder, n: OnnxNode) -> Value:
    x, axis = n.input(0), n.attr("axis", 0)
    indices = from_start(b, n.input(1), [axis_size(x, axis)])
    known = indices.constant
    if known is not None and known.size == 1 and known.min() < 0 and known.ndim < 2:
        return _one_from_end(b, x, axis, int(known.reshape(())), known.ndim == 0)
    return b.add(GatherV2(), x, indices, b.ints(axis))


def _one_from_end(b: Builder, x: Value, axis: int, index: int, drop: bool) -> Value:
    """One element counted from the end of an axis of unknown size."""
    end = index + 1 if index < -1 else 2**31 - 1
    one = b.add(StridedSlice(), x, b.ints([index]), b.ints([end]), b.ints([axis]))
    return b.add(Squeeze((axis,)), one) if drop else one


@onnx_op("GatherElements")
def gather_elements(b: Builder, n: OnnxNode) -> Value:
    x, axis = n.input(0), n.attr("axis", 0)
    return b.add(GatherElements(), x, from_start(b, n.input(1), [axis_size(x, axis)]), b.ints(axis))


@onnx_op("GatherND")
def gather_nd(b: Builder, n: OnnxNode) -> Value:
    x, indices, batch = n.input(0), n.input(1), n.attr("batch_dims", 0)
    depth = indices.shape[-1] if indices.shape else None
    if isinstance(depth, int) and x.shape is not None:
        indices = from_start(b, indices, x.shape[batch : batch + depth])
    if batch and indices.rank is None:
        raise n.refuse(f"GatherND has batch_dims {batch} and indices of unknown rank")
    return b.add(GatherND(), x, _with_batch(b, x, indices, batch) if batch else indices)


def _with_batch(b: Builder, x: Value, indices: Value, batch: int) -> Value:
    """Index vectors that begin with their own place on the batch axes: the runtime knows no batch axes."""
    rank = indices.rank or 1
    last = b.ints([rank - 1])
    zeros = calc(b, "MUL", b.add(StridedSlice(), indices, b.ints([0]), b.ints([1]), last), 0)
    columns = []
    for i in range(batch):
        steps = b.add(Range(), b.ints(0), scalar_size(b, x, i), b.ints(1))
        columns.append(calc(b, "ADD", zeros, b.add(Reshape(tuple(-1 if j == i else 1 for j in range(rank))), steps)))
    return b.add(Concat(rank - 1), *columns, indices)


@onnx_op("OneHot")
def one_hot(b: Builder, n: OnnxNode) -> Value:
    """Indices -depth..-1 count from the end, others outside of the axis give only `off`."""
    indices, depth = cast(b, n.input(0), I32), cast(b, b.add(Reshape(()), n.input(1)), I32)
    values = widened(b, n.input(2))
    negative = calc(b, "LESS", indices, 0)
    indices = calc(b, "ADD", indices, calc(b, "MUL", negative, depth))
    off, on = (b.add(GatherV2(), values, b.ints(i), b.ints(0)) for i in (0, 1))
    axis = n.attr("axis", -1)
    axis = normal_axis(axis, indices.rank + 1) if indices.rank is not None else axis
    return cast(b, b.add(OneHot(axis), indices, depth, on, off), n.input(2).dtype)


def _coordinates(b: Builder, x: Value) -> Value:
    """Coordinates [n, rank] of what is not zero; a scalar counts as one element on one axis."""
    if x.dtype != I32:
        x = calc(b, "NOTEQUAL", x, 0) if x.dtype == F32 else cast(b, x, I32)
    return b.add(Where(), b.add(Reshape((1,)), x) if x.rank == 0 else x)


@onnx_op("NonZero")
def non_zero(b: Builder, n: OnnxNode) -> Value:
    return b.add(Permute((1, 0)), _coordinates(b, n.input(0)))


@onnx_op("Compress")
def compress(b: Builder, n: OnnxNode) -> Value:
    """The places where the condition holds are the indices of a gather."""
    x, axis = n.input(0), n.attr("axis")
    places = b.add(Reshape((-1,)), _coordinates(b, n.input(1)))
    if axis is None:
        x, axis = b.add(Reshape((-1,)), x), 0
    return b.add(GatherV2(), x, places, b.ints(axis))
