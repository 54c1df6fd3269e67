"""Softmax, and normalisations over axes that follow each other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from mnnconvert.ir import F32, Node, Value
from mnnconvert.ir.types import normal_axis
from mnnconvert.ops.normalization import LayerNorm, Softmax
from mnnconvert.runtime_ref.cpu.lower import Lowering, lowers
from mnnconvert.runtime_ref.lower import BLOCKED, PLAIN, Sizes
from mnnconvert.runtime_ref.reduction import around, norm_of_sum, normalized


@lowers(Softmax)
def softmax(ctx: Lowering, node: Node) -> bool:
    (x,) = node.inputs
    if x.dtype != F32:
        return False
    outer, n, inner = around(ctx.shape(x), node.op.axis)  # type: ignore[attr-defined]
    source = ctx.read(x)
    ctx.call("softmax", x=source, mask=None, y=ctx.result(node.output, over=source), outer=outer, n=n, inner=inner,
             b=1, c=1, mask_a=0, mask_b=0, mask_c=0, scale=1)  # fmt: skip
    return True


@dataclass(frozen=True)
class _Form:
    """Parameters of the kernel `normalize`, and the layout in which it runs."""

    outer: int
    n: int
    inner: int
    layout: str = PLAIN


def _form(ctx: Lowering, op: LayerNorm, x: Value, parameters: int) -> _Form | None:
    shape = ctx.shape(x)
    if x.dtype != F32:
        return None
    sizes = normalized(op, shape)
    axes = sorted({normal_axis(a, len(shape)) for a in op.axes})
    blocked = set(ctx.layouts(x)) == {BLOCKED}
    if blocked and op.group == 1 and axes == list(range(2, len(shape))) and not parameters and op.epsilon > 0:
        n, blocks, *spatial, lanes = ctx.stored(shape, BLOCKED)
        return _Form(n * blocks, math.prod(spatial), lanes, BLOCKED)
    return None if sizes is None else _Form(*sizes)


@lowers(LayerNorm)
def layer_norm(ctx: Lowering, node: Node) -> bool:
    op: Any = node.op
    x, *rest = node.inputs
    addend = rest.pop() if len(rest) % 2 else None
    form = _form(ctx, op, x, len(rest))
    if form is None or (addend is not None and ctx.shape(addend) != ctx.shape(x)):
        return False
    if addend is not None:
        total, y = node.outputs
        return _normalize(ctx, op, _plain(form, ctx.shape(x), op), (x, addend), rest, total, y)
    return _normalize(ctx, op, form, (x,), rest, None, node.output)


def _plain(form: _Form, shape: Sizes, op: LayerNorm) -> _Form:
    """The form where x and an addend are read plain."""
    if form.layout == PLAIN:
        return form
    return _Form(math.prod(shape[:2]), math.prod(shape[2:]), 1)


def _normalize(
    ctx: Lowering,
    op: LayerNorm,
    form: _Form,
    x: tuple[Value, ...],
    parameters: list[Value],
    total: Value | None,
    y: Value,
) -> bool:
    sources = [ctx.read_blocked(v) if form.layout == BLOCKED else ctx.read(v) for v in x]
    gamma, beta = (ctx.read(v) for v in parameters) if parameters and op.group == 1 else (None, None)
    written = None if total is None else ctx.result(total)
    result = ctx.result(y, form.layout, over=sources[0] if len(x) == 1 and form.inner == 1 else None)
    ctx.call("normalize", x=sources[0], addend=sources[1] if len(x) > 1 else None, gamma=gamma, beta=beta,
             total=written, y=result, outer=form.outer, n=form.n, inner=form.inner, rms=op.rms,
             epsilon=op.epsilon)  # fmt: skip
    return True


def add_and_normalize(ctx: Lowering, node: Node) -> bool:
    """An Add whose sum a layer norm over the last axes reads: both at once. False where it is something else."""
    norm = norm_of_sum(ctx, node)
    if norm is None:
        return False
    op: Any = norm.op
    form = _form(ctx, op, node.output, len(norm.inputs) - 1)
    assert form is not None
    left, right = node.inputs
    ctx.skip(norm)
    return _normalize(ctx, op, form, (left, right), list(norm.inputs[1:]), node.output, norm.output)
