"""Softmax, and normalisations over axes that follow each other; maps are normalised as they lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from mnnconvert.ir import F32, Node, Value
from mnnconvert.ir.types import normal_axis
from mnnconvert.ops.normalization import LayerNorm, Softmax
from mnnconvert.runtime_ref.lower import LAST, PLAIN, Sizes, Tensor
from mnnconvert.runtime_ref.opencl.lower import Lowering, Variant, lowers
from mnnconvert.runtime_ref.reduction import around, norm_of_sum, normalized

GROUP = 64
"""Items that take a row together on a GPU."""


class Form(NamedTuple):
    """The sizes of an operand [outer, n, inner] as it lies; rows (inner 1) lie `pitch` elements apart."""

    outer: int
    n: int
    inner: int
    pitch: int
    layout: str = PLAIN

    @property
    def rows(self) -> dict[str, Any]:
        """The numbers of kernels that go by rows."""
        return {"rows": self.outer, "n": self.n, "pitch": self.pitch}

    @property
    def columns(self) -> dict[str, Any]:
        """The numbers of kernels that go by columns."""
        return {"outer": self.outer, "n": self.n, "inner": self.inner}


def _form_of_map(ctx: Lowering, x: Value, axes: Sequence[int]) -> Form | None:
    """The form of a map that lies with channels last, for its channels, or for all its pixels."""
    shape = ctx.shape(x)
    if set(ctx.layouts(x)) != {LAST}:
        return None
    n, _, *spatial = shape
    pixels, pitch = math.prod(spatial), ctx.channels(x)
    if list(axes) == [1]:
        return Form(n * pixels, shape[1], 1, pitch, LAST)
    return Form(n, pixels, pitch, 0, LAST) if list(axes) == list(range(2, len(shape))) else None


def _by_rows(ctx: Lowering, kernel: str, form: Form, defines: dict[str, int], **arguments: Any) -> list[Variant]:
    """A row as the work of an item, and of a group, the better one for the device first."""
    items = ctx.variant(f"{kernel}_rows", (form.outer,), defines=defines, **arguments, **form.rows)
    if ctx.limits.work_group < GROUP or ctx.limits.local_bytes < 4 * GROUP:
        return [items]
    size = (form.outer * GROUP,)
    group = ctx.variant(f"{kernel}_groups", size, (GROUP,), defines | {"GROUP": GROUP}, **arguments, **form.rows)
    return [items, group] if ctx.device.is_cpu else [group, items]


@lowers(Softmax)
def softmax(ctx: Lowering, node: Node) -> bool:
    (x,) = node.inputs
    if x.dtype != F32:
        return False
    axis = normal_axis(node.op.axis, len(ctx.shape(x)))  # type: ignore[attr-defined]
    sizes = around(ctx.shape(x), axis)
    form = _form_of_map(ctx, x, [axis]) or Form(*sizes, sizes[1])
    arguments = {"x": ctx.read_map(x) if form.layout == LAST else ctx.read(x)}
    arguments["y"] = ctx.result(node.output, form.layout)
    if form.inner == 1:
        ctx.choose(_by_rows(ctx, "softmax", form, {}, **arguments))
    else:
        ctx.call("softmax_columns", (-(-form.inner // ctx.lanes), form.outer), **arguments, **form.columns)
    return True


@lowers(LayerNorm)
def layer_norm(ctx: Lowering, node: Node) -> bool:
    op: Any = node.op
    x, *rest = node.inputs
    addend = rest.pop() if len(rest) % 2 else None
    shape = ctx.shape(x)
    sizes = normalized(op, shape)
    if x.dtype != F32 or sizes is None or (addend is not None and ctx.shape(addend) != shape):
        return False
    if addend is not None:
        if sizes[2] != 1:
            return False
        _sum_and_norm(ctx, op, sizes, (x, addend), rest, *node.outputs)
        return True
    axes = sorted({normal_axis(a, len(shape)) for a in op.axes}) if op.group == 1 else []
    form = _form_of_map(ctx, x, axes) or Form(*sizes, sizes[1])
    source = ctx.read_map(x) if form.layout == LAST else ctx.read(x)
    defines, arguments = _parameters(ctx, op, rest)
    arguments |= {"x": source, "y": ctx.result(node.output, form.layout)}
    if form.inner == 1:
        ctx.choose(_by_rows(ctx, "normalize", form, defines, **arguments, addend=None, total=None))
    else:
        ctx.call("normalize_columns", (-(-form.inner // ctx.lanes), form.outer), defines=defines, **arguments,
                 **form.columns)  # fmt: skip
    return True


def _parameters(ctx: Lowering, op: LayerNorm, rest: Sequence[Value]) -> tuple[dict[str, int], dict[str, Any]]:
    defines = {"RMS": 1} if op.rms else {}
    gamma, beta = (ctx.read(v) for v in rest) if rest and op.group == 1 else (None, None)
    if gamma is not None:
        defines["AFFINE"] = 1
    return defines, {"gamma": gamma, "beta": beta, "epsilon": op.epsilon}


def _sum_and_norm(
    ctx: Lowering, op: LayerNorm, sizes: Sizes, x: tuple[Value, Value], rest: Sequence[Value], total: Value, y: Value
) -> None:
    defines, arguments = _parameters(ctx, op, rest)
    left, right = (ctx.read(v) for v in x)
    written: dict[str, Tensor] = {"total": ctx.result(total), "y": ctx.result(y)}
    outer, n, inner = sizes
    variants = _by_rows(ctx, "normalize", Form(outer, n, inner, n), defines | {"ADDEND": 1}, x=left, addend=right,
                        **arguments, **written)  # fmt: skip
    ctx.choose(variants)


def add_and_normalize(ctx: Lowering, node: Node) -> bool:
    """An Add whose sum a layer norm over the last axes reads: both at once. False where it is something else."""
    norm = norm_of_sum(ctx, node)
    if norm is None:
        return False
    op: Any = norm.op
    sizes = normalized(op, ctx.shape(node.output))
    left, right = node.inputs
    assert sizes is not None
    ctx.skip(norm)
    _sum_and_norm(ctx, op, sizes, (left, right), norm.inputs[1:], node.output, norm.output)
    return True
