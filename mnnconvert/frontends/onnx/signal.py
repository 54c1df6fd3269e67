"""Import rules of signal processing: transforms as products with constant matrices, window functions as constants."""

from __future__ import annotations

import numpy as np

from mnnconvert.frontends.common.compose import cast
from mnnconvert.frontends.common.moves import part, permuted, reshaped, unsqueezed
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.frontends.onnx.signal_run_time import (
    cosine_window,
    mel_triangles,
    short_time_transform,
    transform_along,
)
from mnnconvert.frontends.onnx.tensors import graph_type
from mnnconvert.ir import F32, Builder, Value
from mnnconvert.ir.types import normal_axis
from mnnconvert.ops.convolution import Convolution
from mnnconvert.ops.matmul import MatMul

LARGEST_MATRIX = 1 << 24  # elements of a transform
FIXED = "fix the sizes with --inputShape"


def _turns(size: int, length: int, bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine [size, bins] of 2 pi n k / length in float64; the angle is reduced in whole numbers first."""
    angle = 2 * np.pi * (np.outer(np.arange(size), np.arange(bins)) % length) / length
    return np.cos(angle), np.sin(angle)


def dft_matrix(size: int, parts: int, length: int, inverse: bool, onesided: bool) -> np.ndarray:
    """[size, parts, bins, results] such that contracting the first two axes with a signal is its transform.

    `parts` 1 is a real signal, 2 real and imaginary part. Samples from `length` on do not count; a shorter signal is
    followed by zeros. Inverse and onesided: the real signal whose spectrum has these first bins.
    """
    if inverse and onesided:
        return _real_inverse(size, length)
    bins = length // 2 + 1 if onesided else length
    cos, sin = _turns(size, length, bins)
    sin = -sin if inverse else sin
    matrix = np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], 1)[:, :parts]
    matrix[length:] = 0
    return (matrix / length if inverse else matrix).astype(F32)


def _real_inverse(size: int, length: int) -> np.ndarray:
    """Every bin but the first, and the one at half the length, stands for itself and its mirror image."""
    cos, sin = _turns(size, length, length)
    weight = np.full((size, 1), 2.0)
    weight[0] = 1
    if length % 2 == 0 and length // 2 < size:
        weight[length // 2] = 1
    weight[length // 2 + 1 :] = 0
    matrix = np.stack([cos * weight, -sin * weight], 1) / length
    return matrix[..., None].astype(F32)


def _transform(n: OnnxNode, size: int, parts: int, length: int, inverse: bool, onesided: bool) -> np.ndarray:
    if parts not in (1, 2) or length < 1 or (onesided and parts != 1 + inverse):
        raise n.refuse(f"{n.op_type} of a signal with {parts} parts and length {length} is not supported")
    if size * length * 4 > LARGEST_MATRIX:
        raise n.refuse(f"{n.op_type} of length {length} is not supported", hint="at most about 2000 samples at once")
    return dft_matrix(size, parts, length, inverse, onesided)


@onnx_op("DFT", since=17, limits="a known length up to about 2000")
def dft_by_attribute(b: Builder, n: OnnxNode) -> Value:
    return _dft(b, n, n.attr("axis", 1))


@onnx_op("DFT", since=20, limits="a known length up to about 2000")
def dft(b: Builder, n: OnnxNode) -> Value:
    if n.has(2) and n.constant(2) is None:
        return transform_along(b, n, n.input(2), n.optional(1))
    return _dft(b, n, int(np.ravel(n.required_constant(2, "the axis"))[0]) if n.has(2) else -2)


def _dft(b: Builder, n: OnnxNode, axis: int) -> Value:
    """The axis comes last but one, then each row of samples is multiplied by the matrix."""
    x, inverse, onesided = n.input(0), bool(n.attr("inverse", 0)), bool(n.attr("onesided", 0))
    rank = x.rank or 0
    if rank < 2:
        raise n.refuse("DFT needs a signal of known rank, 2 or more")
    if (n.has(1) and n.constant(1) is None) or not isinstance(part(x, normal_axis(axis, rank)), int):
        return transform_along(b, n, b.ints(axis), n.optional(1))
    axis = normal_axis(axis, rank)
    size, parts = part(x, axis), part(x, rank - 1)
    if not isinstance(size, int) or not isinstance(parts, int):
        raise n.refuse("DFT needs a signal of known parts", hint=FIXED)
    length = 2 * (size - 1) if inverse and onesided else size
    if n.has(1):
        length = int(np.ravel(n.required_constant(1, "the length"))[0])
    matrix = _transform(n, size, parts, length, inverse, onesided)
    order = [*(i for i in range(rank - 1) if i != axis), axis, rank - 1]
    moved = permuted(b, x, order)
    outer = [part(moved, i) for i in range(rank - 2)]
    product = b.add(MatMul(), reshaped(b, moved, [*outer, size * parts]), b.constant(matrix.reshape(size * parts, -1)))
    return permuted(b, reshaped(b, product, [*outer, *matrix.shape[2:]]), np.argsort(order).tolist())


@onnx_op("STFT", limits="frames of known length up to about 2000")
def stft(b: Builder, n: OnnxNode) -> Value:
    """A convolution along the signal whose kernels are the rows of the transform times the window."""
    signal = n.input(0)
    x = unsqueezed(b, signal, 2) if signal.rank == 2 else signal
    if x.rank != 3 or not isinstance(parts := part(x, 2), int):
        raise n.refuse("STFT needs a signal [batch, length, 1 or 2]", hint=FIXED)
    if any(n.has(i) and n.constant(i) is None for i in (1, 2, 3)) or (len(n.inputs) == 2 and part(x, 1) == (x, 1)):
        return short_time_transform(b, n)
    step = int(np.ravel(n.required_constant(1, "the step"))[0])
    window = np.asarray(n.required_constant(2, "the window"), F32) if n.has(2) else None
    length = _frame_length(n, x, window)
    matrix = _transform(n, length, parts, length, False, bool(n.attr("onesided", 1)) and parts == 1)
    if window is not None:
        matrix = matrix * window.reshape(-1, 1, 1, 1)
    bins = matrix.shape[2]
    kernels = np.ascontiguousarray(matrix.transpose(2, 3, 1, 0).reshape(bins * 2, parts, 1, length))
    rows = unsqueezed(b, permuted(b, x, [0, 2, 1]), 2)
    bias = b.constant(np.zeros(bins * 2, np.float32))
    y = permuted(b, b.add(Convolution(strides=(1, step)), rows, b.constant(kernels), bias), [0, 3, 1, 2])
    return reshaped(b, y, [part(y, 0), part(y, 1), bins, 2])


def _frame_length(n: OnnxNode, x: Value, window: np.ndarray | None) -> int:
    length = n.constant(3) if n.has(3) else None
    if length is not None:
        return int(np.ravel(length)[0])
    size = window.size if window is not None else part(x, 1)
    if not isinstance(size, int) or n.has(3):
        raise n.refuse("the frame length of STFT must be known when the model is converted", hint=FIXED)
    return size


COSINES = {"HannWindow": (0.5, 0.5, 0.0), "HammingWindow": (25 / 46, 21 / 46, 0.0), "BlackmanWindow": (0.42, 0.5, 0.08)}


@onnx_op(*COSINES)
def window_function(b: Builder, n: OnnxNode) -> Value:
    """a - b cos(2 pi i / n) + c cos(4 pi i / n), n the size, or one less for a window that is not periodic."""
    dtype = graph_type(int(n.attr("output_datatype", 1)), n.name)
    if n.constant(0) is None:
        return cast(b, cosine_window(b, n, COSINES[n.op_type]), dtype)
    size = int(np.ravel(n.required_constant(0, "the size"))[0])
    n.limited(size)
    angle = 2 * np.pi * np.arange(size) / max(1, size if n.attr("periodic", 1) else size - 1)
    mean, first, second = COSINES[n.op_type]
    values = (mean - first * np.cos(angle) + second * np.cos(2 * angle)).astype(F32)
    return cast(b, b.constant(values), dtype)


@onnx_op("MelWeightMatrix")
def mel_weight_matrix(b: Builder, n: OnnxNode) -> Value:
    """Triangles [spectrum bins, mel bins] between edges that are equally spaced on the mel scale."""
    dtype = graph_type(int(n.attr("output_datatype", 1)), n.name)
    if any(n.constant(i) is None for i in range(5)):
        return cast(b, mel_triangles(b, n), dtype)
    mels, length, rate, low, high = (np.ravel(n.required_constant(i, "an operand"))[0] for i in range(5))
    mels, length = int(mels), int(length)
    n.limited(length // 2 + 1, mels + 2)
    ends = 2595 * np.log10(1 + np.array([low, high], np.float64) / 700)
    scale = ends[0] + np.arange(mels + 2) * (ends[1] - ends[0]) / (mels + 2)
    edges = ((length + 1) * 700 * (10 ** (scale / 2595) - 1) // int(rate)).astype(int)
    matrix = np.zeros((length // 2 + 1, mels), np.float32)
    for i, (left, centre, right) in enumerate(zip(edges, edges[1:], edges[2:], strict=False)):
        if centre == left:
            matrix[centre, i] = 1
        else:
            matrix[left : centre + 1, i] = np.arange(centre - left + 1) / (centre - left)
        if right > centre:
            matrix[centre:right, i] = (right - np.arange(centre, right)) / (right - centre)
    return cast(b, b.constant(matrix), dtype)
