"""Import rules of spectra. The graph has no complex numbers: during import they are pairs of tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mnnconvert.frontends.common.compose import apply, calc
from mnnconvert.frontends.common.moves import sliced
from mnnconvert.frontends.common.nodes import FIX_SIZES, known_rank
from mnnconvert.frontends.tensorflow.node import TfNode
from mnnconvert.frontends.tensorflow.registry import tf_op
from mnnconvert.ir import Builder, Value
from mnnconvert.ops.matmul import MatMul

LONGEST = 4096  # of an axis that is transformed by a matrix
LIMITS = f"a known length of at most {LONGEST}"
LINEAR = {  # what is done to a complex number by doing it to both of its parts
    "Reshape", "Transpose", "StridedSlice", "Slice", "Concat", "ConcatV2", "Pack", "Unpack", "Split", "SplitV", "Pad",
    "ExpandDims", "Squeeze", "Tile", "BroadcastTo", "Gather", "GatherV2", "GatherNd", "ReverseV2", "Roll", "Sum",
    "Mean", "Neg", "Add", "AddV2", "Sub", "AddN", "EnsureShape",
}  # fmt: skip


@dataclass
class Pair:
    """Complex numbers."""

    real: Value
    imaginary: Value


class PartNode(TfNode):
    """A node whose complex operands are seen by one of their parts."""

    def __init__(self, n: TfNode, part: str):
        super().__init__(n.scope, n.source)
        self._part = part

    def any_input(self, index: int) -> Any:
        found = super().any_input(index)
        return getattr(found, self._part) if isinstance(found, Pair) else found


def is_complex(n: TfNode) -> bool:
    return any(isinstance(n.any_input(i), Pair) for i in range(n.input_count))


def by_parts(rule: Any, b: Builder, n: TfNode) -> Any:
    """The results of a linear rule on complex operands."""
    made = [rule(b, PartNode(n, part)) for part in ("real", "imaginary")]
    if isinstance(made[0], tuple):
        return tuple(Pair(*parts) for parts in zip(*made, strict=True))
    return Pair(*made)


def product(b: Builder, n: TfNode) -> Pair:
    """(a + bi)(c + di)."""
    (x, xi), (y, yi) = (_parts(b, n, i) for i in (0, 1))
    real = calc(b, "SUB", calc(b, "MUL", x, y), calc(b, "MUL", xi, yi))
    return Pair(real, calc(b, "ADD", calc(b, "MUL", x, yi), calc(b, "MUL", xi, y)))


def _parts(b: Builder, n: TfNode, index: int) -> tuple[Value, Value]:
    found = n.any_input(index)
    if isinstance(found, Pair):
        return found.real, found.imaginary
    x = n.tensor(found)
    return x, calc(b, "MUL", x, 0.0)


@tf_op("Complex", gives="Tout")
def complex_(b: Builder, n: TfNode) -> Pair:
    return Pair(n.input(0), n.input(1))


@tf_op("Real", "Imag", gives="Tout")
def part(b: Builder, n: TfNode) -> Value:
    return _parts(b, n, 0)[n.op == "Imag"]


@tf_op("Conj")
def conjugate(b: Builder, n: TfNode) -> Any:
    found = n.any_input(0)
    return Pair(found.real, apply(b, "NEG", found.imaginary)) if isinstance(found, Pair) else found


@tf_op("ComplexAbs", gives="Tout")
def complex_abs(b: Builder, n: TfNode) -> Value:
    parts = [apply(b, "SQUARE", v) for v in _parts(b, n, 0)]
    return apply(b, "SQRT", calc(b, "ADD", *parts))


@tf_op("Angle", gives="Tout")
def angle(b: Builder, n: TfNode) -> Value:
    real, imaginary = _parts(b, n, 0)
    return calc(b, "ATAN2", imaginary, real)


def _fitted(b: Builder, n: TfNode, x: Value, length: int) -> Value:
    """The last axis cut to a length."""
    size = x.shape[-1] if x.shape else None
    if not isinstance(size, int) or not 1 <= length <= LONGEST:
        raise n.refuse(f"{n.op} needs {LIMITS}", hint=FIX_SIZES)
    if size < length:
        raise n.refuse(f"{n.op} of {length} takes at least as many numbers, not {size}", reference=n.broken)
    return sliced(b, x, known_rank(n, x) - 1, 0, length) if size > length else x


def _angles(length: int, rows: int, columns: int) -> np.ndarray:
    return 2 * np.pi * np.outer(np.arange(rows), np.arange(columns)) / length


def _times(b: Builder, x: Value, matrix: np.ndarray) -> Value:
    return b.add(MatMul(), x, b.floats(matrix))


@tf_op("RFFT", gives="Tcomplex", limits=LIMITS)
def rfft(b: Builder, n: TfNode) -> Pair:
    """The discrete Fourier transform of real numbers as products with the matrices of cosines and sines."""
    length = n.ints(1, "the length")[0]
    x, angles = _fitted(b, n, n.input(0), length), _angles(length, length, length // 2 + 1)
    return Pair(_times(b, x, np.cos(angles)), _times(b, x, -np.sin(angles)))


@tf_op("IRFFT", gives="Treal", limits=LIMITS)
def irfft(b: Builder, n: TfNode) -> Value:
    """Back to real numbers: all frequencies but the first and the last of an even length count twice."""
    length = n.ints(1, "the length")[0]
    count = length // 2 + 1
    real, imaginary = (_fitted(b, n, v, count) for v in _parts(b, n, 0))
    weights = np.full((count, 1), 2.0 / length)
    weights[0] = 1 / length
    if length % 2 == 0:
        weights[-1] = 1 / length
    angles = _angles(length, count, length)
    return calc(b, "SUB", _times(b, real, weights * np.cos(angles)), _times(b, imaginary, weights * np.sin(angles)))


@tf_op("FFT", "IFFT", gives="Tcomplex", limits=LIMITS)
def fft(b: Builder, n: TfNode) -> Pair:
    """The discrete Fourier transform of the last axis, or its inverse."""
    parts = _parts(b, n, 0)
    length = parts[0].shape[-1] if parts[0].shape else None
    if not isinstance(length, int) or not 1 <= length <= LONGEST:
        raise n.refuse(f"{n.op} needs {LIMITS}", hint=FIX_SIZES)
    scale, sign = (1.0, 1.0) if n.op == "FFT" else (1 / length, -1.0)
    angles = _angles(length, length, length)
    cosine, sine = scale * np.cos(angles), sign * scale * np.sin(angles)
    real, imaginary = parts
    return Pair(
        calc(b, "ADD", _times(b, real, cosine), _times(b, imaginary, sine)),
        calc(b, "SUB", _times(b, imaginary, cosine), _times(b, real, sine)),
    )
