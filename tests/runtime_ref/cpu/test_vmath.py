"""Elementary functions against float64, over the whole range of float32."""

from __future__ import annotations

import math
import re
from pathlib import Path

import fit_vmath
import numpy as np
import pytest
from chains import apply

import mnnconvert.runtime_ref.cpu

erf = np.vectorize(math.erf)
erfc = np.vectorize(math.erfc)
HEADER = Path(mnnconvert.runtime_ref.cpu.__file__).parent / "src" / "vmath_fits.h"

# function, float64 definition, units in the last place, and the interval where they hold
FUNCTIONS = {
    "EXP": (np.exp, 2, -np.inf, np.inf),
    "ERF": (erf, 2, -np.inf, np.inf),
    "TANH": (np.tanh, 2, -np.inf, np.inf),
    "LOG": (np.log, 2, -np.inf, np.inf),
    "EXPM1": (np.expm1, 2, -np.inf, np.inf),
    "LOG1P": (np.log1p, 2, -np.inf, np.inf),
    "BNLL": (lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), 3, -80, np.inf),
    "SIN": (np.sin, 2, -3, 3),
    "COS": (np.cos, 2, -1.5, 1.5),
}


def _every_range() -> np.ndarray:
    """Floats of all sizes and both signs: bit patterns at a prime distance, NaNs among them, and special numbers."""
    patterns = np.arange(0, 1 << 32, 30011, dtype=np.uint64).astype(np.uint32).view(np.float32)
    ordinary = np.linspace(-20, 20, 60001, dtype=np.float32)
    special = np.array(
        [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 88.7228, 88.73, -87.3, -103.9, -104.5], np.float32
    )
    return np.concatenate([patterns, ordinary, special])


def _units(y: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Errors in units in the last place of the exact values; infinite where one side alone is no number."""
    with np.errstate(all="ignore"):
        nearest = exact.astype(np.float32)
        errors = np.abs(y - exact) / np.spacing(np.abs(nearest)).astype(np.float64)
    same = (np.isnan(y) & np.isnan(exact)) | (np.isinf(nearest) & (y == nearest))
    return np.where(same, 0, np.where(np.isfinite(y) & np.isfinite(nearest), errors, np.inf))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_error(lib, function):
    f, units, low, high = FUNCTIONS[function]
    x = _every_range()
    x = x[((x >= low) & (x <= high)) | np.isnan(x)]
    with np.errstate(all="ignore"):
        exact = f(x.astype(np.float64))
    errors = _units(apply(lib, function, x), exact)
    worst = np.argmax(errors)
    assert errors[worst] <= units, f"{function}({x[worst]!r}) is {errors[worst]:.2f} units off"


@pytest.mark.parametrize("function", ["SIGMOID", "SILU"])
def test_sigmoid_is_exact_next_to_one(lib, function):
    """For negative x the relative error grows with |x|."""
    x = np.linspace(-87, 87, 100002, dtype=np.float32)
    x64 = x.astype(np.float64)
    exact = (x64 if function == "SILU" else 1) / (1 + np.exp(-x64))
    error = np.abs(apply(lib, function, x) - exact)
    scale = np.maximum(np.abs(x64), 1) if function == "SILU" else 1
    assert np.max(error / scale) < 1.2e-7
    assert np.max(error / np.abs(exact) / (1 + np.abs(x64))) < 2e-7


def test_signs_of_zeros_and_limits(lib):
    x = np.array([-0.0, np.inf, -np.inf], np.float32)
    for function, limits in {"ERF": [-0.0, 1, -1], "TANH": [-0.0, 1, -1], "SILU": [-0.0, np.inf, np.nan],
                             "GELU_STANDARD": [-0.0, np.inf, np.nan], "SIGMOID": [0.5, 1, 0]}.items():  # fmt: skip
        y = apply(lib, function, x)
        assert np.array_equal(y, np.array(limits, np.float32), equal_nan=True), function
        assert np.signbit(y[0]) == np.signbit(limits[0])


@pytest.mark.parametrize("function", ["GELU_STANDARD", "GELU"])
def test_gelu_is_exact_for_negative_numbers_too(lib, function):
    x = np.linspace(-30, 30, 100003, dtype=np.float32)
    x64 = x.astype(np.float64)
    if function == "GELU":
        exact = 0.5 * x64 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x64 + 0.044715 * x64**3)))
    else:
        exact = 0.5 * x64 * erfc(-x64 / math.sqrt(2))
    assert np.max(np.abs(apply(lib, function, x) - exact) / np.maximum(np.abs(x64), 1)) < 1.5e-7


@pytest.mark.parametrize("function", ["SIN", "COS"])
def test_large_angles(lib, function):
    x = np.concatenate([np.linspace(-9000, 9000, 50001), [1e6, -3e7, 1e20, np.inf, np.nan]]).astype(np.float32)
    with np.errstate(all="ignore"):
        exact = {"SIN": np.sin, "COS": np.cos}[function](x.astype(np.float64))
    np.testing.assert_allclose(apply(lib, function, x), exact, atol=1.5e-7)


def test_polynomials_are_those_of_the_script():
    """As functions: other linear algebra may round coefficients otherwise."""
    text = HEADER.read_text()
    for fit in fit_vmath.FITS:
        printed = re.search(rf"{fit.name}_FIT\[\] = \{{(.*?)\}}", text)
        assert printed is not None
        coefficients = np.array([np.float32(c.rstrip("f")) for c in printed[1].split(", ")], np.float64)
        assert fit.error(coefficients) <= 1.1 * fit.error(fit.coefficients())
