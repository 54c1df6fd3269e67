"""Import rules of searches: largest elements, distinct elements, boxes that stay, and crops of images by boxes."""

from __future__ import annotations

import numpy as np

from mnnconvert.frontends.common.channels_last import batched_gather, channels_first, channels_last
from mnnconvert.frontends.common.compose import calc, cast, choose, reshape
from mnnconvert.frontends.common.moves import clip, reduced, sliced, squeezed, unsqueezed
from mnnconvert.frontends.common.nodes import FIX_SIZES, known_rank, known_sizes
from mnnconvert.frontends.common.places import filled_suppression
from mnnconvert.frontends.common.run_time import scalar
from mnnconvert.frontends.common.search import by_occurrence
from mnnconvert.frontends.tensorflow.node import TfNode
from mnnconvert.frontends.tensorflow.registry import tf_op
from mnnconvert.ir import F32, I32, Builder, Value
from mnnconvert.ops.arrange import Concat, Pack
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.padding import Padding
from mnnconvert.ops.search import NonMaxSuppressionV2, TopKV2, Unique, Where
from mnnconvert.ops.slicing import SliceTf
from mnnconvert.ops.vision import GridSample

MOST_CLASSES = 512  # times images, of one suppression
ABSENT = float(np.finfo(np.float32).min)  # the score of a box that is not there


@tf_op("TopK", "TopKV2", results=("values", "indices"), gives="T int32")
def top_k(b: Builder, n: TfNode) -> tuple[Value, Value]:
    """The largest of the last axis in order; of equal ones the first."""
    x = n.input(0)
    wide = x if x.dtype in (F32, I32) else cast(b, x, I32)
    count = n.input(1) if n.has(1) else b.ints(n.int_attr("k"))
    values, places = b.add(TopKV2(), wide, count, names=["", ""])
    return cast(b, values, x.dtype), places


@tf_op("Unique", "UniqueV2", "UniqueWithCounts", results=("y", "idx", "count"), gives="T int32 int32",
       limits="vectors")  # fmt: skip
def unique(b: Builder, n: TfNode) -> tuple[Value, ...]:
    """Distinct elements in the order in which they occur first, which of them each element is, how often each is."""
    x = n.input(0)
    if known_rank(n, x) != 1:
        raise n.refuse(f"{n.op} of rank {x.rank} is not supported")
    values, _, inverse, counts = by_occurrence(b, *b.add(Unique(), x, names=[""] * 4))
    return (values, inverse, counts) if n.op.endswith("Counts") else (values, inverse)


@tf_op("ListDiff", results=("out", "idx"), gives="T int32")
def list_diff(b: Builder, n: TfNode) -> tuple[Value, Value]:
    """The elements of a vector that another one does not have, and where they are."""
    x, y = n.input(0), n.input(1)
    same = calc(b, "EQUAL", unsqueezed(b, x, 1), unsqueezed(b, y, 0))
    left = calc(b, "EQUAL", reduced(b, "SUM", same, 1, keep=False), 0)
    places = squeezed(b, b.add(Where(), left), 1)
    return b.add(GatherV2(), x, places, b.ints(0)), places


@tf_op("InTopK", "InTopKV2", gives="bool")
def in_top_k(b: Builder, n: TfNode) -> Value:
    """Whether fewer than k predictions of a row are larger than that of the target."""
    predictions, targets = n.input(0), n.input(1)
    own = unsqueezed(b, batched_gather(b, n, predictions, targets, 1, 1), 1)
    larger = reduced(b, "SUM", calc(b, "GREATER", predictions, own), 1, keep=False)
    return calc(b, "LESS", larger, n.input(2) if n.has(2) else n.int_attr("k", 1))


@tf_op("Bucketize", gives="int32")
def bucketize(b: Builder, n: TfNode) -> Value:
    """How many boundaries are not above each element."""
    x, rank = n.input(0), known_rank(n, n.input(0))
    bounds = np.asarray(n.attr("boundaries", None) or [], np.float32)
    above = calc(b, "GREATER_EQUAL", cast(b, unsqueezed(b, x, rank), F32), bounds)
    return reduced(b, "SUM", above, rank, keep=False)


