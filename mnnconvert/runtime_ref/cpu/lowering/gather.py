"""Gathers, scatters and one-hot. Picks of neighbours that are known beforehand are views; see movement.py."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mnnconvert.ir import Node
from mnnconvert.ir.types import normal_axis
from mnnconvert.ops.gather import Gather, GatherElements, GatherND, GatherV2, OneHot
from mnnconvert.ops.scatter import ScatterElements, ScatterNd
from mnnconvert.runtime_ref.cpu.lower import Lowering, lowers
from mnnconvert.runtime_ref.cpu.lowering.movement import move
from mnnconvert.runtime_ref.lower import Tensor
from mnnconvert.runtime_ref.movement import MOST_AXES, REDUCTIONS, axis_operand, elements, neighbours, numbered
from mnnconvert.runtime_ref.products import geometry
from mnnconvert.runtime_ref.strided import copy_parameters


@lowers(Gather, GatherV2)
def gather(ctx: Lowering, node: Node) -> bool:
    axis = axis_operand(ctx, node, 2, node.op.axis)  # type: ignore[attr-defined]
    if axis is None:
        return False
    shape, indices = ctx.shape(node.inputs[0]), ctx.constant(node.inputs[1])
    axis, size = normal_axis(axis, len(shape)), shape[axis]
    x = ctx.read(node.inputs[0])
    if indices is not None:
        part = neighbours(indices, size)
        if part is not None:
            return move(ctx, node.output, x, geometry(ctx, x)[(*(slice(None),) * axis, part)])
    ctx.call("gather", x=x, indices=ctx.read(node.inputs[1]), y=ctx.result(node.output), size=size,
             bytes=math.prod(shape[axis + 1 :]) * x.dtype.itemsize, outer=math.prod(shape[:axis]),
             count=math.prod(ctx.shape(node.inputs[1])))  # fmt: skip
    return True


@lowers(GatherND)
def gather_nd(ctx: Lowering, node: Node) -> bool:
    batch = node.op.batch_dims  # type: ignore[attr-defined]
    shape, picked = ctx.shape(node.inputs[0]), ctx.shape(node.inputs[1])
    depth = picked[-1]
    if depth > MOST_AXES:
        return False
    x, batches = ctx.read(node.inputs[0]), math.prod(shape[:batch])
    ctx.call("gather_nd", x=x, indices=ctx.read(node.inputs[1]), y=ctx.result(node.output), batch=batches,
             bytes=math.prod(shape[batch + depth :]) * x.dtype.itemsize, rows=math.prod(picked[:-1]) // batches,
             depth=depth, **numbered("d", shape[batch : batch + depth]))  # fmt: skip
    return True


@lowers(GatherElements)
def gather_elements(ctx: Lowering, node: Node) -> bool:
    shape, picked, axis = ctx.shape(node.inputs[0]), ctx.shape(node.inputs[1]), axis_operand(ctx, node, 2)
    if axis is None or not 0 < len(shape) <= MOST_AXES:
        return False
    x = ctx.read(node.inputs[0])
    ctx.call("gather_elements", x=x, indices=ctx.read(node.inputs[1]), y=ctx.result(node.output),
             bytes=x.dtype.itemsize, size=shape[axis],
             **elements(shape, picked, normal_axis(axis, len(shape))))  # fmt: skip
    return True


def _started(ctx: Lowering, node: Node, data: Tensor) -> Tensor:
    """The result of a scatter, as it is before anything is put into it."""
    y = ctx.result(node.output, over=data)
    source = np.broadcast_to(geometry(ctx, data), y.shape)
    ctx.call("copy_strided", x=data, y=y, **copy_parameters(source, geometry(ctx, y)))
    return y


def _reduction(op: Any, dtype: np.dtype) -> dict[str, int]:
    return {"reduction": REDUCTIONS[op.reduction], "is_float": int(dtype.kind == "f")}


@lowers(ScatterNd)
def scatter_nd(ctx: Lowering, node: Node) -> bool:
    indices, updates = ctx.read(node.inputs[0]), ctx.read(node.inputs[1])
    depth, shape = indices.shape[-1], ctx.shape(node.output)
    if depth > MOST_AXES or updates.dtype.itemsize != 4:
        return False
    data = ctx.read(node.inputs[3]) if len(node.inputs) > 3 else ctx.literal(np.zeros(1, updates.dtype))
    if data.size != math.prod(shape) and len(node.inputs) > 3:
        return False
    y = _started(ctx, node, data)
    if updates.size:
        ctx.call("scatter_nd", indices=indices, updates=updates, y=y, rows=math.prod(indices.shape[:-1]),
                 width=math.prod(shape[depth:]), depth=depth, **numbered("d", shape[:depth]),
                 **_reduction(node.op, updates.dtype))  # fmt: skip
    return True


@lowers(ScatterElements)
def scatter_elements(ctx: Lowering, node: Node) -> bool:
    shape, picked, axis = ctx.shape(node.inputs[0]), ctx.shape(node.inputs[1]), axis_operand(ctx, node, 3)
    if axis is None or not 0 < len(shape) <= MOST_AXES or node.output.dtype.itemsize != 4:
        return False
    y = _started(ctx, node, ctx.read(node.inputs[0]))
    if math.prod(picked):
        ctx.call("scatter_elements", indices=ctx.read(node.inputs[1]), updates=ctx.read(node.inputs[2]), y=y,
                 size=shape[axis], **elements(shape, picked, normal_axis(axis, len(shape))),
                 **_reduction(node.op, y.dtype))  # fmt: skip
    return True


@lowers(OneHot)
def one_hot(ctx: Lowering, node: Node) -> bool:
    shape, made = ctx.shape(node.inputs[0]), ctx.shape(node.output)
    if node.output.dtype.itemsize != 4:
        return False
    axis = normal_axis(node.op.axis, len(made))  # type: ignore[attr-defined]
    indices, _, on, off = (ctx.read(v) for v in node.inputs)
    ctx.call("one_hot", indices=indices, on=on, off=off, y=ctx.result(node.output), outer=math.prod(shape[:axis]),
             depth=made[axis], inner=math.prod(shape[axis:]))  # fmt: skip
    return True
