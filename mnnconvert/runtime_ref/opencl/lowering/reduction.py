"""Reductions over any axes, one group of neighbouring axes after the other; positions of extremes; running sums."""

from __future__ import annotations

import math
from typing import Any

from mnnconvert.ir import F32, I32, Node, Value
from mnnconvert.ops.reduction import ArgMax, ArgMin, CumProd, CumSum, Reduction
from mnnconvert.runtime_ref.lower import LAST, Sizes, Tensor
from mnnconvert.runtime_ref.movement import axis_operand
from mnnconvert.runtime_ref.opencl.lower import Lowering, lowers
from mnnconvert.runtime_ref.opencl.lowering.movement import move
from mnnconvert.runtime_ref.reduction import AGAIN, OPERATIONS, around, groups, reduced_axes
from mnnconvert.runtime_ref.strided import split

WORDS = (F32, I32)
LONG, GPU_LONG = 1 << 15, 1 << 10
"""Elements that one work-item folds at most."""


def integers(value: Value) -> dict[str, int]:
    """The define of kernels that work on int32 too."""
    return {} if value.dtype == F32 else {"INTEGERS": 1}


@lowers(Reduction)
def reduction(ctx: Lowering, node: Node) -> bool:
    op: Any = node.op
    x, axes = node.inputs[0], reduced_axes(ctx, node)
    if x.dtype not in WORDS or axes is None:
        return False
    shape = ctx.shape(x)
    if set(ctx.layouts(x)) == {LAST} and axes in ({1}, set(range(2, len(shape)))):
        return _of_map(ctx, node, axes)
    found, operation, current = groups(shape, axes), op.operation, ctx.read(x)
    counts = [n for n, gone in found if gone]
    for i in [i for i, (_, gone) in enumerate(found) if gone][::-1]:
        sizes = [size for size, _ in found]
        last = not any(gone for _, gone in found[:i])
        y = ctx.result(node.output) if last else ctx.tensor([*sizes[:i], *sizes[i + 1 :]], x.dtype)
        divisor = _divisor(op, x, sizes[i], counts, last)
        around_it = (math.prod(sizes[:i]), sizes[i], math.prod(sizes[i + 1 :]))
        reduce(ctx, operation, x, current, y, around_it, divisor)
        operation, current = AGAIN.get(operation, operation), y
        del found[i]
    return True


def _divisor(op: Any, x: Value, n: int, counts: list[int], last: bool) -> int:
    """Means of floats are divided group by group, so that halves do not overflow; integers are rounded once."""
    if op.operation != "MEAN":
        return 1
    if x.dtype == F32:
        return n
    return max(math.prod(counts), 1) if last else 1


def reduce(
    ctx: Lowering, operation: str, value: Value, x: Tensor, y: Tensor, sizes: Sizes, divisor: int = 1, pitch: int = 0
) -> None:
    """Append the launches for y [outer, inner] of x [outer, n, inner], whose rows lie `pitch` apart if inner is 1."""
    outer, n, inner = sizes
    longest = LONG if ctx.device.is_cpu else GPU_LONG
    parts = 1 if ctx.half else max(-(-n // longest), 1)
    made = y if parts == 1 else ctx.tensor((outer, parts, inner), value.dtype)
    defines = {"OPERATION": OPERATIONS[operation]} | integers(value)
    numbers = {"chunk": longest if parts > 1 else max(n, 1), "parts": parts, "divisor": divisor if parts == 1 else 1}
    if inner == 1:
        ctx.call("reduce_rows", (parts, outer), defines=defines, x=x, y=made, rows=outer, n=n, pitch=pitch or n,
                 **numbers)  # fmt: skip
    else:
        ctx.call("reduce_columns", (-(-inner // ctx.lanes), parts, outer), defines=defines, x=x, y=made, outer=outer,
                 n=n, inner=inner, **numbers)  # fmt: skip
    if parts > 1:
        reduce(ctx, AGAIN.get(operation, operation), value, made, y, (outer, parts, inner), divisor)


def _of_map(ctx: Lowering, node: Node, axes: set[int]) -> bool:
    """One number per pixel, or per channel, of a map with channels last."""
    op: Any = node.op
    (n, c, *spatial), x = ctx.shape(node.inputs[0]), node.inputs[0]
    pixels, pitch, source = math.prod(spatial), ctx.channels(x), ctx.read_map(x)
    if axes == {1}:
        y = ctx.result(node.output)
        reduce(ctx, op.operation, x, source, y, (n * pixels, c, 1), c if op.operation == "MEAN" else 1, pitch)
        return True
    y = ctx.tensor((n, c, *(1 for _ in spatial)), x.dtype, LAST)
    reduce(ctx, op.operation, x, source, y, (n, pixels, pitch), pixels if op.operation == "MEAN" else 1)
    return move(ctx, node.output, y, split(ctx.seen(y), ctx.shape(node.output)))


@lowers(ArgMax, ArgMin)
def position(ctx: Lowering, node: Node) -> bool:
    (x,) = node.inputs
    if x.dtype not in WORDS:
        return False
    outer, n, inner = around(ctx.shape(x), node.op.axis)  # type: ignore[attr-defined]
    defines = integers(x) | ({"LARGEST": 1} if isinstance(node.op, ArgMax) else {})
    ctx.call("find_extreme", (inner, outer), defines=defines, x=ctx.read(x), y=ctx.result(node.output), outer=outer,
             n=n, inner=inner)  # fmt: skip
    return True


@lowers(CumSum)
def running_sum(ctx: Lowering, node: Node) -> bool:
    op: Any = node.op
    axis = axis_operand(ctx, node, 1)
    return axis is not None and _scan(ctx, node, axis, op.exclusive, op.reverse)


@lowers(CumProd)
def running_product(ctx: Lowering, node: Node) -> bool:
    return _scan(ctx, node, node.op.axis, product=True)  # type: ignore[attr-defined]


def _scan(
    ctx: Lowering, node: Node, axis: int, exclusive: bool = False, reverse: bool = False, product: bool = False
) -> bool:
    x = node.inputs[0]
    if x.dtype not in WORDS or not ctx.shape(x):
        return False
    outer, n, inner = around(ctx.shape(x), axis)
    defines = integers(x) | ({"PRODUCTS": 1} if product else {})
    ctx.call("scan", (inner, outer), defines=defines, x=ctx.read(x), y=ctx.result(node.output), outer=outer, n=n,
             inner=inner, exclusive=exclusive, reverse=reverse)  # fmt: skip
    return True