@tf_op("NonMaxSuppression", "NonMaxSuppressionV2", "NonMaxSuppressionV3", gives="int32")
def suppression(b: Builder, n: TfNode) -> Value:
    """Indices of the boxes that stay. The overlap was an attribute at first; the last form has a smallest score."""
    overlap = b.floats(n.float_attr("iou_threshold", 0.5)) if n.op == "NonMaxSuppression" else n.input(3)
    least = [n.input(4)] if n.has(4) else [b.floats(np.finfo(np.float32).min)]
    limits = [scalar(b, v) for v in (n.input(2), overlap, *least)]
    return b.add(NonMaxSuppressionV2(), n.input(0), n.input(1), *limits)


@tf_op("NonMaxSuppressionV4", results=("selected_indices", "valid_outputs"), gives="int32",
       limits="a padded result; without padding as NonMaxSuppressionV3")  # fmt: skip
def padded_suppression(b: Builder, n: TfNode) -> tuple[Value, Value]:
    """Indices filled up with zeros to the largest number where that is asked for, and how many there are."""
    indices, _, count = filled_suppression(b, [n.input(i) for i in range(5)])
    if n.flag("pad_to_max_output_size"):
        return indices, count
    return b.add(SliceTf(), indices, b.ints([0]), reshape(b, count, (1,))), count


@tf_op("NonMaxSuppressionV5", results=("selected_indices", "selected_scores", "valid_outputs"), gives="int32 T int32",
       limits="no soft suppression")  # fmt: skip
def soft_suppression(b: Builder, n: TfNode) -> tuple[Value, Value, Value]:
    if float(n.required_constant(5, "sigma").reshape(-1)[0]) != 0:
        raise n.refuse("NonMaxSuppressionV5 with a sigma that is not 0 is not supported")
    indices, scores, count = filled_suppression(b, [n.input(i) for i in range(5)])
    if n.flag("pad_to_max_output_size"):
        return indices, scores, count
    first = [b.add(SliceTf(), x, b.ints([0]), reshape(b, count, (1,))) for x in (indices, scores)]
    return first[0], first[1], count


@tf_op("LowerBound", "UpperBound", gives="out_type")
def bound(b: Builder, n: TfNode) -> Value:
    """How many numbers of a sorted row are below (not above) each of the values of that row."""
    rows, values = unsqueezed(b, n.input(0), 1), unsqueezed(b, n.input(1), 2)
    before = calc(b, "LESS" if n.op == "LowerBound" else "LESS_EQUAL", rows, values)
    return reduced(b, "SUM", before, 2, keep=False)


@tf_op("CombinedNonMaxSuppression", gives="float32 float32 float32 int32",
       results=("nmsed_boxes", "nmsed_scores", "nmsed_classes", "valid_detections"),
       limits=f"known sizes, at most {MOST_CLASSES} images and classes")  # fmt: skip
def combined_suppression(b: Builder, n: TfNode) -> tuple[Value, ...]:
    """Operands: boxes [images, n, 1 or classes, 4], scores [images, n, classes], then limits.

    Suppressed class by class; of what stays in an image the best are chosen, and filled up with zeros.
    """
    boxes, scores = n.input(0), n.input(1)
    each, total = (n.ints(i, "the largest number")[0] for i in (2, 3))
    sizes = [d for d in (*(scores.shape or ()), *(boxes.shape or ())[2:3]) if isinstance(d, int)]
    if len(sizes) != 4 or sizes[0] * sizes[2] > MOST_CLASSES:
        raise n.refuse(f"{n.op} needs known sizes, and at most {MOST_CLASSES} images and classes", hint=FIX_SIZES)
    images, count, classes, shared = sizes
    each, total = min(each, count), min(total, each * classes) if n.flag("pad_per_class") else total
    limits = [b.ints(each), n.input(4), n.input(5)]
    results = []
    for image in range(images):
        found = []
        for kind in range(classes):
            own = [squeezed(b, sliced(b, squeezed(b, sliced(b, v, 0, image, image + 1), 0), 1, k, k + 1), 1)
                   for v, k in ((boxes, kind if shared > 1 else 0), (scores, kind))]  # fmt: skip
            indices, best, valid = filled_suppression(b, [*own, *limits])
            best = choose(b, calc(b, "LESS", b.ints(np.arange(each)), valid), best, ABSENT, best)
            found.append((b.add(GatherV2(), own[0], indices, b.ints(0)), best, b.floats(np.full(each, kind))))
        columns = [b.add(Concat(0), *c) if classes > 1 else c[0] for c in zip(*found, strict=True)]
        results.append(_best(b, n, columns, total, each * classes))
    return tuple(b.add(Pack(0), *column) for column in zip(*results, strict=True))


