"""Reductions over any axes, one group of neighbouring axes after the other, and positions of extremes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from mnnconvert.ir import F32, I32, Node
from mnnconvert.ir.types import normal_axis
from mnnconvert.ops.reduction import ArgMax, ArgMin, Reduction
from mnnconvert.runtime_ref.cpu.lower import Lowering, lowers
from mnnconvert.runtime_ref.lower import BLOCKED, PLAIN, Sizes, Tensor

OPERATIONS = {"SUM": 0, "MEAN": 0, "ASUM": 1, "SUMSQ": 2, "PROD": 3, "MAXIMUM": 4, "MINIMUM": 5, "ANY": 6, "ALL": 7}
"""By the numbers of reduce.cpp."""
AGAIN = {"ASUM": "SUM", "SUMSQ": "SUM", "ANY": "MAXIMUM", "ALL": "MINIMUM"}
"""What is done to results of a first pass, where that is not the same."""


@lowers(Reduction)
def reduction(ctx: Lowering, node: Node) -> bool:
    op: Any = node.op
    x, *given = node.inputs
    listed = ctx.constant(given[0]) if given else None
    if x.dtype not in (F32, I32) or (given and listed is None):
        return False
    shape = ctx.shape(x)
    dims = op.dims if listed is None else [int(a) for a in listed.ravel()]
    axes = set(range(len(shape))) if dims is None else {normal_axis(a, len(shape)) for a in dims}
    if set(ctx.layouts(x)) == {BLOCKED} and axes == set(range(2, len(shape))) and _keeps(ctx, node, shape):
        return _over_pixels(ctx, node, shape)
    count = math.prod(shape[a] for a in axes)
    divisor = (count if x.dtype == F32 else max(count, 1)) if op.operation == "MEAN" else 1
    groups = _groups(shape, axes)
    operation, current = op.operation, ctx.read(x)
    for i in [i for i, (_, gone) in enumerate(groups) if gone][::-1]:
        sizes = [size for size, _ in groups]
        last = not any(gone for _, gone in groups[:i])
        y = ctx.result(node.output) if last else ctx.tensor([*sizes[:i], *sizes[i + 1 :]], x.dtype)
        _reduce(ctx, operation, current, y, (math.prod(sizes[:i]), sizes[i], math.prod(sizes[i + 1 :])),
                divisor if last else 1)  # fmt: skip
        operation, current = AGAIN.get(operation, operation), y
        del groups[i]
    return True


def _groups(shape: Sizes, axes: set[int]) -> list[tuple[int, bool]]:
    """Sizes of neighbouring axes that are all reduced, or all kept; at least one group is reduced."""
    marked = [(size, i in axes) for i, size in enumerate(shape) if size != 1]
    groups = [(math.prod(s for s, _ in members), gone) for gone, members in groupby(marked, key=lambda m: m[1])]
    return groups if any(gone for _, gone in groups) else [*groups, (1, True)]


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
    shape = ctx.shape(x)
    axis = normal_axis(node.op.axis, len(shape))  # type: ignore[attr-defined]
    ctx.call("position_f32" if x.dtype == F32 else "position_i32", x=ctx.read(x), y=ctx.result(node.output),
             largest=isinstance(node.op, ArgMax), outer=math.prod(shape[:axis]), n=shape[axis],
             inner=math.prod(shape[axis + 1 :]))  # fmt: skip
    return True
