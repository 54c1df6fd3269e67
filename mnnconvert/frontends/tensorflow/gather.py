"""Import rules of ops that pick or place values by index, and of diagonals."""

from __future__ import annotations

import numpy as np

from mnnconvert.frontends.common.channels_last import batched_gather
from mnnconvert.frontends.common.compose import calc, cast, choose, reshape
from mnnconvert.frontends.common.moves import part, reshaped, squeezed, unsqueezed
from mnnconvert.frontends.common.nodes import FIX_SIZES, axis_of, known_rank, limited
from mnnconvert.frontends.common.places import dense, segmented
from mnnconvert.frontends.tensorflow.node import TfNode
from mnnconvert.frontends.tensorflow.registry import tf_op
from mnnconvert.ir import F32, I32, Builder, Value
from mnnconvert.ops.arrange import Concat, MatrixBandPart
from mnnconvert.ops.gather import GatherND, GatherV2, OneHot
from mnnconvert.ops.generators import Fill
from mnnconvert.ops.scatter import ScatterNd
from mnnconvert.ops.search import Where
from mnnconvert.ops.shape import ShapeOf

LOWEST, HIGHEST = float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)


@tf_op("Gather", "GatherV2", gives="Tparams", limits="the axis must be known; batches need a known rank")
def gather(b: Builder, n: TfNode) -> Value:
    """Slices along an axis; with `batch_dims` the leading axes of both operands pair up."""
    x, indices, batch = n.input(0), n.input(1), n.int_attr("batch_dims")
    axis = n.ints(2, "the axis")[0] if n.has(2) else 0
    if not batch and axis >= 0:
        return b.add(GatherV2(), x, indices, b.ints(axis))
    axis = axis_of(n, axis, known_rank(n, x))
    batch += known_rank(n, indices) if batch < 0 else 0
    return batched_gather(b, n, x, indices, axis, batch) if batch else b.add(GatherV2(), x, indices, b.ints(axis))


@tf_op("GatherNd", gives="Tparams")
def gather_nd(b: Builder, n: TfNode) -> Value:
    return b.add(GatherND(n.int_attr("batch_dims")), n.input(0), n.input(1))


@tf_op("OneHot")
def one_hot(b: Builder, n: TfNode) -> Value:
    on, off = n.input(2), n.input(3)
    dtype = on.dtype
    on, off = (x if x.dtype in (F32, I32) else cast(b, x, I32) for x in (on, off))
    return cast(b, b.add(OneHot(n.int_attr("axis", -1)), n.input(0), n.input(1), on, off), dtype)


def _wide(b: Builder, x: Value) -> Value:
    return x if x.dtype in (F32, I32) else cast(b, x, I32)


@tf_op("ScatterNd")
def scatter_nd(b: Builder, n: TfNode) -> Value:
    """Updates for the same place add up."""
    updates, shape = n.input(1), n.input(2)
    wide = _wide(b, updates)
    zeros = b.add(Fill(), shape, b.constant(np.zeros((), wide.dtype)))
    return cast(b, b.add(ScatterNd("ADD"), n.input(0), wide, shape, zeros), updates.dtype)


SCATTERS = {
    "TensorScatterUpdate": "", "TensorScatterAdd": "ADD", "TensorScatterSub": "SUB", "TensorScatterMax": "MAXIMUM",
    "TensorScatterMin": "MINIMUM", "ScatterNdNonAliasingAdd": "ADD",
}  # fmt: skip


@tf_op(*SCATTERS)
def tensor_scatter(b: Builder, n: TfNode) -> Value:
    """A tensor with updates put in at places, or combined with what is there."""
    x, indices, updates = n.input(0), n.input(1), n.input(2)
    wide, function = _wide(b, x), SCATTERS[n.op]
    updates = _wide(b, updates)
    if function == "SUB":
        function, updates = "ADD", calc(b, "MUL", updates, -1)
    return cast(b, b.add(ScatterNd(function), indices, updates, b.add(ShapeOf(), wide), wide), x.dtype)


@tf_op("SparseToDense")
def sparse_to_dense(b: Builder, n: TfNode) -> Value:
    return dense(b, n, *(n.input(i) for i in range(4)))


