"""Padding: the runtime crops at wrong places, and gets corners wrong where several axes grow by other than zeros."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mnnconvert.ir import Builder, Node, Value
from mnnconvert.ir.types import known
from mnnconvert.ops.elementwise import Binary
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.generators import Fill
from mnnconvert.ops.padding import Padding
from mnnconvert.ops.shape import ShapeOf
from mnnconvert.ops.slicing import FAR, StridedSlice
from mnnconvert.passes.defects.arithmetic import select
from mnnconvert.passes.defects.base import Defect, RefusedError, axes_operand, rank_of, shape_of
from mnnconvert.passes.defects.indices import counts_from_zero

Made = Sequence[Value] | None
TOGETHER = 3  # so many last axes are padded right in one step


def _of_nothing(b: Builder, node: Node) -> Made:
    """An operand without elements, around which there are zeros."""
    op, (x, _, *value) = node.op, node.inputs
    if not isinstance(op, Padding) or 0 not in (x.shape or ()) or _adds_zeros(op, value):
        return None
    if not known(node.output.shape) or op.mode != "CONSTANT":
        raise RefusedError("padding of no elements")
    return [b.add(Fill(), shape_of(b, node.output), *value)]


def _crop(b: Builder, node: Node) -> Made:
    """Cut first, then pad."""
    op, x, value = node.op, node.inputs[0], node.inputs[2:]
    amounts = axes_operand(node, 1)
    if not isinstance(op, Padding) or amounts is None or min(amounts, default=0) >= 0:
        return None
    cut = [axis for axis in range(len(amounts) // 2) if min(amounts[2 * axis : 2 * axis + 2]) < 0]
    starts = [max(0, -amounts[2 * axis]) for axis in cut]
    ends = [min(amounts[2 * axis + 1], 0) or FAR for axis in cut]
    x = b.add(StridedSlice(), x, b.ints(starts), b.ints(ends), b.ints(cut), b.ints([1] * len(cut)))
    grown = [max(0, a) for a in amounts]
    return [x] if not any(grown) else [_grown(b, op, x, b.ints(grown), *value)]


def _computed_crop(b: Builder, node: Node) -> Made:
    """The same with amounts that are known only at run time."""
    op, (x, amounts, *value) = node.op, node.inputs
    if not isinstance(op, Padding) or amounts.constant is not None or counts_from_zero(amounts):
        return None
    rank = rank_of(x, "padding by computed amounts")
    positive = _larger(b, amounts, b.ints(0))
    lost = b.add(Binary("SUB"), positive, amounts)
    starts, cut = (b.add(GatherV2(), lost, b.ints(np.arange(i, 2 * rank, 2)), b.ints(0)) for i in (0, 1))
    axes, ends = b.ints(np.arange(rank)), b.add(Binary("SUB"), b.add(ShapeOf(), x), cut)
    x = b.add(StridedSlice(), x, starts, ends, axes, b.ints([1] * rank))
    return [_grown(b, op, x, positive, *value)]


def _larger(b: Builder, x: Value, y: Value) -> Value:
    return select(b, b.add(Binary("GREATER"), x, y), x, y)


def _many_axes(b: Builder, node: Node) -> Made:
    op, (x, amounts, *value) = node.op, node.inputs
    if not isinstance(op, Padding) or x.rank is None or _adds_zeros(op, value) or len(_steps(x, amounts)) < 2:
        return None
    return [_grown(b, op, x, amounts, *value)]


def _grown(b: Builder, op: Padding, x: Value, amounts: Value, *value: Value) -> Value:
    """Padding in as many steps as the runtime needs."""
    steps = [] if _adds_zeros(op, value) else _steps(x, amounts)
    if len(steps) < 2:
        return b.add(op, x, amounts, *value)
    for step in steps:
        x = b.add(op, x, b.add(Binary("MUL"), amounts, b.ints(step)), *value)
    return x


def _adds_zeros(op: Padding, value: Sequence[Value]) -> bool:
    content = value[0].constant if value else np.zeros(1)
    return op.mode == "CONSTANT" and content is not None and not content.any()


def _steps(x: Value, amounts: Value) -> list[list[int]]:
    """For each step, 1 at the amounts that are added in it: the axes in front one by one, then the last ones."""
    rank = x.rank or 0
    content = amounts.constant
    steps = []
    for axes in _turns(rank):
        mask = [int(i // 2 in axes) for i in range(2 * rank)]
        if content is None or (content.reshape(-1) * mask).any():
            steps.append(mask)
    return steps


def _turns(rank: int) -> Iterator[range]:
    for axis in range(rank - TOGETHER):
        yield range(axis, axis + 1)
    yield range(max(0, rank - TOGETHER), rank)


DEFECTS = (
    Defect("Padding", "around no elements everything is zero", _of_nothing),
    Defect("Padding", "negative amounts crop at wrong places", _crop),
    Defect("Padding", "computed negative amounts crop at wrong places", _computed_crop, negative_index=True),
    Defect("Padding", "corners of other than zeros are wrong beyond the last three axes", _many_axes),
)
