"""Searches in a defined order: largest elements, distinct elements."""

from __future__ import annotations

from mnnconvert.ir import Builder, Value
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.search import TopKV2
from mnnconvert.ops.shape import ShapeOf


def top(b: Builder, x: Value, k: Value, axis: int, largest: bool) -> tuple[Value, Value]:
    """Values in order and indices, of equal elements the lower index first."""
    last = x.rank is not None and axis == x.rank - 1
    operands = (x, k) if last else (x, k, b.ints(axis))
    values, positions = b.add(TopKV2(largest), *operands, names=["", ""])
    return values, positions


def by_occurrence(b: Builder, values: Value, first: Value, inverse: Value, counts: Value) -> tuple[Value, ...]:
    """The results of Unique with the values in the order of their first position; no two positions are equal."""
    count = b.add(ShapeOf(), first)
    sorted_first, order = top(b, first, count, 0, False)
    _, place = top(b, order, count, 0, False)
    return (
        b.add(GatherV2(), values, order),
        sorted_first,
        b.add(GatherV2(), place, inverse),
        b.add(GatherV2(), counts, order),
    )