SEGMENTS = {  # op: how what falls together is combined, what there is without anything (float, int)
    "SegmentSum": ("ADD", 0.0, 0), "SegmentProd": ("MUL", 1.0, 1), "SegmentMax": ("MAXIMUM", 0.0, 0),
    "SegmentMin": ("MINIMUM", 0.0, 0), "SegmentSumV2": ("ADD", 0.0, 0), "SegmentProdV2": ("MUL", 1.0, 1),
    "UnsortedSegmentSum": ("ADD", 0.0, 0), "UnsortedSegmentProd": ("MUL", 1.0, 1),
    "UnsortedSegmentMax": ("MAXIMUM", LOWEST, -(2**31)), "UnsortedSegmentMin": ("MINIMUM", HIGHEST, 2**31 - 1),
}  # fmt: skip
SORTED_EXTREMES = {"SegmentMax": LOWEST, "SegmentMin": HIGHEST}


def _segment_count(b: Builder, n: TfNode) -> Value | None:
    """How many segments are asked for; None where that is as many as are named."""
    return reshape(b, n.input(2), (1,)) if n.has(2) else None


def _ids(n: TfNode) -> Value:
    ids = n.input(1)
    if known_rank(n, ids) != 1:
        raise n.refuse(f"{n.op} by a table of rank {ids.rank} is not supported")
    return ids


@tf_op(*SEGMENTS, limits="segments of one axis")
def segments(b: Builder, n: TfNode) -> Value:
    """Rows combined by the number of their segment; sorted ones have 0 where a segment has no rows."""
    x, ids = n.input(0), _ids(n)
    function, real, whole = SEGMENTS[n.op]
    start = real if x.dtype == F32 else whole
    if n.op not in SORTED_EXTREMES:
        return segmented(b, n, x, ids, _segment_count(b, n), function, start)
    if x.dtype != F32:
        raise n.refuse(f"{n.op} of integers is not supported", reference="unsupported-type")
    y = segmented(b, n, x, ids, None, function, SORTED_EXTREMES[n.op])
    return choose(b, calc(b, "EQUAL", y, SORTED_EXTREMES[n.op]), 0.0, y, y)


@tf_op("SegmentMean", limits="segments of one axis")
def segment_mean(b: Builder, n: TfNode) -> Value:
    """Sums by how many rows they have; 0 where there is none."""
    x, ids = n.input(0), _ids(n)
    total = segmented(b, n, x, ids, None, "ADD", 0.0)
    ones = b.add(Fill(), b.add(ShapeOf(), ids), b.floats(1.0))
    count = calc(b, "MAXIMUM", segmented(b, n, ones, ids, None, "ADD", 0.0), 1.0)
    rank = known_rank(n, x)
    return calc(b, "REALDIV", total, reshape(b, count, (-1, *(1,) * (rank - 1))))


@tf_op("Where", gives="int64")
def where(b: Builder, n: TfNode) -> Value:
    """Coordinates of what is not zero."""
    x = n.input(0)
    return b.add(Where(), x if x.dtype == I32 else calc(b, "NOTEQUAL", x, 0))


@tf_op("DynamicStitch", "ParallelDynamicStitch", limits="indices must be known")
def dynamic_stitch(b: Builder, n: TfNode) -> Value:
    """Rows of several tensors, each at the place that its index names; the last one counts."""
    count = n.input_count // 2
    indices = [n.required_constant(i, "an index").astype(np.int64) for i in range(count)]
    rows = []
    for i, places in enumerate(indices):
        x = n.input(count + i)
        rest = [part(x, k) for k in range(places.ndim, known_rank(n, x))]
        rows.append(reshaped(b, x, [int(places.size), *rest]))
    flat = np.concatenate([i.reshape(-1) for i in indices])
    size = int(flat.max(initial=-1)) + 1
    limited(n, size)
    last = np.zeros(size, np.int64)
    last[flat] = np.arange(flat.size)
    joined = b.add(Concat(0), *rows) if len(rows) > 1 else rows[0]
    return b.add(GatherV2(), joined, b.ints(last), b.ints(0))


