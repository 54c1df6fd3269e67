"""Search: the largest elements, distinct elements, coordinates of non-zeros, suppression of boxes, determinants."""

from __future__ import annotations

import numpy as np

from mnnconvert.ir.types import F32, I32, Dim, Shape, Spec, element_count, normal_axis
from mnnconvert.ops.base import Form, Op, register
from mnnconvert.ops.samples import exactly, floats, grid, integers


@register()
class TopKV2(Op):
    """The k largest (or smallest) elements on the last axis, or on the axis of a third int32 operand, in order.

    Results: values and int32 indices; of equal elements the one with the lower index comes first. The released runtime
    gives the same values but orders, and picks, equal elements as it likes.
    """

    largest: bool = True

    form = Form("TopKV2", "TopKV2", {"largest": "largest"}, fixed={"sorted": True})

    def infer(self, x: Spec, k: Spec, axis: Spec | None = None) -> tuple[Spec, Spec]:
        if x.shape is None:
            return Spec(x.dtype), Spec(I32)
        if axis is not None and axis.constant is None:
            shape: Shape = (None,) * len(x.shape)
        else:
            a = normal_axis(
                -1 if axis is None or axis.constant is None else int(axis.constant.reshape(())), len(x.shape)
            )
            count = self._count(k, x.shape[a])
            shape = (*x.shape[:a], count, *x.shape[a + 1 :])
        return Spec(x.dtype, shape), Spec(I32, shape)

    def _count(self, k: Spec, size: Dim) -> Dim:
        count = k.sizes[0] if k.sizes else None
        if isinstance(count, int) and isinstance(size, int) and not 0 <= count <= size:
            raise ValueError(f"there are no {count} elements on an axis of {size}")
        return count

    def ref(self, x: np.ndarray, k: np.ndarray, axis: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        a = normal_axis(-1 if axis is None else int(np.reshape(axis, ())), x.ndim)
        count, moved = int(np.reshape(k, ())), np.moveaxis(x, a, -1)
        if not 0 <= count <= moved.shape[-1]:
            raise ValueError(f"there are no {count} elements on an axis of {moved.shape[-1]}")
        if self.largest:
            order = moved.shape[-1] - 1 - np.argsort(moved[..., ::-1], -1, kind="stable")[..., ::-1]
        else:
            order = np.argsort(moved, -1, kind="stable")
        order = order[..., :count]
        values = np.take_along_axis(moved, order, -1)
        return np.moveaxis(values, -1, a), np.moveaxis(order, -1, a).astype(I32)

    samples = (
        grid(x=[(2, 5), (7,), integers(3, 6)], k=[exactly(3), exactly([1])], largest=[True, False])
        + grid(x=[(2, 5, 3)], k=[exactly(4)], axis=[exactly(1), exactly(-2)], largest=[True, False])
    )  # fmt: skip


@register()
class Unique(Op):
    """The distinct elements of a flattened tensor in ascending order.

    Results: values, position of the first occurrence of each, for each element of x the position of its value, and
    the number of occurrences; all but the values int32.
    """

    form = Form("Unique")

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        count = element_count(x.shape)
        return Spec(x.dtype, (None,)), Spec(I32, (None,)), Spec(I32, (count,)), Spec(I32, (None,))

    def ref(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        values, first, inverse, counts = np.unique(x.reshape(-1), True, True, True)
        return values, first.astype(I32), inverse.reshape(-1).astype(I32), counts.astype(I32)

    samples = grid(x=[exactly([2, 1, 1, 3, 4, 3], "float32"), integers(3, 4)])


@register()
class Where(Op):
    """Coordinates [n, rank] (int32) of the elements that are not zero, in row order."""

    form = Form("Where", "Extra")

    def infer(self, condition: Spec) -> Spec:
        return Spec(I32, (None, condition.rank))

    def ref(self, condition: np.ndarray) -> np.ndarray:
        return np.argwhere(condition != 0).astype(I32)

    samples = grid(condition=[integers(2, 3, low=0, high=2), exactly([0, 1, 1])])


def overlaps(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Intersection over union of one box with others, [y1, x1, y2, x2] with corners in any order."""
    low, high = np.minimum(others[:, :2], others[:, 2:]), np.maximum(others[:, :2], others[:, 2:])
    first, last = np.minimum(box[:2], box[2:]), np.maximum(box[:2], box[2:])
    shared = np.prod(np.maximum(np.minimum(high, last) - np.maximum(low, first), 0), 1)
    union = np.prod(high - low, 1) + np.prod(last - first) - shared
    return np.where(shared > 0, shared / np.where(union > 0, union, 1), 0)


def suppress(boxes: np.ndarray, scores: np.ndarray, most: int, overlap: float, score: float) -> list[int]:
    """Greedy: by falling score (of equals the lower index first), skip what overlaps a chosen box too much."""
    order = np.argsort(-scores, kind="stable")
    left = order[scores[order] > score]
    chosen: list[int] = []
    while len(left) and len(chosen) < most:
        best, left = int(left[0]), left[1:]
        chosen.append(best)
        left = left[overlaps(boxes[best], boxes[left]) <= overlap]
    return chosen


@register()
class NonMaxSuppressionV2(Op):
    """Indices (int32) of the boxes that stay: boxes [n,4], scores [n], and three scalars: the largest number of
    boxes (int32), the largest overlap, the smallest score (exclusive). Highest score first.
    """

    form = Form("NonMaxSuppressionV2")

    def infer(
        self, boxes: Spec, scores: Spec, most: Spec, overlap: Spec | None = None, score: Spec | None = None
    ) -> Spec:
        return Spec(I32, (None,))

    def ref(
        self, boxes: np.ndarray, scores: np.ndarray, most: np.ndarray,
        overlap: np.ndarray | None = None, score: np.ndarray | None = None,
    ) -> np.ndarray:  # fmt: skip
        limit = 0.5 if overlap is None else float(np.reshape(overlap, ()))
        lowest = -np.inf if score is None else float(np.reshape(score, ()))
        return np.array(suppress(boxes, scores, int(np.reshape(most, ())), limit, lowest), I32)

    samples = grid(boxes=[floats(9, 4, low=0, high=1)], scores=[floats(9, low=0, high=1)],
                   most=[exactly(3), exactly([9])],
                   overlap=[exactly(0.3, "float32")], score=[exactly(0.2, "float32")])  # fmt: skip


@register()
class Det(Op):
    """Determinants of square matrices [..., M, M] -> [...]."""

    form = Form("Det")

    def infer(self, x: Spec) -> Spec:
        return Spec(F32, None if x.shape is None else x.shape[:-2])

    def ref(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(np.linalg.det(x)).astype(F32)

    samples = grid(x=[(3, 3), (2, 4, 4)])
