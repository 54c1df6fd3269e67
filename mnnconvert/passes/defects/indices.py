"""Picking by index: the runtime counts from the start only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mnnconvert.ir import I32, Builder, Node, Value
from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.elementwise import Binary
from mnnconvert.ops.gather import Gather, GatherND, GatherV2
from mnnconvert.ops.reduction import CumSum
from mnnconvert.ops.shape import ShapeOf
from mnnconvert.passes.defects.base import Defect, RefusedError, axis_operand, rank_of, size_of

Made = Sequence[Value] | None
COUNTING = {"ArgMax", "ArgMin", "ShapeOf", "Size", "Rank", "Where", "NonMaxSuppressionV2"}
PASSING = {"Reshape", "Squeeze", "Unsqueeze", "Permute", "Identity", "BroadcastTo", "Flatten", "Slice", "StridedSlice"}


def from_start(b: Builder, indices: Value, data: Value, axis: int | Value) -> Value:
    """`indices` with negative ones counted from the start of `axis`; itself when none can be negative."""
    if counts_from_zero(indices):
        return indices
    return wrapped(b, indices, size_of(b, data, axis))


def wrapped(b: Builder, indices: Value, size: Value) -> Value:
    """`indices`, plus `size` (which broadcasts) where they are negative."""
    negative = b.add(Binary("GREATER"), b.ints(0), indices)
    return b.add(Binary("ADD"), indices, b.add(Binary("MUL"), negative, size))


def counts_from_zero(value: Value) -> bool:
    """Whether a value is known to hold no negative numbers."""
    known = value.constant
    if known is not None:
        return bool((known >= 0).all())
    sizes = value.sizes
    if sizes and all(isinstance(s, str) or (isinstance(s, int) and s >= 0) for s in sizes):
        return True
    producer = value.producer
    if producer is None:
        return False
    if producer.op.kind in COUNTING or (producer.op.kind == "TopKV2" and value is producer.outputs[-1]):
        return True
    return producer.op.kind in PASSING and counts_from_zero(producer.inputs[0])


def along(node: Node, operand: int, default: int, indices: Value) -> int | Value | None:
    """The axis, as a value where it is known only at run time; None where no index is negative."""
    if counts_from_zero(indices):
        return None
    axis = axis_operand(node, operand, default)
    return node.inputs[operand] if axis is None else axis


def _gather(b: Builder, node: Node) -> Made:
    x, indices = node.inputs[:2]
    axis = along(node, 2, getattr(node.op, "axis", 0), indices)
    return None if axis is None else [b.add(node.op, x, from_start(b, indices, x, axis), *node.inputs[2:])]


def _first_from_end(b: Builder, node: Node) -> Made:
    """The axis counted from the start where it is the first."""
    x, rank = node.inputs[0], node.inputs[0].rank
    axis = axis_operand(node, 2, 0)
    if len(node.inputs) < 3 or rank is None or axis != -rank:
        return None
    return [b.add(node.op, x, from_start(b, node.inputs[1], x, 0), b.ints(0))]


def _axis_attribute(b: Builder, node: Node) -> Made:
    op, x = node.op, node.inputs[0]
    if not isinstance(op, Gather) or len(node.inputs) > 2 or op.axis == 0:
        return None
    return [b.add(GatherV2(), x, from_start(b, node.inputs[1], x, op.axis), b.ints(op.axis))]


def leading_sizes(b: Builder, x: Value, start: int, count: int) -> Value:
    """The sizes of `count` axes from `start` as a vector."""
    sizes = None if x.shape is None else x.shape[start : start + count]
    if sizes is not None and all(isinstance(s, int) for s in sizes):
        return b.constant(np.array(sizes, I32))
    return b.add(ShapeOf(start, start + count), x)


def vector_length(indices: Value) -> int:
    """How many numbers make an index: the last size."""
    length = indices.shape[-1] if indices.shape else None
    if not isinstance(length, int):
        raise RefusedError("index vectors of unknown length")
    return length


def _gather_nd(b: Builder, node: Node) -> Made:
    op, (x, indices) = node.op, node.inputs
    if isinstance(op, GatherND) and 0 in (indices.shape or ()):
        raise RefusedError("GatherND by no index vectors")
    if not isinstance(op, GatherND) or (not op.batch_dims and counts_from_zero(indices)):
        return None
    length = vector_length(indices)
    if not counts_from_zero(indices):
        indices = wrapped(b, indices, leading_sizes(b, x, op.batch_dims, length))
    if op.batch_dims:
        indices = b.add(Concat(rank_of(indices, "GatherND") - 1), *_batch_numbers(b, indices, op.batch_dims), indices)
    return [b.add(GatherND(), x, indices)]


def _batch_numbers(b: Builder, indices: Value, axes: int) -> list[Value]:
    """For each of the first axes, its coordinate at every index vector: [..., 1]."""
    first = b.add(GatherV2(), indices, b.ints([0]), b.ints(rank_of(indices, "GatherND") - 1))
    ones = b.add(Binary("EQUAL"), first, first)
    return [b.add(CumSum(exclusive=True), ones, b.ints(axis)) for axis in range(axes)]


DEFECTS = (
    Defect("Gather", "the axis in the table is not read", _axis_attribute),
    Defect("Gather", "the first axis counted from the end is not known", _first_from_end),
    Defect("GatherV2", "the first axis counted from the end is not known", _first_from_end),
    Defect("Gather", "a negative index gives zeros", _gather, negative_index=True),
    Defect("GatherV2", "a negative index gives zeros", _gather, negative_index=True),
    Defect("GatherElements", "a negative index gives zeros", _gather, negative_index=True),
    Defect("GatherND", "negative indices and batch axes are not computed", _gather_nd),
)
