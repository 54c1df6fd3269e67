"""What matrix products of every backend share: operands as strided views, and what of the graph a product takes along.

The geometry is that of numpy views of phantoms (see strided.py): whatever shapes, transposes and broadcasts an op has,
its operands become views [batch..., m, k], [batch..., k, n] and [batch..., m, n] of the memory that they lie in.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from mnnconvert.ir import F32, Node, Value
from mnnconvert.ir.types import normal_axis
from mnnconvert.ops.convolution import Convolution
from mnnconvert.ops.elementwise import Binary
from mnnconvert.ops.shape import Permute, Transpose
from mnnconvert.runtime_ref.lower import PLAIN, Epilogue, Lowering, Tensor
from mnnconvert.runtime_ref.strided import phantom

SMALL_ROW = 1 << 16
"""Multiply-adds below which a product of one row costs more as a product than as a convolution."""


class Operand(NamedTuple):
    """A tensor, and a view of its phantom."""

    tensor: Tensor
    view: np.ndarray

    @property
    def strides(self) -> list[int]:
        """In elements; 0 along axes of size 1."""
        pairs = zip(self.view.shape, self.view.strides, strict=True)
        return [stride // self.view.itemsize if size > 1 else 0 for size, stride in pairs]


class Axis(NamedTuple):
    """A batch axis: its size, and its strides in a, b and y."""

    size: int
    a: int
    b: int
    y: int


def full_shape(ctx: Lowering, node: Node) -> tuple[int, ...]:
    """[batch..., m, n] of a MatMul, also where an operand is a vector."""
    shape = list(ctx.shape(node.output))
    vector_a, vector_b = (len(ctx.shape(v)) == 1 for v in node.inputs[:2])
    if vector_a:
        shape.insert(len(shape) - (not vector_b), 1)
    return (*shape, 1) if vector_b else tuple(shape)


def bias_and_epilogue(ctx: Lowering, node: Node, bias: Value | None, n: int) -> tuple[Tensor | None, Value, Epilogue]:
    """The bias, the value that leaves the kernel, and the rest of the epilogue; marks what it covers."""
    last = node
    added = _bias_after(ctx, node, n) if bias is None else None
    if added is not None:
        last, bias = added
    epilogue = ctx.epilogue(last, views=True)
    ctx.fuse(node, epilogue)
    return (None if bias is None else ctx.read(bias)), epilogue.value, epilogue


def _bias_after(ctx: Lowering, node: Node, n: int) -> tuple[Node, Value] | None:
    """A following Add of one number per column, and these numbers."""
    value, user = ctx.next(node.output)
    if user is None or not isinstance(user.op, Binary) or user.op.function != "ADD" or user.op.activation:
        return None
    other = next((v for v in user.inputs if v is not value), None)
    if other is None or not ctx.is_ready(other) or ctx.shape(user.output) != ctx.shape(value):
        return None
    per_column = ctx.shape(other)[-1:] == ctx.shape(value)[-1:] == (n,) and math.prod(ctx.shape(other)) == n
    return (user, other) if per_column else None


def geometry(ctx: Lowering, tensor: Tensor) -> np.ndarray:
    """A phantom of a tensor as it lies in memory."""
    return phantom(ctx.stored(tensor.shape, tensor.layout), tensor.dtype)


def source_of(ctx: Lowering, value: Value, readers: Collection[Node] = ()) -> Operand:
    """Where the elements of a float value lie, and how.

    A transpose that only the present op reads, or `readers` that it stands for, is taken back: its copy is not made,
    and the view has its strides. One of the last two axes stays contiguous.
    """
    tensor = ctx.read(value)
    order = _order(ctx, value.producer)
    alone = ctx.only_user(value) is not None or (value not in ctx.wanted and set(value.users) <= set(readers))
    if value.producer is None or order is None or not alone:
        return Operand(tensor, geometry(ctx, tensor))
    before = value.producer.inputs[0]
    contiguous = len(order) - 1 in order[-2:]
    if not contiguous or PLAIN not in ctx.layouts(before) or not ctx.take_back(tensor, ctx.read(before)):
        return Operand(tensor, geometry(ctx, tensor))
    return Operand(ctx.read(before), geometry(ctx, ctx.read(before)).transpose(order))


def _order(ctx: Lowering, node: Node | None) -> list[int] | None:
    """The order of axes that a node makes, if it does nothing else."""
    if node is None:
        return None
    rank = len(ctx.shape(node.inputs[0]))
    if isinstance(node.op, Permute):
        return [normal_axis(d, rank) for d in node.op.dims or range(rank)[::-1]]
    if isinstance(node.op, Transpose):
        perm = ctx.constant(node.inputs[1])
        return None if perm is None else [normal_axis(int(p), rank) for p in perm.reshape(-1)]
    return None


def matrix(operand: Operand, swapped: bool, row: bool) -> Operand:
    """As matrices: a vector is a row or a column; `swapped` exchanges the last two axes."""
    view = operand.view
    if view.ndim == 1:
        return Operand(operand.tensor, view[None, :] if row else view[:, None])
    return Operand(operand.tensor, np.swapaxes(view, -1, -2) if swapped else view)


def swapped(operand: Operand) -> Operand:
    """The matrices transposed."""
    return Operand(operand.tensor, np.swapaxes(operand.view, -1, -2))


def target_of(ctx: Lowering, value: Value, epilogue: Epilogue, full: tuple[int, ...]) -> Operand:
    """Where the product goes: behind a transpose that keeps the last axis, if that is all that reads it."""
    last, user = ctx.next(value)
    order = _order(ctx, user) if last is value and epilogue.residual is None else None
    if user is None or order is None or order[-1] != len(order) - 1 or ctx.shape(value) != full:
        tensor = ctx.result(value)
        return Operand(tensor, geometry(ctx, tensor).reshape(full))
    ctx.skip(user)
    tensor = ctx.result(user.output)
    return Operand(tensor, geometry(ctx, tensor).transpose(np.argsort(order)))


def merged(axes: Sequence[Axis]) -> list[Axis]:
    """Without axes of size 1, and with those that follow each other in all three operands as one."""
    result: list[Axis] = []
    for axis in axes:
        if axis.size == 1:
            continue
        if result and result[-1][1:] == tuple(stride * axis.size for stride in axis[1:]):
            result[-1] = Axis(result[-1].size * axis.size, *axis[1:])
        else:
            result.append(axis)
    return result


# Rules.


def matmul(ctx: Lowering, node: Node) -> bool:
    """Lower a MatMul."""
    op, (left, right, *rest) = node.op, node.inputs
    *batch, m, n = full_shape(ctx, node)
    if rest and ctx.shape(rest[0]) != (n,):
        return False
    swapped_a = op.transpose_a and len(ctx.shape(left)) > 1  # type: ignore[attr-defined]
    swapped_b = op.transpose_b and len(ctx.shape(right)) > 1  # type: ignore[attr-defined]
    bias, value, activation = bias_and_epilogue(ctx, node, rest[0] if rest else None, n)
    a = matrix(source_of(ctx, left), swapped_a, row=True)
    if right.tensor is not None and n > 1:
        packed, b = True, packed_right(ctx, right, swapped_b)
    else:
        packed, b = False, matrix(source_of(ctx, right), swapped_b, row=False)
    residual = ctx.read(activation.residual) if activation.residual else None
    y = target_of(ctx, value, activation, (*batch, m, n))
    if n == 1 and not packed and bias is None and y.strides[-2] in (0, 1):
        a, b, y = (swapped(x) for x in (b, a, y))
    multiply(ctx, a, b, y, packed=packed, bias=bias, residual=residual, epilogue=activation)
    return True


def inner_product(ctx: Lowering, node: Node) -> bool:
    """Lower an InnerProduct."""
    x, weight, bias = node.inputs
    axis = normal_axis(node.op.axis, len(ctx.shape(x)))  # type: ignore[attr-defined]
    rows, k = math.prod(ctx.shape(x)[:axis]), math.prod(ctx.shape(x)[axis:])
    plain = ctx.read(x)
    a = Operand(plain, phantom((rows, k), F32))
    packed = weight.tensor is not None
    b = packed_right(ctx, weight, True) if packed else matrix(source_of(ctx, weight), True, row=False)
    epilogue = ctx.epilogue(node, views=True)
    ctx.fuse(node, epilogue)
    residual = ctx.read(epilogue.residual) if epilogue.residual else None
    y = target_of(ctx, epilogue.value, epilogue, ctx.shape(node.output))
    multiply(ctx, a, b, y, packed=packed, bias=ctx.read(bias), residual=residual, epilogue=epilogue)
    return True


def dense(ctx: Lowering, node: Node) -> bool:
    """Lower a convolution whose kernel covers the whole map, so that every image is a row of one matrix product.

    Linear layers come as convolutions of maps of one pixel. A single small row is left to convolution.
    """
    op, (x, weight, *bias) = node.op, node.inputs
    assert isinstance(op, Convolution)
    rows, *sizes = ctx.shape(x)
    outputs, _, *kernel = ctx.shape(weight)
    columns = math.prod(sizes)
    covered = list(kernel[: len(sizes) - 1]) == sizes[1:] and math.prod(ctx.shape(node.output)[2:]) == 1
    if not covered or op.group > 1 or any(op.pads) or weight.tensor is None:
        return False
    if rows == 1 and columns * outputs < SMALL_ROW:
        return False
    epilogue = ctx.epilogue(node, op.activation, views=True)
    a = Operand(ctx.read(x), phantom((rows, columns), F32))
    b = packed_right(ctx, weight, True, (outputs, columns))
    ctx.fuse(node, epilogue)
    residual = ctx.read(epilogue.residual) if epilogue.residual else None
    y = target_of(ctx, epilogue.value, epilogue, (rows, outputs))
    added = ctx.read(bias[0]) if bias else None
    multiply(ctx, a, b, y, packed=True, bias=added, residual=residual, epilogue=epilogue)
    return True


# Operands.


def packed_right(ctx: Lowering, value: Value, swapped: bool, shape: tuple[int, ...] = ()) -> Operand:
    """A constant right operand in panels; its view is one of [batch..., 1, 1], with the strides of whole matrices.

    `shape` is how it is to be read where that is not its own.
    """
    shape = shape or (ctx.shape(value) if len(ctx.shape(value)) > 1 else (*ctx.shape(value), 1))
    *lead, k, n = (*shape[:-2], shape[-1], shape[-2]) if swapped else shape
    batch = math.prod(lead)

    def make() -> np.ndarray:
        assert value.tensor is not None
        b = np.ascontiguousarray(value.tensor.numpy(), F32).reshape(batch, *((n, k) if swapped else (k, n)))
        return ctx.in_panels(b.swapaxes(1, 2) if swapped else b)

    tensor = ctx.packed(value, ("gemm", swapped), make)
    return Operand(tensor, phantom((*lead, 1, math.prod(tensor.shape[1:])), F32)[..., :1])


# The call.


def multiply(
    ctx: Lowering, a: Operand, b: Operand, y: Operand, *, packed: bool, bias: Tensor | None, residual: Tensor | None,
    epilogue: Epilogue,
) -> None:  # fmt: skip
    """Append the calls for y = a b, views [batch..., m, k], [batch..., k, n] and [batch..., m, n].

    Columns of y are contiguous. A packed b has a view [batch..., 1, 1]. The residual is laid out like y. One call for
    up to two batch axes (those that follow each other in all operands count as one), else one for every place on the
    others.
    """
    *batch, m, n = y.view.shape
    k = a.view.shape[-1]
    left, right = (Operand(x.tensor, np.broadcast_to(x.view, (*batch, *x.view.shape[-2:]))) for x in (a, b))
    *lead_a, a_row, a_column = left.strides
    *lead_b, b_row, b_column = right.strides
    *lead_y, y_row, _ = y.strides
    axes = merged([Axis(*axis) for axis in zip(batch, lead_a, lead_b, lead_y, strict=True)])
    if axes and axes[-1].b == 0 and (m == 1 or (axes[-1].a, axes[-1].y) == (m * a_row, m * y_row)):
        rows = axes.pop()
        a_row, y_row = (rows.a, rows.y) if m == 1 else (a_row, y_row)
        m *= rows.size
    *loops, outer, inner = [Axis(1, 0, 0, 0), Axis(1, 0, 0, 0), *axes]
    for place in itertools.product(*(range(axis.size) for axis in loops)):
        at = [sum(i * axis[j] for i, axis in zip(place, loops, strict=True)) for j in (1, 2, 3)]
        ctx.product(a=_part(ctx, a.tensor, at[0]), b=_part(ctx, b.tensor, at[1]),
                 y=_part(ctx, y.tensor, at[2]), bias=bias, residual=residual and _part(ctx, residual, at[2]), m=m, n=n,
                 k=k, outer=outer.size, inner=inner.size, a_row=a_row, a_column=a_column, b_row=b_row,
                 b_column=b_column, y_row=y_row, a_outer=outer.a, a_inner=inner.a, b_outer=outer.b, b_inner=inner.b,
                 y_outer=outer.y, y_inner=inner.y, packed=packed, **epilogue.params)  # fmt: skip


def _part(ctx: Lowering, tensor: Tensor, at: int) -> Tensor:
    return ctx.view(tensor, (tensor.size - at,), at) if at else tensor
