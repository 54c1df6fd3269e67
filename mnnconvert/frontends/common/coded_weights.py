"""Integers of a source model as coded weights: what it stores as 2, 4 or 8 bits reaches the file unchanged."""

from __future__ import annotations

import math

import numpy as np

from mnnconvert.ir import F32, Builder, CodedTensor, CodedWeights, Tensor, TransposedMatrix, Value

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


def unpacked(data: np.ndarray, bits: int) -> np.ndarray:
    """Bytes [..., n] as codes [..., n * 8 / bits], the first in the lowest bits."""
    if bits == 8:
        return data
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (data[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return codes.reshape(*data.shape[:-1], -1)
