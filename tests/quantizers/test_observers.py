"""What observers keep: exact counts in whatever order the data come, and the way through a file."""

import numpy as np
import pytest

from mnnconvert.quantizers.observers import BINS, KL_BINS, Histogram, Observations, clip_as_normal, fitting_exponent


def parts(seed=0, count=6):
    """Samples of very different sizes and ranges, [1,2,h,w]."""
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal((1, 2, 3 + i, 5)) * 10.0 ** rng.integers(-3, 4)).astype("f") for i in range(count)]


def literal_counts(values, exponent):
    counts = np.zeros(2 * BINS, np.int64)
    for value in np.concatenate([v.ravel() for v in values]).astype(np.float64):
        counts[int(np.floor(value / 2.0**exponent)) + BINS] += 1
    return counts


@pytest.mark.parametrize("seed", range(4))
def test_histogram_is_that_of_the_final_width_in_any_order(seed):
    samples = parts(seed)
    forward, backward = Histogram(), Histogram()
    for sample in samples:
        forward.add(sample)
    for sample in reversed(samples):
        backward.add(sample)
    largest = max(float(np.abs(s).max()) for s in samples)
    assert forward.exponent == backward.exponent == fitting_exponent(largest)
    np.testing.assert_array_equal(forward.counts, backward.counts)
    np.testing.assert_array_equal(forward.counts, literal_counts(samples, forward.exponent))


def test_largest_value_has_a_bin_and_half_the_bins_are_used():
    for largest in (1.0, 4096.0, 4095.9, 1e-30, 3e38):
        histogram = Histogram()
        histogram.add(np.array([largest, -largest]))
        assert BINS / 2 <= np.flatnonzero(histogram.counts)[-1] - BINS < BINS


def test_moments():
    data = np.random.default_rng(1).normal(0.7, 2.0, 20000).astype("f")
    histogram = Histogram()
    histogram.add(data)
    mean, variance = histogram.moments()
    assert mean == pytest.approx(data.mean(), abs=histogram.width)
    assert variance == pytest.approx(data.var(), rel=1e-3)
    assert Histogram().moments() == (0.0, 0.0)


def observed(samples):
    seen = Observations()
    for sample in samples:
        seen.add(sample)
    for sample in samples:
        seen.add_magnitudes(sample)
    return seen


def test_range_plane_and_magnitudes():
    samples = parts()
    seen = observed(samples)
    everything = np.concatenate([s.ravel() for s in samples])
    assert (seen.low, seen.high) == (everything.min(), everything.max())
    assert seen.count == everything.size
    assert seen.plane == 3 * 5
    size = np.abs(everything[np.abs(everything) > 1e-6]).astype(np.float64)
    want = np.minimum((size * (KL_BINS / size.max())).astype(int), KL_BINS - 1)
    np.testing.assert_array_equal(seen.magnitudes, np.bincount(want, minlength=KL_BINS))


def test_running_range_is_an_exponential_average_that_holds_zero():
    seen = Observations()
    for sample in ([[1.0, 3.0]], [[-2.0, 5.0]], [[2.0, 4.0]]):
        seen.add(np.array(sample))
    low, high = seen.running
    assert low == pytest.approx((0.99 * 0 + 0.01 * -2) * 0.99)
    assert high == pytest.approx((0.99 * 3 + 0.01 * 5) * 0.99 + 0.04)


def test_clip_of_normal_data():
    rng = np.random.default_rng(3)
    data = rng.standard_normal(100000)
    low, high = clip_as_normal(data.min(), data.max(), data.mean(), data.size, 4)
    assert -low == pytest.approx(2.55, rel=0.15)
    assert high == pytest.approx(2.55, rel=0.15)
    assert clip_as_normal(-1.0, 2.0, 0.5, 100, 16) == (-1.0, 2.0)
    assert clip_as_normal(-0.1, 2.0, 0.0, 1000, 8)[0] >= -0.1


def test_statistics_come_back_from_arrays():
    seen = observed(parts())
    back = Observations.from_arrays(seen.to_arrays())
    assert (back.low, back.high, back.count, back.plane) == (seen.low, seen.high, seen.count, seen.plane)
    assert (back.running, back.normal_running) == (seen.running, seen.normal_running)
    np.testing.assert_array_equal(back.histogram.counts, seen.histogram.counts)
    np.testing.assert_array_equal(back.magnitudes, seen.magnitudes)
    assert Observations.from_arrays(Observations().to_arrays()).running is None
