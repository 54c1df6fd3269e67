"""Reductions over any axes, one group of neighbouring axes after the other, and positions of extremes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mnnconvert.ir import F32, I32, Node
from mnnconvert.ops.reduction import ArgMax, ArgMin, Reduction
from mnnconvert.runtime_ref.cpu.lower import Lowering, lowers
from mnnconvert.runtime_ref.lower import BLOCKED, PLAIN, Sizes, Tensor
from mnnconvert.runtime_ref.reduction import AGAIN, OPERATIONS, around, groups, reduced_axes


@lowers(Reduction)
def reduction(ctx: Lowering, node: Node) -> bool:
    op: Any = node.op
    x, axes = node.inputs[0], reduced_axes(ctx, node)
    if x.dtype not in (F32, I32) or axes is None:
        return False
    shape = ctx.shape(x)
    if set(ctx.layouts(x)) == {BLOCKED} and axes == set(range(2, len(shape))) and _keeps(ctx, node, shape):
        return _over_pixels(ctx, node, shape)
    count = math.prod(shape[a] for a in axes)
    divisor = (count if x.dtype == F32 else max(count, 1)) if op.operation == "MEAN" else 1
    found, operation, current = groups(shape, axes), op.operation, ctx.read(x)
    for i in [i for i, (_, gone) in enumerate(found) if gone][::-1]:
        sizes = [size for size, _ in found]
        last = not any(gone for _, gone in found[:i])
        y = ctx.result(node.output) if last else ctx.tensor([*sizes[:i], *sizes[i + 1 :]], x.dtype)
        _reduce(ctx, operation, current, y, (math.prod(sizes[:i]), sizes[i], math.prod(sizes[i + 1 :])),
                divisor if last else 1)  # fmt: skip
        operation, current = AGAIN.get(operation, operation), y
        del found[i]
    return True


def _reduce(ctx: Lowering, operation: str, x: Tensor, y: Tensor, sizes: Sequence[int], divisor: int) -> None:
    outer, n, inner = sizes
    ctx.call("reduce_f32" if x.dtype == F32 else "reduce_i32", x=x, y=y, operation=OPERATIONS[operation], outer=outer,
             n=n, inner=inner, divisor=divisor)  # fmt: skip


def _keeps(ctx: Lowering, node: Node, shape: Sizes) -> bool:
    """Whether a blocked result of a blocked map can be used: as a map, or because it lies like a plain one."""
    return bool(node.op.keep_dims) or shape[1] % ctx.lanes == 0  # type: ignore[attr-defined]


def _over_pixels(ctx: Lowering, node: Node, shape: Sizes) -> bool:
    """One number per channel of a blocked map."""
    op: Any = node.op
    x = ctx.read_blocked(node.inputs[0])
    n, blocks, *spatial, lanes = ctx.stored(shape, BLOCKED)
    pixels = math.prod(spatial)
    full = shape[1] % ctx.lanes == 0
    y = ctx.result(node.output, BLOCKED if op.keep_dims else PLAIN)
    if full and op.keep_dims:
        ctx.define(node.output, Tensor(y.buffer, y.shape, y.dtype, PLAIN))
    divisor = pixels if op.operation == "MEAN" else 1
    _reduce(ctx, op.operation, x, y, (n * blocks, pixels, lanes), divisor)
    return True


@lowers(ArgMax, ArgMin)
def position(ctx: Lowering, node: Node) -> bool:
    (x,) = node.inputs
    if x.dtype not in (F32, I32):
        return False
    outer, n, inner = around(ctx.shape(x), node.op.axis)  # type: ignore[attr-defined]
    ctx.call("position_f32" if x.dtype == F32 else "position_i32", x=ctx.read(x), y=ctx.result(node.output),
             largest=isinstance(node.op, ArgMax), outer=outer, n=n, inner=inner)  # fmt: skip
    return True
