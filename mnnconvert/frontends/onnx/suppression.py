"""Import rule of NonMaxSuppression: MNN's op works on one set of boxes, so there is one for each batch and class."""

from __future__ import annotations

import numpy as np

from mnnconvert.frontends.common.compose import calc, cast
from mnnconvert.frontends.common.moves import Part, part, reshaped, size_of, sliced, unsqueezed
from mnnconvert.frontends.common.search import top
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.ir import F32, Builder, Value
from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.matmul import MatMul
from mnnconvert.ops.reduction import CumSum
from mnnconvert.ops.search import NonMaxSuppressionV2

MOST_SETS = 1024  # pairs of batch and class
INT32_MAX = 2**31 - 1


@onnx_op("NonMaxSuppression", limits="the numbers of batches and classes must be known")
def non_max_suppression(b: Builder, n: OnnxNode) -> Value:
    """Rows [batch, class, box] of what stays, classes within batches."""
    boxes, scores = n.input(0), n.input(1)
    batches, classes = (scores.shape or (None, None))[:2]
    batches = batches if isinstance(batches, int) else (boxes.shape or (None,))[0]
    if not isinstance(batches, int) or not isinstance(classes, int):
        raise n.refuse(
            "NonMaxSuppression needs known numbers of batches and classes", hint="fix them with --inputShape"
        )
    if batches * classes > MOST_SETS:
        raise n.refuse(f"NonMaxSuppression over {batches * classes} sets of boxes is not supported")
    most = _most(b, n)
    if most is None or batches * classes == 0:
        return b.ints(np.zeros((0, 3), np.int32))
    size = part(scores, 2)
    order, ranks = _ranked(b, scores, size, _limit(b, n, 4, float(np.finfo(np.float32).min)))
    limits = most, _limit(b, n, 3, 0.0), b.floats(0.0)
    if n.attr("center_point_box", 0):
        boxes = _corners(b, boxes)
    rows = [_one(b, boxes, order, ranks, batch, cls, limits) for batch in range(batches) for cls in range(classes)]
    return b.add(Concat(0), *rows) if len(rows) > 1 else rows[0]


def _most(b: Builder, n: OnnxNode) -> Value | None:
    """The largest number of boxes per class as a scalar; None when it is 0, which it is when it is left out."""
    if not n.has(2):
        return None
    known = n.constant(2)
    if known is None:
        return reshaped(b, n.input(2), [])
    count = min(int(np.ravel(known)[0]), INT32_MAX)
    return b.ints(count) if count > 0 else None


def _limit(b: Builder, n: OnnxNode, index: int, default: float) -> Value:
    return reshaped(b, n.input(index), []) if n.has(index) else b.floats(default)


def _corners(b: Builder, boxes: Value) -> Value:
    """[x, y, width, height] around the centre -> [y1, x1, y2, x2]; each coordinate is one exact sum of two terms."""
    half = np.array([[0, 1, 0, 1], [1, 0, 1, 0], [0, -0.5, 0, 0.5], [-0.5, 0, 0.5, 0]], np.float32)
    return b.add(MatMul(), boxes, b.constant(half))


def _ranked(b: Builder, scores: Value, size: Part, lowest: Value) -> tuple[Value, Value]:
    """Indices by falling score, and float32 ranks n, n-1, ... in that order, 0 for scores that are not above `lowest`.

    In place of the scores, of which some may be equal, the ranks leave the runtime no choice of its own.
    """
    values, order = top(b, scores, size_of(b, size), 2, True)
    above = calc(b, "GREATER", values, lowest)
    ranks = b.add(CumSum(reverse=True), calc(b, "MAXIMUM", above, 1), b.ints(2))
    return order, cast(b, calc(b, "MUL", ranks, above), F32)


def _one(
    b: Builder, boxes: Value, order: Value, ranks: Value, batch: int, cls: int, limits: tuple[Value, Value, Value]
) -> Value:
    """The rows of one batch and class."""
    own = reshaped(b, sliced(b, boxes, 0, batch, batch + 1), [-1, 4])
    places, rank = (
        reshaped(b, sliced(b, sliced(b, x, 0, batch, batch + 1), 1, cls, cls + 1), [-1]) for x in (order, ranks)
    )
    chosen = b.add(NonMaxSuppressionV2(), b.add(GatherV2(), own, places), rank, *limits)
    rows = unsqueezed(b, b.add(GatherV2(), places, chosen), 1)
    spread = calc(b, "MUL", rows, np.array([[0, 0, 1]], np.int32))
    return calc(b, "ADD", spread, np.array([[batch, cls, 0]], np.int32))
