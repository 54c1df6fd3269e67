"""Slices in the way of TensorFlow and TFLite: a bit for each entry of the slice says what is special about it."""

from __future__ import annotations

from collections.abc import Sequence

from mnnconvert.frontends.common.moves import unsqueezed
from mnnconvert.ir import Builder, Value
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.slicing import StridedSlice

Masks = tuple[int, int, int, int, int]  # begin, end, ellipsis, new axis, shrink axis


def strided_slice(b: Builder, x: Value, vectors: Sequence[Value], masks: Masks) -> Value:
    """`vectors` are begin, end and (where there are any) steps. New axes are put in behind the slice.

    The released runtime puts new axes that come after an ellipsis into another place.
    """
    begin, end, ellipsis, new, shrink = masks
    count = vectors[0].shape[0] if vectors[0].shape else None
    if not isinstance(count, int) or not new or (x.rank is None and ellipsis):
        return b.add(StridedSlice(begin, end, ellipsis, new, shrink, 0), x, *vectors)
    new &= ~ellipsis
    kept = [i for i in range(count) if not new >> i & 1]
    picked = [v if len(kept) == count else b.add(GatherV2(), v, b.ints(kept), b.ints(0)) for v in vectors]
    begin_left, end_left, ellipsis_left, shrink_left = (_packed(m, kept) for m in (begin, end, ellipsis, shrink))
    op = StridedSlice(begin_left, end_left, ellipsis_left, 0, shrink_left, 0)
    y = b.add(op, x, *picked) if any(not ellipsis >> i & 1 for i in kept) else x
    return unsqueezed(b, y, *_new_axes(count, len(kept), x.rank or 0, (ellipsis, new, shrink)))


def _packed(mask: int, kept: Sequence[int]) -> int:
    """The bits of the entries that are kept, side by side."""
    return sum((mask >> i & 1) << place for place, i in enumerate(kept))


def _new_axes(count: int, kept: int, rank: int, masks: tuple[int, int, int]) -> list[int]:
    """Where the new axes are in the result."""
    ellipsis, new, shrink = masks
    axes, at = [], 0
    for i in range(count):
        if new >> i & 1:
            axes.append(at)
        if ellipsis >> i & 1:
            at += rank - (kept - 1)
        elif new >> i & 1 or not shrink >> i & 1:
            at += 1
    return axes
