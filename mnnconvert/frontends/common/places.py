"""Values put where indices say: tables from lists of places, rows combined by segment, results of suppressions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mnnconvert.frontends.common.compose import calc, cast, choose, reshape
from mnnconvert.frontends.common.moves import reduced, size_of, sliced, unsqueezed
from mnnconvert.frontends.common.nodes import SourceNode, known_rank
from mnnconvert.frontends.common.run_time import count_up, scalar
from mnnconvert.ir import F32, I32, Builder, Value
from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.generators import Fill
from mnnconvert.ops.scatter import ScatterNd
from mnnconvert.ops.search import NonMaxSuppressionV2
from mnnconvert.ops.shape import ShapeOf


def dense(b: Builder, n: SourceNode, indices: Value, shape: Value, values: Value, default: Value) -> Value:
    """A tensor of `shape` with `values` (one for all, or one each) at `indices` (one, a list, or rows)."""
    rank = shape.shape[0] if shape.shape else None
    if known_rank(n, indices) < 2:
        indices = reshape(b, indices, (-1, 1)) if known_rank(n, indices) else reshape(b, indices, (1, 1))
    if values.rank == 0:
        count = size_of(b, indices.shape[0] if indices.shape and isinstance(indices.shape[0], int) else (indices, 0))
        values = b.add(Fill(), count, values)
    if not isinstance(rank, int):
        raise n.refuse(f"{n.op} needs to know the rank of its result")
    dtype = values.dtype
    values, default = (x if x.dtype in (F32, I32) else cast(b, x, I32) for x in (values, default))
    filled = b.add(Fill(), shape, scalar(b, default))
    return cast(b, b.add(ScatterNd(), indices, values, shape, filled), dtype)


def segmented(
    b: Builder, n: SourceNode, x: Value, ids: Value, count: Value | None, function: str, start: float
) -> Value:
    """Rows of x combined by the number of their segment; rows of a negative number go nowhere.

    `count` is how many segments there are (int32 [1]), one more than the largest number where it is not given; `start`
    is what a segment without rows has.
    """
    if count is None:
        count = calc(b, "ADD", reduced(b, "MAXIMUM", ids, 0), 1)
    more = calc(b, "ADD", count, 1)  # one row more takes what has no segment
    places = choose(b, calc(b, "LESS", ids, 0), reshape(b, count, ()), ids, ids)
    rest = b.add(ShapeOf(1, None), x) if known_rank(n, x) > 1 else None
    shape = b.add(Concat(0), more, rest) if rest is not None else more
    filled = b.add(Fill(), shape, b.constant(np.asarray(start, x.dtype)))
    return sliced(b, b.add(ScatterNd(function), unsqueezed(b, places, 1), x, shape, filled), 0, 0, -1)


def filled_suppression(b: Builder, operands: Sequence[Value]) -> tuple[Value, Value, Value]:
    """Indices and scores of the boxes that stay, filled up with zeros to the largest number, and how many they are.

    Operands: boxes, scores, the largest number, the largest overlap, the smallest score.
    """
    boxes, scores, most, *limits = operands
    kept = b.add(NonMaxSuppressionV2(), boxes, scores, *(scalar(b, v) for v in (most, *limits)))
    shape = reshape(b, most, (1,))
    count = b.add(ShapeOf(), kept)
    places = reshape(b, count_up(b, scalar(b, count)), (-1, 1))
    results = [kept, b.add(GatherV2(), scores, kept, b.ints(0))]
    zeros = [b.add(Fill(), shape, b.constant(np.zeros((), r.dtype))) for r in results]
    indices, chosen = (b.add(ScatterNd(), places, r, shape, z) for r, z in zip(results, zeros, strict=True))
    return indices, chosen, scalar(b, count)
