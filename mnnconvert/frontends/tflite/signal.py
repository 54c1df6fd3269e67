"""Import rules of spectra. The graph has no complex numbers: they are pairs of floats on an axis of their own."""

from __future__ import annotations

import numpy as np

from mnnconvert.frontends.common.compose import apply, calc
from mnnconvert.frontends.common.moves import reduced, sliced, squeezed
from mnnconvert.frontends.common.nodes import FIX_SIZES, known_rank
from mnnconvert.frontends.tflite.node import TfliteNode
from mnnconvert.frontends.tflite.registry import tflite_op
from mnnconvert.ir import Builder, Value
from mnnconvert.ops.arrange import Pack
from mnnconvert.ops.matmul import MatMul
from mnnconvert.ops.padding import Padding

LONGEST = 4096  # of an axis that is transformed by a matrix


def _fitted(b: Builder, n: TfliteNode, x: Value, lengths: tuple[int, ...]) -> Value:
    """The last two axes cut, or filled with zeros, to these sizes."""
    sizes = [d for d in (x.shape or ())[-2:] if isinstance(d, int)]
    if len(sizes) != 2 or max(lengths) > LONGEST or min(lengths) < 1:
        raise n.refuse(f"{n.op} needs known sizes, at most {LONGEST}", hint=FIX_SIZES)
    rank = known_rank(n, x)
    for axis, (size, length) in enumerate(zip(sizes, lengths, strict=True), rank - 2):
        x = sliced(b, x, axis, 0, length) if size > length else x
    grown = [max(0, length - size) for size, length in zip(sizes, lengths, strict=True)]
    return b.add(Padding(), x, b.ints([0] * (2 * rank - 4) + [0, grown[0], 0, grown[1]])) if any(grown) else x


def _angles(length: int, columns: int) -> np.ndarray:
    return 2 * np.pi * np.outer(np.arange(length), np.arange(columns)) / length


@tflite_op("RFFT2D", limits="known sizes")
def rfft2d(b: Builder, n: TfliteNode) -> Value:
    """Products with the matrices of both transforms: first along the rows, then, complex, along the columns."""
    rows, columns = n.ints(1, "the lengths")
    x = _fitted(b, n, n.input(0), (rows, columns))
    across, down = _angles(columns, columns // 2 + 1), _angles(rows, rows)
    real, imaginary = (b.add(MatMul(), x, b.floats(m)) for m in (np.cos(across), -np.sin(across)))
    cosine, sine = b.floats(np.cos(down)), b.floats(np.sin(down))
    parts = [b.add(MatMul(), m, p) for m, p in ((cosine, real), (sine, imaginary), (cosine, imaginary), (sine, real))]
    return b.add(Pack(known_rank(n, x)), calc(b, "ADD", *parts[:2]), calc(b, "SUB", *parts[2:]))


def _part(b: Builder, n: TfliteNode, index: int) -> Value:
    x = n.input(0)
    last = known_rank(n, x) - 1
    return squeezed(b, sliced(b, x, last, index, index + 1), last)


@tflite_op("REAL")
def real(b: Builder, n: TfliteNode) -> Value:
    return _part(b, n, 0)


@tflite_op("IMAG")
def imaginary(b: Builder, n: TfliteNode) -> Value:
    return _part(b, n, 1)


@tflite_op("COMPLEX_ABS")
def complex_abs(b: Builder, n: TfliteNode) -> Value:
    x = n.input(0)
    return apply(b, "SQRT", reduced(b, "SUM", apply(b, "SQUARE", x), known_rank(n, x) - 1, keep=False))
