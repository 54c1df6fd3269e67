"""Every method against a slow, literal statement of itself, and what the steps promise."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mnnconvert.quantizers.observers import Observations
from mnnconvert.quantizers.thresholds import (
    KL_FLOOR,
    METHODS,
    admm_scale,
    choose_steps,
    kl_bins,
    kl_largest,
    mse_range,
    percentile_range,
    range_steps,
    rounded,
)

SHAPE = (1, 4, 25, 40)
RNG = np.random.default_rng(5)
DATA = {
    "gaussian": RNG.standard_normal(SHAPE),
    "laplace": RNG.laplace(0.3, 1.0, SHAPE),
    "relu": np.maximum(RNG.standard_normal(SHAPE) * 3, 0),
    "outlier": np.where(RNG.random(SHAPE) < 1e-3, 40.0, RNG.standard_normal(SHAPE)),
    "constant": np.full(SHAPE, 2.5),
    "zero": np.zeros(SHAPE),
}


def observed(data, second=False):
    seen = Observations()
    seen.add(data.astype("f"))
    if second:
        seen.add_magnitudes(data.astype("f"))
    return seen


def literal_kl(counts, levels):
    """Bin by bin: groups with fractional borders, spread evenly over bins that hold anything."""
    p = [c + KL_FLOOR for c in counts]
    total = sum(p)
    p = [x / total for x in p]
    best, best_loss = len(p) - 1, math.inf
    for i in range(levels, len(p)):
        kept = p[:i]
        kept[-1] += sum(p[i:])
        spread = [0.0] * i
        for j in range(levels):
            start, end = j * i / levels, (j + 1) * i / levels
            shares = {}
            for k in range(math.floor(start), min(math.ceil(end), i)):
                share = min(k + 1, end) - max(k, start)
                if share > 0 and p[k] > 0:
                    shares[k] = share
            mass = sum(share * p[k] for k, share in shares.items())
            for k, share in shares.items():
                spread[k] += mass * share / sum(shares.values())
        loss = sum(x * math.log(x / e) if e else 1.0 for x, e in zip(kept, spread, strict=True))
        if loss < best_loss - 1e-12:
            best, best_loss = i, loss
    return best


@pytest.mark.parametrize("kind", ["gaussian", "laplace", "relu", "outlier"])
@pytest.mark.parametrize(("bins", "levels"), [(96, 16), (100, 7)])
def test_kl_is_the_literal_algorithm(kind, bins, levels):
    counts, _ = np.histogram(np.abs(DATA[kind]), bins, (0, np.abs(DATA[kind]).max()))
    assert kl_bins(counts, levels) == literal_kl(counts.tolist(), levels)


def test_kl_keeps_the_body_and_cuts_a_far_outlier():
    seen = observed(DATA["outlier"], second=True)
    assert 3 < kl_largest(seen) < 20 < seen.largest


def test_kl_takes_the_maximum_of_small_planes():
    small = DATA["outlier"].reshape(-1)[:3960].reshape(1, -1, 9, 11)
    small[0, 0, 0, 0] = 40.0
    assert kl_largest(observed(small, second=True)) == 40.0
    large = DATA["outlier"].reshape(1, -1, 10, 10)
    assert kl_largest(observed(large, second=True)) < 40.0


def literal_admm(values, clamp):
    alpha = max(abs(v) for v in values) / (2.5 * clamp)
    values = np.array(values)
    for _ in range(300):
        q = np.array([math.copysign(math.floor(abs(v / alpha) + 0.5), v) for v in values])
        q = np.clip(q, -clamp, clamp)
        alpha = float((q * values).sum() / (q * q).sum())
    return alpha


@pytest.mark.parametrize("kind", ["gaussian", "laplace", "relu", "outlier", "constant"])
def test_admm_on_bins_is_alternating_least_squares_on_the_data(kind):
    data = DATA[kind].reshape(-1)[:1500]
    seen = observed(data.reshape(1, 1, 30, 50))
    alpha = admm_scale(seen.histogram, seen.largest, 127)
    want = literal_admm(data.astype("f").astype(float).tolist(), 127)
    # alternation ends in one of many fixed points: what counts is that its error is as small
    steps = choose_steps(seen, "ADMM")
    assert steps.scale == pytest.approx(alpha, rel=1e-6)
    loss = [np.square(np.clip(np.rint(data / a), -127, 127) * a - data).sum() for a in (alpha, want)]
    assert loss[0] <= loss[1] * 1.05 + 1e-7 * np.square(data).sum()


@pytest.mark.parametrize("kind", DATA)
def test_ema_of_one_batch(kind):
    low, high = min(0.0, DATA[kind].astype("f").min()), max(0.0, DATA[kind].astype("f").max())
    steps = choose_steps(observed(DATA[kind]), "EMA")
    if high == low:
        assert steps.scale == 1.0
        return
    assert steps.scale == pytest.approx((high - low) / 254, rel=1e-6)
    assert steps.zero == math.floor(-low / steps.scale + 0.5) - 127
    assert (steps.low, steps.high) == (-127, 127)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", DATA)
def test_steps_are_usable_and_zero_is_exact(method, kind):
    steps = choose_steps(observed(DATA[kind], second=True), method)
    assert 0 < steps.scale < 10
    assert steps.scale == float(np.float32(steps.scale))
    assert steps.zero == int(steps.zero)
    assert steps.low <= steps.zero <= steps.high
    assert rounded(np.zeros(3), steps).tolist() == [0, 0, 0]
    error = np.abs(rounded(DATA[kind], steps) - DATA[kind])
    limits = [(code - steps.zero) * steps.scale for code in (steps.low, steps.high)]
    inside = (DATA[kind] >= limits[0]) & (DATA[kind] <= limits[1])
    assert error[inside].max(initial=0) <= steps.scale * 0.5000001


@settings(max_examples=80, deadline=None)
@given(st.floats(-1e6, 1e6), st.floats(0, 1e6), st.sampled_from([127, 31, 7, 3]))
def test_a_range_fits_its_codes(low, width, clamp):
    steps = range_steps(low, low + width, clamp)
    low, high = min(0.0, low), max(0.0, low + width)
    for end in (low, high):
        assert abs(rounded(np.array([end]), steps)[0] - end) <= steps.scale * 0.51 + 1e-30


def test_percentile_leaves_out_what_it_says():
    data = RNG.standard_normal(100000).reshape(1, 1, 100, 1000)
    seen = observed(data)
    low, high = percentile_range(seen, 98.0)
    assert (data < low).mean() == pytest.approx(0.01, abs=1e-3)
    assert (data > high).mean() == pytest.approx(0.01, abs=1e-3)
    assert percentile_range(seen, 100.0) == (seen.low, seen.high)
    assert percentile_range(Observations()) == (0.0, 0.0)


@pytest.mark.parametrize("kind", ["gaussian", "laplace", "relu", "outlier"])
def test_mse_is_as_good_as_any_range_tried_at_random(kind):
    data, seen = DATA[kind].astype("f").astype(float), observed(DATA[kind])

    def error(low, high):
        return np.square(rounded(data, range_steps(low, high, 127)) - data).sum()

    chosen = error(*mse_range(seen, 127))
    tries = [error(seen.low * a, seen.high * b) for a, b in RNG.uniform(0.1, 1.0, (200, 2))]
    assert chosen <= min(tries) * 1.02
    assert chosen <= error(seen.low, seen.high)


def test_sixteen_bits():
    steps = choose_steps(observed(DATA["gaussian"]), "ACIQ", (1 << 15) - 1, np.dtype("int16"))
    assert (steps.low, steps.high, steps.dtype) == (-32767, 32767, np.dtype("int16"))
