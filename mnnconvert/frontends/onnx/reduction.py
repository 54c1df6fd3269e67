"""Import rules of reductions, positions of extremes, and running sums and products."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mnnconvert.frontends.common.compose import apply, calc, cast
from mnnconvert.frontends.common.moves import clip, part, size_of, sliced, unsqueezed
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.frontends.onnx.run_time import Split3
from mnnconvert.ir import F32, I32, Builder, Dim, Value
from mnnconvert.ir.types import normal_axis
from mnnconvert.ops.arrange import Concat, Reverse
from mnnconvert.ops.reduction import ArgMax, ArgMin, CumProd, CumSum, Reduction

Reduce = Callable[[str, Value], Value]
PLAIN = {"ReduceSum": "SUM", "ReduceMean": "MEAN", "ReduceMax": "MAXIMUM", "ReduceMin": "MINIMUM", "ReduceProd": "PROD"}


def reducer(b: Builder, n: OnnxNode, x: Value, keep: bool = False) -> Reduce:
    """How this node reduces: over its axes, keeping them or not; over none of them it changes nothing."""
    keep = keep or bool(n.attr("keepdims", 1))
    computed = n.has(1) and n.input(1).shape != (0,)
    listed = n.constant(1) if computed else n.attr("axes")
    if computed and listed is None:
        return _dynamic(b, n, keep)
    axes = tuple(int(a) for a in np.ravel(listed)) if listed is not None else ()
    if x.rank == 0 or (not axes and n.attr("noop_with_empty_axes", 0)):
        return lambda operation, value: value
    if x.rank is not None:
        axes = tuple(sorted({_axis(n, a, x.rank) for a in axes}))
    return lambda operation, value: b.add(Reduction(operation, axes or None, keep), value)


def _axis(n: OnnxNode, axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise n.refuse(f"the axis {axis} of {n.op_type} is out of range for rank {rank}")
    return normal_axis(axis, rank)


def _dynamic(b: Builder, n: OnnxNode, keep: bool) -> Reduce:
    """Axes that are only known when the model runs; that there are any must be known."""
    axes = n.input(1)
    if not axes.shape or not isinstance(axes.shape[0], int) or axes.shape[0] == 0:
        raise n.refuse(f"how many axes {n.op_type} reduces must be known when the model is converted")
    return lambda operation, value: b.add(Reduction(operation, None, keep), value, axes)


@onnx_op(*PLAIN, limits="the number of axes must be known when axes are computed")
def reduce(b: Builder, n: OnnxNode) -> Value:
    """Sums, means, extremes and products; 8-bit integers are reduced in int32."""
    x = n.input(0)
    wide = x if x.dtype in (F32, I32) else cast(b, x, I32)
    y = reducer(b, n, wide)(PLAIN[n.op_type], wide)
    if n.source_type(0) == "bool":  # the extreme of no booleans is a boolean, too
        y = clip(b, y, 0, 1)
    return cast(b, y, x.dtype)


FORMULAS: dict[str, Callable[[Builder, Value, Reduce], Value]] = {
    "ReduceL1": lambda b, x, r: r("SUM", apply(b, "ABS", x)),
    "ReduceL2": lambda b, x, r: apply(b, "SQRT", r("SUM", apply(b, "SQUARE", x))),
    "ReduceSumSquare": lambda b, x, r: r("SUM", apply(b, "SQUARE", x)),
    "ReduceLogSum": lambda b, x, r: apply(b, "LOG", r("SUM", x)),
}
IN_INT32 = {"ReduceL1", "ReduceSumSquare"}


@onnx_op(*FORMULAS, limits="the number of axes must be known when axes are computed")
def reduce_formula(b: Builder, n: OnnxNode) -> Value:
    """Reductions with a function before or after; a root or logarithm of integers is computed in float32."""
    x = n.input(0)
    wide = cast(b, x, I32 if x.dtype != F32 and n.op_type in IN_INT32 else F32)
    return cast(b, FORMULAS[n.op_type](b, wide, reducer(b, n, wide)), x.dtype)


@onnx_op("ReduceLogSumExp", limits="the number of axes must be known when axes are computed")
def reduce_log_sum_exp(b: Builder, n: OnnxNode) -> Value:
    """log(sum(exp(x - m))) + m, with m the largest x made finite, so that nothing overflows."""
    x = n.input(0)
    wide, limit = cast(b, x, F32), float(np.finfo(np.float32).max)
    reduce = reducer(b, n, wide)
    top = clip(b, reducer(b, n, wide, keep=True)("MAXIMUM", wide), -limit, limit)
    total = reduce("SUM", apply(b, "EXP", calc(b, "SUB", wide, top)))
    y = calc(b, "ADD", apply(b, "LOG", total), reduce("MAXIMUM", wide))
    return cast(b, y, x.dtype)


@onnx_op("ArgMax", "ArgMin")
def position_of_extreme(b: Builder, n: OnnxNode) -> Value:
    """The first of equals, or the last: the axis is turned around and the position counted from its end."""
    axis, largest = n.attr("axis", 0), n.op_type == "ArgMax"
    x = n.input(0)
    if x.rank is not None:
        axis = _axis(n, axis, max(x.rank, 1))
    if x.rank == 0:
        return b.ints(0)
    op = ArgMax(axis) if largest else ArgMin(axis)
    last = bool(n.attr("select_last_index", 0))
    y = b.add(op, b.add(Reverse(), x, b.ints([axis])) if last else x)
    if last:
        y = calc(b, "SUB", calc(b, "SUB", size_of(b, part(x, axis)), 1), y)
    return unsqueezed(b, y, axis) if n.attr("keepdims", 1) else y


@onnx_op("CumSum", limits="8-bit integers are summed in int32")
def cum_sum(b: Builder, n: OnnxNode) -> Value:
    """Running sums; the axis may be computed."""
    x = n.input(0)
    axis = n.constant(1)
    place = n.input(1) if axis is None else b.ints(int(np.ravel(axis)[0]))
    wide = x if x.dtype in (F32, I32) else cast(b, x, I32)
    op = CumSum(bool(n.attr("exclusive", 0)), bool(n.attr("reverse", 0)))
    return cast(b, b.add(op, wide, place), x.dtype)


@onnx_op("CumProd", limits="integers need to know the size of the axis")
def cum_prod(b: Builder, n: OnnxNode) -> Value:
    """Running products; an axis that is computed becomes the second of three."""
    x, known = n.input(0), n.constant(1)
    if known is not None or x.rank == 1:
        axis = 0 if known is None else int(np.ravel(known)[0])
        return _cum_prod(b, n, x, axis, x.shape[axis] if x.shape else None)
    sizes = [s for s in x.shape or (None,) if isinstance(s, int)]
    split = Split3(b, n, x, n.input(1))
    return split.restored(_cum_prod(b, n, split.value, 1, max(sizes) if len(sizes) == x.rank else None))


def _cum_prod(b: Builder, n: OnnxNode, x: Value, axis: int, most: Dim) -> Value:
    """Backwards on the axis turned around, exclusive with a 1 in front and the last left out.

    `most` is the largest size that the axis can have.
    """
    dtype, x = x.dtype, x if x.dtype == F32 else cast(b, x, I32)
    turn = bool(n.attr("reverse", 0))
    x = b.add(Reverse(), x, b.ints([axis])) if turn else x
    if n.attr("exclusive", 0):
        head = sliced(b, x, axis, 0, 1)
        x = b.add(Concat(axis), clip(b, head, 1, 1), sliced(b, x, axis, 0, -1))
    y = b.add(CumProd(axis), x) if x.dtype == F32 else _whole_products(b, n, x, axis, most)
    return cast(b, b.add(Reverse(), y, b.ints([axis])) if turn else y, dtype)


def _whole_products(b: Builder, n: OnnxNode, x: Value, axis: int, most: Dim) -> Value:
    """Running products of int32: each element takes in the product of 1, 2, 4, ... elements before it."""
    if not isinstance(most, int):
        raise n.refuse("CumProd of integers needs to know the size of its axis", reference="open-size")
    reach = 1
    while reach < most:
        before = b.add(Concat(axis), clip(b, sliced(b, x, axis, 0, reach), 1, 1), sliced(b, x, axis, 0, -reach))
        x, reach = calc(b, "MUL", x, before), reach * 2
    return x
