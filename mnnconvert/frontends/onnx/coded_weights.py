"""Integers of the source as coded weights: what a model stores as 2, 4 or 8 bits reaches the file unchanged."""

from __future__ import annotations

import math

import numpy as np

from mnnconvert.frontends.onnx.compose import calc
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.ir import F32, ArrayTensor, Builder, CodedTensor, CodedWeights, Tensor, TransposedMatrix, Value
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.matmul import MatMul

BITS = {"uint8": 8, "int8": 8, "uint4": 4, "int4": 4, "uint2": 2, "int2": 2}
BLOCK_STEP = 16  # MNN wants blocks of a multiple of so many elements


def signed(codes: np.ndarray, kind: str) -> np.ndarray:
    """Codes as int8; unsigned ones move down by half their range."""
    if kind.startswith("int"):
        return codes.astype(np.int8, copy=False)
    return (codes.astype(np.int16) - (1 << (BITS[kind] - 1))).astype(np.int8)


def coded(codes: np.ndarray, kind: str, scale: np.ndarray, zero: np.ndarray) -> CodedWeights:
    """(codes - zero) * scale for a matrix of codes of type `kind`; scale and zero are float32 [rows, blocks]."""
    bits = BITS[kind]
    moved = zero - (0 if kind.startswith("int") else 1 << (bits - 1))
    lowest = np.float32(-(1 << (bits - 1)))
    minimum = ((lowest - moved) * scale).astype(F32) if moved.any() else None
    return CodedWeights(np.ascontiguousarray(signed(codes, kind)), np.ascontiguousarray(scale, F32), minimum, bits)


def weight(
    codes: np.ndarray, kind: str, scale: np.ndarray, zero: np.ndarray, axis: int, columns: bool
) -> Tensor | None:
    """The weight (codes - zero) * scale with its integers kept, or None where the file has no such form.

    `scale` and `zero` hold one number, one per slice along `axis`, or (with the rank of `codes`) one per block. A
    matrix whose outputs are its columns is kept transposed; `columns` decides where the scale does not.
    """
    if kind not in BITS or codes.ndim < 2 or codes.size == 0:
        return None
    if scale.size == 1:
        axis = 1 if columns and codes.ndim == 2 else 0
        scale, zero = (np.full(codes.shape[axis], v.reshape(())) for v in (scale, zero))
    blocked = scale.ndim == codes.ndim
    if blocked and codes.ndim != 2:
        return None
    outputs = 1 - axis if blocked else axis  # blocks lie along the inputs
    if outputs and codes.ndim != 2:
        return None
    matrix = codes.T if outputs else codes.reshape(len(codes), -1)
    scale, zero = (_per_row(v, bool(outputs), blocked) for v in (scale, zero))
    blocks = scale.shape[1]
    if matrix.shape[1] % blocks or (blocks > 1 and matrix.shape[1] // blocks % BLOCK_STEP):
        return None
    tensor = CodedTensor(coded(matrix, kind, scale, zero), matrix.shape if outputs else codes.shape)
    return TransposedMatrix(tensor) if outputs else tensor


def _per_row(values: np.ndarray, transposed: bool, blocked: bool) -> np.ndarray:
    values = values.astype(F32)
    return values.reshape(-1, 1) if not blocked else values.T if transposed else values


def with_rows(b: Builder, value: Value, rows: int) -> Value:
    """A weight that has one scale for all of it, with as many rows of codes; any other as it is.

    The file wants a scale per output channel, where a transposed convolution has its inputs first.
    """
    tensor = value.tensor
    if not isinstance(tensor, CodedTensor) or rows < 1 or math.prod(tensor.coded.shape) % rows:
        return value
    coded = tensor.coded
    numbers = [v for v in (coded.scale, coded.minimum) if v is not None]
    if coded.shape[0] == rows or any((v != v.flat[0]).any() for v in numbers):
        return value
    scale, *minimum = [np.full((rows, 1), v.flat[0], F32) for v in numbers]
    cut = CodedWeights(coded.codes.reshape(rows, -1), scale, minimum[0] if minimum else None, coded.bits)
    return b.constant(CodedTensor(cut, tensor.shape))


def outputs_are_columns(n: OnnxNode) -> bool:
    """Whether the matrix that this node makes is read as [inputs, outputs]: by MatMul, or by Gemm without transB."""
    name = n.proto.output[0]
    for node in n.scope.importer.model.graph.node:
        if name in node.input:
            flags = {a.name: a.i for a in node.attribute}
            return bool(node.op_type == "MatMul" or (node.op_type == "Gemm" and not flags.get("transB")))
    return False


def unpacked(data: np.ndarray, bits: int) -> np.ndarray:
    """Bytes [..., n] as codes [..., n * 8 / bits], the first in the lowest bits."""
    if bits == 8:
        return data
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (data[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return codes.reshape(*data.shape[:-1], -1)


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
