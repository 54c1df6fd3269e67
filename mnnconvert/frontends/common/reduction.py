"""Reductions of models whose channels are the last axis."""

from __future__ import annotations

from collections.abc import Sequence

from mnnconvert.frontends.common.channels_last import channels_first, channels_last
from mnnconvert.frontends.common.compose import along, apply, calc
from mnnconvert.frontends.common.moves import squeezed
from mnnconvert.frontends.common.nodes import SourceNode, axis_of
from mnnconvert.ir import F32, Builder, Value
from mnnconvert.ops.pooling import Pooling
from mnnconvert.ops.reduction import Reduction

POOLS = {"MEAN": "AVEPOOL", "MAXIMUM": "MAXPOOL"}


def reduction(b: Builder, n: SourceNode, x: Value, operation: str, axes: Value | Sequence[int], keep: bool) -> Value:
    """Over axes that may be a value; of planes as pooling, which reads channels as convolutions leave them."""
    if isinstance(axes, Value):
        return b.add(Reduction(operation, None, keep), x, axes)
    known = sorted({a if x.rank is None else axis_of(n, a, x.rank) for a in axes})
    if known == [1, 2] and x.rank == 4 and x.dtype == F32 and operation in POOLS:
        y = channels_last(b, b.add(Pooling(POOLS[operation], whole=True), channels_first(b, n, x)))
        return y if keep else squeezed(b, y, 1, 2)
    return b.add(Reduction(operation, tuple(known), keep), x) if known else x


def log_softmax(b: Builder, x: Value) -> Value:
    """x - max - log(sum(exp(x - max))) over the last axis: no logarithm is taken of a softmax that may be 0."""
    below = calc(b, "SUB", x, along(b, "MAXIMUM", x, (-1,)))
    return calc(b, "SUB", below, apply(b, "LOG", along(b, "SUM", apply(b, "EXP", below), (-1,))))
