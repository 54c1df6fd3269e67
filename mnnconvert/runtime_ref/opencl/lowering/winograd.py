"""Winograd's algorithm for convolutions of 3x3 and stride 1: when it pays, and its lowering.

A number that is not finite reaches the whole tile of the result, not only the windows that meet it.

The tiles of the result are made band by band, such that what is between the launches stays in a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mnnconvert.ir import Node
from mnnconvert.ops.convolution import Convolution
from mnnconvert.runtime_ref.lower import Epilogue, Tensor
from mnnconvert.runtime_ref.opencl.lower import Lowering, Variant
from mnnconvert.runtime_ref.opencl.lowering import panels as shared
from mnnconvert.runtime_ref.windows import Window
from mnnconvert.runtime_ref.winograd import TAPS, input_matrix, output_matrix, weight_matrix

BAND = 1 << 22
"""Bytes of transformed tiles, of the input and of products, in a band."""
TRANSFORMS = {2: 200, 4: 600}
"""Cost of the transforms of a tile per channel of the input and of the result, in multiply-adds."""
WEIGHT = 8
"""Cost of reading a weight."""
LAUNCH = 300_000
"""Cost of a launch."""
WHOLE = 24
"""Tiles that items of 12, 8, 6, 4 and 2 share without a rest."""


def candidates(ctx: Lowering, node: Node, window: Window) -> list[int]:
    """The sizes of tiles that are legal, and 0 for a direct convolution: what seems to be the fastest first."""
    op, w = node.op, node.inputs[1]
    assert isinstance(op, Convolution)
    steps = (window.stride_h, window.stride_w, window.dilation_h, window.dilation_w)
    square = (window.kernel_h, window.kernel_w) == (TAPS, TAPS) and steps == (1, 1, 1, 1)
    if not square or op.group > 1 or w.tensor is None or ctx.shape(node.inputs[0])[1] < ctx.lanes:
        return [0]
    tiles = (0, 2) if ctx.half else (0, 2, 4)  # larger ones magnify what halves round
    return sorted(tiles, key=lambda tile: _cost(ctx, node, window, tile))


def _cost(ctx: Lowering, node: Node, window: Window, tile: int) -> float:
    """Measured on AVX2, in multiply-adds of a direct convolution."""
    inputs, outputs, n = ctx.channels(node.inputs[0]), ctx.channels(node.output), ctx.shape(node.output)[0]
    if not tile:
        return TAPS**2 * inputs * outputs * (n * window.out_h * window.out_w + WEIGHT)
    count = n * -(-window.out_h // tile) * -(-window.out_w // tile)
    launches = 2 * -(-count // _band(tile, inputs, outputs))
    products = (tile + TAPS - 1) ** 2 * inputs * outputs * (count + WEIGHT)
    return products + TRANSFORMS[tile] * count * (inputs + outputs) + LAUNCH * launches


def _band(tile: int, inputs: int, outputs: int) -> int:
    """Tiles of a band: whole items of the product."""
    unit = WHOLE
    return max(BAND // (4 * (tile + TAPS - 1) ** 2 * (inputs + outputs)) // unit, 1) * unit


def winograd(
    ctx: Lowering, node: Node, window: Window, epilogue: Epilogue, ready: Mapping[str, Any], tile: int
) -> Variant:
    """The launches for a convolution (x, w, ...) with constant weights; `ready` are the arguments of the epilogue."""
    x, n = node.inputs[0], ctx.shape(node.output)[0]
    inputs, outputs = ctx.channels(x), ctx.channels(node.output)
    rows, columns = -(-window.out_h // tile), -(-window.out_w // tile)
    tiles = n * rows * columns
    band = -(-tiles // -(-tiles // _band(tile, inputs, outputs)))
    into, products = (ctx.tensor(((tile + TAPS - 1) ** 2 * band * pitch,)) for pitch in (inputs, outputs))
    product = _product(ctx, node, into, products, band, tile)
    common: dict[str, Any] = {"images": n, "rows": rows, "columns": columns, "count": band}
    defines, local = _defines(tile), shared.group(ctx, (1, 1), (8, 8))
    launches = []
    for begin in range(0, tiles, band):
        launches += [
            ctx.variant(
                "winograd_into", (inputs // ctx.lanes, band), local=local, defines=defines, x=ctx.read_map(x), y=into,
                pitch=inputs, h=window.h, width=window.width, top=window.top, left=window.left, begin=begin, **common,
            ),
            product,
            ctx.variant(
                "winograd_back", (outputs // ctx.lanes, band), local=local, x=products, pitch=outputs, begin=begin,
                defines={**defines, "ACTIVATION": epilogue.activation}, outputs=ctx.shape(node.output)[1],
                out_h=window.out_h, out_w=window.out_w, **common, **ready,
            ),
        ]  # fmt: skip
    return replace(launches[-1], before=tuple(launches[:-1]))


def _product(ctx: Lowering, node: Node, x: Tensor, y: Tensor, band: int, tile: int) -> Variant:
    """The product of transformed tiles and weights, as convolutions of 1x1 of so many images, each with its weights."""
    size = (tile + TAPS - 1) ** 2
    inputs, outputs = ctx.shape(node.inputs[0])[1], ctx.shape(node.output)[1]
    pitch = ctx.channels(node.inputs[0])
    panels = shared.panels_of(ctx, 1, inputs, outputs, 1)
    pixels = shared.tile_of(ctx, panels, band)
    pointwise = Window(1, band, 1, band, 1, 1, 1, 1, 1, 1, 0, 0)
    row = -(-band // pixels)
    tiles = shared.tiles_of(ctx, row, size * panels.panels, pixels * panels.unit * inputs)
    return ctx.variant(
        "conv", shared.items(ctx, -(-row // tiles), 1, size * panels.panels), local=shared.heavy(ctx)[0],
        defines=shared.defines(ctx, panels, pixels, ACTIVATION=0, PLAIN_X=0), x=x, y=y,
        w=_weights(ctx, node, panels, tile), zeros=shared.zeros(ctx, inputs), bias=None, residual=None, bias_at=0,
        residual_at=0, images=size, x_image=band * pitch, x_pixel=pitch, x_channel=1, w_image=panels.size,
        y_pixel=ctx.channels(node.output), low=0.0, high=0.0, tiles=tiles, **panels.params, **pointwise.params,
    )  # fmt: skip


def _weights(ctx: Lowering, node: Node, panels: shared.Panels, tile: int) -> Callable[[], Tensor]:
    w = node.inputs[1]
    tensor = w.tensor
    assert tensor is not None

    def make() -> np.ndarray:
        g = weight_matrix(tile)
        transformed = np.einsum("ia,ocab,jb->ijoc", g, tensor.numpy(), g, optimize=True).astype(np.float32)
        each = transformed.reshape(-1, 1, *transformed.shape[2:], 1)
        return np.concatenate([panels.pack(matrix) for matrix in each])

    return lambda: ctx.packed(w, ("winograd", tile, panels), make)


def _defines(tile: int) -> dict[str, int | str]:
    return {"T": tile, "INTO(y, x)": _sums(input_matrix(tile)), "BACK(y, x)": _sums(output_matrix(tile))}


def _sums(matrix: np.ndarray) -> str:
    """The product of a matrix with x, as statements; nothing is multiplied with 0 or 1."""
    return " ".join(f"y[{i}] = {_sum(row)};" for i, row in enumerate(matrix))


def _sum(row: np.ndarray) -> str:
    terms = [(float(factor), f"x[{k}]") for k, factor in enumerate(row) if factor]
    texts = [("- " if f < 0 else "+ ") + (x if abs(f) == 1 else f"{abs(f)}f * {x}") for f, x in terms]
    return " ".join(texts).removeprefix("+ ")
