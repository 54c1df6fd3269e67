"""Which way each weight is rounded, and what the bias makes up for, once the inputs of a layer are known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SWEEPS = 4
DAMPING = 0.01
PANEL = 64  # columns whose effect on the others is collected into one product


def descend(weights: Floats, codes: Floats, scale: Floats, second: Floats, clamp: int, sweeps: int = SWEEPS) -> Floats:
    """Codes [rows, K] with a smaller output error than those given, for weights [rows, K] and scales [rows] above 0.

    Minimises tr((W - Q s) H (W - Q s)^T), H = `second` [K, K] plus 1 % of its mean diagonal on the diagonal, by
    coordinate descent: the code of column j goes to the integer nearest to the minimum of the parabola in it,
    q_j + r_j / (s H_jj) with R = (W - Q s) H (Behdin et al., "QuantEase", 2023). It takes the place of the learned
    rounding of AdaRound (Nagel et al., 2020) and needs no gradients; the error never rises.
    """
    h = second + DAMPING * max(float(np.trace(second)) / len(second), 1e-30) * np.eye(len(second))
    codes, diagonal = codes.copy(), np.diag(h)
    residual = (weights - codes * scale[:, None]) @ h
    for _ in range(sweeps):
        changed = sum(
            _descend_panel(codes, residual, scale, h, diagonal, slice(start, start + PANEL), clamp)
            for start in range(0, len(h), PANEL)
        )
        if not changed:
            break
    return codes


def _descend_panel(
    codes: Floats, residual: Floats, scale: Floats, h: Floats, diagonal: Floats, panel: slice, clamp: int
) -> int:
    """Visit the columns of a panel one by one, then tell all columns; returns how many codes changed."""
    inside, before = residual[:, panel].copy(), codes[:, panel].copy()
    square = h[panel, panel]
    for j, column in enumerate(range(*panel.indices(len(h)))):
        wanted = codes[:, column] + inside[:, j] / (scale * diagonal[column])
        new = np.clip(np.rint(wanted), -clamp, clamp)
        inside -= np.outer((new - codes[:, column]) * scale, square[j])
        codes[:, column] = new
    moved = codes[:, panel] - before
    residual -= (moved * scale[:, None]) @ h[panel]
    return int(np.count_nonzero(moved))


def bias_shift(weights: Floats, decoded: Floats, mean: Floats, held_mean: Floats) -> Floats:
    """What to add to the bias [rows] so that the mean output stays: W E[x] - W' E[x'], group by group.

    `weights` and `decoded` are [rows, K]; `mean` and `held_mean` [group, K] the mean windows of the float input and of
    the input as it is held in steps (Nagel et al., "Data-free quantization", 2019, with the clipping of x added).
    """
    groups = len(mean)
    w, d = (m.reshape(groups, -1, m.shape[1]) for m in (weights, decoded))
    shift: Floats = np.einsum("grk,gk->gr", w, mean) - np.einsum("grk,gk->gr", d, held_mean)
    return shift.reshape(-1)
