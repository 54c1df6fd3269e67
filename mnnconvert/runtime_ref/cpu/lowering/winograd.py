"""Winograd's algorithm for convolutions of 3x3 and stride 1: when it pays, and its lowering.

Costs are measured in multiply-adds of a direct convolution at full speed, on whole vectors of channels.
"""

from __future__ import annotations

import numpy as np

from mnnconvert.ir import Node
from mnnconvert.runtime_ref.cpu.lower import Lowering
from mnnconvert.runtime_ref.lower import BLOCKED, Epilogue
from mnnconvert.runtime_ref.memory import aligned
from mnnconvert.runtime_ref.winograd import POINTS, TAPS, weight_matrix

TRANSFORMS = {2: (130, 100), 4: (340, 280)}
"""Cost of the transforms of a tile of the input and of the result, per channel: measured on AVX2."""
WEIGHT = 8
"""Cost of reading one transformed weight from the last-level cache or from memory."""
FEW_TILES = 4
"""Fewer tiles than this do not keep the multipliers busy."""


def direct_cost(inputs: int, outputs: int, pixels: int, lanes: int) -> float:
    """The cost of a direct convolution 3x3 that makes so many pixels, all images together."""
    return TAPS**2 * pixels * _whole(inputs, lanes) * _whole(outputs, lanes)


def winograd_cost(tile: int, inputs: int, outputs: int, out: tuple[int, int, int], lanes: int) -> float:
    """The cost of making `out` (images, height, width) in tiles of `tile` x `tile`.

    The products, or reading their weights if that takes longer, and the transforms.
    """
    images, height, width = out
    tiles = images * -(-height // tile) * -(-width // tile)
    weights = (tile + TAPS - 1) ** 2 * _whole(inputs, lanes) * _whole(outputs, 2 * lanes)
    into, back = TRANSFORMS[tile]
    transforms = tiles * (into * _whole(inputs, lanes) + back * _whole(outputs, lanes))
    return weights * max(tiles, FEW_TILES, WEIGHT) + transforms


def best_tile(inputs: int, outputs: int, out: tuple[int, int, int], lanes: int) -> int | None:
    """The tile size that makes a convolution cheapest; None when direct convolution is."""
    costs = {tile: winograd_cost(tile, inputs, outputs, out, lanes) for tile in POINTS}
    tile = min(costs, key=lambda t: costs[t])
    return tile if costs[tile] < direct_cost(inputs, outputs, out[0] * out[1] * out[2], lanes) else None


def lower_winograd(ctx: Lowering, node: Node, epilogue: Epilogue, pads: tuple[int, int], tile: int) -> None:
    """Append the calls for a convolution (x, w, and perhaps a bias) with `pads` (top, left) and constant weights.

    The result is blocked and includes the epilogue.
    """
    x, w, *rest = node.inputs
    images, inputs, height, width = ctx.shape(x)
    _, outputs, out_height, out_width = ctx.shape(node.output)
    tensor = w.tensor
    assert tensor is not None

    def pack() -> np.ndarray:
        panel = 2 * ctx.lanes
        array = aligned(((tile + TAPS - 1) ** 2, -(-outputs // panel), _whole(inputs, ctx.lanes), panel), np.float32)
        ctx.once(
            "winograd_pack",
            w=np.ascontiguousarray(tensor.numpy()),
            g=weight_matrix(tile),
            packed=array,
            outputs=outputs,
            inputs=inputs,
            tile=tile,
        )
        return array

    residual = epilogue.residual
    operands = {
        "x": ctx.read_blocked(x),
        "packed": ctx.packed(w, ("winograd", tile), pack),
        "bias": ctx.read(rest[0]) if rest else None,
        "residual": None if residual is None else ctx.read_blocked(residual),
    }
    ctx.fuse(node, epilogue)
    ctx.call(
        "winograd", **operands, **epilogue.params, y=ctx.result(epilogue.value, BLOCKED), images=images, inputs=inputs,
        height=height, width=width, outputs=outputs, out_height=out_height, out_width=out_width, top=pads[0],
        left=pads[1], tile=tile,
    )  # fmt: skip


def _whole(channels: int, lanes: int) -> int:
    return -(-channels // lanes) * lanes
