"""What is kept of a tensor while samples go by: range, histogram and running ranges, in constant memory.

Everything but the running range is the same in whatever order the samples come.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]

BINS = 4096  # on each side of zero
KL_BINS = 2048
IGNORED = 1e-6  # magnitudes up to this are left out of the histogram of magnitudes
MOMENTUM = 0.99
SMALLEST_EXPONENT = -140  # bins below float32's denormals would not tell more


class Histogram:
    """Counts of values in 2 x 4096 bins of width 2^exponent around zero.

    The width is the smallest power of two with which the largest magnitude so far has a bin. Growing merges
    neighbours, and floor(floor(x / w) / 2) = floor(x / 2w), so the counts are those of a histogram that had the final
    width from the start: one pass is enough, and order and partition of the data leave no trace.
    """

    def __init__(self, exponent: int = SMALLEST_EXPONENT, counts: Counts | None = None):
        self.exponent = exponent
        self.counts = np.zeros(2 * BINS, np.int64) if counts is None else counts

    def add(self, values: NDArray[np.floating]) -> None:
        """Count finite float values of any shape."""
        flat = np.asarray(values, np.float64).reshape(-1)
        if not flat.size:
            return
        self._grow(fitting_exponent(float(np.abs(flat).max())))
        bins = np.floor(flat * 2.0**-self.exponent).astype(np.int64) + BINS
        self.counts += np.bincount(bins, minlength=2 * BINS)

    def _grow(self, exponent: int) -> None:
        if exponent > self.exponent:
            self.counts = _coarser(self.counts, exponent - self.exponent)
            self.exponent = exponent

    @property
    def width(self) -> float:
        return 2.0**self.exponent

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def occupied(self) -> tuple[NDArray[np.float64], Counts]:
        """Centres and counts of the bins that hold anything, in ascending order."""
        where = np.flatnonzero(self.counts)
        centres: NDArray[np.float64] = (where - BINS + 0.5) * np.float64(self.width)
        return centres, self.counts[where]

    def moments(self) -> tuple[float, float]:
        """Mean and variance, to within half a bin."""
        centres, counts = self.occupied()
        if not counts.size:
            return 0.0, 0.0
        mean = float(centres @ counts) / self.total
        return mean, float(np.square(centres - mean) @ counts) / self.total


def fitting_exponent(largest: float) -> int:
    """The smallest e with `largest` < 4096 * 2^e."""
    if largest <= 0:
        return SMALLEST_EXPONENT
    return max(SMALLEST_EXPONENT, math.frexp(largest)[1] - int(math.log2(BINS)))


def _coarser(counts: Counts, doublings: int) -> Counts:
    """Counts in bins that are 2^doublings times as wide; zero stays a border between bins."""
    if doublings == 0:
        return counts
    where = np.flatnonzero(counts)
    result = np.zeros_like(counts)
    np.add.at(result, ((where - BINS) >> min(doublings, 62)) + BINS, counts[where])
    return result


@dataclass
class Observations:
    """What is known of one tensor.

    `low` and `high` are the exact extremes (0 before any data), `plane` the smallest height times width seen,
    `running` the exponential averages (low, high) over samples in their order (None before the first),
    `normal_running` the like of ranges that were clipped as if the data were normal. `magnitudes` holds 2048 counts of
    |x| over 0 .. max|x| from a second pass.
    """

    low: float = 0.0
    high: float = 0.0
    count: int = 0
    plane: int = 0
    running: tuple[float, float] | None = None
    normal_running: tuple[float, float] | None = None
    histogram: Histogram = field(default_factory=Histogram)
    magnitudes: Counts = field(default_factory=lambda: np.zeros(KL_BINS, np.int64))

    def add(self, values: NDArray[np.floating], bits: int = 8) -> None:
        """Take in one sample (finite floats of any shape); `bits` is what the range of normal data is clipped for."""
        if not values.size:
            return
        low, high = float(values.min()), float(values.max())
        self.low = min(low, self.low) if self.count else low
        self.high = max(high, self.high) if self.count else high
        plane = math.prod(values.shape[2:]) if values.ndim > 2 else 1
        self.plane = min(plane, self.plane) if self.count else plane
        self.count += values.size
        self.histogram.add(values)
        self.running = _average(self.running, (min(0.0, low), max(0.0, high)))
        mean = float(values.mean(dtype=np.float64))
        self.normal_running = _average(self.normal_running, clip_as_normal(low, high, mean, values.size, bits))

    def add_magnitudes(self, values: NDArray[np.floating]) -> None:
        """Second pass: count |x| in 2048 bins of 0 .. max|x|; magnitudes up to 1e-6 are not counted."""
        size = np.abs(np.asarray(values, np.float64).reshape(-1))
        size = size[size > IGNORED]
        if size.size:
            bins = np.minimum((size * (KL_BINS / self.largest)).astype(np.int64), KL_BINS - 1)
            self.magnitudes += np.bincount(bins, minlength=KL_BINS)

    @property
    def largest(self) -> float:
        """max|x|"""
        return max(abs(self.low), abs(self.high))

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """Everything as arrays, for a file."""
        running = [*(self.running or (np.nan, np.nan)), *(self.normal_running or (np.nan, np.nan))]
        return {
            "range": np.array([self.low, self.high]),
            "running": np.array(running),
            "numbers": np.array([self.count, self.plane, self.histogram.exponent], np.int64),
            "counts": self.histogram.counts,
            "magnitudes": self.magnitudes,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.generic]]) -> Observations:
        """The inverse of `to_arrays`."""
        low, high = (float(x) for x in arrays["range"])
        count, plane, exponent = (int(x) for x in arrays["numbers"])
        running = [float(x) for x in arrays["running"]]
        pairs = [None if math.isnan(a) else (a, b) for a, b in (running[:2], running[2:])]
        histogram = Histogram(exponent, arrays["counts"].astype(np.int64))
        return cls(low, high, count, plane, pairs[0], pairs[1], histogram, arrays["magnitudes"].astype(np.int64))


def _average(before: tuple[float, float] | None, now: tuple[float, float]) -> tuple[float, float]:
    """The exponential average with momentum 0.99; the first sample counts in full."""
    if before is None:
        return now
    low, high = (MOMENTUM * b + (1 - MOMENTUM) * n for b, n in zip(before, now, strict=True))
    return low, high


_HALF_WIDTHS = {8: 3.92, 4: 2.55, 2: 1.71}  # of the clip, in deviations of a normal distribution


def clip_as_normal(low: float, high: float, mean: float, count: int, bits: int = 8) -> tuple[float, float]:
    """The range in which normal data of this range are best coded, never wider than the data.

    Banner et al., "Post-training 4-bit quantization of convolution networks", 2019 (ACIQ):
    sigma = (high - low) c / sqrt(2 ln n), c = 0.175 (1 + sqrt(pi ln 4)), and mean -+ k sigma with k = 3.92 for 8 bits.
    Beyond 8 bits nothing is gained by clipping.
    """
    if bits not in _HALF_WIDTHS or count < 2:
        return low, high
    sigma = (high - low) * 0.175 * (1 + math.sqrt(math.pi * math.log(4))) / math.sqrt(2 * math.log(count))
    width = _HALF_WIDTHS[bits] * sigma
    return max(low, mean - width), min(high, mean + width)
