"""Winograd's algorithm for convolutions of 3x3 and stride 1: when it pays, and its matrices."""

from __future__ import annotations

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
