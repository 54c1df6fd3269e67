"""Pooling of blocked maps, and of maps of codes."""

from __future__ import annotations

import math

from mnnconvert.ir import F32, I8, Node
from mnnconvert.ops.pooling import Pooling, Pooling3D
from mnnconvert.runtime_ref.cpu.lower import Lowering, lowers
from mnnconvert.runtime_ref.cpu.lowering.codes import pool_codes
from mnnconvert.runtime_ref.lower import BLOCKED


@lowers(Pooling)
def pooling(ctx: Lowering, node: Node) -> bool:
    op = node.op
    assert isinstance(op, Pooling)
    x = node.inputs[0]
    if x.dtype == I8:
        return pool_codes(ctx, node)
    if op.indices or x.dtype != F32 or 0 in ctx.shape(x):
        return False
    if op.whole:
        return _whole(ctx, node, op.function)
    n, channels, height, width = ctx.shape(x)
    (kernel_h, stride_h, top, out_h), (kernel_w, stride_w, left, out_w) = op.window(0, height), op.window(1, width)
    counted = op.count == "INCLUDE_PADDING"
    ctx.call(
        "pool_f32", x=ctx.read_blocked(x), y=ctx.result(node.output, BLOCKED), n=n, channels=channels, h=height,
        width=width, out_h=out_h, out_w=out_w, kernel_h=kernel_h, kernel_w=kernel_w, stride_h=stride_h,
        stride_w=stride_w, top=top, left=left, margin_h=top if counted else 0, margin_w=left if counted else 0,
        mean=op.function == "AVEPOOL",
    )  # fmt: skip
    return True


@lowers(Pooling3D)
def pooling_of_volumes(ctx: Lowering, node: Node) -> bool:
    op, x = node.op, node.inputs[0]
    assert isinstance(op, Pooling3D)
    if not op.whole or x.dtype != F32 or 0 in ctx.shape(x) or len(ctx.shape(x)) < 3:
        return False
    return _whole(ctx, node, op.function)


def _whole(ctx: Lowering, node: Node, function: str) -> bool:
    n, channels, *sizes = ctx.shape(node.inputs[0])
    ctx.call("pool_all_f32", x=ctx.read_blocked(node.inputs[0]), y=ctx.result(node.output, BLOCKED), n=n,
             channels=channels, pixels=math.prod(sizes), mean=function == "AVEPOOL")  # fmt: skip
    return True
