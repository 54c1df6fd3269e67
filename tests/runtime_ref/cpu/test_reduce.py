"""Reductions over one axis, and positions of extremes on it."""

from __future__ import annotations

import numpy as np
import pytest
from kernels import both, guarded

from mnnconvert.ops.reduction import REDUCTIONS

OPERATIONS = ("SUM", "ASUM", "SUMSQ", "PROD", "MAXIMUM", "MINIMUM", "ANY", "ALL")
SHAPES = ((1, 1, 1), (3, 5, 1), (2, 17, 3), (5, 63, 1), (1, 40000, 1), (2, 9, 40), (4, 49, 8), (3, 100, 16),
          (1, 9000, 5), (7, 1, 33), (300, 4, 1), (2, 0, 3), (1, 300000, 1))  # fmt: skip


def _reduce(lib, operation, x, divisor=1):
    outer, n, inner = x.shape
    kernel = "reduce_f32" if x.dtype == np.float32 else "reduce_i32"
    return both(lib, kernel, (outer, inner), x.dtype, x=guarded(x), operation=OPERATIONS.index(operation), outer=outer,
                n=n, inner=inner, divisor=divisor)  # fmt: skip


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_floats(lib, operation, shape, rng):
    x = rng.normal(size=shape).astype(np.float32)
    if operation == "PROD":
        x = np.exp(x / 100)
    if operation in ("ANY", "ALL"):
        x = (x > (3 if operation == "ANY" else -3)).astype(np.float32)
    want = np.asarray(REDUCTIONS[operation](x.astype(np.float64), (1,), False), np.float64)
    scale = np.abs(x.astype(np.float64)).sum(1) if operation == "SUM" else np.abs(want)
    product = 1e-7 * (1 + shape[1] ** 0.5)  # every factor adds a rounding error, in either direction
    bound = {"SUM": 4e-7, "ASUM": 4e-7, "SUMSQ": 4e-7, "PROD": product}.get(operation, 0)
    got = _reduce(lib, operation, x)
    with np.errstate(invalid="ignore"):
        assert np.all((np.abs(got - want) <= bound * scale) | (got == want))


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_integers(lib, operation, shape, rng):
    x = rng.integers(-(2**31), 2**31, shape).astype(np.int32)
    if operation in ("ANY", "ALL"):
        x = (x % 7 == 0 if operation == "ANY" else x % 700 != 0).astype(np.int32)
    want = np.asarray(REDUCTIONS[operation](x, (1,), False)).astype(np.int32)
    assert np.array_equal(_reduce(lib, operation, x), want)


def test_means(lib, rng):
    x = rng.normal(size=(4, 37, 6)).astype(np.float32)
    np.testing.assert_allclose(_reduce(lib, "SUM", x, 37), x.mean(1, np.float64), atol=1e-7)
    whole = rng.integers(-99, 99, (4, 37, 6)).astype(np.int32)
    assert np.array_equal(_reduce(lib, "SUM", whole, 37), np.trunc(whole.sum(1) / 37))


def test_not_a_number_wins(lib, rng):
    for inner in (1, 9):
        x = rng.normal(size=(2, 100, inner)).astype(np.float32)
        x[1, 40], x[1, 41] = np.nan, np.inf
        for operation in ("MAXIMUM", "MINIMUM", "SUM", "PROD"):
            got = _reduce(lib, operation, x)
            assert np.isnan(got[1]).all() and not np.isnan(got[0]).any()
        assert (_reduce(lib, "ANY", np.where(np.isnan(x), x, 0)) == [[0], [1]]).all()  # NaN is not zero


@pytest.mark.parametrize("shape", [s for s in SHAPES if s[1]])
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_positions(lib, shape, dtype, rng):
    """The first of equal elements."""
    outer, n, inner = shape
    x = rng.integers(-5, 6, shape).astype(dtype)
    kernel = "position_f32" if dtype == np.float32 else "position_i32"
    for largest, want in ((1, np.argmax), (0, np.argmin)):
        y = both(lib, kernel, (outer, inner), np.int32, x=guarded(x), largest=largest, outer=outer, n=n, inner=inner)
        assert np.array_equal(y, want(x, 1))


def test_positions_of_extremes_that_are_no_ordinary_numbers(lib, rng):
    rows = np.array([[1, np.nan, 5, np.nan] + [0] * 20, [-np.inf] * 24, [np.inf] * 24, [np.nan] * 24], np.float32)
    for x in (rows[:, :, None], np.repeat(rows[:, :, None], 11, 2)):
        for largest, want in ((1, np.argmax), (0, np.argmin)):
            y = both(lib, "position_f32", (4, x.shape[2]), np.int32, x=guarded(x), largest=largest, outer=4, n=24,
                     inner=x.shape[2])  # fmt: skip
            assert np.array_equal(y, want(x, 1))
    lowest = np.full((1, 20, 1), -(2**31), np.int32)
    assert both(lib, "position_i32", (1, 1), np.int32, x=lowest, largest=1, outer=1, n=20, inner=1) == 0
