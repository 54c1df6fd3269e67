"""Transposed convolution: blocked maps by phases, each channel by itself, or a plain result of few channels."""

from __future__ import annotations

from mnnconvert.ir import Node, Value
from mnnconvert.ops.deconvolution import Deconvolution
from mnnconvert.runtime_ref.cpu.lower import Lowering, lowers
from mnnconvert.runtime_ref.cpu.lowering.weights import packed_by
from mnnconvert.runtime_ref.lower import BLOCKED, PLAIN, Tensor
from mnnconvert.runtime_ref.windows import cut

FEW = 4
"""Outputs of which the products of all taps are computed as columns of one product, and then added up."""


@lowers(Deconvolution)
def deconvolution(ctx: Lowering, node: Node) -> bool:
    op = node.op
    assert isinstance(op, Deconvolution)
    x, w, *rest = node.inputs
    images, inputs, height, width = ctx.shape(x)
    _, per_group, kernel_y, kernel_x = ctx.shape(w)
    if 0 in ctx.shape(x) or 0 in ctx.shape(w):
        return False
    outputs = per_group * op.group
    few = op.group == 1 and outputs <= FEW
    depthwise = per_group == 1 and op.group == inputs and not few
    epilogue = ctx.epilogue(node, op.activation, views=few)
    out_height, out_width = ctx.shape(node.output)[2:]
    top, left = cut(op, (height, width), (kernel_y, kernel_x), (out_height, out_width))
    residual = epilogue.residual
    read = ctx.read if few else ctx.read_blocked
    channels = {"channels": inputs} if depthwise else {"inputs": inputs, "outputs": outputs}
    kernel = "deconv_few" if few else "deconv_depthwise" if depthwise else "deconv"
    operands = {
        "x": ctx.read_blocked(x),
        "packed": _pack_few(ctx, w) if few else _pack_depthwise(ctx, w) if depthwise else _pack(ctx, w, op.group),
        "bias": ctx.read(rest[0]) if len(rest) > op.sized else None,
        "residual": None if residual is None else read(residual),
    }
    ctx.fuse(node, epilogue)
    ctx.call(
        kernel, **operands, **channels, **epilogue.params, y=ctx.result(epilogue.value, PLAIN if few else BLOCKED),
        images=images, height=height, width=width, out_height=out_height, out_width=out_width, kernel_y=kernel_y,
        kernel_x=kernel_x, stride_y=op.strides[0], stride_x=op.strides[1], dilation_y=op.dilations[0],
        dilation_x=op.dilations[1], top=top, left=left,
    )  # fmt: skip
    return True


def _pack(ctx: Lowering, w: Value, group: int) -> Tensor:
    inputs, per_group, kernel_y, kernel_x = ctx.shape(w)
    panel = 2 * ctx.lanes
    shape = (-(-(per_group * group) // panel), kernel_y, kernel_x, -(-inputs // ctx.lanes) * ctx.lanes, panel)
    return packed_by(ctx, "deconv_pack", w, shape, inputs=inputs, outputs=per_group * group, group=group,
                   kernel_y=kernel_y, kernel_x=kernel_x)  # fmt: skip


def _pack_depthwise(ctx: Lowering, w: Value) -> Tensor:
    channels, _, kernel_y, kernel_x = ctx.shape(w)
    shape = (-(-channels // ctx.lanes), kernel_y, kernel_x, ctx.lanes)
    return packed_by(ctx, "deconv_depthwise_pack", w, shape, channels=channels, kernel_y=kernel_y, kernel_x=kernel_x)


def _pack_few(ctx: Lowering, w: Value) -> Tensor:
    inputs, outputs, kernel_y, kernel_x = ctx.shape(w)
    columns = outputs * kernel_y * kernel_x
    panel = ctx.lanes if columns <= ctx.lanes else 2 * ctx.lanes
    shape = (-(-columns // panel), -(-inputs // ctx.lanes) * ctx.lanes, panel)
    return packed_by(ctx, "deconv_few_pack", w, shape, inputs=inputs, columns=columns)
