"""Putting by index: the runtime counts from the start, and combines only floats, by ADD or MUL."""

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
    _refuse_integers(node, updates)
    axis = along(node, 3, 0, indices)
    return None if axis is None else [b.add(op, data, from_start(b, indices, data, axis), *node.inputs[2:])]


def _refuse_integers(node: Node, updates: Value) -> None:
    reduction = getattr(node.op, "reduction", "")
    if reduction in ("ADD", "MUL") and updates.dtype != F32:
        raise RefusedError(f"{node.op.kind} that {'adds' if reduction == 'ADD' else 'multiplies'} integers")


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
    _refuse_integers(node, updates)
    if not counts_from_zero(indices):
        indices = wrapped(b, indices, _sizes(b, shape, vector_length(indices)))
    if op.reduction in EXTREMES:
        return [_vectors_extreme(b, node, indices, op.reduction)]
    indices, updates = _suitable(b, indices, updates, shape)
    return None if indices is node.inputs[0] else [b.add(op, indices, updates, *node.inputs[2:])]


def _suitable(b: Builder, indices: Value, updates: Value, shape: Value) -> tuple[Value, Value]:
    """Index vectors in as many axes as they have numbers, and one, with their updates: the runtime counts on that."""
    length, rank = vector_length(indices), shape.shape[0] if shape.shape else None
    axes = rank_of(indices, "ScatterNd")
    if axes == length + 1 or (length == rank and axes <= length + 1):
        return indices, updates
    more = tuple(range(length + 1 - axes))
    if more:
        return b.add(Unsqueeze(more), indices), b.add(Unsqueeze(more), updates)
    kept = axes - length
    return _merged(b, indices, kept), _merged(b, updates, kept)


def _merged(b: Builder, x: Value, count: int) -> Value:
    """x with its first `count` axes in one."""
    behind = x.shape[count:] if x.shape is not None else (None,)
    if not all(isinstance(d, int) and d for d in behind):
        raise RefusedError("ScatterNd by vectors in more axes than they have numbers, of unknown sizes")
    return b.add(Reshape((-1, *behind)), x)  # type: ignore[arg-type]


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
    flat, rows = _suitable(b, flat, _extreme(b, function, old, merged), shape)
    return b.add(ScatterNd(), flat, rows, shape, data)


VECTORS = "vectors in other than one axis more than they have numbers go to wrong places; "
WRONG = "MINIMUM and MAXIMUM are ignored, integers are not combined, negative indices are not counted from the end"

DEFECTS = (
    Defect("ScatterElements", WRONG, _elements_from_start),
    Defect("ScatterNd", VECTORS + WRONG, _vectors_from_start),
)
