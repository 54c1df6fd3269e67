"""Weights of Microsoft's operators that store them as packed codes in blocks; the codes reach the file unchanged."""

from __future__ import annotations

import numpy as np

from mnnconvert.frontends.common.coded_weights import BITS, coded, unpacked
from mnnconvert.frontends.common.compose import calc
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.ir import F32, ArrayTensor, Builder, CodedTensor, Tensor, Value
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.matmul import MatMul


@onnx_op(
    "MatMulNBits",
    domain="com.microsoft",
    limits="2, 4 and 8 bits; constant weights; a group index makes floats of them",
)
def matmul_nbits(b: Builder, n: OnnxNode) -> Value:
    """x W' (+ bias), W [N,K] stored as blocks of packed codes with one scale and zero point each."""
    size, rows, bits, block = (int(n.attr(name, 0)) for name in ("K", "N", "bits", "block_size"))
    if bits not in (2, 4, 8):
        raise n.refuse(f"MatMulNBits of {bits} bits is not supported")
    blocks = -(-size // block)
    packed = np.asarray(n.required_constant(1, "the weight")).view(np.uint8)
    codes = unpacked(packed.reshape(rows, -1), bits)[:, : blocks * block]
    scale = np.asarray(n.required_constant(2, "the scale")).astype(F32).reshape(rows, blocks)
    zero, groups = _zero_points(n, rows, blocks, bits), np.arange(size) // block
    if n.has(4):  # columns in the order in which they were quantized: their groups are no blocks of the weight
        groups = np.asarray(n.required_constant(4, "the group index")).reshape(-1)[:size]
        if groups.shape != (size,) or groups.min() < 0 or groups.max() >= blocks:
            raise n.refuse(f"the group index does not fit {size} columns in {blocks} groups")
    if (groups == np.arange(size) // block).all():
        tensor = _blocks(codes[:, :size], f"uint{bits}", scale, zero, block)
    else:
        tensor = ArrayTensor((codes[:, :size].astype(F32) - zero[:, groups]) * scale[:, groups])
    product = b.add(MatMul(False, True), n.input(0), b.constant(tensor))
    return calc(b, "ADD", product, n.input(5)) if n.has(5) else product


def _zero_points(n: OnnxNode, rows: int, blocks: int, bits: int) -> np.ndarray:
    """float32 [rows, blocks]: the middle of the range, or what the operand holds, packed or as floats."""
    if not n.has(3):
        return np.full((rows, blocks), 1 << (bits - 1), F32)
    zero = np.asarray(n.required_constant(3, "the zero points"))
    if zero.dtype == np.uint8:
        zero = unpacked(zero.reshape(rows, -1), bits)[:, :blocks]
    return zero.astype(F32).reshape(rows, blocks)


def _blocks(codes: np.ndarray, kind: str, scale: np.ndarray, zero: np.ndarray, block: int) -> Tensor:
    """Codes in blocks; a last block that is not full has no form in the file, so that the weight becomes float."""
    if scale.shape[1] == 1 or codes.shape[1] % block == 0:
        return CodedTensor(coded(codes, kind, scale, zero), codes.shape)
    spread = [np.repeat(v, block, axis=1)[:, : codes.shape[1]] for v in (scale, zero)]
    return ArrayTensor((codes.astype(F32) - spread[1]) * spread[0])


@onnx_op(
    "GatherBlockQuantized",
    domain="com.microsoft",
    limits="a constant matrix, picked by rows, with blocks along its columns",
)
def gather_block_quantized(b: Builder, n: OnnxNode) -> Value:
    """Rows of a table that is stored as codes in blocks of its columns; bytes may hold several, the first lowest."""
    data = np.asarray(n.required_constant(0, "the table"))
    bits, block = int(n.attr("bits", 4)), int(n.attr("block_size", 128))
    axis, along = int(n.attr("gather_axis", 0)), int(n.attr("quantize_axis", 1))
    if data.ndim != 2 or axis not in (0, -2) or along not in (1, -1):
        raise n.refuse("GatherBlockQuantized of anything but rows with blocks of columns is not supported")
    packed = n.source_type(0) == "uint8"
    kind = f"uint{bits}" if packed else n.source_type(0)
    if kind not in BITS:
        raise n.refuse(f"GatherBlockQuantized of {kind} is not supported")
    codes = unpacked(data, bits) if packed else data.astype(np.int8 if kind.startswith("int") else np.uint8)
    scale = np.asarray(n.required_constant(2, "the scale")).astype(F32)
    if scale.shape != (len(codes), -(-codes.shape[1] // block)):
        raise n.refuse(f"scales {scale.shape} do not fit {codes.shape} codes in blocks of {block}")
    zero = np.full(scale.shape, 1 << (bits - 1) if packed else 0, F32)
    if n.has(3):
        given = np.asarray(n.required_constant(3, "the zero points"))
        zero = (unpacked(given, bits)[:, : scale.shape[1]] if packed else given).astype(F32)
    return b.add(GatherV2(0), b.constant(_blocks(codes, kind, scale, zero, block)), n.input(1))
