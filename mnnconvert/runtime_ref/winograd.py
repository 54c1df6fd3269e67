"""The matrices of Winograd's algorithm for convolutions of 3x3 and stride 1: y = A^T [(G w G^T) (B^T d B)] A,
with products element by element (A. Lavin and S. Gray, Fast Algorithms for Convolutional Neural Networks, 2015).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache

import numpy as np

POINTS = {
    2: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(1), Fraction(-1), Fraction(1, 2), Fraction(-2)),
}
"""Points of interpolation by tile size, besides infinity. src/kernels/winograd.cpp is written for them."""

TAPS = 3


@cache
def weight_matrix(tile: int) -> np.ndarray:
    """G, float64 [tile + 2, 3], exact but for one rounding: a kernel w of 3x3 becomes G w G^T.

    Row j holds the powers of point j over the product of its distances to the other points; the last, of infinity,
    picks the highest tap.
    """
    rows = [[point**power / _distances(point, POINTS[tile]) for power in range(TAPS)] for point in POINTS[tile]]
    return np.array([*rows, [0] * (TAPS - 1) + [1]], np.float64)


def _distances(point: Fraction, points: tuple[Fraction, ...]) -> Fraction:
    result = Fraction(1)
    for other in points:
        if other != point:
            result *= point - other
    return result


@cache
def input_matrix(tile: int) -> np.ndarray:
    """B^T, float64 [tile + 2, tile + 2]: a tile d of the input becomes B^T d B.

    Row j holds the coefficients, lowest first, of the product of (t - p) over the other points p; the last row those of
    the product over all points.
    """
    points = POINTS[tile]
    rows = [[*_product([p for p in points if p != point]), Fraction(0)] for point in points]
    return np.array([*rows, _product(points)], np.float64)


@cache
def output_matrix(tile: int) -> np.ndarray:
    """A^T, float64 [tile, tile + 2]: products m become the result A^T m A. Column j holds the powers of point j."""
    powers = [[point**power for point in POINTS[tile]] for power in range(tile)]
    return np.array([[*row, int(power == tile - 1)] for power, row in enumerate(powers)], np.float64)


def _product(points: Sequence[Fraction]) -> list[Fraction]:
    """The coefficients of the product of (t - p), lowest first."""
    result = [Fraction(1)]
    for point in points:
        shifted, scaled = [Fraction(0), *result], [*(point * c for c in result), Fraction(0)]
        result = [a - b for a, b in zip(shifted, scaled, strict=True)]
    return result
