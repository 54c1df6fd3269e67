"""Ops that move elements: views where nothing moves, else strided copies, or picks through tables.

The geometry of a copy is that of a numpy view of a phantom (see strided.py). Feature maps that lie blocked stay so
where the op leaves their channels alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mnnconvert.ir import Node, Value
from mnnconvert.ops.arrange import Pack, Unpack
from mnnconvert.ops.generators import Fill, ZerosLike
from mnnconvert.ops.layout import Identity
from mnnconvert.ops.padding import Padding
from mnnconvert.ops.shape import ExpandDims, Flatten, Reshape, Squeeze, Unsqueeze
from mnnconvert.runtime_ref import movement
from mnnconvert.runtime_ref.cpu.lower import Lowering, lowers
from mnnconvert.runtime_ref.lower import BLOCKED, LAST, PLAIN, Tensor
from mnnconvert.runtime_ref.movement import OUTSIDE
from mnnconvert.runtime_ref.products import geometry
from mnnconvert.runtime_ref.strided import copy_parameters, offset, phantom

PICK_AXES = 6
LARGEST_UNIT = 4096  # bytes that a pick moves at once


def only_blocked(ctx: Lowering, value: Value) -> bool:
    """Whether a value lies blocked, and reading it plain would be a conversion."""
    return set(ctx.layouts(value)) == {BLOCKED}


def only_last(ctx: Lowering, value: Value) -> bool:
    """Whether a value lies as a map of codes alone."""
    return set(ctx.layouts(value)) == {LAST}


def read_for(ctx: Lowering, value: Value, axes: Sequence[int]) -> Tensor:
    """A value for an op that changes these axes: blocked if it lies so and its channels are not among them."""
    return ctx.read_blocked(value) if only_blocked(ctx, value) and 1 not in axes else ctx.read(value)


def copy(ctx: Lowering, x: Tensor, source: np.ndarray, y: Tensor, target: np.ndarray) -> None:
    """Copy a view of `x` to a view of `y`; both are views of their phantoms."""
    if target.size:
        ctx.call("copy_strided", x=x, y=y, **copy_parameters(source, target))


def move(ctx: Lowering, value: Value, x: Tensor, view: np.ndarray) -> bool:
    """Define a value as a view of `x`, in the layout of `x`: it lies there already, or is copied.

    The shape of the view may be any that has the elements of the value in order. False where that is not possible.
    """
    if view.flags.c_contiguous:
        at = x.offset + offset(view)
        ctx.define(value, Tensor(x.buffer, ctx.shape(value), x.dtype, x.layout, at))
        return True
    try:
        parameters = copy_parameters(view, phantom(view.shape, view.dtype))
    except ValueError:  # more axes than the kernel has
        return False
    ctx.call("copy_strided", x=x, y=ctx.result(value, x.layout), **parameters)
    return True


# The elements stay in order.


@lowers(Reshape, Squeeze, Unsqueeze, ExpandDims, Flatten)
def reshape(ctx: Lowering, node: Node) -> bool:
    source, shape = node.inputs[0], ctx.shape(node.output)
    ctx.define(node.output, ctx.view(_read_in_order(ctx, source), shape))
    return True


def _read_in_order(ctx: Lowering, value: Value) -> Tensor:
    """A value in plain layout; whole blocks of single pixels lie in that order already."""
    shape, lies = ctx.shape(value), ctx.layouts(value)
    if lies and PLAIN not in lies and math.prod(shape[2:]) == 1 and shape[1] % ctx.lanes == 0:
        return ctx.view(ctx.read_blocked(value) if BLOCKED in lies else ctx.read_last(value), shape)
    return ctx.read(value)


@lowers(Identity)
def identity(ctx: Lowering, node: Node) -> bool:
    ctx.alias(node.output, node.inputs[0])
    return True


# The axes change places.


@lowers(*movement.ORDERS)
def permuted(ctx: Lowering, node: Node) -> bool:
    source, order = node.inputs[0], movement.order(ctx, node)
    if order is None:
        return False
    if order == list(range(len(order))):
        return identity(ctx, node)
    if only_blocked(ctx, source):
        _unblocked(ctx, node, order)
        return True
    x = ctx.read(source)
    return move(ctx, node.output, x, geometry(ctx, x).transpose(order))


def _unblocked(ctx: Lowering, node: Node, order: Sequence[int]) -> None:
    """From blocked to plain in another order: the whole blocks, then what is left of the last one."""
    x, y = ctx.read_blocked(node.inputs[0]), ctx.result(node.output)
    blocks = np.moveaxis(geometry(ctx, x), -1, 2)  # [N, blocks, lanes, ...]
    channels = geometry(ctx, y).transpose(np.argsort(order))  # [N, C, ...]
    whole, rest = divmod(x.shape[1], ctx.lanes)
    target = channels[:, : whole * ctx.lanes]
    copy(ctx, x, blocks[:, :whole], y, target.reshape(target.shape[0], whole, ctx.lanes, *target.shape[2:]))
    if rest:
        copy(ctx, x, blocks[:, whole, :rest], y, channels[:, whole * ctx.lanes :])


@lowers(*movement.VIEWS)
def viewed(ctx: Lowering, node: Node) -> bool:
    view = movement.view(ctx, node)
    if view is None:
        return False
    if ctx.shape(node.inputs[0]) == ctx.shape(node.output):
        return identity(ctx, node)
    x = ctx.read(node.inputs[0])
    return move(ctx, node.output, x, view(geometry(ctx, x)))


# Parts of a value.


def _cut(ctx: Lowering, node: Node, index: Sequence[Any]) -> bool:
    """x[index], an index of numpy's basic kind with a place for every axis of x."""
    touched, axis = [], 0
    for pick in index:
        size = None if pick is None else ctx.shape(node.inputs[0])[axis]
        if not isinstance(pick, slice) or size is None or pick.indices(size) != (0, size, 1):
            touched.append(axis)
        axis += pick is not None
    keeps_axes = all(isinstance(pick, slice) for pick in index)
    x = read_for(ctx, node.inputs[0], touched if keeps_axes else [1])
    return move(ctx, node.output, x, geometry(ctx, x)[(*index, ...)])


