"""What all quantizers do with blocks of weights: extremes, nearest codes, errors; tile by tile.

A tile is float32 [rows, columns] of whole blocks, contiguous. Numbers of its blocks are [rows, blocks]. Every function
has the same bits with and without compiled kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from mnnconvert.errors import ConversionError
from mnnconvert.ir.coded import CodedWeights
from mnnconvert.quantizers import compiled

Floats = NDArray[np.float32]
Number = TypeVar("Number", bound=np.floating)

SMALL_TILE, LARGE_TILE = 1 << 16, 1 << 19  # weights; numpy's temporaries stay in the cache, kernels need few calls
BELOW_HALF = np.nextafter(np.float32(0.5), np.float32(0))  # truncate(x + this) rounds half away, also just below 0.5


@dataclass(frozen=True)
class Form:
    """How weights are coded: `bits` 2..8, `block` columns with numbers of their own, without or with a minimum.

    `full`: symmetric codes use -2^(bits-1) too. With `half` the numbers are stored as float16.
    """

    bits: int
    block: int
    symmetric: bool = False
    half: bool = False
    full: bool = False

    @property
    def lowest(self) -> int:
        """The least code in use."""
        return -(1 << (self.bits - 1)) + (self.symmetric and not self.full)

    @property
    def highest(self) -> int:
        """The greatest code."""
        return (1 << (self.bits - 1)) - 1

    @property
    def top(self) -> int:
        """Steps from the least code to the greatest."""
        return self.highest - self.lowest


class Grids(NamedTuple):
    """Numbers of the blocks of a tile, float32 [rows, blocks]; no minimum when symmetric."""

    scale: Floats
    minimum: Floats | None


class Coded:
    """Coded weights that are filled in tile by tile."""

    def __init__(self, rows: int, columns: int, form: Form):
        self.form = form
        self.codes = np.empty((rows, columns), np.int8)
        self.scale = np.empty((rows, columns // form.block), np.float32)
        self.minimum = None if form.symmetric else np.empty_like(self.scale)

    def put(self, where: tuple[slice, slice], tile: Floats, grids: Grids) -> None:
        """Code a tile of `tiles` on these grids."""
        rows, blocks = where
        columns = slice(blocks.start * self.form.block, blocks.stop * self.form.block)
        self.codes[rows, columns] = nearest_codes(tile, grids, self.form)
        self.scale[where] = grids.scale
        if self.minimum is not None:
            self.minimum[where] = grids.minimum

    def weights(self) -> CodedWeights:
        return CodedWeights(self.codes, self.scale, self.minimum, self.form.bits, self.form.half)


def whole(block: int, columns: int) -> int:
    """The size of a block, where 0 means the whole row; ValueError when it does not divide the columns."""
    block = block or columns
    if columns % block:
        raise ValueError(f"blocks of {block} do not divide {columns} columns")
    return block


def tiles(weights: NDArray[np.floating], block: int) -> Iterator[tuple[tuple[slice, slice], Floats]]:
    """Walk weights [rows, columns] in tiles: ((rows, blocks), float32 [count of rows, columns of these blocks])."""
    rows, columns = weights.shape
    size = SMALL_TILE if compiled.kernels() is None else LARGE_TILE
    row_step = max(1, size // columns)
    blocks = columns // block
    block_step = blocks if columns <= size else max(1, size // block)
    for row in range(0, rows, row_step):
        for first in range(0, blocks, block_step):
            last = min(first + block_step, blocks)
            part = weights[row : row + row_step, first * block : last * block]
            yield (slice(row, row + row_step), slice(first, last)), np.ascontiguousarray(part, np.float32)


def extremes(tile: Floats, block: int, row: int = 0) -> tuple[Floats, Floats]:
    """Least and greatest value of every block; refuses NaN, infinity and endless ranges. `row` is where it starts."""
    low, high = _extremes(tile, block)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ConversionError.of(
            "non-finite-weight",
            "weights with NaN or infinity cannot be quantized",
            hint="look for an overflow in the training or the export of this layer",
            row=f"{row} or later",
        )
    if np.max(high.astype(np.float64) - low) > 3.4e38:
        raise ConversionError.of("weight-range", "the weights of one block span more than float32 can hold", row=row)
    return low + np.float32(0), high + np.float32(0)  # whether a zero had a sign depends on the order of comparisons


def _extremes(tile: Floats, block: int) -> tuple[Floats, Floats]:
    rows, columns = tile.shape
    low, high = np.empty((2, rows, columns // block), np.float32)
    if (library := compiled.kernels()) is not None:
        compiled.call(library, "block_extremes", w=tile, low=low, high=high, rows=rows, columns=columns, block=block)
        return low, high
    starts = np.arange(0, tile.size, block)
    for numbers, function in ((low, np.minimum), (high, np.maximum)):
        function.reduceat(tile.ravel(), starts, out=numbers.reshape(-1))
    return low, high


def nearest_codes(tile: Floats, grids: Grids, form: Form) -> NDArray[np.int8]:
    """Codes, int8 like the tile, of the nearest points of the grids; halves are rounded away from zero.

    A constant block has scale 0 and only distances of 0 from its minimum: its code is that of the minimum, or 0.
    """
    rows, columns = tile.shape
    codes = np.empty((rows, columns), np.int8)
    if (library := compiled.kernels()) is not None:
        scale, minimum = np.ascontiguousarray(grids.scale), grids.minimum
        minimum = None if minimum is None else np.ascontiguousarray(minimum)
        arrays: dict[str, Any] = {"w": tile, "scale": scale, "minimum": minimum, "codes": codes}
        compiled.call(library, "block_codes", **arrays, **_sizes(tile, form))
        return codes
    steps = _steps(tile.reshape(-1, form.block), _by_block(grids), form)
    codes.reshape(-1, form.block)[...] = steps
    return codes


def _sizes(tile: Floats, form: Form) -> dict[str, Any]:
    rows, columns = tile.shape
    return {"rows": rows, "columns": columns, "block": form.block, "lowest": form.lowest, "highest": form.highest}


def _by_block(grids: Grids) -> Grids:
    """The numbers as columns [blocks, 1]."""
    return Grids(grids.scale.reshape(-1, 1), None if grids.minimum is None else grids.minimum.reshape(-1, 1))


def _steps(values: Floats, grids: Grids, form: Form) -> Floats:
    """Codes as float32 of values whose shape the numbers of the grids broadcast to."""
    divisor: Floats = np.where(grids.scale != 0, grids.scale, np.float32(1))
    if grids.minimum is None:
        steps: Floats = values / divisor
        steps += np.copysign(BELOW_HALF, steps)
        return np.trunc(np.clip(steps, form.lowest, form.highest, out=steps), out=steps)
    steps = values - grids.minimum
    steps /= divisor
    np.clip(steps, 0, form.top, out=steps)
    steps += BELOW_HALF
    np.floor(steps, out=steps)
    steps += np.float32(form.lowest)
    return steps


def errors(tile: Floats, grids: list[Grids], form: Form, importance: Floats) -> NDArray[np.float64]:
    """Errors [grids, rows, blocks]: sum over a block of importance [columns] x (weight - nearest point, decoded)^2."""
    rows = len(tile)
    scale = np.stack([g.scale for g in grids])
    minimum = None if form.symmetric else np.stack([g.minimum for g in grids if g.minimum is not None])
    result = np.empty(scale.shape)
    if (library := compiled.kernels()) is not None:
        arrays: dict[str, Any] = {"w": tile, "h": importance, "scale": scale, "minimum": minimum, "errors": result}
        compiled.call(library, "block_errors", **arrays, **_sizes(tile, form), grids=len(grids))
        return result
    x, h = by_lanes(tile, form.block), lanes_of(importance, form.block, rows)
    for i, grid in enumerate(grids):
        by_lane = Grids(grid.scale.reshape(-1), None if grid.minimum is None else grid.minimum.reshape(-1))
        decoded = _steps(x, by_lane, form)
        if by_lane.minimum is not None:
            decoded -= np.float32(form.lowest)
        decoded *= by_lane.scale
        if by_lane.minimum is not None:
            decoded += by_lane.minimum
        difference = (x - decoded).astype(np.float64)
        difference *= difference
        difference *= h
        result[i] = running_sum(difference).reshape(rows, -1)
    return result


def choose(candidates: list[Grids], error: NDArray[np.float64]) -> Grids:
    """Of every block the candidate of the least error [candidates, rows, blocks], the first of equal ones."""
    best = np.argmin(error, axis=0)[None]

    def chosen(numbers: list[Floats]) -> Floats:
        return np.take_along_axis(np.stack(numbers), best, axis=0)[0]

    minima = [c.minimum for c in candidates if c.minimum is not None]
    return Grids(chosen([c.scale for c in candidates]), chosen(minima) if minima else None)


def by_lanes(tile: Floats, block: int) -> Floats:
    """A tile as [block, blocks of all rows], contiguous: one block per lane."""
    return np.ascontiguousarray(tile.reshape(-1, block).T)


def lanes_of(numbers: Floats, block: int, rows: int) -> Floats:
    """Numbers [columns] for what `by_lanes` makes of a tile of `rows` rows."""
    return np.tile(numbers.reshape(-1, block).T, (1, rows))


def running_sum(values: NDArray[Number]) -> NDArray[Number]:
    """Sums down the columns, one addition after the other (numpy would add a single column pairwise)."""
    total: NDArray[Number] = np.add.reduce(values, axis=0) if values.shape[1] > 1 else np.cumsum(values, axis=0)[-1]
    return total


def nearest_half(values: Floats) -> Floats:
    """The nearest float16 numbers, as float32."""
    with np.errstate(over="ignore"):
        return check_half(values.astype(np.float16), values)


def check_half(half: NDArray[np.float16], values: Floats) -> Floats:
    """float16 numbers as float32; refuses those that overflowed."""
    if not np.isfinite(half).all():
        raise ConversionError.of(
            "half-overflow",
            f"the scale or minimum {np.abs(values).max():.6g} does not fit into float16 (65504 at most)",
            hint="store scales as float32",
        )
    return half.astype(np.float32)
