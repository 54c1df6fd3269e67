"""Boxes that detectors begin with: made when the net is converted, as they follow from sizes alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mnnconvert.frontends.caffe.node import CaffeNode, Params
from mnnconvert.frontends.caffe.registry import caffe_op
from mnnconvert.frontends.caffe.text import BAD
from mnnconvert.ir import Builder, Value

SAME = 1e-6  # ratios that differ less are one


@caffe_op("PriorBox")
def prior_box(b: Builder, n: CaffeNode) -> Value:
    """Boxes of all sizes and ratios around each pixel, and their variances: [1, 2, 4 * H * W * boxes].

    Corners are in parts of the image, x1, y1, x2, y2 (W. Liu, SSD: Single Shot MultiBox Detector, 2016, section 2.2).
    """
    n.takes(2)
    p = n.params("prior_box_param")
    (height, width), image = n.sizes(n.input(0), 2, 4), _sides(p, "img", n.sizes(n.input(1), 2, 4))
    steps = _sides(p, "step", (image[0] / height, image[1] / width))
    shapes, offset, clip = _shapes(n, p), p.number("offset", 0.5), p.flag("clip", False)
    n.limited(height, width, len(shapes), 8)
    x, y = (np.arange(width) + offset) * steps[1], (np.arange(height) + offset) * steps[0]
    centres = np.stack(np.meshgrid(x, y), -1).reshape(height, width, 1, 2)
    boxes = np.concatenate([centres - shapes / 2, centres + shapes / 2], -1) / (image[1], image[0], image[1], image[0])
    boxes = np.clip(boxes, 0, 1) if clip else boxes
    variances = np.broadcast_to(_variances(n, p), boxes.shape)
    return b.floats(np.stack([boxes.reshape(-1), variances.reshape(-1)])[None])


def _sides(p: Params, name: str, default: Sequence[float]) -> tuple[float, float]:
    """Height and width, as `name`_h and `name`_w or one for both."""
    both = p.number(name if name == "step" else f"{name}_size", 0.0)
    found = p.number(f"{name}_h", both), p.number(f"{name}_w", both)
    return found[0] or default[0], found[1] or default[1]


def _shapes(n: CaffeNode, p: Params) -> np.ndarray:
    """Width and height in pixels of the boxes around one point: for each size the square, one between it and the next
    size, and the other ratios."""
    smallest, largest = p.numbers("min_size"), p.numbers("max_size")
    ratios = _ratios(p.numbers("aspect_ratio"), p.flag("flip", True))
    if not smallest or len(largest) not in (0, len(smallest)) or min((*smallest, *largest, *ratios)) <= 0:
        raise n.refuse(f"PriorBox has the sizes {list(smallest)} and {list(largest)}, ratios {ratios}", reference=BAD)
    shapes = []
    for i, size in enumerate(smallest):
        shapes.append((size, size))
        shapes += [(math.sqrt(size * largest[i]),) * 2] if largest else []
        shapes += [(size * math.sqrt(r), size / math.sqrt(r)) for r in ratios]
    return np.array(shapes)


def _ratios(given: Sequence[float], flip: bool) -> list[float]:
    """The ratios beside 1, each once, with their inverses where wanted."""
    found = [1.0]
    for ratio in given:
        if all(abs(ratio - other) >= SAME for other in found):
            found += [ratio, 1 / ratio] if flip and ratio else [ratio]
    return found[1:]


def _variances(n: CaffeNode, p: Params) -> np.ndarray:
    found = p.numbers("variance") or (0.1,)
    if len(found) not in (1, 4):
        raise n.refuse(f"PriorBox has {len(found)} variances, not 1 or 4", reference=BAD)
    return np.array(found)


def anchors(base: int, ratios: Sequence[float], scales: Sequence[float]) -> np.ndarray:
    """The anchors [ratios * scales, 4] of Faster R-CNN around a square of `base` pixels, borders included.

    The sides of a ratio are rounded to pixels (halves to even) before they are scaled.
    """
    centre = (base - 1) / 2
    boxes = []
    for ratio in ratios:
        width = np.round(np.sqrt(base * base / ratio))
        height = np.round(width * ratio)
        for scale in scales:
            half = (np.array([width, height]) * scale - 1) / 2
            boxes.append([*(centre - half), *(centre + half)])
    return np.array(boxes)
