"""Least-squares grids: scale and minimum of every block fitted to its weights, with or without data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mnnconvert.errors import ConversionError
from mnnconvert.ir.coded import CodedWeights
from mnnconvert.quantizers import hqq, rtn
from mnnconvert.quantizers.blocks import (
    Coded,
    Floats,
    Form,
    Grids,
    by_lanes,
    choose,
    errors,
    extremes,
    lanes_of,
    nearest_half,
    running_sum,
    tiles,
    whole,
)
from mnnconvert.quantizers.compiled import kernels

STARTS = 8  # widths of grids, each at several places
ROUNDS = 8  # improvements of the best start, at most
ON_GRID = 0.02  # steps; weights that were coded lie nearer than that to their grid, also after rounding to float16
PROBE = 4  # weights of a block that tell most grids apart
LARGEST_HALF = np.float32(65504)
SHRINKS = {
    2: (0.45, 1.05),
    3: (0.65, 1.05),
    4: (0.7, 1.03),
    5: (0.8, 1.02),
    6: (0.85, 1.02),
    7: (0.9, 1.01),
    8: (0.92, 1.01),
}


def quantize(
    weights: NDArray[np.floating],
    bits: int,
    block: int = 0,
    symmetric: bool = False,
    half_scales: bool = False,
    importance: NDArray[np.floating] | None = None,
) -> CodedWeights:
    """Code weights [rows, columns] with `bits` 2..8 in blocks of `block` columns (0: the whole row).

    `importance` [columns], not negative: how much an error in a column counts, as the mean square of the input that
    it multiplies (the diagonal of the Hessian of the layer's output error). None: all columns count the same.

    Minimises sum_j h_j (w_j - s u_j - m)^2 over scale s, minimum m and codes u of every block. For given codes the best
    grid solves a 2x2 system, with S_xy = sum_j h_j x_j y_j:
        D = S_11 S_uu - S_1u^2,  s = (S_11 S_wu - S_1w S_1u) / D,  m = (S_uu S_1w - S_1u S_wu) / D,
    and for a given grid the best codes are the nearest. The two alternate (Lloyd's iteration on a uniform grid) from
    starts around the grid that spans the block: narrower ones, shifted by thirds of a step. The best start is improved
    until it stays. Among the candidates are the grids of `rtn` and `hqq` and those on which the weights lie exactly, if
    there are, as with weights that were quantized before; each block gets the one whose decoded, rounded numbers have
    the least error. So no block has a larger weighted error than with `rtn` or `hqq`.

    Symmetric: m = 0 and codes -2^(b-1) .. 2^(b-1)-1, of which `rtn` leaves out the lowest; the scale may be negative,
    which gives the code more to the side that needs it.

    On weights scaled by a power of two the result scales exactly. Raises as `rtn.quantize`, `bad-importance`, and
    ValueError when `block` does not divide the columns.
    """
    rows, columns = weights.shape
    form = Form(bits, whole(block, columns), symmetric, half_scales, full=symmetric)
    counts = balanced(importance, columns, form.block)
    coded = Coded(rows, columns, form)
    for where, tile in tiles(weights, form.block):
        first, last = where[1].start * form.block, where[1].stop * form.block
        coded.put(where, tile, best_grids(tile, counts[first:last], form, where[0].start))
    return coded.weights()


def balanced(importance: NDArray[np.floating] | None, columns: int, block: int) -> Floats:
    """Importance [columns] as float32 of mean 1 in every block; ones where a block has none at all.

    Raises ConversionError `bad-importance` when numbers are negative, not finite or of another count.
    """
    if importance is None:
        return np.ones(columns, np.float32)
    given = np.asarray(importance, np.float64)
    if given.shape != (columns,) or not np.isfinite(given).all() or given.min() < 0:
        raise ConversionError.of(
            "bad-importance",
            f"the importance of {columns} columns must be as many finite numbers that are not negative",
            hint="give the mean square of every input channel of the layer",
        )
    parts = given.reshape(-1, block)
    mean = parts.mean(axis=1, keepdims=True)
    return np.where(mean > 0, parts / np.where(mean > 0, mean, 1), 1).astype(np.float32).reshape(-1)


def best_grids(tile: Floats, importance: Floats, form: Form, row: int = 0) -> Grids:
    """The grids of a tile, importance [its columns]: of all candidates the best, block by block."""
    low, high = extremes(tile, form.block, row)
    spanning = rtn.spanning(low, high, form)
    candidates: list[Grids | None] = [
        _exact(tile, low, high, spanning, form),
        _fitted(tile, low, high, importance, form),
    ]
    if not form.symmetric:
        candidates.append(hqq.fitted(tile, low, high, replace(form, half=False)))
    candidates = [spanning, *(_rounded(c, form) for c in candidates if c is not None)]
    return choose(candidates, errors(tile, candidates, form, importance))


def _rounded(grids: Grids, form: Form) -> Grids:
    """The grids as they can be stored; what float16 cannot hold becomes the nearest that it can."""
    if not form.half:
        return grids
    scale, minimum = (None if x is None else nearest_half(np.clip(x, -LARGEST_HALF, LARGEST_HALF)) for x in grids)
    assert scale is not None
    return Grids(scale, minimum)


def _exact(tile: Floats, low: Floats, high: Floats, otherwise: Grids, form: Form) -> Grids | None:
    """Grids on which all weights of a block lie, as weights do that were coded before; else those given. None: no such block.

    The ends of the block are points of such a grid, k steps apart. Any k has a multiple in top/2 < k <= top (symmetric:
    the largest weight is k steps from 0, 2^(b-2) < k <= 2^(b-1)), and a finer grid does no harm.
    """
    first = (np.zeros_like(low) if form.symmetric else low).reshape(-1)
    last = (np.where(high >= -low, high, low) if form.symmetric else high).reshape(-1)
    span = last.astype(np.float64) - first
    most = -form.lowest if form.symmetric else form.top
    x, k = tile.reshape(-1, form.block), np.arange(most // 2 + 1, most + 1)
    unit = np.divide(1, span, out=np.zeros_like(span), where=span != 0)
    share = ((x[:, 0] - first) * unit).astype(np.float32)
    blocks, which = np.nonzero(_distance(share[:, None] * k.astype(np.float32)) < ON_GRID)
    for columns in (PROBE, form.block):  # one weight tells most grids apart, a few more the rest
        at = (x[blocks, :columns] - first[blocks, None]) * (k[which] * unit[blocks])[:, None]
        distance = _distance(at).max(axis=1)
        on = distance < ON_GRID
        blocks, which, distance = blocks[on], which[on], distance[on]
    order = np.argsort(-distance)
    steps = np.zeros(len(span))
    steps[blocks[order]] = k[which[order]]  # of several, the nearest is written last
    found = steps > 0
    if not found.any():
        return None
    sign = -1 if form.symmetric else 1  # the largest weight has the code that exists on one side only
    exact = np.divide(span * sign, steps, out=otherwise.scale.reshape(-1).astype(np.float64), where=found)
    scale = exact.astype(np.float32).reshape(low.shape)
    if otherwise.minimum is None:
        return Grids(scale, None)
    return Grids(scale, np.where(found.reshape(low.shape), low, otherwise.minimum))


def _distance(steps: NDArray[np.floating]) -> NDArray[np.floating]:
    """From the nearest point of a grid, both in steps."""
    return np.abs(steps - np.rint(steps))


def _fitted(tile: Floats, low: Floats, high: Floats, importance: Floats, form: Form) -> Grids:
    """The least-squares grids that the search finds, in float32 and in units of the spanning grid."""
    if form.symmetric:
        middle = np.zeros_like(low)
        unit = np.where(high >= -low, high, low) / np.float32(form.lowest)  # the largest weight gets the lowest code
        centre = np.float32(-form.lowest)
    else:
        middle = low * np.float32(0.5) + high * np.float32(0.5)
        unit = (high - low) / np.float32(form.top)
        centre = np.float32(form.top / 2)
    unit = np.where(unit != 0, unit, np.float32(1))
    scale, origin = _search(tile, importance, middle, unit, starts(form), centre, form)
    minimum = (origin - centre * scale) * unit + middle
    return Grids(scale * unit, None if form.symmetric else minimum)


def starts(form: Form) -> Floats:
    """Where the search starts, {scale, origin} [count, 2] in units of the spanning grid."""
    shrinks = np.linspace(*SHRINKS[form.bits], STARTS)
    if form.symmetric:
        pairs = [(sign * s, 0.0) for s in shrinks for sign in (1, -1)]
    else:
        pairs = [(s, s * shift) for s in shrinks for shift in (0, -1 / 3, 1 / 3)]
    return np.array(pairs, np.float32)


def _search(
    tile: Floats, importance: Floats, middle: Floats, unit: Floats, first: Floats, centre: np.float32, form: Form
) -> tuple[Floats, Floats]:
    """The best {scale, origin} [rows, blocks] in units of the blocks, x = (w - middle) / unit."""
    rows, columns = tile.shape
    if (library := kernels()) is not None:
        scale, origin = np.empty((2, *unit.shape), np.float32)
        arrays = {"w": tile, "h": importance, "middle": middle, "unit": unit, "starts": first}
        sizes = {"rows": rows, "columns": columns, "block": form.block, "top": form.top, "centre": centre}
        numbers = {"symmetric": form.symmetric, "count": len(first), "rounds": ROUNDS}
        library.call("fit_grids", **arrays, scale=scale, origin=origin, **sizes, **numbers)
        return scale, origin
    x = (by_lanes(tile, form.block) - middle.reshape(-1)) / unit.reshape(-1)
    h = lanes_of(importance, form.block, rows)
    total = running_sum(h)
    least = np.full(x.shape[1], np.inf, np.float32)
    best = np.ones_like(least), np.zeros_like(least)
    for i in range(len(first) + ROUNDS):
        start = (np.full_like(least, number) for number in first[i]) if i < len(first) else best
        scale, origin, error = _step(x, h, total, *start, centre, form)
        better = (error < least) & (scale != 0 if form.symmetric else scale > 0)
        least = np.where(better, error, least)
        best = np.where(better, scale, best[0]), np.where(better, origin, best[1])
    return best[0].reshape(unit.shape), best[1].reshape(unit.shape)


def _step(
    x: Floats, h: Floats, total: Floats, s: Floats, m: Floats, centre: np.float32, form: Form
) -> tuple[Floats, Floats, Floats]:
    """The best {s, m} for the codes of the grid {s, m}, and the error with these codes; one block per lane.

    The system is solved for the change of the grid, from the residuals r = x - s u - m, so that nothing cancels.
    """
    inverse = 1 / s
    u = np.clip(np.rint(x * inverse + (centre - m * inverse)), 0, np.float32(form.top)) - centre
    r = x - (u * s + m)
    hu, hr = h * u, h * r
    u2, ru, r2 = running_sum(hu * u), running_sum(hr * u), running_sum(hr * r)
    if form.symmetric:
        ds = np.divide(ru, u2, out=np.zeros_like(ru), where=u2 > 0)
        return s + ds, m, r2 - ds * ru
    u1, r1 = running_sum(hu), running_sum(hr)
    whole = total * u2
    determinant = whole - u1 * u1
    regular = determinant > whole * np.float32(1e-5)  # else all weights that count have one code
    ds = np.divide(total * ru - u1 * r1, determinant, out=np.zeros_like(s), where=regular)
    dm = np.divide(u2 * r1 - u1 * ru, determinant, out=r1 / total, where=regular)
    return s + ds, m + dm, r2 - ds * ru - dm * r1
