"""Round to nearest: every block gets the grid that spans its values, every weight the nearest grid point."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mnnconvert.ir.coded import CodedWeights
from mnnconvert.quantizers.blocks import Coded, Floats, Form, Grids, check_half, extremes, tiles, whole


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
    form = Form(bits, whole(block, columns), symmetric, half_scales)
    coded = Coded(rows, columns, form)
    for where, tile in tiles(weights, form.block):
        coded.put(where, tile, spanning(*extremes(tile, form.block, where[0].start), form))
    return coded.weights()


def spanning(low: Floats, high: Floats, form: Form) -> Grids:
    """The grids of blocks with the given extremes [rows, blocks]."""
    if form.symmetric:
        largest: Floats = np.maximum(high, -low)
        scale = largest / np.float32((1 << (form.bits - 1)) - 1)
        return Grids(_half_up(scale) if form.half else scale, None)
    minimum = _half_down(low) if form.half else low
    scale = (high - minimum) / np.float32((1 << form.bits) - 1)
    return Grids(_half_up(scale) if form.half else scale, minimum)


def _half_down(values: Floats) -> Floats:
    """The greatest float16 that is not above each value, as float32."""
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    above = half.astype(np.float32) > values
    return check_half(np.where(above, np.nextafter(half, np.float16(-np.inf)), half), values)


def _half_up(values: Floats) -> Floats:
    """The least float16 that is not below each value, as float32."""
    return -_half_down(-values)
