"""Gathers, scatters and one-hot. Picks of neighbours that are known beforehand are views; see movement.py."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mnnconvert.ir import F32, I32, Node, Value
from mnnconvert.ir.types import normal_axis
from mnnconvert.ops.gather import Gather, GatherElements, GatherND, GatherV2, OneHot
from mnnconvert.ops.scatter import ScatterElements, ScatterNd
from mnnconvert.runtime_ref.lower import Tensor
from mnnconvert.runtime_ref.movement import MOST_AXES, REDUCTIONS, axis_operand, elements, neighbours, numbered
from mnnconvert.runtime_ref.opencl.copies import ITEM, TYPES, group
from mnnconvert.runtime_ref.opencl.lower import Lowering, lowers
from mnnconvert.runtime_ref.opencl.lowering.movement import move

WORDS = (F32, I32)


def _type(x: Tensor) -> dict[str, int | str]:
    return {"T": TYPES[x.dtype.itemsize]}


@lowers(Gather, GatherV2)
def gather(ctx: Lowering, node: Node) -> bool:
    axis = axis_operand(ctx, node, 2, node.op.axis)  # type: ignore[attr-defined]
    if axis is None:
        return False
    shape, indices = ctx.shape(node.inputs[0]), ctx.constant(node.inputs[1])
    axis, size = normal_axis(axis, len(shape)), shape[axis]
    part = None if indices is None else neighbours(indices, size)
    if part is not None:
        x = ctx.lying(node.inputs[0])
        return move(ctx, node.output, x, ctx.seen(x)[(*(slice(None),) * axis, part)])
    return size > 0 and _gather(ctx, node, axis)


def _gather(ctx: Lowering, node: Node, axis: int) -> bool:
    source, indices = node.inputs[:2]
    shape, count = ctx.shape(source), math.prod(ctx.shape(indices))
    if indices.dtype != I32:
        return False
    run, outer = math.prod(shape[axis + 1 :]), math.prod(shape[:axis])
    part = min(run, ITEM if ctx.device.is_cpu else 8)
    chunk = max(1, min(count, ITEM // max(run, 1))) if ctx.device.is_cpu else 1
    size = (-(-run // max(part, 1)), -(-count // chunk), outer)
    x = ctx.read(source)
    ctx.call("gather", size, local=group(size, part * chunk) if ctx.device.is_cpu else None, defines=_type(x), x=x,
             indices=ctx.read(indices), y=ctx.result(node.output), **ctx.fault(), outer=outer, length=shape[axis],
             count=count, run=run, part=part, chunk=chunk)  # fmt: skip
    return True


@lowers(GatherND)
def gather_nd(ctx: Lowering, node: Node) -> bool:
    batch = node.op.batch_dims  # type: ignore[attr-defined]
    shape, picked = ctx.shape(node.inputs[0]), ctx.shape(node.inputs[1])
    depth = picked[-1]
    sizes = shape[batch : batch + depth]
    if depth > MOST_AXES or 0 in shape or node.inputs[1].dtype != I32:
        return False
    x, batches = ctx.read(node.inputs[0]), math.prod(shape[:batch])
    ctx.call("gather_nd", (math.prod(picked[:-1]),), defines=_type(x), x=x, indices=ctx.read(node.inputs[1]),
             y=ctx.result(node.output), **ctx.fault(), batch=batches, run=math.prod(shape[batch + depth :]),
             rows=math.prod(picked[:-1]) // batches, depth=depth, block=math.prod(sizes),
             **numbered("d", sizes))  # fmt: skip
    return True


@lowers(GatherElements)
def gather_elements(ctx: Lowering, node: Node) -> bool:
    shape, picked, axis = ctx.shape(node.inputs[0]), ctx.shape(node.inputs[1]), axis_operand(ctx, node, 2)
    if axis is None or not 0 < len(shape) <= MOST_AXES or 0 in shape or node.inputs[1].dtype != I32:
        return False
    x, count = ctx.read(node.inputs[0]), math.prod(picked)
    ctx.call("gather_elements", (count,), defines=_type(x), x=x, indices=ctx.read(node.inputs[1]),
             y=ctx.result(node.output), **ctx.fault(), count=count, length=shape[axis],
             **elements(shape, picked, normal_axis(axis, len(shape))))  # fmt: skip
    return True


@lowers(OneHot)
def one_hot(ctx: Lowering, node: Node) -> bool:
    shape, made = ctx.shape(node.inputs[0]), ctx.shape(node.output)
    if node.output.dtype not in WORDS or node.inputs[0].dtype != I32:
        return False
    axis = normal_axis(node.op.axis, len(made))  # type: ignore[attr-defined]
    indices, _, on, off = (ctx.read(v) for v in node.inputs)
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis:])
    ctx.call("one_hot", (inner, made[axis], outer), defines=_type(on), indices=indices, on=on, off=off,
             y=ctx.result(node.output), outer=outer, depth=made[axis], inner=inner)  # fmt: skip
    return True


# Scatters.


def _started(ctx: Lowering, value: Value, data: Tensor) -> Tensor:
    """The result, as it is before anything is put into it."""
    y = ctx.result(value)
    ctx.copy(data, ctx.seen(data), y, ctx.seen(y))
    return y


def _defines(op: Any, value: Value) -> dict[str, int]:
    return {"REDUCTION": REDUCTIONS[op.reduction]} | ({"FLOATS": 1} if value.dtype == F32 else {})


@lowers(ScatterNd)
def scatter_nd(ctx: Lowering, node: Node) -> bool:
    indices, updates, *_ = node.inputs
    depth, shape, made = ctx.shape(indices)[-1], ctx.shape(node.output), node.output
    if depth > MOST_AXES or made.dtype not in WORDS or indices.dtype != I32 or 0 in shape:
        return False
    data = ctx.lying(node.inputs[3]) if len(node.inputs) > 3 else ctx.literal(np.zeros(1, made.dtype))
    y = _started(ctx, made, data)
    width, rows = math.prod(shape[depth:]), math.prod(ctx.shape(indices)[:-1])
    if rows:
        ctx.call("scatter_nd", (width,), defines=_defines(node.op, made), indices=ctx.read(indices),
                 updates=ctx.read(updates), y=y, **ctx.fault(), rows=rows, width=width, depth=depth,
                 **numbered("d", shape[:depth]))  # fmt: skip
    return True


@lowers(ScatterElements)
def scatter_elements(ctx: Lowering, node: Node) -> bool:
    data, indices, updates = node.inputs[:3]
    shape, picked, axis, made = ctx.shape(data), ctx.shape(indices), axis_operand(ctx, node, 3), node.output
    if axis is None or not 0 < len(shape) <= MOST_AXES or made.dtype not in WORDS or indices.dtype != I32:
        return False
    y, at = _started(ctx, made, ctx.lying(data)), normal_axis(axis, len(shape))
    if math.prod(picked):
        outer, inner = math.prod(picked[:at]), math.prod(picked[at + 1 :])
        ctx.call("scatter_elements", (inner, outer), defines=_defines(node.op, made), indices=ctx.read(indices),
                 updates=ctx.read(updates), y=y, **ctx.fault(), outer=outer, along=picked[at], inner=inner,
                 length=shape[at], **elements(shape, picked, at))  # fmt: skip
    return True
