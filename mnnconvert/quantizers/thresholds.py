"""From what was seen of a tensor to the steps in which an integer engine holds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnnconvert.ir.types import I8, Steps, round_away
from mnnconvert.quantizers.observers import KL_BINS, Histogram, Observations

Floats = NDArray[np.float64]

KL_LEVELS = 128
KL_FLOOR = 1e-7  # what every bin holds before anything is counted
SMALL_PLANE = 100  # below this height times width a histogram says too little, and KL takes the maximum
ADMM_ROUNDS = 300
PERCENTILE = 99.99


def symmetric_steps(largest: float, clamp: int, dtype: np.dtype = I8) -> Steps:
    """Steps for -largest .. largest in codes -clamp .. clamp; steps of 1 for a tensor of zeros."""
    return Steps(_float32(largest / clamp) or 1.0, 0.0, -clamp, clamp, dtype)


def range_steps(low: float, high: float, clamp: int, dtype: np.dtype = I8) -> Steps:
    """Steps for a range, widened to hold 0, in codes -clamp .. clamp:

    scale = (high - low) / (2 clamp), zero = round(-low / scale) - clamp, so that 0 has a code of its own.
    """
    low, high = min(0.0, low), max(0.0, high)
    scale = _float32((high - low) / (2 * clamp))
    if scale == 0.0:
        return symmetric_steps(0.0, clamp, dtype)
    return Steps(scale, float(np.floor(-low / scale + 0.5) - clamp), -clamp, clamp, dtype)


def _float32(value: float) -> float:
    """As the file stores it, so that codes made before writing are those after reading."""
    return float(np.float32(value))


def kl_largest(seen: Observations) -> float:
    """The largest magnitude worth coding by MNN's rule; see `kl_bins`. The maximum for planes below 100 elements."""
    if seen.plane < SMALL_PLANE or not seen.magnitudes.any():
        return seen.largest
    return (kl_bins(seen.magnitudes) + 0.5) * seen.largest / KL_BINS


def kl_bins(counts: NDArray[np.integer], levels: int = KL_LEVELS) -> int:
    """How many bins of |x| to keep so that `levels` equal groups of them lose the least information.

    Migacz, "8-bit inference with TensorRT", 2017, as MNN's tool has it: every bin starts at 1e-7 and all are
    normalised. For i = levels .. bins-1, P is the first i bins with all later mass added to the last of them, E the
    first i bins gathered in `levels` equal groups (borders cut bins in proportion) and spread evenly over each group;
    the i with the smallest sum P log(P / E) wins, the first of equals. No bin is empty, so no E is 0.
    """
    p = counts + KL_FLOOR
    p = p / p.sum()
    below = np.concatenate([[0.0], np.cumsum(p)])
    best, best_loss = len(p) - 1, np.inf
    for i in range(levels, len(p)):
        loss = _information_lost(p, below, i, levels)
        if loss < best_loss:
            best, best_loss = i, loss
    return best


def _information_lost(p: Floats, below: Floats, i: int, levels: int) -> float:
    """`below[k]` is the mass of the first k bins; mass at a border inside a bin is in proportion."""
    borders = np.linspace(0.0, i, levels + 1)
    edges = np.arange(i + 1)
    grouped = np.interp(borders, edges, below[: i + 1])
    spread = np.diff(np.interp(edges, borders, grouped))
    kept = p[:i].copy()
    kept[-1] += below[-1] - below[i]
    return float(kept @ np.log(kept / spread))


def admm_scale(histogram: Histogram, largest: float, clamp: int) -> float:
    """The scale of alternating least squares, MNN's "ADMM", on the centres of the bins.

    From alpha = max / (2.5 clamp), 300 rounds of q = clip(round(x / alpha)), alpha = sum(q x) / sum(q^2).
    """
    centres, counts = histogram.occupied()
    alpha = largest / (2.5 * clamp)
    for _ in range(ADMM_ROUNDS if alpha > 0 else 0):
        codes = np.clip(round_away(centres / alpha), -clamp, clamp)
        power = float(np.square(codes) @ counts)
        following = float((codes * centres) @ counts) / power if power else alpha
        if following == alpha:
            break
        alpha = following
    return alpha


