"""Least-squares grids: scale and minimum of every block fitted to its weights, with or without data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnnconvert.errors import ConversionError
from mnnconvert.ir.coded import CodedWeights
from mnnconvert.quantizers import compiled, hqq, rtn
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

STARTS = 8  # widths of grids, each at several places
Doubles = NDArray[np.float64]

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
    found = [] if form.symmetric else [hqq.fitted(tile, low, high, replace(form, half=False))]
    counting = _counting(tile, importance, form.block)
    if counting is not tile:
        low, high = extremes(counting, form.block, row)
    found.append(_fitted(counting, low, high, importance, form))
    exact = _exact(counting, low, high, found[-1], form)
    candidates = [spanning, *(_rounded(c, form) for c in [*found, *([] if exact is None else [exact])])]
    return choose(candidates, errors(tile, candidates, form, importance))


def _counting(tile: Floats, importance: Floats, block: int) -> Floats:
    """The tile with weights that do not count replaced by the one of their block that counts most."""
    if importance.all():
        return tile
    parts = importance.reshape(-1, block)
    most = np.argmax(parts, axis=1) + np.arange(len(parts)) * block
    columns = np.where(parts > 0, np.arange(parts.size).reshape(parts.shape), most[:, None])
    return np.ascontiguousarray(tile[:, columns.reshape(-1)])


def _rounded(grids: Grids, form: Form) -> Grids:
    """The grids as they can be stored; what float16 cannot hold becomes the nearest that it can."""
    if not form.half:
        return grids
    scale, minimum = (None if x is None else nearest_half(np.clip(x, -LARGEST_HALF, LARGEST_HALF)) for x in grids)
    assert scale is not None
    return Grids(scale, minimum)


def _exact(tile: Floats, low: Floats, high: Floats, otherwise: Grids, form: Form) -> Grids | None:
    """Grids on which all weights of a block lie, as those of weights that were coded before; else those given.

    The ends of such a block are whole steps apart; symmetric: its largest weight is whole steps from 0, and gets the
    code below 0, of which there is one more. None when there is no such block.
    """
    first = (np.zeros_like(low) if form.symmetric else low).reshape(-1).astype(np.float64)
    span = (np.where(high >= -low, high, low) if form.symmetric else high).reshape(-1) - first
    steps = _steps_between(tile.reshape(-1, form.block), first, span, -form.lowest if form.symmetric else form.top)
    found = steps > 0
    if not found.any():
        return None
    fitting = np.divide(-span if form.symmetric else span, steps, out=np.zeros_like(span), where=found)
    found = found.reshape(low.shape)
    scale = np.where(found, fitting.reshape(low.shape).astype(np.float32), otherwise.scale)
    return Grids(scale, None if otherwise.minimum is None else np.where(found, low, otherwise.minimum))


def _steps_between(x: Floats, first: Doubles, span: Doubles, most: int) -> Doubles:
    """How many steps `span` is on a grid from `first` on which all weights of a block lie; 0 where there is none.

    x [blocks, block], the others [blocks]. Up to `most` steps there can be, of which only the upper half is tried: what
    lies on fewer lies on a multiple of them, too. (Half of `most` is tried for codes that go as far to both sides.)
    """
    k = np.arange(most, max(most // 2, 1) - 1, -1)
    unit = np.divide(1, span, out=np.zeros_like(span), where=span != 0)
    near = np.ones((len(x), len(k)), bool)
    for column in {0, x.shape[1] // 2}:  # two weights tell most grids apart
        share = ((x[:, column] - first) * unit).astype(np.float32)
        near &= _distance(share[:, None] * k.astype(np.float32)) < ON_GRID
    blocks, which = np.divmod(np.flatnonzero(near), len(k))
    for columns in (PROBE, x.shape[1]):  # a few more the rest
        distance = _distance((x[blocks, :columns] - first[blocks, None]) * (k[which] * unit[blocks])[:, None])
        furthest = distance.max(axis=1)
        on = furthest < ON_GRID
        blocks, which, furthest = blocks[on], which[on], furthest[on]
    order = np.argsort(-np.round(furthest, 3), kind="stable")
    steps = np.zeros(len(span))
    steps[blocks[order]] = k[which[order]]  # of several, the nearest and then the coarsest is written last
    return steps


def _distance(steps: NDArray[np.floating]) -> NDArray[np.floating]:
    """From the nearest point of a grid, both in steps; in place."""
    steps -= np.rint(steps)
    return np.abs(steps, out=steps)


def _fitted(tile: Floats, low: Floats, high: Floats, importance: Floats, form: Form) -> Grids:
    """The least-squares grids that the search finds, in float32 and in units of the spanning grid."""
    if form.symmetric:
        middle: Floats = np.zeros_like(low)
        largest: Floats = np.where(high >= -low, high, low)  # gets the lowest code
        unit = largest / np.float32(form.lowest)
        centre = np.float32(-form.lowest)
    else:
        middle = np.asarray(low * np.float32(0.5) + high * np.float32(0.5), np.float32)
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
    if (library := compiled.kernels()) is not None:
        scale, origin = np.empty((2, *unit.shape), np.float32)
        sizes: dict[str, Any] = {"rows": rows, "columns": columns, "block": form.block, "top": form.top}
        sizes |= {"symmetric": form.symmetric, "count": len(first), "rounds": ROUNDS, "centre": centre}
        arrays: dict[str, Any] = {"w": tile, "h": importance, "middle": middle, "unit": unit, "starts": first}
        compiled.call(library, "fit_grids", **arrays, **sizes, scale=scale, origin=origin)
        return scale, origin
    x = (by_lanes(tile, form.block) - middle.reshape(-1)) / unit.reshape(-1)
    h = lanes_of(importance, form.block, rows)
    total = running_sum(h)
    least = np.full(x.shape[1], np.inf, np.float32)
    best = np.ones_like(least), np.zeros_like(least)
    for i in range(len(first) + ROUNDS):
        start = (np.full_like(least, first[i, 0]), np.full_like(least, first[i, 1])) if i < len(first) else best
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
