"""Pooling of maps with channels last."""

from __future__ import annotations

import math

from mnnconvert.ir import F32, Node
from mnnconvert.ops.pooling import Pooling, Pooling3D
from mnnconvert.runtime_ref.lower import LAST
from mnnconvert.runtime_ref.opencl.lower import Lowering, lowers
from mnnconvert.runtime_ref.opencl.lowering.panels import group, indexable, light, span_of


@lowers(Pooling)
def pooling(ctx: Lowering, node: Node) -> bool:
    op, x = node.op, node.inputs[0]
    assert isinstance(op, Pooling)
    if op.indices or x.dtype != F32 or 0 in ctx.shape(x) or not indexable(ctx, x, node.output):
        return False
    if op.whole:
        return _whole(ctx, node, op.function)
    n, _, height, width = ctx.shape(x)
    (kernel_h, stride_h, top, out_h), (kernel_w, stride_w, left, out_w) = op.window(0, height), op.window(1, width)
    counted, pitch = op.count == "INCLUDE_PADDING", ctx.channels(x)
    span = span_of(ctx, pitch)
    defines = {"MEAN": int(op.function == "AVEPOOL")}
    ctx.call(
        "pool", (-(-pitch // span), out_w, n * out_h), local=light(ctx), defines=defines, x=ctx.read_map(x),
        y=ctx.result(node.output, LAST), images=n, pitch=pitch, span=span, h=height, width=width, out_h=out_h,
        out_w=out_w, kernel_h=kernel_h, kernel_w=kernel_w, stride_h=stride_h, stride_w=stride_w, top=top, left=left,
        margin_h=top if counted else 0, margin_w=left if counted else 0,
    )  # fmt: skip
    return True


@lowers(Pooling3D)
def pooling_of_volumes(ctx: Lowering, node: Node) -> bool:
    op, x = node.op, node.inputs[0]
    assert isinstance(op, Pooling3D)
    shape = ctx.shape(x)
    if not op.whole or x.dtype != F32 or 0 in shape or len(shape) < 3 or not indexable(ctx, x):
        return False
    return _whole(ctx, node, op.function)


def _whole(ctx: Lowering, node: Node, function: str) -> bool:
    x = node.inputs[0]
    n, _, *sizes = ctx.shape(x)
    pitch = ctx.channels(x)
    defines = {"MEAN": int(function == "AVEPOOL")}
    ctx.call("pool_all", (pitch // ctx.lanes, n), local=group(ctx, (1, 1), (64, 1)), defines=defines, x=ctx.read_map(x),
             y=ctx.result(node.output, LAST), images=n, pitch=pitch, pixels=math.prod(sizes))  # fmt: skip
    return True
