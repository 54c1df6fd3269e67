"""Convolution over windows: of maps with channels last, or of plain images with few channels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mnnconvert.ir import Node
from mnnconvert.ops.convolution import Convolution
from mnnconvert.runtime_ref.lower import LAST, Epilogue, Sizes
from mnnconvert.runtime_ref.opencl.lower import Lowering, Variant
from mnnconvert.runtime_ref.opencl.lowering import panels as shared
from mnnconvert.runtime_ref.opencl.lowering.depthwise import lower_depthwise
from mnnconvert.runtime_ref.opencl.lowering.winograd import candidates, winograd
from mnnconvert.runtime_ref.windows import Window, is_depthwise, window_of


def spatial_convolution(ctx: Lowering, node: Node) -> bool:
    """Lower a convolution of any kernel, stride, dilation, padding and groups."""
    op, (x, w, *rest) = node.op, node.inputs
    assert isinstance(op, Convolution)
    if 0 in ctx.shape(x) or 0 in ctx.shape(w) or not shared.indexable(ctx, x, node.output):
        return False
    window = window_of(op, ctx.shape(x), ctx.shape(w), ctx.shape(node.output))
    epilogue, bias = ctx.epilogue(node, op.activation), rest[0] if rest else None
    if is_depthwise(op, ctx.shape(x)[1], ctx.shape(w)[0]):
        lower_depthwise(ctx, node, window, epilogue, bias)
        return True
    ways = candidates(ctx, node, window)
    ready = shared.finish(ctx, epilogue, bias)
    ctx.fuse(node, epilogue)
    variants: list[Variant] = []
    for tile in ways:
        variants += (
            [winograd(ctx, node, window, epilogue, ready, tile)]
            if tile
            else _direct(ctx, node, window, epilogue, ready)
        )
    ctx.choose(variants)
    return True


TILES = 2
"""Sizes of tiles that tuning tries."""


def _direct(ctx: Lowering, node: Node, window: Window, epilogue: Epilogue, ready: Mapping[str, Any]) -> list[Variant]:
    op, (x, w, *_) = node.op, node.inputs
    assert isinstance(op, Convolution)
    n, channels = ctx.shape(x)[:2]
    outputs, per_group = ctx.shape(w)[:2]
    taps = window.kernel_h * window.kernel_w
    panels = shared.panels_of(ctx, op.group, per_group, outputs // op.group, taps)
    plain = op.group == 1 and channels < ctx.lanes and LAST not in ctx.layouts(x)
    pixels, width, blocks = (
        window.h * window.width,
        channels if plain else ctx.channels(x),
        n * op.group * panels.panels,
    )
    arguments = {
        "x": ctx.read(x) if plain else ctx.read_map(x),
        "w": shared.pack(ctx, w, panels, "conv", (panels.outputs * per_group * taps, per_group * taps, taps)),
        "zeros": shared.zeros(ctx, 1 if plain else per_group), "images": n, "x_image": width * pixels,
        "x_pixel": 1 if plain else width, "x_channel": pixels if plain else 1, "w_image": 0, **panels.params,
        "y_pixel": ctx.channels(epilogue.value), **window.params, **ready,
    }  # fmt: skip

    def variant(tile: int, local: Sizes) -> Variant:
        row = -(-window.out_w // tile)
        tiles = shared.tiles_of(ctx, row, window.out_h * blocks, tile * panels.unit * taps * per_group)
        size = shared.items(ctx, -(-row // tiles), window.out_h, blocks)
        defines = shared.defines(ctx, panels, tile, ACTIVATION=epilogue.activation, PLAIN_X=int(plain))
        return ctx.variant("conv", size, local, defines, tiles=tiles, **arguments)

    best = shared.tiles_by_cost(ctx, panels, window.out_w)[:TILES]
    return [variant(tile, local) for tile in best for local in shared.heavy(ctx)]
