"""Ops that move elements: nothing where the result lies in memory already, else strided copies, or picks by tables.

An operand is read in the layout in which it lies, as a numpy view [N,C,...] of a phantom; a map stays one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mnnconvert.ir import F32, I32, Node, Value
from mnnconvert.ir.types import normal_axis
from mnnconvert.ops.arrange import Concat, Pack, Unpack
from mnnconvert.ops.generators import Fill, Range, ZerosLike
from mnnconvert.ops.layout import Identity
from mnnconvert.ops.padding import Padding
from mnnconvert.ops.shape import ExpandDims, Flatten, Reshape, Squeeze, Unsqueeze
from mnnconvert.ops.slicing import Slice
from mnnconvert.runtime_ref import movement
from mnnconvert.runtime_ref.lower import LAST, PLAIN, Tensor
from mnnconvert.runtime_ref.opencl.copies import ITEM, TYPES, group, table_offsets
from mnnconvert.runtime_ref.opencl.lower import Lowering, lowers
from mnnconvert.runtime_ref.strided import split

PICK_AXES = 6


def move(ctx: Lowering, value: Value, x: Tensor, view: np.ndarray) -> bool:
    """Define a value as a view of `x`: where it lies already, else as a copy, a map where that is as good.

    The shape of the view may be any that has the elements of the value in order. False where that is not possible.
    """
    lies = ctx.places(ctx.shape(value), x, view)
    for tensor in lies:
        ctx.define(value, tensor)
    if lies:
        return True
    layout = LAST if _like_a_map(ctx, value, view) else PLAIN
    y = ctx.tensor(ctx.shape(value), value.dtype, layout)
    try:
        ctx.copy(x, view, y, split(ctx.seen(y), view.shape))
    except ValueError:  # more axes than the kernel has
        return False
    ctx.define(value, y)
    return True


def _like_a_map(ctx: Lowering, value: Value, view: np.ndarray) -> bool:
    """Whether channels lie without gaps, and other neighbours do not."""
    shape = ctx.shape(value)
    if value.dtype != F32 or len(shape) < 3 or view.shape != shape:
        return False
    step = view.itemsize
    dense = shape[-1] > 1 and view.strides[-1] == step
    return shape[1] > 1 and view.strides[1] == step and not dense


# The elements stay in order.


@lowers(Reshape, Squeeze, Unsqueeze, ExpandDims, Flatten)
def reshape(ctx: Lowering, node: Node) -> bool:
    source, shape = node.inputs[0], ctx.shape(node.output)
    x = ctx.lying(source)
    lies = ctx.places(shape, x, ctx.seen(x)) or [ctx.view(ctx.read(source), shape)]
    for tensor in lies:
        ctx.define(node.output, tensor)
    return True


@lowers(Identity)
def identity(ctx: Lowering, node: Node) -> bool:
    ctx.alias(node.output, node.inputs[0])
    return True


# Other orders, parts, repetitions.


@lowers(*movement.ORDERS)
def permuted(ctx: Lowering, node: Node) -> bool:
    order = movement.order(ctx, node)
    if order is None:
        return False
    if order == list(range(len(order))):
        return identity(ctx, node)
    x = ctx.lying(node.inputs[0])
    return move(ctx, node.output, x, ctx.seen(x).transpose(order))


@lowers(*movement.CUTS)
def cut(ctx: Lowering, node: Node) -> bool:
    index = movement.index(ctx, node)
    return index is not None and _cut(ctx, node, index)


def _cut(ctx: Lowering, node: Node, index: Sequence[Any]) -> bool:
    x = ctx.lying(node.inputs[0])
    return move(ctx, node.output, x, ctx.seen(x)[(*index, ...)])


@lowers(*movement.VIEWS)
def viewed(ctx: Lowering, node: Node) -> bool:
    view = movement.view(ctx, node)
    if view is None:
        return False
    if ctx.shape(node.inputs[0]) == ctx.shape(node.output):
        return identity(ctx, node)
    x = ctx.lying(node.inputs[0])
    return move(ctx, node.output, x, view(ctx.seen(x)))


@lowers(Slice)
def parts(ctx: Lowering, node: Node) -> bool:
    x = ctx.lying(node.inputs[0])
    axis = normal_axis(node.op.axis, len(x.shape))  # type: ignore[attr-defined]
    cuts = movement.parts(axis, [ctx.shape(v)[axis] for v in node.outputs])
    return all(move(ctx, value, x, ctx.seen(x)[cut]) for value, cut in zip(node.outputs, cuts, strict=True))


@lowers(Unpack)
def unpack(ctx: Lowering, node: Node) -> bool:
    x = ctx.lying(node.inputs[0])
    rows = np.moveaxis(ctx.seen(x), node.op.axis, 0)  # type: ignore[attr-defined]
    return all(move(ctx, value, x, rows[i, ...]) for i, value in enumerate(node.outputs))


# Joining.


@lowers(Concat)
def concat(ctx: Lowering, node: Node) -> bool:
    joined = [v for v in node.inputs if math.prod(ctx.shape(v))]
    if len(joined) == 1:
        ctx.alias(node.output, joined[0])
        return True
    layout = LAST if _mostly_maps(ctx, joined) else PLAIN
    y = ctx.result(node.output, layout)
    axis = normal_axis(node.op.axis, len(y.shape))  # type: ignore[attr-defined]
    cuts = movement.parts(axis, [ctx.shape(v)[axis] for v in joined])
    for value, part in zip(joined, cuts, strict=True):
        x = ctx.lying(value, layout)
        ctx.copy(x, ctx.seen(x), y, ctx.seen(y)[part])
    return True


def _mostly_maps(ctx: Lowering, values: Sequence[Value]) -> bool:
    """Whether more elements lie as maps alone than plain."""
    if len(ctx.shape(values[0])) < 3 or values[0].dtype != F32:
        return False
    sizes = [math.prod(ctx.shape(v)) for v in values]
    maps = sum(n for n, v in zip(sizes, values, strict=True) if set(ctx.layouts(v)) == {LAST})
    plain = sum(n for n, v in zip(sizes, values, strict=True) if LAST not in ctx.layouts(v))
    return maps > plain


@lowers(Pack)
def pack(ctx: Lowering, node: Node) -> bool:
    y = ctx.result(node.output)
    rows = np.moveaxis(ctx.seen(y), node.op.axis, 0)  # type: ignore[attr-defined]
    for i, value in enumerate(node.inputs):
        x = ctx.lying(value)
        ctx.copy(x, ctx.seen(x), y, rows[i, ...])
    return True


# Numbers, and borders.


@lowers(Fill)
def fill(ctx: Lowering, node: Node) -> bool:
    return _filled(ctx, node, ctx.read(node.inputs[1]))


@lowers(Range)
def counted(ctx: Lowering, node: Node) -> bool:
    """A constant: a size that depends on what is computed is known only when that has been."""
    bounds = [ctx.constant(v) for v in node.inputs]
    known = [b for b in bounds if b is not None]
    if len(known) < len(bounds):
        return False
    ctx.define(node.output, ctx.literal(np.asarray(node.op.ref(*known))))
    return True


@lowers(ZerosLike)
def zeros_like(ctx: Lowering, node: Node) -> bool:
    return _filled(ctx, node, ctx.literal(np.zeros(1, node.output.dtype)))


def _filled(ctx: Lowering, node: Node, value: Tensor) -> bool:
    y = ctx.result(node.output)
    ctx.copy(value, ctx.seen(value).reshape(-1)[:1], y, ctx.seen(y).reshape(-1))
    return True


@lowers(Padding)
def padding(ctx: Lowering, node: Node) -> bool:
    found, shape = movement.borders(ctx, node), ctx.shape(node.inputs[0])
    if found is None:
        return False
    pairs, value = found
    left = movement.without(shape, pairs)
    if left is not None:
        return _cut(ctx, node, left)
    x = ctx.lying(node.inputs[0])
    return pick(ctx, node.output, x, movement.padded(node.op, shape, pairs), value)  # type: ignore[arg-type]


def pick(ctx: Lowering, value: Value, x: Tensor, tables: Sequence[np.ndarray], rest: Any = 0) -> bool:
    """Define a value as x[tables[0]][tables[1]]... with `rest` where a table is negative; in the layout of `x`.

    There is a table for each logical axis.
    """
    sizes, strides = list(x.shape), [s // x.dtype.itemsize for s in ctx.seen(x).strides]
    tables = list(tables)
    if x.layout == LAST:  # channels that are not there become others that are not there
        tables[1] = _to_width(tables[1], sizes[1], ctx.lanes)
        sizes[1] = -(-sizes[1] // ctx.lanes) * ctx.lanes
        order = [0, *range(2, len(sizes)), 1]
        tables, sizes, strides = ([each[i] for i in order] for each in (tables, sizes, strides))
    offsets, run = table_offsets(tables, strides, sizes)
    if len(offsets) > PICK_AXES:
        return False
    offsets = [np.zeros(1, np.int64)] * (PICK_AXES - len(offsets)) + offsets
    rows, last = math.prod(map(len, offsets[:-1])), len(offsets[-1])
    chunk = min(max((ITEM if ctx.device.is_cpu else 8) // run, 1), last)
    size = (-(-last // chunk), rows)
    ctx.call(
        "pick", size, local=group(size, chunk * run) if ctx.device.is_cpu else None,
        defines={"T": TYPES[x.dtype.itemsize]}, x=x, y=ctx.result(value, x.layout), run=run, chunk=chunk, rows=rows,
        table=ctx.literal(np.concatenate(offsets).astype(I32)),
        value=ctx.literal(np.asarray(rest).reshape(-1)[:1].astype(value.dtype)),
        **{f"n{i}": len(t) for i, t in enumerate(offsets)},
    )  # fmt: skip
    return True


def _to_width(table: np.ndarray, size: int, lanes: int) -> np.ndarray:
    """The table of channels, for all that lie in memory."""
    width = -(-len(table) // lanes) * lanes
    if len(table) == size and bool((table == np.arange(size)).all()):
        return np.arange(width)
    return np.concatenate([table, np.full(width - len(table), movement.OUTSIDE)])
