"""Putting by index: the runtime counts from the start, and combines only by ADD, or floats by MUL."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mnnconvert.ir import F32, Builder, Node, Value
from mnnconvert.ops.elementwise import Binary
from mnnconvert.ops.gather import GatherElements, GatherND
from mnnconvert.ops.reduction import Reduction
from mnnconvert.ops.scatter import ScatterElements, ScatterNd
from mnnconvert.ops.shape import Reshape, Unsqueeze
from mnnconvert.ops.slicing import StridedSlice
from mnnconvert.passes.defects.arithmetic import select
from mnnconvert.passes.defects.base import Defect, RefusedError, axis_operand, rank_of
from mnnconvert.passes.defects.indices import along, counts_from_zero, from_start, vector_length, wrapped

Made = Sequence[Value] | None
EXTREMES = ("MINIMUM", "MAXIMUM")


def _elements_from_start(b: Builder, node: Node) -> Made:
    data, indices, updates = node.inputs[:3]
    op = node.op
    if isinstance(op, ScatterElements) and op.reduction in EXTREMES:
        return [_elements_extreme(b, node, op.reduction)]
    _refuse_integer_product(node, updates)
    axis = along(node, 3, 0, indices)
    return None if axis is None else [b.add(op, data, from_start(b, indices, data, axis), *node.inputs[2:])]


def _refuse_integer_product(node: Node, updates: Value) -> None:
    if getattr(node.op, "reduction", "") == "MUL" and updates.dtype != F32:
        raise RefusedError(f"{node.op.kind} that multiplies integers")


def _elements_extreme(b: Builder, node: Node, function: str) -> Value:
    """Updates of one place are combined among each other first, so that it does not matter which is put last."""
    data, indices, updates = node.inputs[:3]
    axis = axis_operand(node, 3, 0)
    if axis is None:
        raise RefusedError(f"ScatterElements by {function} along an axis that is known only at run time")
    axis %= rank_of(data, "ScatterElements")
    indices = from_start(b, indices, data, axis)
    same = b.add(Binary("EQUAL"), b.add(Unsqueeze((axis + 1,)), indices), b.add(Unsqueeze((axis,)), indices))
    merged = _merge(b, function, same, b.add(Unsqueeze((axis,)), updates), axis + 1)
    place = b.ints(axis)
    old = b.add(GatherElements(), data, indices, place)
    return b.add(ScatterElements(), data, indices, _extreme(b, function, old, merged), place)


def _merge(b: Builder, function: str, same: Value, updates: Value, axis: int) -> Value:
    """The extreme of the updates that stand at the same place, over `axis`."""
    worst = -np.inf if function == "MAXIMUM" else np.inf
    if updates.dtype != F32:
        worst = np.iinfo(np.int32).min if function == "MAXIMUM" else np.iinfo(np.int32).max
    chosen = select(b, same, updates, b.constant(np.asarray(worst, updates.dtype)))
    return b.add(Reduction(function, (axis,)), chosen)


def _extreme(b: Builder, function: str, x: Value, y: Value) -> Value:
    if x.dtype == F32:
        return b.add(Binary(function), x, y)
    return select(b, b.add(Binary("GREATER"), *((x, y) if function == "MAXIMUM" else (y, x))), x, y)


def _vectors_from_start(b: Builder, node: Node) -> Made:
    indices, updates, shape = node.inputs[:3]
    op = node.op
    if not isinstance(op, ScatterNd):
        return None
    _refuse_integer_product(node, updates)
    if op.reduction not in EXTREMES and counts_from_zero(indices):
        return None
    if not counts_from_zero(indices):
        indices = wrapped(b, indices, _sizes(b, shape, vector_length(indices)))
    if op.reduction in EXTREMES:
        return [_vectors_extreme(b, node, indices, op.reduction)]
    return [b.add(op, indices, *node.inputs[1:])]


def _sizes(b: Builder, shape: Value, count: int) -> Value:
    known = shape.constant
    if known is not None:
        return b.ints(known[:count])
    return b.add(StridedSlice(), shape, b.ints([0]), b.ints([count]), b.ints([0]), b.ints([1]))


def _vectors_extreme(b: Builder, node: Node, indices: Value, function: str) -> Value:
    updates, shape = node.inputs[1:3]
    if len(node.inputs) < 4:
        raise RefusedError(f"ScatterNd by {function} into zeros")
    data, length = node.inputs[3], vector_length(indices)
    row = (updates.shape or ())[(indices.rank or 0) - 1 :]
    if updates.shape is None or not all(isinstance(d, int) for d in row):
        raise RefusedError(f"ScatterNd by {function} of rows of unknown size")
    flat, rows = b.add(Reshape((-1, length)), indices), b.add(Reshape((-1, *row)), updates)  # type: ignore[arg-type]
    equal = b.add(Binary("EQUAL"), b.add(Unsqueeze((1,)), flat), b.add(Unsqueeze((0,)), flat))
    same = b.add(Reduction("MINIMUM", (2,)), equal)
    same = b.add(Unsqueeze(tuple(range(2, 2 + len(row)))), same) if row else same
    merged = _merge(b, function, same, b.add(Unsqueeze((0,)), rows), 1)
    old = b.add(GatherND(), data, flat)
    return b.add(ScatterNd(), flat, _extreme(b, function, old, merged), shape, data)


WRONG = "MINIMUM and MAXIMUM are ignored, integers are not multiplied, negative indices are not counted from the end"

DEFECTS = (
    Defect("ScatterElements", WRONG, _elements_from_start),
    Defect("ScatterNd", WRONG, _vectors_from_start),
)
