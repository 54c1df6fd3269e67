"""Parameters that only a run knows (axes, sizes, amounts), as int32 scalars and vectors of the graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mnnconvert.frontends.common.compose import calc, cast, choose
from mnnconvert.frontends.common.moves import permuted
from mnnconvert.frontends.onnx.arrange import size_of
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.ir import F32, I32, Builder, Value
from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.generators import Range
from mnnconvert.ops.reduction import Reduction
from mnnconvert.ops.shape import Reshape, ShapeOf, Unsqueeze


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


class Split3:
    """`x` as [before, size, behind] around an axis that only a run knows, so that the axis is always the second."""

    def __init__(self, b: Builder, n: OnnxNode, x: Value, axis: Value, trailing: int = 0):
        """The last `trailing` axes stay behind these three."""
        if x.rank is None:
            raise n.refuse(f"{n.op_type} along an axis that is computed needs an operand of known rank")
        self.b, self.shape, rank = b, b.add(ShapeOf(), x), x.rank
        places = b.ints(np.arange(rank))
        axis = from_start(b, scalar(b, axis), rank)
        kept = calc(b, "LESS", places, rank - trailing)
        self.at = calc(b, "EQUAL", places, axis)
        self.size = self._product(self.at)
        before = self._product(calc(b, "LESS", places, axis))
        behind = self._product(calc(b, "MUL", calc(b, "GREATER", places, axis), kept))
        tail = [size_of(b, x, i) for i in range(rank - trailing, rank)]
        self.value = b.add(Reshape(), x, vector_of(b, [before, self.size, behind, *tail]))

    def _product(self, mask: Value) -> Value:
        sizes = choose(self.b, mask, self.shape, 1, self.shape)
        return cast(self.b, self.b.add(Reduction("PROD"), cast(self.b, sizes, F32)), I32)

    def restored(self, y: Value, size: Value | None = None) -> Value:
        """A result in the axes of `x`; `size` is that of the axis where it is another."""
        shape = self.shape if size is None else choose(self.b, self.at, size, self.shape, self.shape)
        return self.b.add(Reshape(), y, shape)


def on_every_axis(b: Builder, values: Value, axes: Value, rank: int) -> Value:
    """Amounts [k, axes of `axes`] for some axes as amounts [k, rank] for all: 0 where an axis is not named."""
    named = calc(b, "EQUAL", b.add(Reshape((-1, 1)), from_start(b, axes, rank)), b.ints(np.arange(rank)[None]))
    products = calc(b, "MUL", b.add(Unsqueeze((2,)), values), b.add(Unsqueeze((0,)), named))
    return b.add(Reduction("SUM", (1,), False), products)


def pairs_of(b: Builder, amounts: Value) -> Value:
    """[2, rank] amounts before and after as the operand of Padding."""
    return b.add(Reshape((-1,)), permuted(b, amounts, (1, 0)))
