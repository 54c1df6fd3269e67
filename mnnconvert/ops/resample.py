"""Resizing the spatial axes: nearest, linear and cubic, with the coordinate rules that MNN knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mnnconvert.ir.types import I32, Dim, Spec, mul
from mnnconvert.ops.base import Form, Op, register
from mnnconvert.ops.samples import exactly, grid

NEAREST, LINEAR, CUBIC, NEAREST_ROUND = 1, 2, 3, 4


def positions(size: int, out: int, scale: float, rule: str) -> np.ndarray:
    """Where the samples of an axis lie in the source (float64), by the name of the coordinate rule."""
    x = np.arange(out, dtype=np.float64)
    if rule == "AlignCorners":
        return x * ((size - 1) / (out - 1)) if out > 1 else x * 0
    if rule == "HalfPixels" or (rule == "PytorchHalfPixels" and out > 1):
        return (x + 0.5) / scale - 0.5
    if rule == "PytorchHalfPixels":
        return x * 0
    if rule == "TensorflowHalfPixels":
        return (x + 0.5) / scale
    if rule == "Asymmetric":
        return x / scale
    raise ValueError(f"the coordinate rule {rule} is not supported")


def cubic_kernel(distance: np.ndarray, a: float) -> np.ndarray:
    """The cubic convolution kernel at distances >= 0 (Keys, 1981, with the coefficient `a`)."""
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((distance - 5) * distance + 8) * distance * a - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0))


def weighted(x: np.ndarray, axis: int, taps: Sequence[np.ndarray], weights: Sequence[np.ndarray]) -> np.ndarray:
    """The sum of rows of x along an axis, picked by index (clamped to the borders), times weights per row."""
    shape = [1] * x.ndim
    shape[axis] = -1
    total: Any = 0
    for index, weight in zip(taps, weights, strict=True):
        rows = np.take(x, np.clip(index, 0, x.shape[axis] - 1), axis)
        total = total + rows * weight.astype(np.float32).reshape(shape)
    return total


def resampled(x: np.ndarray, axis: int, at: np.ndarray, kind: int, a: float) -> np.ndarray:
    """x sampled along an axis at positions `at`; borders are repeated."""
    size = x.shape[axis]
    if kind in (NEAREST, NEAREST_ROUND):
        index = np.floor(at) if kind == NEAREST else np.ceil(at - 0.5)
        return np.take(x, np.clip(index, 0, size - 1).astype(np.intp), axis)
    if kind == LINEAR:
        at = np.clip(at, 0, size - 1)
    low = np.floor(at)
    fraction, first = at - low, low.astype(np.intp)
    if kind == LINEAR:
        return weighted(x, axis, [first, first + 1], [1 - fraction, fraction])
    return weighted(
        x, axis, [first + i for i in (-1, 0, 1, 2)], [cubic_kernel(np.abs(i - fraction), a) for i in (-1, 0, 1, 2)]
    )


@register("Interp3D")
class Interp(Op):
    """Resize the axes behind batch and channels (one to three). Operands: x[, sizes int32 or scales float32].

    The second operand has one number per axis of x, or sizes of the resized axes only. Without it `out_*` give the
    sizes where they are not 0, else the scales do. `resize_type`: 1 nearest (floor), 2 linear, 3 cubic, 4 nearest (half
    down). Coordinates follow `rule` (NotSet: the two flags decide) and the scale, which is out / in unless the operand
    holds scales.
    """

    resize_type: int = LINEAR
    rule: str = "NotSet"
    width_scale: float = 0.0
    height_scale: float = 0.0
    depth_scale: float = 0.0
    out_width: int = 0
    out_height: int = 0
    out_depth: int = 0
    align_corners: bool = False
    half_pixels: bool = False
    cubic_a: float = -0.75

    form = Form(
        "Interp",
        "Interp",
        {
            "resize_type": "resizeType", "rule": "ctm", "width_scale": "widthScale", "height_scale": "heightScale",
            "depth_scale": "depthScale", "out_width": "outputWidth", "out_height": "outputHeight",
            "out_depth": "outputDepth",
            "align_corners": "alignCorners", "half_pixels": "halfPixelCenters", "cubic_a": "cubicCoeffA",
        },
    )  # fmt: skip
    layout = "c4"

    def infer(self, x: Spec, size: Spec | None = None) -> Spec:
        if x.shape is None:
            return Spec(x.dtype)
        if not 3 <= len(x.shape) <= 5:
            raise ValueError("a resize needs x of rank 3, 4 or 5")
        return Spec(x.dtype, (*x.shape[:2], *self._out(x.shape, size)))

    def _out(self, shape: Sequence[Dim], size: Spec | None) -> list[Dim]:
        count = len(shape) - 2
        if size is not None:
            if size.dtype != I32:
                factors = size.constant
                return [None] * count if factors is None else _scaled(shape[2:], factors.reshape(-1).tolist()[-count:])
            sizes = size.sizes
            return [None] * count if sizes is None or len(sizes) < count else sizes[-count:]
        given = (self.out_depth, self.out_height, self.out_width)[-count:]
        scales = (self.depth_scale, self.height_scale, self.width_scale)[-count:]
        scaled = _scaled(shape[2:], scales)
        return [g or s for g, s in zip(given, scaled, strict=True)]

    def ref(self, x: np.ndarray, size: np.ndarray | None = None) -> np.ndarray:
        out = self._out(x.shape, None if size is None else Spec(size.dtype, size.shape, size))
        if size is not None and size.size == x.ndim and size.dtype == I32 and tuple(size[:2]) != x.shape[:2]:
            raise ValueError(f"the axes {x.shape[:2]} in front cannot be resized to {tuple(size[:2])}")
        scales = size.reshape(-1).tolist()[-len(out) :] if size is not None and size.dtype != I32 else [None] * len(out)
        y = x.astype(np.float32, copy=False)
        for axis, (target, given) in enumerate(zip(out, scales, strict=True), 2):
            if not isinstance(target, int) or target < 1:
                raise ValueError(f"the axis {axis} cannot be resized to {target}")
            scale = given or target / x.shape[axis]
            if scale != 1 or self.coordinate_rule() == "TensorflowHalfPixels":
                at = positions(x.shape[axis], target, scale, self.coordinate_rule())
                y = resampled(y, axis, at, self.resize_type, self.cubic_a)
        return y.astype(x.dtype, copy=False)

    def coordinate_rule(self) -> str:
        """The coordinate rule; files without one have two flags instead."""
        if self.rule != "NotSet":
            return self.rule
        if self.align_corners:
            return "AlignCorners"
        return "HalfPixels" if self.half_pixels and self.resize_type != NEAREST else "Asymmetric"

    samples = (
        grid(x=[(1, 2, 4, 5)], size=[exactly([1, 2, 8, 3]), exactly([6, 10])], resize_type=[1, 2, 3, 4],
             rule=["AlignCorners", "HalfPixels", "Asymmetric"])
        + grid(("s",), x=[(1, 2, 4, 5)], s=[exactly([1, 1, 2, 1.5], "float32")], resize_type=[2], rule=["Asymmetric"])
        + grid(x=[(2, 2, 4, 5)], width_scale=[2.0], height_scale=[3.0],
               align_corners=[False], half_pixels=[False, True])
        + grid(x=[(2, 2, 4, 5)], width_scale=[2.0], height_scale=[1.0], align_corners=[True])
        + grid(x=[(2, 2, 4, 5)], out_width=[7], out_height=[1], rule=["PytorchHalfPixels", "AlignCorners"])
        + grid(x=[(1, 2, 3, 4, 5)], out_depth=[6], out_width=[7], out_height=[2], resize_type=[NEAREST, LINEAR])
        + grid(x=[(1, 2, 6)], width_scale=[0.5])
    )  # fmt: skip


def _scaled(sizes: Sequence[Dim], scales: Sequence[float]) -> list[Dim]:
    """trunc(size * scale) in float32, as the runtime computes it."""
    result: list[Dim] = []
    for size, scale in zip(sizes, scales, strict=True):
        if isinstance(size, int):
            result.append(int(np.float32(size) * np.float32(scale)))
        else:
            result.append(mul(size, int(scale)) if scale == int(scale) else None)
    return result
