"""Import rule of the last layer of SSD detectors, composed of ordinary ops, and the choice of boxes.

Suppression and choice are those of Caffe: candidates by falling score, of equal ones the first, and a result of one
row even where nothing is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mnnconvert.frontends.caffe.node import CaffeNode, Params
from mnnconvert.frontends.caffe.registry import caffe_op
from mnnconvert.frontends.common.compose import apply, calc, cast, reshape
from mnnconvert.frontends.common.moves import sliced, unsqueezed
from mnnconvert.frontends.common.run_time import scalar_size
from mnnconvert.frontends.common.search import top
from mnnconvert.ir import F32, I32, Builder, Value
from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.search import NonMaxSuppressionV2
from mnnconvert.ops.slicing import StridedSlice

LOWEST = float(np.finfo(np.float32).min)
CODES = ("CORNER", "CENTER_SIZE", "CORNER_SIZE")  # in the order of their numbers, which begin with 1
MOST_CLASSES = 1024


@dataclass(frozen=True)
class Suppression:
    """How boxes are chosen: the largest overlap that is borne, the lowest score (exclusive), and the largest numbers of
    candidates and of results (0: any)."""

    overlap: float
    score: float = LOWEST
    candidates: int = 0
    most: int = 0


def columns(b: Builder, x: Value, axis: int = 1) -> list[Value]:
    """x taken apart into its 4 columns along an axis."""
    return [sliced(b, x, axis, i, i + 1) for i in range(4)]


def picked(b: Builder, x: Value, places: Value) -> Value:
    """Rows of x by index."""
    return b.add(GatherV2(), x, places, b.ints(0))


def suppressed(b: Builder, boxes: Value, scores: Value, count: int, how: Suppression) -> tuple[Value, Value]:
    """Of `count` boxes [n,4] with scores [n] the best that do not overlap, as places in an order, which is the second
    result: the places of the candidates by falling score."""
    kept = min(how.candidates or count, count)
    values, order = top(b, scores, b.ints([kept]), 0, True)
    limits = b.ints(min(how.most or kept, kept)), b.floats(how.overlap), b.floats(how.score)
    return b.add(NonMaxSuppressionV2(), picked(b, boxes, order), values, *limits), order


@caffe_op("DetectionOutput", limits="one image; an eta of 1")
def detection_output(b: Builder, n: CaffeNode) -> Value:
    """Rows [1, 1, n, 7] of image, class, score and corners: class by class, in each by falling score."""
    n.takes(3)
    p = n.params("detection_output_param")
    loc, conf, prior = n.inputs
    classes, background = p.integer("num_classes", 0), p.integer("background_label_id", 0)
    shared, clip, keep = p.flag("share_location", True), p.flag("clip", False), p.integer("keep_top_k", -1)
    how = _suppression(n, p)
    if n.sizes(loc, 0, 1) != (1,) or not 1 <= classes <= MOST_CLASSES:
        raise n.refuse(f"DetectionOutput of {n.sizes(loc, 0, 1)[0]} images with {classes} classes")
    count = n.sizes(prior, 2, 3)[0] // 4
    boxes = _decoded(b, n, p, reshape(b, loc, (count, -1, 4)), reshape(b, prior, (2, count, 4)), clip)
    scores = reshape(b, conf, (count, classes))
    rows = [
        _of_class(b, sliced(b, boxes, 1, 0 if shared else c, 1 if shared else c + 1), scores, c, count, how)
        for c in range(classes) if c != background
    ]  # fmt: skip
    return reshape(b, _kept(b, rows, keep), (1, 1, -1, 7))


def _suppression(n: CaffeNode, p: Params) -> Suppression:
    nms = p.params("nms_param")
    for name in ("visualize", "visualize_threshold", "save_output_param", "save_file"):
        p.ignore(name)
    if nms.number("eta", 1.0) != 1:
        raise n.refuse(f"eta of DetectionOutput is {nms.number('eta', 1.0):g}: the bound of overlaps would change")
    candidates = nms.integer("top_k", -1)
    return Suppression(nms.number("nms_threshold", 0.3), p.number("confidence_threshold", LOWEST), max(0, candidates))


def _decoded(b: Builder, n: CaffeNode, p: Params, loc: Value, prior: Value, clip: bool) -> Value:
    """Corners [count, classes, 4] of boxes that are coded relative to priors [2, count, 4], boxes and variances."""
    text = p.text("code_type", "CORNER")
    code = CODES[int(text) - 1] if text in ("1", "2", "3") else text
    if code not in CODES:
        raise n.refuse(f"code_type of DetectionOutput is {code}, not one of {', '.join(CODES)}")
    box, variance = (reshape(b, sliced(b, prior, 0, i, i + 1), (-1, 1, 4)) for i in (0, 1))
    if not p.flag("variance_encoded_in_target", False):
        loc = calc(b, "MUL", loc, variance)
    if code == "CORNER":
        y = calc(b, "ADD", loc, box)
    else:
        x1, y1, x2, y2 = columns(b, box, 2)
        size = b.add(Concat(2), calc(b, "SUB", x2, x1), calc(b, "SUB", y2, y1))
        y = _by_centre(b, loc, box, size) if code == "CENTER_SIZE" else _by_size(b, loc, box, size)
    return calc(b, "MINIMUM", calc(b, "MAXIMUM", y, 0.0), 1.0) if clip else y


def _by_centre(b: Builder, loc: Value, box: Value, size: Value) -> Value:
    """Centres moved in units of the prior's size, sizes multiplied by a power of e."""
    centre = calc(b, "MUL", calc(b, "ADD", sliced(b, box, 2, 0, 2), sliced(b, box, 2, 2, 4)), 0.5)
    centre = calc(b, "ADD", calc(b, "MUL", sliced(b, loc, 2, 0, 2), size), centre)
    half = calc(b, "MUL", calc(b, "MUL", apply(b, "EXP", sliced(b, loc, 2, 2, 4)), size), 0.5)
    return b.add(Concat(2), calc(b, "SUB", centre, half), calc(b, "ADD", centre, half))


