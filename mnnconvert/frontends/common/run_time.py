"""Parameters that only a run knows (axes, sizes, amounts), as int32 scalars and vectors of the graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mnnconvert.frontends.common.compose import calc, cast
from mnnconvert.ir import I32, Builder, Value
from mnnconvert.ir.types import normal_axis
from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.generators import Range
from mnnconvert.ops.shape import Rank, Reshape, ShapeOf, Unsqueeze


def scalar_size(b: Builder, x: Value, axis: int) -> Value:
    """A size of x as an int32 scalar: a constant where it is known. The rank of x may be unknown."""
    place = b.ints(axis)
    if x.shape is not None:
        axis = normal_axis(axis, len(x.shape))
        size, place = x.shape[axis], b.ints(axis)
        if isinstance(size, int):
            return b.ints(size)
    elif axis < 0:
        place = calc(b, "ADD", b.add(Rank(), x), axis)
    return b.add(GatherV2(), b.add(ShapeOf(), x), place, b.ints(0))


def scalar(b: Builder, x: Value) -> Value:
    """An operand of one element as a scalar."""
    return x if x.rank == 0 else b.add(Reshape(()), x)


def element(b: Builder, x: Value, i: int) -> Value:
    """Element `i` of a vector, as a scalar."""
    return b.add(GatherV2(), x, b.ints(i), b.ints(0))


def vector_of(b: Builder, scalars: Sequence[Value]) -> Value:
    """Scalars as one vector."""
    parts = [b.add(Unsqueeze((0,)), s) for s in scalars]
    return b.add(Concat(0), *parts) if len(parts) > 1 else parts[0]


def count_up(b: Builder, count: Value, dtype: np.dtype = I32) -> Value:
    """0, 1, ... count - 1."""
    return cast(b, b.add(Range(), b.ints(0), count, b.ints(1)), dtype)


def spread(b: Builder, x: Value, axis: int, rank: int) -> Value:
    """A vector as a tensor of `rank` axes with all its elements along one of them."""
    return b.add(Reshape(tuple(-1 if i == axis else 1 for i in range(rank))), x)


def from_start(b: Builder, axis: Value, rank: int) -> Value:
    """Axes counted from the start, where negative ones count from the end."""
    return calc(b, "ADD", axis, calc(b, "MUL", calc(b, "LESS", axis, 0), rank))


def interleaved(b: Builder, before: Value, after: Value) -> Value:
    """Two vectors as pairs: the amounts of Padding."""
    pairs = b.add(Concat(1), *(b.add(Reshape((-1, 1)), v) for v in (before, after)))
    return b.add(Reshape((-1,)), pairs)
