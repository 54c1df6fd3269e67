"""Scales per channel: against literal loops, and never worse than the maximum where the method promises it."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mnnconvert.errors import ConversionError
from mnnconvert.quantizers.channels import METHODS, code_channels, squared_error

RNG = np.random.default_rng(2)
WEIGHTS = np.stack([RNG.standard_normal(60), RNG.laplace(size=60), np.full(60, -0.3), np.zeros(60), np.eye(60)[7]])


def literal_admm(row, clamp, rounds=1000):
    alpha = max(abs(w) for w in row) / (1.25 * clamp)
    for _ in range(rounds if alpha else 0):
        q = [max(-clamp, min(clamp, math.copysign(math.floor(abs(w / alpha) + 0.5), w))) for w in row]
        alpha = sum(a * b for a, b in zip(q, row, strict=True)) / sum(a * a for a in q)
    return alpha


@pytest.mark.parametrize("clamp", [127, 7])
def test_admm_is_the_literal_loop(clamp):
    got = METHODS["ADMM"](WEIGHTS, clamp)
    np.testing.assert_allclose(got, [literal_admm(list(row), clamp) for row in WEIGHTS], rtol=1e-9)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("clamp", [127, 31, 1])
def test_codes_are_the_nearest_within_the_clamp(method, clamp):
    coded = code_channels(WEIGHTS.astype("f"), method, clamp)
    assert coded.minimum is None
    assert coded.bits == 8
    assert np.abs(coded.codes).max() <= clamp
    decoded = coded.decode().astype(float)
    reach = coded.scale * (clamp + 0.5000001)
    inside = np.abs(WEIGHTS) <= reach
    assert (np.abs(decoded - WEIGHTS) <= coded.scale * 0.500001 + 1e-9)[inside].all()
    assert not decoded[3].any()


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([127, 31, 7, 3]))
def test_mse_is_never_worse_than_the_maximum(seed, clamp):
    rows = np.random.default_rng(seed).standard_t(3, (5, 40))
    scales = [METHODS[m](rows, clamp) for m in ("MSE", "MAX_ABS")]
    best, largest = (squared_error(rows, s, clamp) for s in scales)
    assert (best <= largest).all()


def test_mse_cuts_an_outlier():
    row = np.append(RNG.standard_normal(500) * 0.1, 1.0)[None]
    gain = squared_error(row, METHODS["MAX_ABS"](row, 7), 7) / squared_error(row, METHODS["MSE"](row, 7), 7)
    assert gain > 1.5


def test_not_a_number_is_refused():
    with pytest.raises(ConversionError, match="non-finite-weight"):
        code_channels(np.array([[1.0, np.nan]]), "MAX_ABS")
