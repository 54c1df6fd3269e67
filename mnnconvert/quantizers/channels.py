"""Weights in 8-bit codes with one scale per output channel: how the scale of each channel is chosen."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from mnnconvert.errors import ConversionError
from mnnconvert.ir.coded import CodedWeights
from mnnconvert.ir.types import round_away

Floats = NDArray[np.float64]

ADMM_ROUNDS = 1000
SHRINKS = np.linspace(1.0, 0.4, 61)
REFITS = 8


def code_channels(weights: NDArray[np.floating], method: str, clamp: int = 127) -> CodedWeights:
    """Symmetric codes -clamp .. clamp of weights [rows, columns], one scale per row, by a method of `METHODS`.

    Raises `non-finite-weight`.
    """
    matrix = np.asarray(weights, np.float64)
    if not np.isfinite(matrix).all():
        raise ConversionError.of("non-finite-weight", "weights with NaN or infinity cannot be quantized")
    scale = METHODS[method](matrix, clamp).astype(np.float32)
    return with_scales(matrix, scale, clamp)


def with_scales(matrix: Floats, scale: NDArray[np.float32], clamp: int) -> CodedWeights:
    """The nearest codes of [rows, columns] for given scales [rows]; a scale of 0 codes a row of zeros."""
    codes = nearest(matrix, np.where(scale > 0, scale, 1).astype(np.float64), clamp)
    return CodedWeights(codes.astype(np.int8), scale.reshape(-1, 1), None, 8)


def nearest(matrix: Floats, scale: Floats, clamp: int) -> Floats:
    """clip(round(w / scale)), halves away from zero, for scales [rows] above 0."""
    return np.clip(round_away(matrix / scale[:, None]), -clamp, clamp)


def max_abs(matrix: Floats, clamp: int) -> Floats:
    """max|w| / clamp of each row."""
    largest: Floats = np.abs(matrix).max(axis=1)
    return largest / clamp


def admm(matrix: Floats, clamp: int) -> Floats:
    """Alternating least squares of each row, MNN's "ADMM": 1000 rounds from max / (1.25 clamp), fewer at a fixed point.

    q = clip(round(w / alpha)), alpha = sum(q w) / sum(q^2).
    """
    alpha = np.abs(matrix).max(axis=1) / (1.25 * clamp)
    live = np.flatnonzero(alpha > 0)
    for _ in range(ADMM_ROUNDS):
        if not live.size:
            break
        following = refit(matrix[live], nearest(matrix[live], alpha[live], clamp), alpha[live])
        moved = following != alpha[live]
        alpha[live] = following
        live = live[moved]
    return alpha


def refit(matrix: Floats, codes: Floats, scale: Floats) -> Floats:
    """The scale of each row with the least squared error for these codes; the old one where all codes are 0."""
    power = np.square(codes).sum(axis=1)
    fitted: Floats = (codes * matrix).sum(axis=1) / np.where(power > 0, power, 1)
    return np.where(power > 0, fitted, scale)


def least_squares(matrix: Floats, clamp: int) -> Floats:
    """The scale of each row with the least squared error among shrunken maxima, each refitted up to 8 times.

    max|w| / clamp is among the candidates, so no row is worse than with it.
    """
    largest = max_abs(matrix, clamp)
    best = np.where(largest > 0, largest, 1.0)
    best_error = squared_error(matrix, best, clamp)
    for shrink in SHRINKS:
        scale = np.where(largest > 0, largest * shrink, 1.0)
        best, best_error = _better(matrix, scale, clamp, best, best_error)
    for _ in range(REFITS):
        best, best_error = _better(matrix, refit(matrix, nearest(matrix, best, clamp), best), clamp, best, best_error)
    return np.where(largest > 0, best, 0.0)


def _better(matrix: Floats, scale: Floats, clamp: int, best: Floats, best_error: Floats) -> tuple[Floats, Floats]:
    error = squared_error(matrix, scale, clamp)
    wins = error < best_error
    return np.where(wins, scale, best), np.where(wins, error, best_error)


def squared_error(matrix: Floats, scale: Floats, clamp: int) -> Floats:
    """sum (w - q scale)^2 of each row."""
    error: Floats = np.square(matrix - nearest(matrix, scale, clamp) * scale[:, None]).sum(axis=1)
    return error


METHODS: dict[str, Callable[[Floats, int], Floats]] = {"MAX_ABS": max_abs, "ADMM": admm, "MSE": least_squares}
