"""Round to nearest: every block gets the grid that spans its values, every weight the nearest grid point."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from mnnconvert.errors import ConversionError
from mnnconvert.ir.coded import CodedWeights

Floats = NDArray[np.float32]

TILE_ELEMENTS = 1 << 16  # 256 KiB of float32: a tile and its temporaries stay in the cache
BELOW_HALF = np.nextafter(np.float32(0.5), np.float32(0))  # truncate(x + this) rounds half away, also just below 0.5


def quantize(
    weights: NDArray[np.floating], bits: int, block: int = 0, symmetric: bool = False, half_scales: bool = False
) -> CodedWeights:
    """Code weights [rows, columns] with `bits` 2..8 in blocks of `block` columns (0: the whole row).

    Symmetric: scale = max|w| / (2^(b-1)-1), code = round(w / scale); the lowest code stays unused.
    Asymmetric: scale = (max-min) / (2^b-1), code = round((w-min) / scale) - 2^(b-1).
    All in float32, halves rounded away from zero. Every weight decodes to within half a step of itself (plus the
    float32 roundings of the decoding). The weights may be a memory map: they are read in tiles, and beside the result
    only one tile is in memory. Raises ConversionError `non-finite-weight`, `weight-range`, `half-overflow`;
    ValueError when `block` does not divide the columns.

    Scales and minima are bit for bit those of the released converter, and so are the codes where scale > 1e-6. Below
    that the released converter flattens the block (each weight becomes 0, or the minimum), which loses small but
    meaningful weights and at 8 bits all detail within 2.5e-4; here they are coded like any other. With `half_scales`
    the minimum is rounded down and the scale up to float16, before the codes are computed, so that the grid still
    spans the block; the released converter truncates both towards zero, with codes that belong to the float32 numbers.
    """
    rows, columns = weights.shape
    block = block or columns
    codes, numbers = allocate(rows, columns, block)
    for number, (where, tile) in enumerate_tiles(weights, block):
        low, high = extremes(tile, number)
        scale, minimum = _grid(low, high, bits, symmetric, half_scales)
        numbers[where] = np.stack([scale, minimum], axis=-1).reshape(numbers[where].shape)
        nearest = _nearest_signed(tile, scale, bits) if symmetric else nearest_codes(tile, scale, minimum, bits)
        codes[where] = nearest.reshape(codes[where].shape)
    return assemble(codes, numbers, bits, symmetric, half_scales)


def allocate(rows: int, columns: int, block: int) -> tuple[NDArray[np.int8], Floats]:
    """Empty codes [rows, blocks, block] and {scale, minimum} [rows, blocks, 2]."""
    if columns % block:
        raise ValueError(f"blocks of {block} do not divide {columns} columns")
    blocks = columns // block
    return np.empty((rows, blocks, block), np.int8), np.empty((rows, blocks, 2), np.float32)


def assemble(codes: NDArray[np.int8], numbers: Floats, bits: int, symmetric: bool, half_scales: bool) -> CodedWeights:
    """The coded weights of filled arrays from `allocate`."""
    scale, minimum = (np.ascontiguousarray(numbers[..., i]) for i in (0, 1))
    return CodedWeights(codes.reshape(len(codes), -1), scale, None if symmetric else minimum, bits, half_scales)


def enumerate_tiles(
    weights: NDArray[np.floating], block: int
) -> Iterator[tuple[int, tuple[tuple[slice, slice], Floats]]]:
    """Walk weights [rows, columns] in tiles of whole blocks: (first row, ((rows, blocks), float32 [count, block]))."""
    rows, columns = weights.shape
    row_step = max(1, TILE_ELEMENTS // columns)
    block_step = columns // block if columns <= TILE_ELEMENTS else max(1, TILE_ELEMENTS // block)
    for row in range(0, rows, row_step):
        for first in range(0, columns // block, block_step):
            part = weights[row : row + row_step, first * block : (first + block_step) * block]
            where = slice(row, row + row_step), slice(first, first + block_step)
            yield row, (where, np.ascontiguousarray(part, np.float32).reshape(-1, block))


def extremes(tile: Floats, row: int = 0) -> tuple[Floats, Floats]:
    """Least and greatest value of every block of a tile [count, block]; refuses NaN, infinity and endless ranges."""
    starts = np.arange(0, tile.size, tile.shape[1])
    low, high = np.minimum.reduceat(tile.ravel(), starts), np.maximum.reduceat(tile.ravel(), starts)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ConversionError.of(
            "non-finite-weight",
            "weights with NaN or infinity cannot be quantized",
            hint="look for an overflow in the training or the export of this layer",
            row=f"{row} or later",
        )
    if np.max(high.astype(np.float64) - low) > 3.4e38:
        raise ConversionError.of("weight-range", "the weights of one block span more than float32 can hold", row=row)
    return low, high


def nearest_codes(tile: Floats, scale: Floats, minimum: Floats, bits: int) -> NDArray[np.int8]:
    """Signed codes [count, block] of the nearest points minimum + k * scale, k = 0 .. 2^bits-1."""
    steps = tile - minimum[:, None]
    steps /= _divisor(scale)[:, None]
    np.clip(steps, 0, (1 << bits) - 1, out=steps)
    steps += BELOW_HALF
    unsigned = steps.astype(np.uint8)
    unsigned -= np.uint8(1 << (bits - 1))  # wraps around, which is the two's complement wanted
    return unsigned.view(np.int8)


def _nearest_signed(tile: Floats, scale: Floats, bits: int) -> NDArray[np.int8]:
    """Signed codes of the nearest points k * scale, |k| <= 2^(bits-1)-1."""
    top = (1 << (bits - 1)) - 1
    steps = tile / _divisor(scale)[:, None]
    steps += np.copysign(BELOW_HALF, steps)
    np.clip(steps, -top, top, out=steps)
    return steps.astype(np.int8)


def _divisor(scale: Floats) -> Floats:
    """A constant block has scale 0 and only distances of 0 from its minimum; 0 / 1 is the wanted code."""
    return np.where(scale > 0, scale, np.float32(1))


def _grid(low: Floats, high: Floats, bits: int, symmetric: bool, half: bool) -> tuple[Floats, Floats]:
    """Scale and minimum of blocks with the given extremes (the minimum of a symmetric grid is not used)."""
    if symmetric:
        largest: Floats = np.maximum(high, -low)
        scale = largest / np.float32((1 << (bits - 1)) - 1)
        return (_half_up(scale) if half else scale), low
    minimum = _half_down(low) if half else low
    scale = (high - minimum) / np.float32((1 << bits) - 1)
    return (_half_up(scale) if half else scale), minimum


def _half_down(values: Floats) -> Floats:
    """The greatest float16 that is not above each value, as float32."""
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    above = half.astype(np.float32) > values
    return check_half(np.where(above, np.nextafter(half, np.float16(-np.inf)), half), values)


def _half_up(values: Floats) -> Floats:
    """The least float16 that is not below each value, as float32."""
    return -_half_down(-values)


def check_half(half: NDArray[np.float16], values: Floats) -> Floats:
    """float16 numbers as float32; refuses those that overflowed."""
    if not np.isfinite(half).all():
        raise ConversionError.of(
            "half-overflow",
            f"the scale or minimum {np.abs(values).max():.6g} does not fit into float16 (65504 at most)",
            hint="store scales as float32",
        )
    return half.astype(np.float32)