def _by_size(b: Builder, loc: Value, box: Value, size: Value) -> Value:
    """Corners moved in units of the prior's size."""
    return calc(b, "ADD", calc(b, "MUL", loc, b.add(Concat(2), size, size)), box)


def _of_class(b: Builder, boxes: Value, scores: Value, c: int, count: int, how: Suppression) -> Value:
    """The rows [n, 7] of one class."""
    score = reshape(b, sliced(b, scores, 1, c, c + 1), (-1,))
    corners = reshape(b, boxes, (-1, 4))
    head = b.floats(np.tile(np.array([0, c], np.float32), (count, 1)))
    table = b.add(Concat(1), head, unsqueezed(b, score, 1), corners)
    chosen, order = suppressed(b, corners, score, count, how)
    return picked(b, picked(b, table, order), chosen)


def _kept(b: Builder, rows: Sequence[Value], keep: int) -> Value:
    """The best `keep` of all rows (-1: all) in the order that they have; a row of -1 where there are none."""
    nothing = np.full((1, 7), -1, np.float32)
    nothing[0, 0] = 0
    table = b.add(Concat(0), *rows, b.floats(nothing))
    found = calc(b, "SUB", scalar_size(b, table, 0), 1)
    count = calc(b, "MAXIMUM", found, 1)
    if keep < 0:
        return picked_first(b, table, count)
    scores = b.add(Concat(0), *(reshape(b, sliced(b, r, 1, 2, 3), (-1,)) for r in rows), b.floats([LOWEST]))
    count = calc(b, "MINIMUM", count, max(keep, 1))
    _, best = top(b, scores, reshape(b, count, (1,)), 0, True)
    in_order, _ = top(b, cast(b, best, F32), reshape(b, count, (1,)), 0, False)
    return picked(b, table, cast(b, in_order, I32))


def picked_first(b: Builder, x: Value, count: Value) -> Value:
    """The first rows of x, as many as a run finds out."""
    return b.add(StridedSlice(), x, b.ints([0]), reshape(b, count, (1,)), b.ints([0]), b.ints([1]))
