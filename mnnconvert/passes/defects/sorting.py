"""Order among equals: the runtime's TopKV2 takes any of equal elements, where the lowest index is meant."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mnnconvert.ir import F32, I32, Builder, Node, Value
from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.elementwise import Binary, Cast, Select
from mnnconvert.ops.gather import GatherElements, GatherV2
from mnnconvert.ops.reduction import ArgMax, ArgMin, CumSum, Reduction
from mnnconvert.ops.search import TopKV2
from mnnconvert.ops.shape import ShapeOf, Unsqueeze
from mnnconvert.ops.slicing import StridedSlice
from mnnconvert.passes.defects.base import Defect, RefusedError, axis_operand, equal, is_read, rank_of, size_of
from mnnconvert.passes.defects.ranges import EXACT, FIRST, exact_product, product

Made = Sequence[Value] | None
LOWEST = float(np.finfo(np.float32).min)
OVERLAP = 0.5  # where none is given


def _top(b: Builder, node: Node) -> Made:
    """The values as they come; the indices sorted within groups of equal values.

    Within a group that is taken whole the indices are sorted by key (group number * size + index). Of the last group,
    which may be taken in part, the first places in x are found by sorting (index, or index + size where x differs).
    """
    op, (x, k) = node.op, node.inputs[:2]
    if not isinstance(op, TopKV2) or not is_read(b, node.outputs[1]) or x.dtype not in (F32, I32):
        return None
    axis = axis_operand(node, 2, -1)
    if axis is None:
        raise RefusedError("TopKV2 along an axis that is known only at run time")
    axis %= max(rank_of(x, "TopKV2"), 1)
    if x.dtype == F32 and k.sizes == [1]:
        return _one(b, x, axis, op.largest)
    values, taken = b.add(op, x, k, *node.inputs[2:], names=["", ""])
    return [values, _Ties(b, axis, x, values).sorted(taken)]


def _one(b: Builder, x: Value, axis: int, largest: bool) -> Made:
    """The extreme and the first place where it is."""
    place = b.add(ArgMax(axis) if largest else ArgMin(axis), x)
    return [b.add(Reduction("MAXIMUM" if largest else "MINIMUM", (axis,), True), x), b.add(Unsqueeze((axis,)), place)]


class _Ties:
    """The work on the indices of one TopKV2 along `axis`."""

    def __init__(self, b: Builder, axis: int, x: Value, values: Value):
        self.b, self.axis, self.x, self.values = b, axis, x, values
        self.place = b.ints(axis)
        self.size = size_of(b, x, axis)
        self.count = size_of(b, values, axis)

    def sorted(self, taken: Value) -> Value:
        b = self.b
        last = self._cut(self.values, -1, 1 << 30)
        in_last = equal(b, self.values, last)
        group = b.add(CumSum(), self._changes(), self.place)
        start = self._times_size(group)
        whole = b.add(Binary("SUB"), self._smallest(b.add(Binary("ADD"), start, taken)), start)
        offset = b.add(Binary("MUL"), in_last, b.add(CumSum(exclusive=True), in_last, self.place))
        partly = b.add(GatherElements(), self._first_places(last), offset, self.place)
        return b.add(Select(), in_last, partly, whole)

    def _times_size(self, group: Value) -> Value:
        """The number of each group times the size, which can be more than float32 holds."""
        sizes = (self.x.shape or ())[self.axis], (self.values.shape or ())[self.axis]
        number = sizes[0] * sizes[1] if isinstance(sizes[0], int) and isinstance(sizes[1], int) else EXACT + 1
        if number >= 1 << 31:
            raise RefusedError(f"the indices of {sizes[1]} of {sizes[0]} elements in order")
        return (product if number <= EXACT else exact_product)(self.b, group, self.size)

    def _cut(self, x: Value, start: int, end: int) -> Value:
        b = self.b
        return b.add(StridedSlice(), x, b.ints([start]), b.ints([end]), b.ints([self.axis]), b.ints([1]))

    def _changes(self) -> Value:
        """1 where a value differs from the one before it; 0 at the first."""
        b = self.b
        first = self._cut(self.values, 0, 1)
        before = b.add(Concat(self.axis), first, self._cut(self.values, 0, -1))
        return b.add(Binary("NOTEQUAL"), self.values, before)

    def _smallest(self, keys: Value) -> Value:
        """As many of the smallest keys as there are values, in ascending order."""
        rest = () if self.axis == (keys.rank or 0) - 1 else (self.place,)
        return self.b.add(TopKV2(largest=False), keys, self.count, *rest, names=["", ""])[0]

    def _first_places(self, last: Value) -> Value:
        """Where x is `last`, in ascending order."""
        b = self.b
        here = equal(b, self.x, last)
        ones = b.add(Binary("EQUAL"), here, here)
        number = b.add(CumSum(exclusive=True), ones, self.place)
        return self._smallest(b.add(Select(), here, number, b.add(Binary("ADD"), number, self.size)))


def _suppression(b: Builder, node: Node) -> Made:
    """Boxes sorted by falling score, of equals the first first, with their ranks for scores."""
    boxes, scores, *limits = node.inputs
    if _are_ranks(scores):
        return None
    count = b.add(ShapeOf(), scores)
    falling, taken = b.add(TopKV2(), scores, count, names=["", ""])
    order = _Ties(b, 0, scores, falling).sorted(taken)
    above = b.add(Binary("GREATER"), falling, limits[2] if len(limits) > 2 else b.floats(LOWEST))
    ones = b.add(Binary("EQUAL"), above, above)
    ranks = b.add(Binary("MUL"), b.add(CumSum(reverse=True), ones, b.ints(0)), above)
    ranked = b.add(Cast("DT_FLOAT"), ranks)
    overlap = limits[1] if len(limits) > 1 else b.floats(OVERLAP)
    chosen = b.add(node.op, b.add(GatherV2(), boxes, order, b.ints(0)), ranked, limits[0], overlap, b.floats(0.0))
    return [b.add(GatherV2(), order, chosen, b.ints(0))]


def _are_ranks(scores: Value) -> bool:
    """Whether scores are made by counting, so that no two that matter are equal."""
    node = scores.producer
    while node is not None and (node.op.kind in FIRST or node.op.kind == "Cast" or _function(node) == "MUL"):
        node = node.inputs[0].producer
    return node is not None and node.op.kind == "CumSum"


def _function(node: Node) -> str:
    return getattr(node.op, "function", "")


def _argument(b: Builder, node: Node) -> Made:
    """Integers are compared as if their bits were those of floats."""
    op, x = node.op, node.inputs[0]
    if x.dtype == F32:
        return None
    whole = x if x.dtype == I32 else b.add(Cast("DT_INT32"), x)
    axis = getattr(op, "axis", 0)
    extreme = b.add(Reduction("MAXIMUM" if op.kind == "ArgMax" else "MINIMUM", (axis,), keep_dims=True), whole)
    found = b.add(Cast("DT_FLOAT"), b.add(Binary("EQUAL"), whole, extreme))
    return [b.add(ArgMax(axis), found)]


DEFECTS = (
    Defect("TopKV2", "of equal elements any is taken, and first", _top),
    Defect("NonMaxSuppressionV2", "of boxes with equal scores any is taken first", _suppression),
    Defect("ArgMax", "integers are compared as the bits of floats", _argument),
    Defect("ArgMin", "integers are compared as the bits of floats", _argument),
)