def percentile_range(seen: Observations, percent: float = PERCENTILE) -> tuple[float, float]:
    """The range that leaves out (100 - percent) % of the values in all, half on either side, never beyond the data."""
    centres, counts = seen.histogram.occupied()
    if not counts.size:
        return 0.0, 0.0
    share = np.cumsum(counts) / counts.sum()
    left = (1 - percent / 100) / 2
    half = seen.histogram.width / 2
    low = centres[int(np.searchsorted(share, left, side="right"))] - half
    high = centres[min(int(np.searchsorted(share, 1 - left)), len(centres) - 1)] + half
    return max(float(low), seen.low), min(float(high), seen.high)


def mse_range(seen: Observations, clamp: int) -> tuple[float, float]:
    """The range whose steps have the smallest squared error on the histogram, found by shrinking the data's range.

    Both ends shrink together first, then each end alone around the best, ever finer.
    """
    low, high = min(0.0, seen.low), max(0.0, seen.high)
    centres, counts = seen.histogram.occupied()

    def error(ends: tuple[float, float]) -> float:
        steps = range_steps(low * ends[0], high * ends[1], clamp)
        return float(np.square(rounded(centres, steps) - centres) @ counts)

    best = min(((a, a) for a in np.linspace(1.0, 0.1, 91)), key=error)
    for spread in (0.2, 0.05, 0.01):
        for side in (0, 1) if low < 0 < high else (int(low == 0),):
            near = np.clip(best[side] * np.linspace(1 - spread, 1 + spread, 21), 0.02, 1.0)
            best = min([best, *((a, best[1]) if side == 0 else (best[0], a) for a in near)], key=error)
    return low * best[0], high * best[1]


def rounded(x: NDArray[np.floating], steps: Steps) -> NDArray[np.floating]:
    """`x` as an integer engine would hold it: (clamp(round(x / scale) + zero, low, high) - zero) * scale."""
    codes = np.clip(round_away(x / steps.scale) + steps.zero, steps.low, steps.high)
    return (codes - steps.zero) * steps.scale


def _kl(seen: Observations, clamp: int, dtype: np.dtype, percent: float) -> Steps:
    return symmetric_steps(kl_largest(seen), clamp, dtype)


def _admm(seen: Observations, clamp: int, dtype: np.dtype, percent: float) -> Steps:
    return symmetric_steps(admm_scale(seen.histogram, seen.largest, clamp) * clamp, clamp, dtype)


def _ema(seen: Observations, clamp: int, dtype: np.dtype, percent: float) -> Steps:
    return range_steps(*(seen.running or (0.0, 0.0)), clamp, dtype)


def _aciq(seen: Observations, clamp: int, dtype: np.dtype, percent: float) -> Steps:
    low, high = seen.normal_running or (0.0, 0.0)
    return symmetric_steps(max(abs(low), abs(high)), clamp, dtype)


def _min_max(seen: Observations, clamp: int, dtype: np.dtype, percent: float) -> Steps:
    return range_steps(seen.low, seen.high, clamp, dtype)


def _percentile(seen: Observations, clamp: int, dtype: np.dtype, percent: float) -> Steps:
    return range_steps(*percentile_range(seen, percent), clamp, dtype)


def _mse(seen: Observations, clamp: int, dtype: np.dtype, percent: float) -> Steps:
    return range_steps(*mse_range(seen, clamp), clamp, dtype)


METHODS: dict[str, Callable[[Observations, int, Any, float], Steps]] = {
    "KL": _kl,
    "ADMM": _admm,
    "EMA": _ema,
    "MSE": _mse,
    "PERCENTILE": _percentile,
    "MINMAX": _min_max,
    "ACIQ": _aciq,
}
"""KL, ADMM and EMA are MNN's; the first two and ACIQ are symmetric, the others use all codes of one-sided data."""


def choose_steps(
    seen: Observations, method: str, clamp: int = 127, dtype: np.dtype = I8, percent: float = PERCENTILE
) -> Steps:
    """The steps of a tensor by a method of `METHODS`, in codes -clamp .. clamp."""
    return METHODS[method](seen, clamp, dtype, percent)
