"""Operands of which only a run knows the axes or amounts."""

from __future__ import annotations

import numpy as np

from mnnconvert.frontends.common.compose import calc, cast, choose
from mnnconvert.frontends.common.moves import permuted
from mnnconvert.frontends.common.run_time import from_start, scalar, scalar_size, vector_of
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.ir import F32, I32, Builder, Value
from mnnconvert.ops.reduction import Reduction
from mnnconvert.ops.shape import Reshape, ShapeOf, Unsqueeze


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
        tail = [scalar_size(b, x, i) for i in range(rank - trailing, rank)]
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