@lowers(*movement.CUTS)
def cut(ctx: Lowering, node: Node) -> bool:
    index = movement.index(ctx, node)
    return index is not None and _cut(ctx, node, index)


@lowers(Unpack)
def unpack(ctx: Lowering, node: Node) -> bool:
    x = ctx.read(node.inputs[0])
    rows = np.moveaxis(geometry(ctx, x), node.op.axis, 0)  # type: ignore[attr-defined]
    return all(move(ctx, value, x, rows[i, ...]) for i, value in enumerate(node.outputs))


@lowers(Pack)
def pack(ctx: Lowering, node: Node) -> bool:
    y = ctx.result(node.output)
    rows = np.moveaxis(geometry(ctx, y), node.op.axis, 0)  # type: ignore[attr-defined]
    for i, value in enumerate(node.inputs):
        x = ctx.read(value)
        copy(ctx, x, geometry(ctx, x), y, rows[i, ...])
    return True


# Numbers, and borders.


@lowers(Fill)
def fill(ctx: Lowering, node: Node) -> bool:
    return _filled(ctx, node, ctx.read(node.inputs[1]))


@lowers(ZerosLike)
def zeros_like(ctx: Lowering, node: Node) -> bool:
    return _filled(ctx, node, ctx.literal(np.zeros(1, node.output.dtype)))


def _filled(ctx: Lowering, node: Node, value: Tensor) -> bool:
    y = ctx.result(node.output)
    copy(ctx, value, geometry(ctx, value).reshape(-1)[:1], y, geometry(ctx, y).reshape(-1))
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
    x = read_for(ctx, node.inputs[0], [i for i, pair in enumerate(pairs) if any(pair)])
    return pick(ctx, node.output, x, movement.padded(node.op, shape, pairs), value)  # type: ignore[arg-type]


def pick(ctx: Lowering, value: Value, x: Tensor, tables: Sequence[np.ndarray], rest: Any = 0) -> bool:
    """Define a value as x[tables[0]][tables[1]]... with `rest` where a table is negative; in the layout of `x`.

    There is a table for each logical axis. That of the channels of a blocked tensor is not looked at: they stay.
    """
    stored = ctx.stored(x.shape, x.layout)
    if x.layout == BLOCKED:
        tables = [tables[0], np.arange(stored[1]), *tables[2:], np.arange(ctx.lanes)]
    offsets, unit = _pick_axes(stored, tables, x.dtype.itemsize)
    if len(offsets) > PICK_AXES:
        return False
    offsets = [np.zeros(1, np.int64)] * (PICK_AXES - len(offsets)) + offsets
    ctx.call(
        "pick", x=x, y=ctx.result(value, x.layout), bytes=unit, table=ctx.literal(np.concatenate(offsets)),
        value=ctx.literal(np.full(unit // x.dtype.itemsize, np.asarray(rest).reshape(-1)[0], x.dtype)),
        **{f"n{i}": len(t) for i, t in enumerate(offsets)},
    )  # fmt: skip
    return True


def _pick_axes(sizes: Sequence[int], tables: Sequence[np.ndarray], itemsize: int) -> tuple[list[np.ndarray], int]:
    """Offsets in bytes per axis, and the unit that moves at once: axes that stay as they are are merged."""
    stays = [len(t) == n and bool((t == np.arange(n)).all()) for t, n in zip(tables, sizes, strict=True)]
    axes = list(zip(sizes, tables, stays, strict=True))
    unit = itemsize
    while axes and axes[-1][2] and unit * axes[-1][0] <= LARGEST_UNIT:
        unit *= axes.pop()[0]
    offsets: list[np.ndarray] = []
    step, merging = unit, False
    for size, table, stay in reversed(axes):
        if stay and merging:
            offsets[0] = (np.arange(size)[:, None] * step + offsets[0]).reshape(-1)
        else:
            offsets.insert(0, np.where(table < 0, OUTSIDE, table.astype(np.int64) * step))
        step, merging = step * size, stay
    return offsets, unit
