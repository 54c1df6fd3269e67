"""Convolution of each channel by itself, and its transpose."""

from __future__ import annotations

import numpy as np

from mnnconvert.ir import Node, Value
from mnnconvert.runtime_ref.lower import Epilogue, Tensor
from mnnconvert.runtime_ref.opencl.lower import Lowering
from mnnconvert.runtime_ref.opencl.lowering import panels as shared
from mnnconvert.runtime_ref.windows import Window

PIXELS = (8, 4, 2, 1)
"""Pixels of a tile."""
SLIDING = [(3, 1), (3, 2), (5, 1), (5, 2)]
"""Widths and strides of kernels whose taps fit into registers."""


def lower_depthwise(
    ctx: Lowering, node: Node, window: Window, epilogue: Epilogue, bias: Value | None, transposed: bool = False
) -> None:
    """Append the call for (x, w, ...): channels of x as those of the result."""
    x, w = node.inputs[:2]
    n, channels = ctx.shape(x)[:2]
    pitch = ctx.channels(x)
    source, weights = ctx.read_map(x), _pack(ctx, w, channels, pitch)
    finish = shared.finish(ctx, epilogue, bias)
    ctx.fuse(node, epilogue)
    phases = window.stride_w if transposed else 1
    phase = -(-window.out_w // phases)
    tile = min(PIXELS, key=lambda pixels: -(-phase // pixels) * (pixels + shared.START))
    row, span = -(-phase // tile), shared.span_of(ctx, pitch)
    blocks = -(-pitch // span)
    work = tile * window.kernel_h * window.kernel_w * span
    tiles = shared.tiles_of(ctx, row, phases * n * window.out_h * blocks, work)
    size = (blocks, -(-row // tiles) * phases, n * window.out_h)
    defines = {"P": tile, "ACTIVATION": epilogue.activation, "TRANSPOSED": int(transposed)}
    if not transposed and window.dilation_w == 1 and (window.kernel_w, window.stride_w) in SLIDING:
        defines |= {"K": window.kernel_w, "S": window.stride_w}
    local = shared.group(ctx, (1, 1, 1), (8, 8, 1))
    ctx.call("depthwise", size, local=local, defines=defines, x=source, w=weights, images=n, channels=channels,
             pitch=pitch, span=span, tiles=tiles, **window.params, **finish)  # fmt: skip


def _pack(ctx: Lowering, w: Value, channels: int, pitch: int) -> Tensor:
    taps, tensor = ctx.shape(w)[2] * ctx.shape(w)[3], w.tensor
    if tensor is None:
        made = ctx.tensor((taps, pitch))
        ctx.call("depthwise_pack", (pitch, taps), w=ctx.read(w), y=made, channels=channels, pitch=pitch, taps=taps,
                 defines={"P": 1})  # fmt: skip
        return made

    def make() -> np.ndarray:
        packed = np.zeros((taps, pitch), np.float32)
        packed[:, :channels] = tensor.numpy().reshape(channels, taps).T
        return packed

    return ctx.packed(w, "depthwise", make)
