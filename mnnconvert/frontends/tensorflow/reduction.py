"""Import rules of reductions, positions of extremes, and running sums."""

from __future__ import annotations

from mnnconvert.frontends.common.compose import apply, calc, cast, widened
from mnnconvert.frontends.common.moves import reduced
from mnnconvert.frontends.common.nodes import axis_of, known_rank
from mnnconvert.frontends.common.reduction import reduction
from mnnconvert.frontends.tensorflow.node import TfNode
from mnnconvert.frontends.tensorflow.registry import tf_op
from mnnconvert.ir import F32, I32, Builder, Value
from mnnconvert.ops.reduction import ArgMax, ArgMin, CumProd, CumSum
from mnnconvert.ops.shape import Reshape

REDUCTIONS = {
    "Sum": "SUM", "Mean": "MEAN", "Prod": "PROD", "Max": "MAXIMUM", "Min": "MINIMUM", "Any": "ANY", "All": "ALL",
    "EuclideanNorm": "SUM",
}  # fmt: skip


@tf_op(*REDUCTIONS)
def reduce(b: Builder, n: TfNode) -> Value:
    x, operation, keep = n.input(0), REDUCTIONS[n.op], n.flag("keep_dims")
    dtype, x = x.dtype, widened(b, x)
    x = apply(b, "SQUARE", x) if n.op == "EuclideanNorm" else x
    y = reduction(b, n, x, operation, n.input(1) if n.constant(1) is None else n.ints(1, "the axes"), keep)
    y = apply(b, "SQRT", y) if n.op == "EuclideanNorm" else y
    return cast(b, y, dtype)


@tf_op("L2Loss")
def l2_loss(b: Builder, n: TfNode) -> Value:
    """Half of the sum of squares."""
    flat = b.add(Reshape((-1,)), n.input(0))
    return calc(b, "MUL", reduced(b, "SUM", apply(b, "SQUARE", flat), 0, keep=False), 0.5)


@tf_op("ArgMax", "ArgMin", gives="output_type", limits="the axis must be known")
def position(b: Builder, n: TfNode) -> Value:
    x = n.input(0)
    axis = axis_of(n, n.ints(1, "the axis")[0] if n.has(1) else 0, known_rank(n, x))
    x = x if x.dtype == F32 else cast(b, x, I32)
    return b.add(ArgMax(axis) if n.op == "ArgMax" else ArgMin(axis), x)


@tf_op("Cumsum", limits="the axis must be known")
def cumsum(b: Builder, n: TfNode) -> Value:
    op = CumSum(n.flag("exclusive"), n.flag("reverse"))
    x = n.input(0)
    return b.add(op, x, b.ints(axis_of(n, n.ints(1, "the axis")[0], known_rank(n, x))))


@tf_op("Cumprod", limits="the axis must be known; not exclusive or reverse")
def cumprod(b: Builder, n: TfNode) -> Value:
    if n.flag("exclusive") or n.flag("reverse"):
        raise n.refuse(f"{n.op} that is exclusive or reverse is not supported")
    x = n.input(0)
    return b.add(CumProd(axis_of(n, n.ints(1, "the axis")[0], known_rank(n, x))), x)
