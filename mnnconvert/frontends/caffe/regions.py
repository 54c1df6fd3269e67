"""Import rules that pool regions of an image (Fast R-CNN, R-FCN)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mnnconvert.frontends.caffe.node import CaffeNode
from mnnconvert.frontends.caffe.registry import caffe_op
from mnnconvert.frontends.common.compose import apply, calc, cast, reshape
from mnnconvert.frontends.common.moves import permuted, reduced, sliced
from mnnconvert.ir import F32, Builder, Value
from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.matmul import MatMul
from mnnconvert.ops.vision import ROIPooling


@caffe_op("ROIPooling")
def roi_pooling(b: Builder, n: CaffeNode) -> Value:
    """The maximum in each bin of regions [n, 5]: image, x1, y1, x2, y2."""
    n.takes(2)
    p, (x, rois) = n.params("roi_pooling_param"), n.inputs
    height, width = p.integer("pooled_h", 0), p.integer("pooled_w", 0)
    if min(height, width) < 1:
        raise n.refuse(f"ROIPooling into {height} x {width} bins")
    rois = rois if n.rank(rois) == 2 else reshape(b, rois, (-1, 5))
    return b.add(ROIPooling(height, width, p.number("spatial_scale", 1.0)), x, rois)


@dataclass(frozen=True)
class _Bins:
    """The bins of regions along one axis of `size` pixels: which pixels are inside [n, bins, size], and how many."""

    inside: Value
    count: Value

    @classmethod
    def of(cls, b: Builder, first: Value, last: Value, scale: float, bins: int, size: int) -> _Bins:
        """Bins between corners [n, 1] in pixels of the image, which are rounded first; borders of bins are whole."""
        start = calc(b, "MUL", apply(b, "ROUND", first), scale)
        end = calc(b, "MUL", calc(b, "ADD", apply(b, "ROUND", last), 1.0), scale)
        step = calc(b, "MUL", calc(b, "MAXIMUM", calc(b, "SUB", end, start), 0.1), 1 / bins)
        number = np.arange(bins, dtype=np.float32)[None]
        low = calc(b, "ADD", calc(b, "MUL", step, number), start)
        high = calc(b, "ADD", calc(b, "MUL", step, number + 1), start)
        edges = apply(b, "FLOOR", low), apply(b, "CEIL", high)
        low, high = (calc(b, "MINIMUM", calc(b, "MAXIMUM", e, 0.0), float(size)) for e in edges)
        pixel = b.floats(np.arange(size)[None, None])
        low3, high3 = (reshape(b, e, (-1, bins, 1)) for e in (low, high))
        behind = cast(b, calc(b, "LESS_EQUAL", low3, pixel), F32)
        inside = calc(b, "MUL", behind, cast(b, calc(b, "GREATER", high3, pixel), F32))
        return cls(inside, calc(b, "SUB", high, low))


@caffe_op("PSROIPooling", limits="one image")
def ps_roi_pooling(b: Builder, n: CaffeNode) -> Value:
    """The mean in each bin of regions [n, 5], taken from channels of the bin's own (J. Dai, R-FCN, 2016, section 3).

    What lies in a bin is picked and summed by products with matrices of zeros and ones.
    """
    n.takes(2)
    p, (x, rois) = n.params("psroi_pooling_param"), n.inputs
    outputs, bins, scale = p.integer("output_dim", 0), p.integer("group_size", 0), p.number("spatial_scale", 1.0)
    images, channels, height, width = n.sizes(x)
    if images != 1 or min(outputs, bins) < 1 or channels != outputs * bins * bins:
        raise n.refuse(f"PSROIPooling of {images} images, {channels} channels into {outputs} times {bins} x {bins}")
    rois = reshape(b, rois, (-1, 5))
    x1, y1, x2, y2 = (sliced(b, rois, 1, i, i + 1) for i in (1, 2, 3, 4))
    rows, columns = _Bins.of(b, y1, y2, scale, bins, height), _Bins.of(b, x1, x2, scale, bins, width)
    planes = permuted(b, reshape(b, x, (outputs, bins, bins, height, width)), (1, 3, 0, 2, 4))
    across = reshape(b, columns.inside, (-1, 1, bins, width))
    sums = []
    for row in range(bins):
        plane = reshape(b, sliced(b, planes, 0, row, row + 1), (height, outputs * bins * width))
        picked = reshape(b, sliced(b, rows.inside, 1, row, row + 1), (-1, height))
        part = reshape(b, b.add(MatMul(), picked, plane), (-1, outputs, bins, width))
        sums.append(reshape(b, reduced(b, "SUM", calc(b, "MUL", part, across), 3, keep=False), (-1, outputs, 1, bins)))
    total = b.add(Concat(2), *sums) if bins > 1 else sums[0]
    area = calc(b, "MUL", reshape(b, rows.count, (-1, 1, bins, 1)), reshape(b, columns.count, (-1, 1, 1, bins)))
    return calc(b, "REALDIV", total, calc(b, "MAXIMUM", area, 1.0))
