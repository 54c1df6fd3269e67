"""Ops of image models: depth to space and back, sampling at given points, regions of interest, local normalisation."""

from __future__ import annotations

from typing import Any

import numpy as np

from mnnconvert.ir.types import Dim, Spec, floordiv, mul, round_away
from mnnconvert.ops.base import Form, Op, register
from mnnconvert.ops.samples import exactly, floats, grid


@register()
class DepthToSpace(Op):
    """Blocks of channels of x [N,C,H,W] become blocks of pixels: [N, C/b^2, H*b, W*b].

    In mode DCR the block is the slower part of the channel index, in CRD the faster one.
    """

    block: int
    mode: str = "DCR"

    form = Form("DepthToSpace", "DepthSpaceParam", {"block": "blockSize", "mode": "mode"})
    layout = "any"

    def infer(self, x: Spec) -> Spec:
        n, c, h, w = _planes(x)
        if isinstance(c, int) and c % self.block**2:
            raise ValueError(f"{c} channels do not make blocks of {self.block} x {self.block}")
        return Spec(x.dtype, (n, floordiv(c, self.block**2), mul(h, self.block), mul(w, self.block)))

    def ref(self, x: np.ndarray) -> np.ndarray:
        n, c, h, w = x.shape
        b = self.block
        if self.mode == "CRD":
            blocks = x.reshape(n, c // b**2, b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
        else:
            blocks = x.reshape(n, b, b, c // b**2, h, w).transpose(0, 3, 4, 1, 5, 2)
        return blocks.reshape(n, c // b**2, h * b, w * b)

    samples = grid(x=[(2, 12, 2, 3), (1, 4, 3, 1)], block=[2], mode=["DCR", "CRD"])


@register()
class SpaceToDepth(Op):
    """Blocks of pixels of x [N,C,H,W] become channels: [N, C*b^2, H/b, W/b], the block as the slower part."""

    block: int

    form = Form("SpaceToDepth", "DepthSpaceParam", {"block": "blockSize"})
    layout = "any"

    def infer(self, x: Spec) -> Spec:
        n, c, h, w = _planes(x)
        for size in (h, w):
            if isinstance(size, int) and size % self.block:
                raise ValueError(f"an axis of {size} does not make blocks of {self.block}")
        return Spec(x.dtype, (n, mul(c, self.block**2), floordiv(h, self.block), floordiv(w, self.block)))

    def ref(self, x: np.ndarray) -> np.ndarray:
        n, c, h, w = x.shape
        b = self.block
        blocks = x.reshape(n, c, h // b, b, w // b, b).transpose(0, 3, 5, 1, 2, 4)
        return blocks.reshape(n, c * b**2, h // b, w // b)

    samples = grid(x=[(2, 3, 4, 6)], block=[2])


def _planes(x: Spec) -> tuple[Dim, ...]:
    if x.shape is not None and len(x.shape) != 4:
        raise ValueError("the operand must have rank 4")
    return x.shape or (None,) * 4


@register()
class GridSample(Op):
    """x [N,C,(D,)H,W] sampled at the points of grid [N,(d,)h,w,2 or 3] -> [N,C,(d,)h,w].

    Points are (x, y[, z]) from -1 to 1 over the image, over the centres of the border pixels with `align_corners`.
    BILINEAR mixes neighbours, NEAREST takes the closest, the upper one of two. Outside, ZEROS gives 0, CLAMP and all
    else the border.
    """

    mode: str = "BILINEAR"
    padding: str = "ZEROS"
    align_corners: bool = False

    form = Form("GridSample", "GridSample", {"mode": "mode", "padding": "paddingMode", "align_corners": "alignCorners"})
    layout = "c4"

    def infer(self, x: Spec, points: Spec) -> Spec:
        if x.shape is None or points.shape is None:
            return Spec(x.dtype, None if x.shape is None else (*x.shape[:2], *(None,) * (len(x.shape) - 2)))
        if len(x.shape) not in (4, 5) or len(points.shape) != len(x.shape):
            raise ValueError("x and the grid must both have rank 4, or both rank 5")
        return Spec(x.dtype, (*x.shape[:2], *points.shape[1:-1]))

    def ref(self, x: np.ndarray, points: np.ndarray) -> np.ndarray:
        sizes = x.shape[2:]
        places = [self._place(points[..., -1 - axis], size) for axis, size in enumerate(sizes)]
        if self.mode == "NEAREST":
            return self._take(x, [np.floor(p + 0.5) for p in places])
        lows = [np.floor(p) for p in places]
        total: Any = 0
        for corner in np.ndindex(*(2,) * len(sizes)):
            weight: Any = 1
            for place, low, up in zip(places, lows, corner, strict=True):
                weight = weight * (place - low if up else 1 - (place - low))
            at = [low + up for low, up in zip(lows, corner, strict=True)]
            total = total + self._take(x, at) * weight[:, None]
        return np.asarray(total, np.float32)

    def _place(self, g: np.ndarray, size: int) -> np.ndarray:
        """Coordinates in the image of normalised ones."""
        place = (g + 1) / 2 * (size - 1) if self.align_corners else ((g + 1) * size - 1) / 2
        return place if self.padding == "ZEROS" else np.clip(place, 0, size - 1)

    def _take(self, x: np.ndarray, at: list[np.ndarray]) -> np.ndarray:
        """The pixels [N, C, ...] at whole coordinates [N, ...]."""
        inside = np.ones(at[0].shape, bool)
        index: list[Any] = []
        for place, size in zip(at, x.shape[2:], strict=True):
            inside &= (place >= 0) & (place < size)
            index.append(np.clip(np.nan_to_num(place), 0, size - 1).astype(np.intp))  # NaN: any pixel
        batch = np.arange(x.shape[0]).reshape(-1, *(1,) * (at[0].ndim - 1))
        found = np.moveaxis(x[(batch, slice(None), *index)], -1, 1)
        return np.where(inside[:, None], found, np.float32(0)) if self.padding == "ZEROS" else found

    samples = grid(
        x=[(2, 3, 5, 6)], points=[floats(2, 3, 4, 2, low=-1.3, high=1.3)], mode=["BILINEAR", "NEAREST"],
        padding=["ZEROS", "CLAMP"], align_corners=[False, True],
    ) + grid(x=[(1, 2, 3, 4, 5)], points=[floats(1, 2, 3, 4, 3)], mode=["BILINEAR", "NEAREST"])  # fmt: skip


@register()
class ROIAlign(Op):
    """Mean over regions: x [N,C,H,W], rois [n,4] (x1,y1,x2,y2) and image int32 [n] -> [n,C,height,width].

    With two operands the rows of rois are [n,5] and begin with the image. Every bin is the mean (MAX: the maximum) of
    bilinear samples, `sampling` by `sampling` of them, or as many as the bin has pixels. `aligned` shifts by half a
    pixel; without it a region is at least one pixel wide.
    """

    height: int
    width: int
    scale: float = 1.0
    sampling: int = -1
    aligned: bool = False
    pool: str = "AVEPOOL"

    form = Form(
        "ROIAlign",
        "RoiParameters",
        {
            "height": "pooledHeight", "width": "pooledWidth", "scale": "spatialScale", "sampling": "samplingRatio",
            "aligned": "aligned", "pool": "poolType",
        },
    )  # fmt: skip
    layout = "c4"

    def infer(self, x: Spec, rois: Spec, image: Spec | None = None) -> Spec:
        count = rois.shape[0] if rois.shape else None
        return Spec(x.dtype, (count, x.shape[1] if x.shape else None, self.height, self.width))

    def ref(self, x: np.ndarray, rois: np.ndarray, image: np.ndarray | None = None) -> np.ndarray:
        images = rois[:, 0].astype(np.intp) if image is None else image.reshape(-1)
        y = np.zeros((len(rois), x.shape[1], self.height, self.width), np.float32)
        for i, (roi, source) in enumerate(zip(rois[:, -4:], images, strict=True)):
            y[i] = self._region(x[source], roi.astype(np.float64) * self.scale - (0.5 if self.aligned else 0))
        return y

    def _region(self, x: np.ndarray, roi: np.ndarray) -> np.ndarray:
        rows, down = self._samples(roi[1], roi[3], self.height)
        columns, across = self._samples(roi[0], roi[2], self.width)
        values = _bilinear_rows(_bilinear_rows(x, 1, rows), 2, columns)
        cells = values.reshape(x.shape[0], self.height, down, self.width, across)
        return np.asarray(cells.max((2, 4)) if self.pool == "MAXPOOL" else cells.mean((2, 4)))

    def _samples(self, start: float, end: float, bins: int) -> tuple[np.ndarray, int]:
        """Sample coordinates along one axis, and how many there are in a bin."""
        length = end - start if self.aligned else max(end - start, 1.0)
        count = self.sampling if self.sampling > 0 else max(1, int(np.ceil(length / bins)))
        return start + (np.arange(bins * count) + 0.5) * length / (bins * count), count

    samples = grid(
        x=[(2, 3, 8, 9)], rois=[exactly([[1, 1, 9, 10], [-3, 2, 14, 15.5]], "float32")], image=[exactly([1, 0])],
        height=[2], width=[3], scale=[0.5], sampling=[2, -1], aligned=[False, True],
    ) + grid(x=[(2, 3, 8, 9)], rois=[exactly([[1, 1, 1, 5, 7]], "float32")], height=[2], width=[3])  # fmt: skip


def _bilinear_rows(x: np.ndarray, axis: int, at: np.ndarray) -> np.ndarray:
    """Rows of x between rows; 0 more than one row outside, the border row within."""
    size = x.shape[axis]
    outside = (at < -1) | (at > size)
    at = np.clip(at, 0, size - 1)
    low = np.floor(at).astype(np.intp)
    fraction = (at - low).astype(np.float32)
    shape = [1] * x.ndim
    shape[axis] = -1
    fraction, shown = fraction.reshape(shape), (~outside).astype(np.float32).reshape(shape)
    rows = np.take(x, low, axis) * (1 - fraction) + np.take(x, np.minimum(low + 1, size - 1), axis) * fraction
    return rows * shown


@register()
class ROIPooling(Op):
    """Maximum over the bins of regions: x [N,C,H,W], rois [n,5] (image,x1,y1,x2,y2) -> [n,C,height,width].

    Corners are whole pixels, round(corner * scale), both inside of the region. Bins have whole borders and may overlap;
    an empty one gives 0 (R. Girshick, Fast R-CNN, 2015, section 2.1).
    """

    height: int
    width: int
    scale: float = 1.0

    form = Form(
        "ROIPooling", "RoiParameters", {"height": "pooledHeight", "width": "pooledWidth", "scale": "spatialScale"}
    )
    layout = "c4"

    def infer(self, x: Spec, rois: Spec) -> Spec:
        count = rois.shape[0] if rois.shape else None
        return Spec(x.dtype, (count, x.shape[1] if x.shape else None, self.height, self.width))

    def ref(self, x: np.ndarray, rois: np.ndarray) -> np.ndarray:
        y = np.zeros((len(rois), x.shape[1], self.height, self.width), np.float32)
        for i, (image, *corners) in enumerate(rois.reshape(len(rois), -1)):
            x1, y1, x2, y2 = (int(round_away(c * np.float32(self.scale))) for c in corners)
            rows, columns = _bin_bounds(y1, y2, self.height, x.shape[2]), _bin_bounds(x1, x2, self.width, x.shape[3])
            for r, c in np.ndindex(self.height, self.width):
                part = x[int(image), :, slice(*rows[r]), slice(*columns[c])]
                if part.size:
                    y[i, :, r, c] = part.max((1, 2))
        return y

    samples = grid(
        x=[(2, 3, 8, 9)], rois=[exactly([[1, 1, 1, 9, 10], [0, -3, 2, 14, 15.5], [0, 30, 2, 40, 3]], "float32")],
        height=[2], width=[3], scale=[0.5, 1.0],
    )  # fmt: skip


def _bin_bounds(first: int, last: int, bins: int, size: int) -> list[tuple[int, int]]:
    """Begin and end of each bin of an axis, clipped to the image."""
    step = np.float32(max(last - first + 1, 1)) / np.float32(bins)
    edges = [(int(np.floor(i * step)), int(np.ceil((i + 1) * step))) for i in np.arange(bins, dtype=np.float32)]
    return [(min(max(a + first, 0), size), min(max(b + first, 0), size)) for a, b in edges]


@register()
class LRN(Op):
    """x / (bias + alpha * mean of x^2 over a window)^beta, zeros outside of x [N,C,H,W].

    The window has `size` (odd) channels; with `region` 1, `size` by `size` pixels.
    """

    size: int
    alpha: float = 0.0001
    beta: float = 0.75
    bias: float = 1.0
    region: int = 0

    form = Form(
        "LRN",
        "LRN",
        {"size": "localSize", "alpha": "alpha", "beta": "beta", "bias": "bias", "region": "regionType"},
    )
    layout = "c4"

    def infer(self, x: Spec) -> Spec:
        if x.shape is not None and len(x.shape) < 3:
            raise ValueError("the operand needs channels and pixels")
        return Spec(x.dtype, x.shape)

    def ref(self, x: np.ndarray) -> np.ndarray:
        total = np.square(x)
        for axis in (2, 3) if self.region else (1,):
            total = _running_sum(total, axis, self.size)
        count = self.size**2 if self.region else self.size
        return np.asarray(x / np.power(self.bias + np.float32(self.alpha / count) * total, self.beta), np.float32)

    samples = grid(x=[(2, 7, 3, 4)], size=[3, 5], alpha=[0.5], beta=[0.75], bias=[1.0, 2.0]) + grid(
        x=[(1, 2, 5, 6)], size=[3], alpha=[0.5], region=[1], beta=[0.5]
    )


def _running_sum(x: np.ndarray, axis: int, size: int) -> np.ndarray:
    """Sums over windows of `size` (odd) along an axis."""
    half = size // 2
    pads = [(half, half) if i == axis else (0, 0) for i in range(x.ndim)]
    padded = np.pad(x, pads)
    cut: list[Any] = [slice(None)] * x.ndim
    total = np.zeros_like(x)
    for start in range(size):
        cut[axis] = slice(start, start + x.shape[axis])
        total += padded[tuple(cut)]
    return total
