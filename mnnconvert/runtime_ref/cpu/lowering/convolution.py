"""Convolution: of blocked maps, directly or by Winograd's algorithm; of plain images with few channels; of plain maps
where groups do not fill blocks.
"""

from __future__ import annotations

import math
from typing import Any

from mnnconvert.ir import Node, Value
from mnnconvert.ops.convolution import Convolution
from mnnconvert.runtime_ref.cpu.lower import Lowering, lowers
from mnnconvert.runtime_ref.cpu.lowering.coded import coded_convolution
from mnnconvert.runtime_ref.cpu.lowering.weights import packed_by
from mnnconvert.runtime_ref.cpu.lowering.winograd import best_tile, lower_winograd
from mnnconvert.runtime_ref.lower import BLOCKED, PLAIN, Tensor
from mnnconvert.runtime_ref.products import dense
from mnnconvert.runtime_ref.windows import Window, is_depthwise, window_of


@lowers(Convolution)
def convolution(ctx: Lowering, node: Node) -> bool:
    op, (x, w, *_) = node.op, node.inputs
    assert isinstance(op, Convolution)
    if coded_convolution(ctx, node):
        return True
    if 0 in ctx.shape(x) or 0 in ctx.shape(w):
        return False
    if dense(ctx, node):
        return True
    channels, outputs = ctx.shape(x)[1], ctx.shape(w)[0]
    window = window_of(op, ctx.shape(x), ctx.shape(w), ctx.shape(node.output))
    tile = _winograd_tile(ctx, node, window)
    if tile is not None:
        lower_winograd(ctx, node, ctx.epilogue(node, op.activation), (window.top, window.left), tile)
    elif _expansion(ctx, node, window):
        pass
    elif is_depthwise(op, channels, outputs):
        packed = _pack_depthwise(ctx, w)
        _call(ctx, node, "depthwise_f32", window, (BLOCKED, BLOCKED), w=packed, channels=channels)
    else:
        layouts = _layouts(ctx, x, op.group, channels, outputs)
        plain_x, plain_y = (layout == PLAIN for layout in layouts)
        packed = _pack(ctx, w, op.group, plain_x)
        _call(ctx, node, "conv_f32", window, layouts, w=packed, inputs=channels, outputs=outputs, group=op.group,
              plain_x=plain_x, plain_y=plain_y)  # fmt: skip
    return True


def _call(ctx: Lowering, node: Node, kernel: str, window: Window, layouts: tuple[str, str], **operands: Any) -> None:
    """Call a kernel that reads x in the first layout and writes y in the second, with the epilogue."""
    op, (x, _, *rest) = node.op, node.inputs
    assert isinstance(op, Convolution)
    epilogue = ctx.epilogue(node, op.activation)
    source = _read(ctx, x, layouts[0])
    bias = ctx.read(rest[0]) if rest else None
    residual = None if epilogue.residual is None else _read(ctx, epilogue.residual, layouts[1])
    over = residual if residual is not None and residual.buffer is not source.buffer else None
    ctx.fuse(node, epilogue)
    y = ctx.result(epilogue.value, layouts[1], over)
    ctx.call(kernel, **operands, **window.params, **epilogue.params, x=source, bias=bias, residual=residual, y=y,
             n=ctx.shape(x)[0])  # fmt: skip


PASS_STEPS = 256
"""Input channels that src/kernels/conv.cpp adds up in one go."""
LARGE = 1 << 17
"""Floats of a map that do not stay in the second-level cache until it is read."""


def _expansion(ctx: Lowering, node: Node, window: Window) -> bool:
    """A 1x1 convolution, together with the depthwise convolution that alone reads its large result."""
    op, (x, w, *rest) = node.op, node.inputs
    assert isinstance(op, Convolution)
    pointwise = window == _pointwise(window.h, window.width) and op.group == 1
    inputs, shape = ctx.shape(x)[1], ctx.shape(node.output)
    if not pointwise or not ctx.lanes <= inputs <= PASS_STEPS or math.prod(shape[1:]) < LARGE:
        return False
    between = ctx.epilogue(node, op.activation, residual=False)
    user = ctx.only_user(between.value)
    if user is None or not isinstance(user.op, Convolution) or user.inputs[0] is not between.value:
        return False
    _, taps, *taps_rest = user.inputs
    ready = all(ctx.is_ready(v) for v in user.inputs[1:])
    if not ready or not is_depthwise(user.op, shape[1], ctx.shape(taps)[0]):
        return False
    end = ctx.epilogue(user, user.op.activation, residual=False)
    ctx.fuse(node, between)
    ctx.skip(user)
    ctx.fuse(user, end)
    after = window_of(user.op, shape, ctx.shape(taps), ctx.shape(user.output))
    bias, taps_bias = (ctx.read(each[0]) if each else None for each in (rest, taps_rest))
    ctx.call("expand_depthwise_f32", **after.params, **end.params, x=ctx.read_blocked(x), w=_pack(ctx, w, 1, False),
             bias=bias, taps=_pack_depthwise(ctx, taps), taps_bias=taps_bias, y=ctx.result(end.value, BLOCKED),
             n=shape[0], inputs=inputs, channels=shape[1], inner=between.activation, inner_low=between.low,
             inner_high=between.high)  # fmt: skip
    return True


def _pointwise(h: int, width: int) -> Window:
    return Window(h, width, h, width, 1, 1, 1, 1, 1, 1, 0, 0)


def _winograd_tile(ctx: Lowering, node: Node, window: Window) -> int | None:
    """The tile of Winograd's algorithm, where it can be used and pays."""
    op, (x, w, *_) = node.op, node.inputs
    steps = (window.stride_h, window.stride_w, window.dilation_h, window.dilation_w)
    square = (window.kernel_h, window.kernel_w) == (3, 3) and steps == (1, 1, 1, 1)
    if not square or op.group > 1 or w.tensor is None:  # type: ignore[attr-defined]
        return None
    n, channels = ctx.shape(x)[:2]
    return best_tile(channels, ctx.shape(w)[0], (n, window.out_h, window.out_w), ctx.lanes)


def _layouts(ctx: Lowering, x: Value, group: int, channels: int, outputs: int) -> tuple[str, str]:
    """How x is read and y written. Groups that do not fill blocks are plain on both sides."""
    if group > 1 and (channels // group % ctx.lanes or outputs // group % ctx.lanes):
        return PLAIN, PLAIN
    few = group == 1 and channels < ctx.lanes and BLOCKED not in ctx.layouts(x)
    return PLAIN if few else BLOCKED, BLOCKED


def _read(ctx: Lowering, value: Value, layout: str) -> Tensor:
    return ctx.read(value) if layout == PLAIN else ctx.read_blocked(value)


def _pack(ctx: Lowering, w: Value, group: int, plain: bool) -> Tensor:
    outputs, per_group, kernel_h, kernel_w = ctx.shape(w)
    size = group * -(-(outputs // group) // ctx.lanes) * ctx.lanes * per_group * kernel_h * kernel_w
    return packed_by(ctx, "conv_pack", w, (size,), outputs=outputs, inputs=per_group * group, group=group,
                   kernel_h=kernel_h, kernel_w=kernel_w, plain_x=plain)  # fmt: skip


def _pack_depthwise(ctx: Lowering, w: Value) -> Tensor:
    channels, _, kernel_h, kernel_w = ctx.shape(w)
    shape = (-(-channels // ctx.lanes), kernel_h, kernel_w, ctx.lanes)
    return packed_by(ctx, "depthwise_pack", w, shape, channels=channels, kernel_h=kernel_h, kernel_w=kernel_w)
