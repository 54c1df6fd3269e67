"""Products with weights that stay integer codes: matrix products, and convolutions with kernels of 1 x 1.

Other convolutions decode their weights to floats when they are packed, as any other constant.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mnnconvert.ir import F32, I8, CodedWeights, Node, Value
from mnnconvert.ir.tensor import release
from mnnconvert.ops.convolution import Convolution
from mnnconvert.runtime_ref.coded import coded_kernel, coded_right
from mnnconvert.runtime_ref.lower import LAST, PLAIN, Epilogue, Tensor
from mnnconvert.runtime_ref.opencl.lower import MOST_ELEMENTS, Lowering, Variant
from mnnconvert.runtime_ref.products import bias_and_epilogue

VECTORS, MOST_TILES = 2, 8  # as in coded.cl
FEW = (1, 2, 4)
"""Rows that an item may compute where there are few."""
MANY = {16: (12, 8), 8: (6, 4), 4: (6, 4)}
"""And where there are many, per tile, by lanes."""
ITEMS = 32  # that keep a processor busy


def coded_matmul(ctx: Lowering, node: Node) -> bool:
    """A MatMul whose right operand is the transpose of a matrix of codes."""
    left, right, *rest = node.inputs
    coded = coded_right(ctx, node)
    if coded is None or not _indexable(ctx, node, coded):
        return False
    outputs, columns = coded.shape
    bias, value, epilogue = bias_and_epilogue(ctx, node, rest[0] if rest else None, outputs)
    residual = ctx.read(epilogue.residual) if epilogue.residual else None
    rows = math.prod(ctx.shape(left)) // columns
    x, y = ctx.read(left), ctx.result(value)
    _multiply(ctx, right, coded, epilogue, x=x, bias=bias, residual=residual, y=y, m=rows, x_row=columns, y_row=outputs)
    return True


def coded_convolution(ctx: Lowering, node: Node) -> bool:
    """A convolution with a kernel of 1 x 1 that skips no pixel: the pixels, or vectors, are rows of a product."""
    op, (x, weight, *rest) = node.op, node.inputs
    assert isinstance(op, Convolution)
    coded = coded_kernel(op, weight.tensor)
    if coded is None or set(op.strides) != {1} or 0 in ctx.shape(x) or not _indexable(ctx, node, coded):
        return False
    outputs, columns = coded.shape
    vectors = math.prod(ctx.shape(x)[2:]) == 1
    epilogue = ctx.epilogue(node, op.activation, views=vectors)
    ctx.fuse(node, epilogue)
    read = ctx.read if vectors else ctx.read_map
    residual = read(epilogue.residual) if epilogue.residual else None
    x_row, y_row = (columns, outputs) if vectors else (ctx.channels(x), ctx.channels(node.output))
    rows, source, bias = math.prod(ctx.shape(x)) // columns, read(x), ctx.read(rest[0]) if rest else None
    y = ctx.result(epilogue.value, PLAIN if vectors else LAST)
    _multiply(ctx, weight, coded, epilogue, x=source, bias=bias, residual=residual, y=y, m=rows, x_row=x_row,
              y_row=y_row)  # fmt: skip
    return True


def _indexable(ctx: Lowering, node: Node, coded: CodedWeights) -> bool:
    """Whether kernels can count the elements, as they lie."""
    sizes = [math.prod(ctx.shape(v)) for v in (node.inputs[0], node.output)]
    return max(*sizes, math.prod(coded.shape)) < MOST_ELEMENTS // ctx.lanes


def _multiply(
    ctx: Lowering, weight: Value, coded: CodedWeights, epilogue: Epilogue, *, m: int, **arguments: Any
) -> None:
    outputs, columns = coded.shape
    arguments |= {"codes": _codes(ctx, weight, coded), "m": m, "n": outputs, "k": columns, "block": coded.block,
                  "scales": _numbers(ctx, weight, coded, "scales"), "low": epilogue.low, "high": epilogue.high,
                  "offsets": None if coded.minimum is None else _numbers(ctx, weight, coded, "offsets")}  # fmt: skip
    arguments |= {f"{name}_at": 0 for name in ("bias", "residual") if arguments[name] is None}
    defines = {"BITS": _bits(coded), "ACTIVATION": epilogue.activation}
    panels = -(-outputs // (VECTORS * ctx.lanes))
    if m <= FEW[-1]:
        rows = next(rows for rows in FEW if rows >= m)
        group = (1, 1) if ctx.device.is_cpu else (32, 1)
        ctx.call("coded_few", (panels, 1), local=group, defines={"P": rows, **defines}, **arguments)
        return
    ctx.choose([_many(ctx, panels, rows, defines, arguments) for rows in MANY[ctx.lanes]])


def _many(ctx: Lowering, panels: int, rows: int, defines: dict[str, int], arguments: dict[str, Any]) -> Variant:
    count = -(-arguments["m"] // rows)
    tiles = min(max(count * panels // ITEMS, 1), MOST_TILES) if ctx.device.is_cpu else 1
    group = (1, 1) if ctx.device.is_cpu else (8, 8)
    return ctx.variant("coded_many", (-(-count // tiles), panels), group, {"P": rows, **defines}, tiles=tiles,
                       **arguments)  # fmt: skip


# Weights as kernels/coded.cl takes them.


def _bits(coded: CodedWeights) -> int:
    """Bits that a code takes on the device."""
    return 4 if coded.bits <= 4 else 8


def _codes(ctx: Lowering, weight: Value, coded: CodedWeights) -> Tensor:
    panel = VECTORS * ctx.lanes

    def make() -> np.ndarray:
        outputs, columns = coded.shape
        codes = np.zeros((-(-outputs // panel) * panel, columns), I8)
        codes[:outputs] = coded.codes
        panels = codes.reshape(-1, panel, columns).swapaxes(1, 2)
        if _bits(coded) == 8:
            return np.ascontiguousarray(panels)
        halves = (panels + 8).astype(np.uint8)
        return halves[..., : ctx.lanes] | halves[..., ctx.lanes :] << 4

    return ctx.packed(weight, "codes", make)


def _numbers(ctx: Lowering, weight: Value, coded: CodedWeights, name: str) -> Tensor:
    """Scales, or offsets: the values that code 0 stands for; float32 whatever floats are stored as."""
    panel = VECTORS * ctx.lanes

    def make() -> np.ndarray:
        numbers = coded.scale
        if name == "offsets":
            assert coded.minimum is not None
            numbers = coded.minimum - np.float32(coded.lowest) * coded.scale
        filled = np.zeros((-(-len(numbers) // panel) * panel, coded.blocks), F32)
        filled[: len(numbers)] = numbers
        if weight.tensor is not None:
            release(weight.tensor)
        return np.ascontiguousarray(filled.reshape(-1, panel, coded.blocks).swapaxes(1, 2))

    return ctx.static(("packed", id(weight.tensor), name), make, exactly=True)
