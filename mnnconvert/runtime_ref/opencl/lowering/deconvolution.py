"""Transposed convolution: each pixel of the result gathers what meets it."""

from __future__ import annotations

from mnnconvert.ir import Node
from mnnconvert.ops.deconvolution import Deconvolution
from mnnconvert.runtime_ref.opencl.lower import Lowering, lowers
from mnnconvert.runtime_ref.opencl.lowering import panels as shared
from mnnconvert.runtime_ref.opencl.lowering.depthwise import lower_depthwise
from mnnconvert.runtime_ref.windows import Window, cut


@lowers(Deconvolution)
def deconvolution(ctx: Lowering, node: Node) -> bool:
    op = node.op
    assert isinstance(op, Deconvolution)
    x, w, *rest = node.inputs
    if 0 in ctx.shape(x) or 0 in ctx.shape(w) or not shared.indexable(ctx, x, node.output):
        return False
    sizes, kernel, out = ctx.shape(x)[2:], ctx.shape(w)[2:], ctx.shape(node.output)[2:]
    pairs = zip(sizes, out, kernel, op.strides, op.dilations, cut(op, sizes, kernel, out), strict=True)
    rows, columns = pairs
    window = Window(*(number for pair in zip(rows, columns, strict=True) for number in pair))
    if ctx.shape(w)[1] == 1 and op.group == ctx.shape(x)[1]:
        bias = rest[0] if len(rest) > op.sized else None
        lower_depthwise(ctx, node, window, ctx.epilogue(node, op.activation), bias, transposed=True)
    elif _makes_patches(ctx, node, window):
        _patches(ctx, node, window)
    else:
        _direct(ctx, node, window)
    return True


def _makes_patches(ctx: Lowering, node: Node, window: Window) -> bool:
    """Whether the pixels of x make parts of the result that lie side by side, and are of few channels."""
    op, outputs = node.op, ctx.shape(node.output)[1]
    assert isinstance(op, Deconvolution)
    kernel = window.kernel_h, window.kernel_w
    apart = kernel == op.strides and set(op.dilations) == {1} and (window.top, window.left) == (0, 0)
    whole = (window.out_h, window.out_w) == (window.h * kernel[0], window.width * kernel[1])
    return op.group == 1 and outputs <= ctx.lanes // 2 and apart and whole


def _patches(ctx: Lowering, node: Node, window: Window) -> None:
    op, (x, w, *rest) = node.op, node.inputs
    assert isinstance(op, Deconvolution)
    n, inputs, outputs = ctx.shape(x)[0], ctx.shape(x)[1], ctx.shape(w)[1]
    columns = outputs * window.kernel_h * window.kernel_w
    panels = shared.panels_of(ctx, 1, inputs, columns, 1)
    epilogue = ctx.epilogue(node, op.activation, residual=False)
    bias = ctx.read(rest[0]) if len(rest) > op.sized else None
    tile = shared.tile_of(ctx, panels, window.width)
    size = shared.items(ctx, -(-window.width // tile), n * window.h, panels.panels)
    weights = shared.pack(ctx, w, panels, "patches", (columns * inputs, 1, columns))
    source = ctx.read_map(x)
    ctx.fuse(node, epilogue)
    ctx.call(
        "deconv_patches", size, local=shared.heavy(ctx)[0], x=source, w=weights, zeros=shared.zeros(ctx, inputs),
        defines=shared.defines(ctx, panels, tile, ACTIVATION=epilogue.activation), bias=bias,
        y=ctx.result(epilogue.value), images=n, inputs=inputs, outputs=outputs, x_pixel=ctx.channels(x),
        w_panel=panels.stride, w_step=panels.step, h=window.h, width=window.width, kernel_h=window.kernel_h,
        kernel_w=window.kernel_w, low=epilogue.low, high=epilogue.high, **({} if bias else {"bias_at": 0}),
    )  # fmt: skip


def _direct(ctx: Lowering, node: Node, window: Window) -> None:
    op, (x, w, *rest) = node.op, node.inputs
    assert isinstance(op, Deconvolution)
    n, channels = ctx.shape(x)[:2]
    per_group, inputs = ctx.shape(w)[1], channels // op.group
    taps = window.kernel_h * window.kernel_w
    panels = shared.panels_of(ctx, op.group, inputs, per_group, taps)
    epilogue = ctx.epilogue(node, op.activation)
    source = ctx.read_map(x)
    weights = shared.pack(ctx, w, panels, "deconv", (inputs * per_group * taps, taps, per_group * taps))
    finish = shared.finish(ctx, epilogue, rest[0] if len(rest) > op.sized else None)
    ctx.fuse(node, epilogue)
    phase = -(-window.out_w // window.stride_w)
    tile = shared.tile_of(ctx, panels, phase)
    row, blocks = -(-phase // tile), n * op.group * panels.panels
    met = -(-taps // (window.stride_h * window.stride_w))
    tiles = shared.tiles_of(ctx, row, window.stride_w * window.out_h * blocks, tile * panels.unit * met * inputs)
    size = shared.items(ctx, -(-row // tiles) * window.stride_w, window.out_h, blocks)
    width = ctx.channels(x)
    defines = shared.defines(ctx, panels, tile, ACTIVATION=epilogue.activation)
    ctx.call(
        "deconv", size, local=shared.heavy(ctx)[0], defines=defines, x=source, w=weights,
        zeros=shared.zeros(ctx, inputs), images=n, x_image=width * window.h * window.width, x_pixel=width, x_channel=1,
        tiles=tiles, y_pixel=ctx.channels(epilogue.value), **panels.params, **window.params, **finish,
    )  # fmt: skip