def _best(b: Builder, n: TfNode, columns: list[Value], total: int, count: int) -> list[Value]:
    """The `total` best of `count` boxes with scores and classes, zeros behind them, and how many there are."""
    if total > count:
        columns = [
            b.add(Padding(), v, b.ints([0, total - count, *[0, 0] * ((v.rank or 1) - 1)]), b.floats(fill))
            for v, fill in zip(columns, (0.0, ABSENT, 0.0), strict=True)
        ]
    best, places = b.add(TopKV2(), columns[1], b.ints(total), names=["", ""])
    there = calc(b, "NOTEQUAL", best, ABSENT)
    boxes, kinds = (b.add(GatherV2(), v, places, b.ints(0)) for v in (columns[0], columns[2]))
    boxes = clip(b, boxes, 0.0, 1.0) if n.flag("clip_boxes", True) else boxes
    shown = [choose(b, unsqueezed(b, there, 1), boxes, 0.0, boxes)]
    shown += [choose(b, there, v, 0.0, v) for v in (best, kinds)]
    return [*shown, reduced(b, "SUM", there, 0, keep=False)]


@tf_op("CropAndResize", gives="float32", limits="bilinear; the size of crops and the sizes of images must be known")
def crop_and_resize(b: Builder, n: TfNode) -> Value:
    """Crops [boxes, h, w, C] of images [N, H, W, C] by boxes (y1, x1, y2, x2) in parts of the image.

    Row i of h lies at y1 + i * (y2 - y1) / (h - 1), or in the middle where there is one row only; what lies outside of
    the image has the extrapolation value.
    """
    if n.text("method", "bilinear") != "bilinear":
        raise n.refuse(f"{n.op} with the method {n.text('method')} is not supported")
    x, boxes, which, outs = cast(b, n.input(0), F32), n.input(1), n.input(2), n.ints(3, "the size of crops")
    known_sizes(n, x)
    image = b.add(GatherV2(), channels_first(b, n, x), which, b.ints(0))
    lines = [_line(b, boxes, axis, size) for axis, size in enumerate(outs)]
    rows, columns = unsqueezed(b, lines[0], 2), unsqueezed(b, lines[1], 1)
    zero = calc(b, "MUL", calc(b, "ADD", rows, columns), 0.0)
    grid = [
        unsqueezed(b, calc(b, "SUB", calc(b, "MUL", calc(b, "ADD", v, zero), 2.0), 1.0), 3) for v in (columns, rows)
    ]
    y = b.add(GridSample("BILINEAR", "CLAMP", True), image, b.add(Concat(3), *grid))
    inside = [calc(b, "MUL", calc(b, "GREATER_EQUAL", v, 0.0), calc(b, "LESS_EQUAL", v, 1.0)) for v in (rows, columns)]
    seen = unsqueezed(b, calc(b, "MUL", *inside), 3)
    return choose(b, seen, channels_last(b, y), n.float_attr("extrapolation_value"), y)


def _line(b: Builder, boxes: Value, axis: int, size: int) -> Value:
    """Where the rows of crops lie along an axis, [boxes, size], in parts of the image."""
    first, last = (sliced(b, boxes, 1, i, i + 1) for i in (axis, axis + 2))
    if size == 1:
        return calc(b, "MUL", calc(b, "ADD", first, last), 0.5)
    steps = (np.arange(size) / (size - 1))[None]
    return calc(b, "ADD", first, calc(b, "MUL", calc(b, "SUB", last, first), steps))
