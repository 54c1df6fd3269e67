"""Import rules of the proposals of Faster R-CNN: regions that a network finds around anchors."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mnnconvert.frontends.caffe.detection import LOWEST, Suppression, columns, picked, suppressed
from mnnconvert.frontends.caffe.node import CaffeNode
from mnnconvert.frontends.caffe.priors import anchors
from mnnconvert.frontends.caffe.registry import caffe_op
from mnnconvert.frontends.common.compose import apply, calc, choose, reshape
from mnnconvert.frontends.common.moves import permuted, reduced, sliced
from mnnconvert.ir import Builder, Value
from mnnconvert.ops.arrange import Concat


@dataclass(frozen=True)
class Proposals:
    """The settings of a proposal layer; sizes in pixels of the image."""

    stride: int
    base: int
    smallest: float
    ratios: tuple[float, ...]
    scales: tuple[float, ...]
    how: Suppression


@caffe_op("Proposal", limits="one image; not with a second result")
def proposal(b: Builder, n: CaffeNode) -> Value:
    """The regions [n, 5] that a region proposal network finds (S. Ren, Faster R-CNN, 2015, section 3)."""
    p = n.params("proposal_param")
    how = Suppression(
        p.number("nms_thresh", 0.7), candidates=p.integer("pre_nms_topn", 6000), most=p.integer("post_nms_topn", 300)
    )
    stride = p.integer("feat_stride", 16)
    found = Proposals(
        stride, p.integer("base_size", 16), p.number("min_size", 16.0), p.numbers("ratio") or (0.5, 1.0, 2.0),
        p.numbers("scale") or (8.0, 16.0, 32.0), how,
    )  # fmt: skip
    return _proposed(b, n, found)


@caffe_op("Python", limits="the proposal layer of Faster R-CNN, with the numbers that its code has for tests")
def python(b: Builder, n: CaffeNode) -> Value:
    """Code of a layer that is known."""
    p = n.params("python_param")
    module, layer, text = p.text("module"), p.text("layer"), p.text("param_str", p.text("param_str_", ""))
    if layer != "ProposalLayer":
        raise n.refuse(f"the layer {module}.{layer} is Python code, which an MNN file cannot hold")
    try:
        options: Any = ast.literal_eval("{" + text.strip().strip("{}") + "}")
        stride, scales = (
            int(options.get("feat_stride", 16)),
            tuple(float(s) for s in options.get("scales", (8, 16, 32))),
        )
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise n.refuse(f"param_str of {layer} is {text!r}, which cannot be read") from None
    if set(options) - {"feat_stride", "scales"}:
        raise n.refuse(f"param_str of {layer} is {text!r}")
    return _proposed(b, n, Proposals(stride, 16, 16.0, (0.5, 1.0, 2.0), scales, Suppression(0.7, LOWEST, 6000, 300)))


def _proposed(b: Builder, n: CaffeNode, p: Proposals) -> Value:
    n.takes(3)
    score, deltas, image = n.inputs
    base = anchors(p.base, p.ratios, p.scales)
    images, channels, height, width = n.sizes(score)
    count = len(base) * height * width
    if images != 1 or channels != 2 * len(base) or n.output_count > 1:
        raise n.refuse(f"{n.op} of {images} images, {channels} channels for {len(base)} anchors, {n.output_count} tops")
    n.limited(count, 4)
    corner = np.stack(np.meshgrid(np.arange(width), np.arange(height)), -1) * p.stride
    every = (np.tile(corner, 2)[:, :, None] + base).reshape(-1, 4)
    scores = reshape(b, permuted(b, sliced(b, score, 1, len(base)), (0, 2, 3, 1)), (count,))
    codes = reshape(b, permuted(b, deltas, (0, 2, 3, 1)), (count, 4))
    sides = [reshape(b, part, (1, 1)) for part in columns(b, reshape(b, image, (1, -1)))[:3]]
    boxes = _moved(b, codes, every, sides)
    scores = _large_enough(b, boxes, scores, calc(b, "MUL", sides[2], p.smallest))
    outer = calc(b, "ADD", boxes, np.array([[0, 0, 1, 1]], np.float32))  # both borders are inside
    chosen, order = suppressed(b, outer, scores, count, p.how)
    kept = picked(b, picked(b, boxes, order), chosen)
    zeros = calc(b, "MUL", sliced(b, kept, 1, 0, 1), 0.0)
    return b.add(Concat(1), zeros, kept)


def _moved(b: Builder, codes: Value, every: np.ndarray, sides: Sequence[Value]) -> Value:
    """Anchors moved and scaled by their codes, cut at the borders of the image: [count, 4]."""
    sizes = every[:, 2:] - every[:, :2] + 1
    centre = calc(b, "ADD", calc(b, "MUL", sliced(b, codes, 1, 0, 2), sizes), every[:, :2] + sizes / 2)
    half = calc(b, "MUL", apply(b, "EXP", sliced(b, codes, 1, 2, 4)), sizes / 2)
    last = calc(b, "SUB", b.add(Concat(1), sides[1], sides[0]), 1.0)
    corners = [calc(b, f, centre, half) for f in ("SUB", "ADD")]
    return b.add(Concat(1), *(calc(b, "MAXIMUM", calc(b, "MINIMUM", c, last), 0.0) for c in corners))


def _large_enough(b: Builder, boxes: Value, scores: Value, smallest: Value) -> Value:
    """The scores, the lowest there is for boxes with a side that is too small."""
    sizes = calc(b, "ADD", calc(b, "SUB", sliced(b, boxes, 1, 2, 4), sliced(b, boxes, 1, 0, 2)), 1.0)
    large = calc(b, "GREATER_EQUAL", reduced(b, "MINIMUM", sizes, 1, keep=False), reshape(b, smallest, (1,)))
    return choose(b, large, scores, LOWEST, scores)
