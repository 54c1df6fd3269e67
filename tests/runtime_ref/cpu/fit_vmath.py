"""Fits the polynomials of mnnconvert/runtime_ref/cpu/src/vmath_fits.h: run it to print that file.

Each is the polynomial with the smallest largest weighted error on an interval, found by least squares whose weights
grow where the error is large (Lawson's algorithm). Coefficients are rounded to float32 one by one, the most important
first, and the others are fitted again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Function = Callable[[np.ndarray], np.ndarray]
NODES = 3000
ROUNDS = 60

erf = np.vectorize(math.erf)
erfc = np.vectorize(math.erfc)


@dataclass(frozen=True)
class Fit:
    """f on [low, high] by `count` coefficients, lowest power first; errors count `weight` times."""

    name: str
    text: str
    count: int
    low: float
    high: float
    f: Function
    weight: Function

    def nodes(self) -> np.ndarray:
        """Points that lie denser towards the ends of the interval."""
        angles = (np.arange(NODES) + 0.5) * np.pi / NODES
        return self.low + (self.high - self.low) * (1 - np.cos(angles)) / 2

    def error(self, coefficients: np.ndarray) -> float:
        """The largest weighted error."""
        x = self.nodes()
        return float(np.max(np.abs(np.polynomial.polynomial.polyval(x, coefficients) - self.f(x)) * self.weight(x)))

    def coefficients(self) -> np.ndarray:
        """Float32 values, as float64."""
        x = self.nodes()
        values, weights = self.f(x), self.weight(x)
        fixed: list[float] = []
        while len(fixed) < self.count:
            powers = np.arange(len(fixed), self.count)
            rest = values - (np.polynomial.polynomial.polyval(x, fixed) if fixed else 0)
            fixed.append(float(np.float32(_minimax(x, rest, weights, powers)[0])))
        return np.array(fixed)


def _minimax(x: np.ndarray, values: np.ndarray, weights: np.ndarray, powers: np.ndarray) -> np.ndarray:
    scale = np.max(np.abs(x))
    columns = (x[:, None] / scale) ** powers * weights[:, None]
    target, lawson = values * weights, np.full(len(x), 1 / len(x))
    best, least = np.zeros(len(powers)), np.inf
    for _ in range(ROUNDS):
        root = np.sqrt(lawson)
        solution = np.linalg.lstsq(columns * root[:, None], target * root, rcond=None)[0]
        error = np.abs(columns @ solution - target)
        if error.max() < least:
            best, least = solution, error.max()
        lawson *= error + 1e-3 * error.max()
        lawson /= lawson.sum()
    return best / scale**powers


def _log_rest(x: np.ndarray) -> np.ndarray:
    """(log(1 + x) - x + x^2/2) / x^3 by its series, and by itself where that loses nothing."""
    series = sum((-1) ** k * x**k / (k + 3) for k in range(12))
    safe = np.where(np.abs(x) < 0.05, 1, x)
    return np.asarray(np.where(np.abs(x) < 0.05, series, (np.log1p(x) - x + x * x / 2) / safe**3))


def _series(first: int) -> Function:
    """Alternating series in s = r^2: sum (-1)^k s^k / (first + 2k)!, the rest of sine and cosine."""
    return lambda s: np.asarray(sum((-1) ** k * s**k / math.factorial(first + 2 * k) for k in range(10)))


def _exp_rest(x: np.ndarray) -> np.ndarray:
    return np.asarray(sum(x**k / math.factorial(k + 2) for k in range(14)))


def _tanh_rest(s: np.ndarray) -> np.ndarray:
    x = np.sqrt(s)
    limit = -1 / 3 + 2 / 15 * s - 17 / 315 * s * s
    exact = (np.tanh(x) / np.where(s == 0, 1, x) - 1) / np.where(s == 0, 1, s)
    return np.where(s < 1e-3, limit, exact)


def _erf_rest(s: np.ndarray) -> np.ndarray:
    x = np.sqrt(s)
    return np.asarray(np.where(s < 1e-12, 2 / math.sqrt(math.pi), erf(x) / np.where(s < 1e-12, 1, x))) - 1


def _bits(x: np.ndarray) -> np.ndarray:
    """log2 erfc(x)."""
    return np.asarray(np.log2(erfc(x)))


HALF_LOG = math.log(2) / 2 * 1.001  # the reduction of the argument is not exact
QUARTER = math.pi / 4 * 1.001
ERF_FAR = 0.8  # where erf changes its form

FITS = (
    Fit("EXP", "(e^r - 1 - r) / r^2, |r| <= ln 2 / 2", 5, -HALF_LOG, HALF_LOG, _exp_rest, lambda x: x * x / np.exp(x)),
    Fit("EXP2", "2^r, |r| <= 1/2", 6, -0.501, 0.501, np.exp2, lambda x: 1 / np.exp2(x)),
    Fit("TANH", "(tanh x / x - 1) / s, s = x^2, x <= 0.6", 5, 0, 0.36, _tanh_rest, lambda s: s),
    Fit("ERF", "erf x / x - 1, s = x^2, x <= 0.8", 6, 0, ERF_FAR**2, _erf_rest, lambda s: 1 / (1 + _erf_rest(s))),
    Fit("ERFC", "log2 erfc x, 0.8 <= x <= 4", 7, ERF_FAR, 4.0, _bits, erfc),
    Fit("GELU", "log2 erfc x, 0 <= x <= 5", 9, 0, 5.0, _bits, lambda x: np.maximum(erfc(x), 1e-7)),
    Fit("LOG", "(log(1 + f) - f + f^2 / 2) / f^3", 9, math.sqrt(0.5) * 0.999 - 1, math.sqrt(2) * 1.001 - 1, _log_rest,
        lambda f: np.abs(f**3) / np.maximum(np.abs(np.log1p(f)), 1e-9)),
    Fit("SIN", "(sin r / r - 1) / s, s = r^2, |r| <= pi / 4", 3, 0, QUARTER**2, lambda s: -_series(3)(s), lambda s: s),
    Fit("COS", "(cos r - 1 + s / 2) / s^2", 3, 0, QUARTER**2, _series(4), lambda s: s * s),
)  # fmt: skip


def main() -> None:
    print("// Polynomials of vmath.h, lowest power first: printed by tests/runtime_ref/cpu/fit_vmath.py.")
    print("#pragma once\n\nnamespace mnnk {\n")
    for fit in FITS:
        coefficients = fit.coefficients()
        print(f"// {fit.text}; largest error {fit.error(coefficients):.1e}")
        print(f"constexpr float {fit.name}_FIT[] = {{{', '.join(f'{c:.9g}f' for c in coefficients)}}};")
    print("\n}  // namespace mnnk")


if __name__ == "__main__":
    main()
