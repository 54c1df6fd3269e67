"""Half-quadratic quantization: round-to-nearest steps whose offset is fitted to the weights, without data."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mnnconvert.errors import UsageError
from mnnconvert.ir.coded import CodedWeights
from mnnconvert.quantizers.rtn import (
    BELOW_HALF,
    Floats,
    allocate,
    assemble,
    check_half,
    enumerate_tiles,
    extremes,
    nearest_codes,
)

ITERATIONS = 20
P = np.float32(0.7)
BETA = np.float32(10)
SMALLEST_SCALE = np.float32(1e-7)
SHRINK_FROM = 0.169  # just below BETA ** (-1 / (2 - P)) = 0.170: residuals up to here shrink to exactly 0


def quantize(
    weights: NDArray[np.floating], bits: int, block: int = 0, symmetric: bool = False, half_scales: bool = False
) -> CodedWeights:
    """Code weights [rows, columns] with `bits` 2..8 in blocks of `block` columns (0: the whole row).

    Badri and Shaji, "Half-Quadratic Quantization of Large Machine Learning Models", 2023: with the scale s fixed to
    (max-min) / (2^b-1), minimise ||w - s(u - z)||_p over z by 20 alternations of
        u = clip(round(w/s + z)),  e = shrink(w - s(u - z)),  z = mean(u - (w - e)/s),
    then minimum = -z s and codes are nearest to that grid. p = 0.7, beta = 10 without growth, the last z is kept:
    scales, minima and codes are bit for bit those of the released converter (where residuals reach 0.17, powers are
    taken and one minimum in some hundred differs by an ulp or two). Deviations: a constant block keeps its value as
    the minimum (a mean of equal numbers rounds), and with `half_scales` scale and minimum are rounded to the nearest
    float16 before the codes are computed (the released converter truncates them, after).

    What holds against `rtn` with the same block: while no residual reaches 0.17, e is 0 and the alternation is
    coordinate descent on the squared error, so no block gets worse beyond the float32 roundings; random weights of
    deviation 0.05 gain 11 % in blocks of 32, 8 % in blocks of 64. Large weights follow the l_p norm, which ignores
    outliers: at deviation 5 and 4 bits a fifth of the blocks are worse, by at most 15 %, though the mean still gains.
    Raises UsageError `hqq-needs-asymmetric`; otherwise as `rtn.quantize`.
    """
    if symmetric:
        raise UsageError.of("hqq-needs-asymmetric", "HQQ fits the offset, which symmetric codes do not have")
    rows, columns = weights.shape
    block = block or columns
    codes, numbers = allocate(rows, columns, block)
    for row, (where, tile) in enumerate_tiles(weights, block):
        scale, minimum = _fit(tile, *extremes(tile, row), bits)
        if half_scales:
            scale, minimum = _nearest_half(scale), _nearest_half(minimum)
        numbers[where] = np.stack([scale, minimum], axis=-1).reshape(numbers[where].shape)
        codes[where] = nearest_codes(tile, scale, minimum, bits).reshape(codes[where].shape)
    return assemble(codes, numbers, bits, symmetric, half_scales)


def _fit(tile: Floats, low: Floats, high: Floats, bits: int) -> tuple[Floats, Floats]:
    """Scale and minimum of each block of a tile [count, block]. The order of roundings is the released converter's."""
    top = np.float32((1 << bits) - 1)
    inverse = 1 / np.maximum((high - low) * (1 / top), SMALLEST_SCALE)
    scale = 1 / inverse
    columns = np.ascontiguousarray(tile.T)  # [block, count]: one block per lane
    steps = columns * inverse
    zero = -low * inverse
    for _ in range(ITERATIONS):
        codes = np.floor(np.clip(steps + zero, 0, top) + BELOW_HALF)
        residual = _shrink(columns - (codes - zero) * scale)
        codes -= steps if residual is None else (columns - residual) * inverse
        zero = _running_sum(codes) / np.float32(len(codes))
    return scale, np.where(low == high, low, -zero * scale)


def _running_sum(values: Floats) -> Floats:
    """Sums down the columns, one float32 addition after the other (numpy would add a single column pairwise)."""
    total: Floats = np.add.reduce(values, axis=0) if values.shape[1] > 1 else np.cumsum(values, axis=0)[-1]
    return total


def _shrink(residual: Floats) -> Floats | None:
    """sign(r) max(|r| - |r|^(p-1) / beta, 0), the proximal step of the l_p norm; None when it is 0 everywhere."""
    size = np.abs(residual)
    if size.max() < SHRINK_FROM:
        return None
    with np.errstate(divide="ignore"):
        shrunk: Floats = np.copysign(np.maximum(size - size ** (P - 1) / BETA, 0), residual)
    return shrunk


def _nearest_half(values: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return check_half(values.astype(np.float16), values)