@tf_op("DynamicPartition", limits="partitions of one axis")
def dynamic_partition(b: Builder, n: TfNode) -> tuple[Value, ...]:
    """The rows of each number."""
    x, numbers = n.input(0), n.input(1)
    if known_rank(n, numbers) != 1:
        raise n.refuse(f"{n.op} by a table of rank {numbers.rank} is not supported")
    found = [b.add(Where(), calc(b, "EQUAL", numbers, i)) for i in range(n.int_attr("num_partitions", 1))]
    return tuple(b.add(GatherV2(), x, squeezed(b, places, 1), b.ints(0)) for places in found)


@tf_op("MatrixBandPart")
def matrix_band_part(b: Builder, n: TfNode) -> Value:
    return b.add(MatrixBandPart(), n.input(0), n.input(1), n.input(2))


def _middle_only(n: TfNode) -> None:
    """Refuse other diagonals than the main one, sizes that are not those of the operand, and another padding."""
    if n.op.endswith(("V2", "V3")):
        offsets = {"MatrixDiagV2": 1, "MatrixDiagV3": 1, "MatrixSetDiagV2": 2, "MatrixSetDiagV3": 2}.get(n.op, 1)
        if any(n.ints(offsets, "the offset")):
            raise n.refuse(f"{n.op} of other diagonals than the main one is not supported")


def _extent(n: TfNode, x: Value, axis: int) -> int:
    size = x.shape[axis] if x.shape else None
    if not isinstance(size, int):
        raise n.refuse(f"{n.op} needs the sizes of its operand", hint=FIX_SIZES)
    return size


@tf_op("MatrixDiag", "MatrixDiagV2", "MatrixDiagV3", "Diag", limits="the main diagonal of square matrices, known sizes")
def matrix_diag(b: Builder, n: TfNode) -> Value:
    """A vector on the diagonal, zeros (or the padding) beside it."""
    x = n.input(0)
    if n.op == "Diag" and known_rank(n, x) != 1:
        raise n.refuse(f"Diag of rank {x.rank} is not supported")
    _middle_only(n)
    size, padding = _extent(n, x, -1), 0.0
    if n.has(2):
        if any(v not in (-1, size) for v in (*n.ints(2, "the rows"), *n.ints(3, "the columns"))):
            raise n.refuse(f"{n.op} that is not square is not supported")
        padding = float(n.required_constant(4, "the padding").reshape(-1)[0])
    limited(n, size, size)
    return choose(b, b.ints(np.eye(size)), unsqueezed(b, x, known_rank(n, x) - 1), padding, x)


@tf_op("MatrixSetDiag", "MatrixSetDiagV2", "MatrixSetDiagV3", limits="the main diagonal, known sizes")
def matrix_set_diag(b: Builder, n: TfNode) -> Value:
    x, diagonal = n.input(0), n.input(1)
    _middle_only(n)
    rows, columns = _extent(n, x, -2), _extent(n, x, -1)
    limited(n, rows, columns)
    spread = unsqueezed(b, diagonal, known_rank(n, x) - (1 if rows <= columns else 2))
    return choose(b, b.ints(np.eye(rows, columns)), spread, x, x)


@tf_op("MatrixDiagPart", "MatrixDiagPartV2", "MatrixDiagPartV3", "DiagPart", limits="the main diagonal, known sizes")
def matrix_diag_part(b: Builder, n: TfNode) -> Value:
    """The diagonal: of rows and columns as one axis, every (columns + 1)th element."""
    x = n.input(0)
    rank = known_rank(n, x)
    if n.op == "DiagPart" and rank != 2:
        raise n.refuse(f"DiagPart of rank {rank} is not supported")
    _middle_only(n)
    rows, columns = _extent(n, x, -2), _extent(n, x, -1)
    leading = [part(x, i) for i in range(rank - 2)]
    flat = reshaped(b, x, [*leading, rows * columns])
    return b.add(GatherV2(), flat, b.ints(np.arange(min(rows, columns)) * (columns + 1)), b.ints(rank - 2))
