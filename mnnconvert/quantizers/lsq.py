"""Least-squares grids: scale and minimum of every block fitted to its weights, with or without data."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mnnconvert.ir.coded import CodedWeights


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
    """
    raise NotImplementedError
