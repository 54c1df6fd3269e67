"""The definition of ONNX Resize along one axis: coordinates, nearest rows, and weight matrices.

Coordinates are computed in float32, in the order of the operator's formulas, so that a sample that lies exactly between
two rows falls on the side on which it falls elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mnnconvert.ops.resample import cubic_kernel

HALF = np.float32(0.5)
BY_SCALE = "by_scale"


@dataclass(frozen=True)
class Axis:
    """One axis to resize: sizes, the scale that coordinates use, and the part of the axis (`roi`) that is shown."""

    size: int
    out: int
    scale: float
    roi: tuple[float, float] = (0.0, 1.0)

    def coordinates(self, rule: str) -> np.ndarray:
        """Where the samples lie in the source, by the `coordinate_transformation_mode`."""
        x, scale = np.arange(self.out, dtype=np.float32), np.float32(self.scale)
        if rule == "align_corners":
            return x * np.float32(self.size - 1) / np.float32(max(1, self.out - 1))
        if rule == "asymmetric":
            return x / scale
        if rule == "tf_half_pixel_for_nn":
            return (x + HALF) / scale
        if rule == "tf_crop_and_resize":
            return self._cropped(x)
        if rule == "pytorch_half_pixel" and self.out == 1:
            return x * 0
        centre = (x + HALF) / scale
        if rule == "half_pixel_symmetric":
            shown = np.float32(self.out) / (scale * np.float32(self.size))
            centre = np.float32(self.size) * HALF * (1 - shown) + centre
        return centre - HALF

    def _cropped(self, x: np.ndarray) -> np.ndarray:
        start, end = (np.float32(r) for r in self.roi)
        last = np.float32(self.size - 1)
        if self.out == 1:
            return np.full(1, HALF * (start + end) * last, np.float32)
        return start * last + x * (end - start) * last / np.float32(self.out - 1)


def _prefer_floor(x: np.ndarray) -> np.ndarray:
    return np.ceil(x - HALF)


def _prefer_ceil(x: np.ndarray) -> np.ndarray:
    return np.floor(x + HALF)


ROUNDING: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "floor": np.floor, "ceil": np.ceil, "round_prefer_floor": _prefer_floor, "round_prefer_ceil": _prefer_ceil,
}  # fmt: skip


def nearest_rows(axis: Axis, rule: str, rounding: str) -> np.ndarray:
    """The source row of every output row. Rounding by scale, of opset 10, is up for a smaller axis, else down."""
    if rounding == BY_SCALE:
        rounding = "ceil" if axis.scale < 1 else "floor"
    rows = ROUNDING[rounding](axis.coordinates(rule))
    return np.clip(rows, 0, axis.size - 1).astype(np.int64)


def matrix(axis: Axis, rule: str, mode: str, a: float, exclude_outside: bool, antialias: bool) -> np.ndarray:
    """Weights [out, size] of a linear or cubic resize. Neighbours outside repeat the border, or are left out."""
    at = axis.coordinates(rule).astype(np.float64)
    if mode == "linear" and not antialias:
        at = np.clip(at, 0, axis.size - 1)
    low = np.floor(at)
    taps, weights = _taps(at - low, axis.scale if antialias else 1.0, mode, a)
    rows = low[None].astype(np.int64) + taps[:, None]
    if exclude_outside:
        weights = np.where((rows < 0) | (rows >= axis.size), 0, weights)
    if exclude_outside or antialias:
        weights = weights / weights.sum(0)
    result = np.zeros((axis.out, axis.size))
    np.add.at(result, (np.arange(axis.out)[None], np.clip(rows, 0, axis.size - 1)), weights)
    return result.astype(np.float32)


def _taps(fraction: np.ndarray, scale: float, mode: str, a: float) -> tuple[np.ndarray, np.ndarray]:
    """Offsets [k] of the neighbours and their weights [k, out]; shrinking with antialias widens the filter."""
    scale = min(scale, 1.0)
    reach = 1 if mode == "linear" else 2
    first = int(np.floor(-reach / scale)) + 1
    taps = np.arange(first, 2 - first)
    distance = np.abs(taps[:, None] - fraction[None]) * scale
    return taps, np.maximum(0, 1 - distance) if mode == "linear" else cubic_kernel(distance, a)


def inside(axis: Axis, rule: str) -> np.ndarray:
    """Which samples lie inside the source; the others take the extrapolation value."""
    at = axis.coordinates(rule)
    return (at >= 0) & (at <= axis.size - 1)
