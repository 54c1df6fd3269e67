"""Products with weights that stay integer codes: matrix products, and convolutions with kernels of 1 x 1.

Other convolutions decode their weights to floats when they are packed, as any other constant.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mnnconvert.ir import F32, CodedWeights, Node, Value
from mnnconvert.ops.convolution import Convolution
from mnnconvert.runtime_ref.coded import coded_kernel, coded_right
from mnnconvert.runtime_ref.cpu.library import Library, Pool
from mnnconvert.runtime_ref.cpu.lower import Lowering
from mnnconvert.runtime_ref.lower import BLOCKED, PLAIN
from mnnconvert.runtime_ref.memory import aligned
from mnnconvert.runtime_ref.products import bias_and_epilogue

GROUP = 8  # columns
LONGEST_SUM = 1 << 16  # columns of a block whose products with activations fit into 32 bits


def packed_codes(library: Library, pool: Pool, coded: CodedWeights) -> np.ndarray:
    """The codes as `coded_product` takes them: uint8 [size]."""
    groups = coded.blocks * -(-coded.block // GROUP)
    packed = aligned((_rows(library, coded) * groups * (4 if coded.bits <= 4 else 8),), np.uint8)
    _pack(library, pool, coded, packed=packed)
    return packed


def packed_numbers(library: Library, pool: Pool, coded: CodedWeights) -> np.ndarray:
    """Scales and minima as `coded_product` takes them: float32 [size]."""
    numbers = aligned((_rows(library, coded) * coded.blocks * (1 if coded.minimum is None else 2),), F32)
    _pack(library, pool, coded, numbers=numbers)
    return numbers


def _rows(library: Library, coded: CodedWeights) -> int:
    """Rows in whole tiles."""
    return -(-coded.shape[0] // library.lanes) * library.lanes


def _pack(library: Library, pool: Pool, coded: CodedWeights, **results: np.ndarray) -> None:
    rows, columns = coded.shape
    codes = np.ascontiguousarray(coded.codes) if "packed" in results else None
    scale = np.ascontiguousarray(coded.scale)
    minimum = None if coded.minimum is None else np.ascontiguousarray(coded.minimum)
    library.call("coded_pack", pool, codes=codes, scale=scale, minimum=minimum, rows=rows, columns=columns,
                 block=coded.block, bits=coded.bits, **results)  # fmt: skip


def coded_matmul(ctx: Lowering, node: Node) -> bool:
    """A MatMul whose right operand is the transpose of a matrix of codes."""
    left, right, *rest = node.inputs
    coded = coded_right(ctx, node)
    if coded is None:
        return False
    outputs, columns = coded.shape
    bias, value, epilogue = bias_and_epilogue(ctx, node, rest[0] if rest else None, outputs)
    ctx.call("coded_product", **_weights(ctx, right, coded), x=ctx.read(left), bias=bias,
             residual=ctx.read(epilogue.residual) if epilogue.residual else None, y=ctx.result(value),
             **_matrix(ctx, math.prod(ctx.shape(left)) // columns, columns, outputs), **epilogue.params)  # fmt: skip
    return True


def coded_convolution(ctx: Lowering, node: Node) -> bool:
    """A convolution with a kernel of 1 x 1 and coded weights: of vectors a matrix product, else on blocked maps."""
    op, (x, weight, *rest) = node.op, node.inputs
    assert isinstance(op, Convolution)
    coded = coded_kernel(op, weight.tensor)
    if coded is None or 0 in ctx.shape(x):
        return False
    outputs, columns = coded.shape
    vectors = math.prod(ctx.shape(x)[2:]) == 1
    epilogue = ctx.epilogue(node, op.activation, views=vectors)
    ctx.fuse(node, epilogue)
    read = ctx.read if vectors else ctx.read_blocked
    place = _matrix(ctx, ctx.shape(x)[0], columns, outputs) if vectors else _maps(ctx, op, x, node.output)
    bias = ctx.read(rest[0]) if rest else None
    residual = read(epilogue.residual) if epilogue.residual else None
    source, y = read(x), ctx.result(epilogue.value, PLAIN if vectors else BLOCKED)
    ctx.call("coded_product", **_weights(ctx, weight, coded), **place, x=source, bias=bias, residual=residual, y=y,
             **epilogue.params)  # fmt: skip
    return True


def _weights(ctx: Lowering, value: Value, coded: CodedWeights) -> dict[str, Any]:
    """What the kernel is told of the weights."""
    codes = ctx.packed(value, "codes", lambda: packed_codes(ctx.library, ctx.pool, coded))
    numbers = ctx.packed(value, "numbers", lambda: packed_numbers(ctx.library, ctx.pool, coded))
    outputs, columns = coded.shape
    return {"packed": codes, "numbers": numbers, "columns": columns, "outputs": outputs, "block": coded.block,
            "bits": coded.bits, "minima": coded.minimum is not None,
            "exact": ctx.exact or coded.block > LONGEST_SUM}  # fmt: skip


def _matrix(ctx: Lowering, rows: int, columns: int, outputs: int) -> dict[str, int]:
    """Where rows of a plain matrix lie."""
    return {"images": 1, "lines": 1, "width": rows, "x_image": 0, "x_line": 0, "x_row": columns, "x_piece": ctx.lanes,
            "y_image": 0, "y_row": outputs, "y_piece": ctx.lanes, "padded": 0}  # fmt: skip


def _maps(ctx: Lowering, op: Convolution, x: Value, y: Value) -> dict[str, int]:
    """Where pixels of blocked maps lie: those of y, and of x those at the strides."""
    lanes, (n, channels, *sizes), (_, outputs, *out) = ctx.lanes, ctx.shape(x), ctx.shape(y)
    pixels, out_pixels = math.prod(sizes), math.prod(out)
    width, out_width = (sizes[1], out[1]) if len(sizes) > 1 else (1, 1)
    return {"images": n, "lines": out[0], "width": out_width, "x_image": -(-channels // lanes) * pixels * lanes,
            "x_line": op.strides[0] * width * lanes, "x_row": op.strides[1] * lanes, "x_piece": pixels * lanes,
            "y_image": -(-outputs // lanes) * out_pixels * lanes, "y_row": lanes, "y_piece": out_pixels * lanes,
            "padded": 1}  # fmt: skip
