"""Import rules of ops that place values by index, of tables made by rule, and of boxes."""

from __future__ import annotations

import numpy as np

from mnnconvert.frontends.common.compose import calc, cast, choose, reshape
from mnnconvert.frontends.common.moves import reduced, unsqueezed
from mnnconvert.frontends.common.nodes import FIX_SIZES, known_rank
from mnnconvert.frontends.common.places import dense, filled_suppression, segmented
from mnnconvert.frontends.common.run_time import scalar
from mnnconvert.frontends.common.search import by_occurrence
from mnnconvert.frontends.tflite.node import TfliteNode
from mnnconvert.frontends.tflite.registry import tflite_op
from mnnconvert.ir import F32, I32, Builder, Value
from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.gather import OneHot
from mnnconvert.ops.generators import Fill, RandomNormal, RandomUniform, Range
from mnnconvert.ops.scatter import ScatterNd
from mnnconvert.ops.search import Unique, Where
from mnnconvert.ops.shape import ShapeOf

LOWEST, HIGHEST = float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)


@tflite_op("FILL", moves=True)
def fill(b: Builder, n: TfliteNode) -> Value:
    return b.add(Fill(), n.input(0), n.input(1))


@tflite_op("RANGE")
def range_(b: Builder, n: TfliteNode) -> Value:
    return b.add(Range(), *(scalar(b, x) for x in n.inputs))


@tflite_op("ONE_HOT")
def one_hot(b: Builder, n: TfliteNode) -> Value:
    on, off = n.input(2), n.input(3)
    dtype = on.dtype
    on, off = (x if x.dtype in (F32, I32) else cast(b, x, I32) for x in (on, off))
    made = b.add(OneHot(int(n.option("Axis", -1))), n.input(0), n.input(1), on, off)
    return cast(b, made, dtype)


@tflite_op("WHERE")
def where(b: Builder, n: TfliteNode) -> Value:
    """Coordinates of what is not zero."""
    x = n.input(0)
    return b.add(Where(), x if x.dtype == I32 else calc(b, "NOTEQUAL", x, 0))


@tflite_op("UNIQUE")
def unique(b: Builder, n: TfliteNode) -> tuple[Value, Value]:
    """Distinct elements in the order in which they occur first, and for each element which of them it is."""
    values, _, inverse, _ = by_occurrence(b, *b.add(Unique(), n.input(0), names=[""] * 4))
    return values, inverse


@tflite_op("SCATTER_ND")
def scatter_nd(b: Builder, n: TfliteNode) -> Value:
    """Updates for the same place add up."""
    updates = n.input(1)
    wide = updates if updates.dtype in (F32, I32) else cast(b, updates, I32)
    zeros = b.add(Fill(), n.input(2), b.constant(np.zeros((), wide.dtype)))
    return cast(b, b.add(ScatterNd("ADD"), n.input(0), wide, n.input(2), zeros), updates.dtype)


@tflite_op("SPARSE_TO_DENSE")
def sparse_to_dense(b: Builder, n: TfliteNode) -> Value:
    """Operands: indices (one, a list, or rows), shape, values (one for all, or one each), what is elsewhere."""
    return dense(b, n, *(n.input(i) for i in range(4)))


SEGMENTS = {  # operator: how what falls together is combined, what there is without anything (float, int)
    "SEGMENT_SUM": ("ADD", 0.0, 0), "UNSORTED_SEGMENT_SUM": ("ADD", 0.0, 0), "UNSORTED_SEGMENT_PROD": ("MUL", 1.0, 1),
    "UNSORTED_SEGMENT_MAX": ("MAXIMUM", LOWEST, -(2**31)), "UNSORTED_SEGMENT_MIN": ("MINIMUM", HIGHEST, 2**31 - 1),
}  # fmt: skip


@tflite_op(*SEGMENTS, limits="segments of one axis")
def segments(b: Builder, n: TfliteNode) -> Value:
    """Rows combined by the number of their segment; rows of a negative number go nowhere."""
    x, ids = n.input(0), n.input(1)
    if known_rank(n, ids) != 1:
        raise n.refuse(f"{n.op} by a table of rank {ids.rank} is not supported")
    function, real, whole = SEGMENTS[n.op]
    count = None if n.op == "SEGMENT_SUM" else reshape(b, n.input(2), (1,))
    return segmented(b, n, x, ids, count, function, real if x.dtype == F32 else whole)


