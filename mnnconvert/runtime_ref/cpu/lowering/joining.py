"""Concatenation and splitting, also of channels that lie blocked.

Channel c of a blocked map lies in lane c % lanes of block c // lanes. Channels that move by a whole number of blocks
move as blocks. Otherwise, by `shift` lanes more, the lower lanes of every block move to the upper ones of a block, and
the upper lanes to the lower ones of the next: two strided copies, whatever the number of blocks.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from mnnconvert.ir import F32, Node, Value
from mnnconvert.ir.types import normal_axis
from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.slicing import Slice
from mnnconvert.runtime_ref.cpu.lower import Lowering, lowers
from mnnconvert.runtime_ref.cpu.lowering.movement import copy, move, only_blocked, only_last
from mnnconvert.runtime_ref.lower import BLOCKED, LAST, Tensor
from mnnconvert.runtime_ref.products import geometry


@lowers(Concat)
def concat(ctx: Lowering, node: Node) -> bool:
    parts = [v for v in node.inputs if math.prod(ctx.shape(v))]
    axis = normal_axis(node.op.axis, len(ctx.shape(node.output)))  # type: ignore[attr-defined]
    if len(parts) == 1:
        ctx.alias(node.output, parts[0])
        return True
    if all(only_last(ctx, v) for v in parts):
        _join_codes(ctx, node, parts, axis)
        return True
    blocked = _mostly_blocked(ctx, parts)
    tensors = [ctx.read_blocked(v) if blocked else ctx.read(v) for v in parts]
    y = ctx.result(node.output, tensors[0].layout)
    starts = itertools.accumulate((t.shape[axis] for t in tensors), initial=0)
    if blocked and axis == 1:
        _join_channels(ctx, tensors, y)
        return True
    for x, start in zip(tensors, starts, strict=False):
        part = np.moveaxis(geometry(ctx, y), axis, 0)[start : start + x.shape[axis]]
        copy(ctx, x, geometry(ctx, x), y, np.moveaxis(part, 0, axis))
    return True


def _join_codes(ctx: Lowering, node: Node, parts: list[Value], axis: int) -> None:
    y = ctx.result(node.output, LAST)
    start = 0
    for value in parts:
        x = ctx.read_last(value)
        cut = (*(slice(None),) * axis, slice(start, start + x.shape[axis]))
        copy(ctx, x, ctx.channel_first(x), y, ctx.channel_first(y)[cut])
        start += x.shape[axis]


def _mostly_blocked(ctx: Lowering, values: list[Value]) -> bool:
    """Whether fewer elements have to be converted when the result is made blocked."""
    if len(ctx.shape(values[0])) < 3 or values[0].dtype != F32:
        return False
    sizes = [math.prod(ctx.shape(v)) for v in values]
    blocked = sum(n for n, v in zip(sizes, values, strict=True) if only_blocked(ctx, v))
    plain = sum(n for n, v in zip(sizes, values, strict=True) if BLOCKED not in ctx.layouts(v))
    return blocked > plain


def _join_channels(ctx: Lowering, tensors: list[Tensor], y: Tensor) -> None:
    _clear_last_block(ctx, y)
    start = 0
    for x in tensors:  # in order: what a part leaves in the lanes behind its channels, the next one overwrites
        _shift_channels(ctx, x, y, start)
        start += x.shape[1]


def _clear_last_block(ctx: Lowering, y: Tensor) -> None:
    """Zeros in the last block where it has lanes that no channel fills."""
    if y.shape[1] % ctx.lanes:
        copy(ctx, ctx.literal(np.zeros(1, F32)), np.zeros(1, F32), y, geometry(ctx, y)[:, -1])


def _shift_channels(ctx: Lowering, x: Tensor, y: Tensor, by: int) -> None:
    """Channel c of x to channel c + by of y, block by block, as far as blocks of y go."""
    blocks, shift = divmod(by, ctx.lanes)
    source, target = geometry(ctx, x), geometry(ctx, y)
    for at, lower, upper in ((blocks, 0, ctx.lanes - shift), (blocks + 1, ctx.lanes - shift, ctx.lanes)):
        first, last = max(0, -at), min(source.shape[1], target.shape[1] - at)
        if lower < upper and first < last:
            lanes = slice(shift, None) if lower == 0 else slice(0, shift)
            copy(ctx, x, source[:, first:last, ..., lower:upper], y, target[:, first + at : last + at, ..., lanes])


@lowers(Slice)
def split(ctx: Lowering, node: Node) -> bool:
    source = node.inputs[0]
    axis = normal_axis(node.op.axis, len(ctx.shape(source)))  # type: ignore[attr-defined]
    sizes = [ctx.shape(v)[axis] for v in node.outputs]
    if only_last(ctx, source):
        _split_codes(ctx, node, axis)
        return True
    blocked = only_blocked(ctx, source) and all(sizes)
    x = ctx.read_blocked(source) if blocked else ctx.read(source)
    for value, start in zip(node.outputs, itertools.accumulate(sizes, initial=0), strict=False):
        if not (blocked and axis == 1):
            cut = (*(slice(None),) * axis, slice(start, start + ctx.shape(value)[axis]))
            move(ctx, value, x, geometry(ctx, x)[cut])
        elif start % ctx.lanes == 0:
            first = start // ctx.lanes
            move(ctx, value, x, geometry(ctx, x)[:, first : first - -ctx.shape(value)[1] // ctx.lanes])
        else:
            y = ctx.result(value, BLOCKED)
            _clear_last_block(ctx, y)
            _shift_channels(ctx, x, y, -start)
    return True


def _split_codes(ctx: Lowering, node: Node, axis: int) -> None:
    x, start = ctx.read_last(node.inputs[0]), 0
    for value in node.outputs:
        y = ctx.result(value, LAST)
        cut = (*(slice(None),) * axis, slice(start, start + y.shape[axis]))
        copy(ctx, x, ctx.channel_first(x)[cut], y, ctx.channel_first(y))
        start += y.shape[axis]
