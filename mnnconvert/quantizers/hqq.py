"""Half-quadratic quantization: round-to-nearest steps whose offset is fitted to the weights, without data."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mnnconvert.errors import UsageError
from mnnconvert.ir.coded import CodedWeights
from mnnconvert.quantizers import compiled
from mnnconvert.quantizers.blocks import (
    BELOW_HALF,
    Coded,
    Floats,
    Form,
    Grids,
    by_lanes,
    extremes,
    nearest_half,
    running_sum,
    tiles,
    whole,
)

ITERATIONS = 20
P = np.float32(0.7)
BETA = np.float32(10)
SMALLEST_SCALE = np.float32(1e-7)
SHRINK_FROM = 0.169  # just below BETA ** (-1 / (2 - P)) = 0.170: residuals up to here shrink to exactly 0


Variant = Literal["converter", "reference"]


def quantize(
    weights: NDArray[np.floating],
    bits: int,
    block: int = 0,
    symmetric: bool = False,
    half_scales: bool = False,
    *,
    variant: Variant = "converter",
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

    `variant` "reference" is the algorithm as its authors published it: it ends as soon as the mean |w - s(u - z)| of
    the whole matrix does not fall. The matrix is then walked once per iteration, and its result depends on which rows
    it is given together. On weights whose residuals do not reach 0.17 it is hardly different, and never better.

    What holds against `rtn` with the same block: while no residual reaches 0.17, e is 0 and the alternation is
    coordinate descent on the squared error, so no block gets worse beyond the float32 roundings; random weights of
    deviation 0.05 gain 11 % in blocks of 32, 8 % in blocks of 64. Large weights follow the l_p norm, which ignores
    outliers: at deviation 5 and 4 bits a fifth of the blocks are worse, by at most 15 %, though the mean still gains.
    Raises UsageError `hqq-needs-asymmetric`; otherwise as `rtn.quantize`.
    """
    if symmetric:
        raise UsageError.of("hqq-needs-asymmetric", "HQQ fits the offset, which symmetric codes do not have")
    rows, columns = weights.shape
    form = Form(bits, whole(block, columns), half=half_scales)
    coded = Coded(rows, columns, form)
    zeros = _reference_zeros(weights, form) if variant == "reference" else {}
    for where, tile in tiles(weights, form.block):
        low, high = extremes(tile, form.block, where[0].start)
        coded.put(where, tile, fitted(tile, low, high, form, zeros.get((where[0].start, where[1].start))))
    return coded.weights()


def fitted(tile: Floats, low: Floats, high: Floats, form: Form, zero: Floats | None = None) -> Grids:
    """The grids of a tile whose blocks have the given extremes; `zero` [rows, blocks] where it is fitted already."""
    scale, inverse = _steps(low, high, form)
    if zero is None:
        zero = _zero(tile, scale, inverse, -low * inverse, form)
    minimum = np.where(low == high, low, -zero * scale)
    return Grids(nearest_half(scale), nearest_half(minimum)) if form.half else Grids(scale, minimum)


def _steps(low: Floats, high: Floats, form: Form) -> tuple[Floats, Floats]:
    """Scales and their inverses. The order of roundings is the released converter's."""
    one = np.float32(1)
    inverse = one / np.maximum((high - low) * (one / np.float32(form.top)), SMALLEST_SCALE)
    return one / inverse, inverse


def _reference_zeros(weights: NDArray[np.floating], form: Form) -> dict[tuple[int, int], Floats]:
    """The zeros of every tile, by where it starts: alternations of all, while the error of all falls."""
    zeros: dict[tuple[int, int], Floats] = {}
    least = np.inf
    for _ in range(ITERATIONS):
        error = 0.0
        for (rows, blocks), tile in tiles(weights, form.block):
            low, high = extremes(tile, form.block, rows.start)
            scale, inverse = _steps(low, high, form)
            zero = zeros.get((rows.start, blocks.start), -low * inverse)
            x = by_lanes(tile, form.block)
            flat = scale.reshape(-1), inverse.reshape(-1), zero.reshape(-1)
            fitted, size = _step(x, x * flat[1], *flat, form.top)
            zeros[rows.start, blocks.start] = fitted.reshape(zero.shape)
            error += size
        if error >= least:
            break
        least = error
    return zeros


def _zero(tile: Floats, scale: Floats, inverse: Floats, zero: Floats, form: Form) -> Floats:
    """The alternation, from a first `zero` [rows, blocks]; kernels know it for residuals that do not shrink."""
    if (library := compiled.kernels()) is None:
        x = by_lanes(tile, form.block)
        return _alternate(x, scale.reshape(-1), inverse.reshape(-1), zero.reshape(-1), form.top).reshape(zero.shape)
    fitted, largest = zero.copy(), np.empty_like(zero)
    rows, columns = tile.shape
    sizes = {"rows": rows, "columns": columns, "block": form.block, "top": form.top, "iterations": ITERATIONS}
    compiled.call(library, "hqq_zero", w=tile, scale=scale, inverse=inverse, zero=fitted, largest=largest, **sizes)
    rest = largest >= SHRINK_FROM
    if rest.any():
        x = by_lanes(tile.reshape(*zero.shape, form.block)[rest], form.block)
        fitted[rest] = _alternate(x, scale[rest], inverse[rest], zero[rest], form.top)
    return fitted


def _alternate(columns: Floats, scale: Floats, inverse: Floats, zero: Floats, top: int) -> Floats:
    """The alternation on weights [block, count], one block per lane; the numbers are [count]."""
    steps: Floats = columns * inverse
    for _ in range(ITERATIONS):
        zero, _ = _step(columns, steps, scale, inverse, zero, top)
    return zero


def _step(
    columns: Floats, steps: Floats, scale: Floats, inverse: Floats, zero: Floats, top: int
) -> tuple[Floats, float]:
    """One alternation: the next zero, and the sum of |w - s(u - z)| with the one before."""
    codes: Floats = np.floor(np.clip(steps + zero, 0, np.float32(top)) + BELOW_HALF)
    residual = columns - (codes - zero) * scale
    size = np.abs(residual)
    shrunk = _shrink(residual, size)
    codes -= steps if shrunk is None else np.multiply(columns - shrunk, inverse)
    return running_sum(codes) / np.float32(len(codes)), float(size.sum(dtype=np.float64))


def _shrink(residual: Floats, size: Floats) -> Floats | None:
    """sign(r) max(|r| - |r|^(p-1) / beta, 0), the proximal step of the l_p norm; None when it is 0 everywhere."""
    if size.max() < SHRINK_FROM:
        return None
    with np.errstate(divide="ignore"):
        shrunk: Floats = np.copysign(np.maximum(size - size ** (P - 1) / BETA, 0), residual)
    return shrunk