@tflite_op("DYNAMIC_UPDATE_SLICE", moves=True, limits="the sizes of the update must be known")
def dynamic_update_slice(b: Builder, n: TfliteNode) -> Value:
    """The update put in at a start, which is moved so that all of it lies inside."""
    x, update, start = n.input(0), n.input(1), n.input(2)
    sizes = [d for d in update.shape or () if isinstance(d, int)]
    if update.shape is None or len(sizes) != len(update.shape):
        raise n.refuse("DYNAMIC_UPDATE_SLICE needs the sizes of the update", hint=FIX_SIZES)
    if not sizes:
        return update
    shape = b.add(ShapeOf(), x)
    start = calc(b, "MAXIMUM", calc(b, "MINIMUM", start, calc(b, "SUB", shape, b.ints(sizes))), 0)
    grid = np.stack(np.meshgrid(*(np.arange(s) for s in sizes), indexing="ij"), -1)
    return b.add(ScatterNd(), calc(b, "ADD", b.ints(grid), start), update, shape, x)


@tflite_op("MATRIX_DIAG", limits="the size must be known")
def matrix_diag(b: Builder, n: TfliteNode) -> Value:
    x = n.input(0)
    size = x.shape[-1] if x.shape else None
    if not isinstance(size, int):
        raise n.refuse("MATRIX_DIAG needs the size of its operand", hint=FIX_SIZES)
    return choose(b, b.ints(np.eye(size)), unsqueezed(b, x, known_rank(n, x) - 1), 0, x)


@tflite_op("MATRIX_SET_DIAG", limits="the sizes must be known")
def matrix_set_diag(b: Builder, n: TfliteNode) -> Value:
    x, diagonal = n.input(0), n.input(1)
    rows, columns = x.shape[-2:] if x.shape else (None, None)
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise n.refuse("MATRIX_SET_DIAG needs the sizes of its operand", hint=FIX_SIZES)
    spread = unsqueezed(b, diagonal, known_rank(n, x) - (1 if rows <= columns else 2))
    return choose(b, b.ints(np.eye(rows, columns)), spread, x, x)


@tflite_op("BROADCAST_ARGS")
def broadcast_args(b: Builder, n: TfliteNode) -> Value:
    """The shape to which two shapes broadcast: where one has 1, the other counts."""
    pair = [n.input(0), n.input(1)]
    ranks = [x.shape[0] if x.shape else None for x in pair]
    if not all(isinstance(r, int) for r in ranks):
        raise n.refuse("BROADCAST_ARGS needs the lengths of its operands")
    most = max(r for r in ranks if isinstance(r, int))
    x, y = (
        v if r == most or not isinstance(r, int) else b.add(Concat(0), b.ints([1] * (most - r)), v)
        for v, r in zip(pair, ranks, strict=True)
    )
    return choose(b, calc(b, "EQUAL", x, 1), y, x, x)


@tflite_op("BUCKETIZE")
def bucketize(b: Builder, n: TfliteNode) -> Value:
    """How many boundaries are not above each element."""
    x, bounds = n.input(0), np.asarray(n.option("BoundariesAsNumpy", np.empty(0)), np.float32).reshape(-1)
    above = calc(b, "GREATER_EQUAL", cast(b, unsqueezed(b, x, known_rank(n, x)), F32), bounds)
    return reduced(b, "SUM", above, known_rank(n, x), keep=False)


@tflite_op("RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL", limits="other numbers than LiteRT draws for the same seeds")
def random(b: Builder, n: TfliteNode) -> Value:
    seed = int(n.option("Seed", 0)) or int(n.option("Seed2", 0))
    op = RandomUniform if n.op == "RANDOM_UNIFORM" else RandomNormal
    return b.add(op(seed=seed & 0x7FFFFFFF), n.input(0))


@tflite_op("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5", limits="no soft suppression; a known number of boxes")
def suppression(b: Builder, n: TfliteNode) -> tuple[Value, ...]:
    """Indices of the boxes that stay, filled up with zeros to the largest number, (their scores,) and how many."""
    if n.op.endswith("V5") and float(n.required_constant(5, "sigma").reshape(-1)[0]) != 0:
        raise n.refuse("NON_MAX_SUPPRESSION_V5 with a sigma that is not 0 is not supported")
    indices, scores, count = filled_suppression(b, [n.input(i) for i in range(5)])
    return (indices, count) if n.op.endswith("V4") else (indices, scores, count)
