"""Import rules of ops that put elements where indices say."""

from __future__ import annotations

from mnnconvert.frontends.common.compose import calc, cast, widened
from mnnconvert.frontends.common.run_time import scalar_size
from mnnconvert.frontends.onnx.gather import axis_size, from_start
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.ir import Builder, Value
from mnnconvert.ir.types import normal_axis
from mnnconvert.ops.arrange import BroadcastTo
from mnnconvert.ops.gather import GatherElements, GatherV2
from mnnconvert.ops.generators import Range
from mnnconvert.ops.scatter import ScatterElements, ScatterNd
from mnnconvert.ops.search import TopKV2
from mnnconvert.ops.shape import Flatten, Reshape, ShapeOf

REDUCTIONS = {"none": "", "add": "ADD", "mul": "MUL", "max": "MAXIMUM", "min": "MINIMUM"}


def _reduction(n: OnnxNode) -> str:
    name = n.attr("reduction", "none")
    if name not in REDUCTIONS:
        raise n.refuse(f"{n.op_type} has the reduction '{name}'")
    return REDUCTIONS[name]


@onnx_op("Scatter", "ScatterElements")
def scatter_elements(b: Builder, n: OnnxNode) -> Value:
    data, axis, reduction = n.input(0), n.attr("axis", 0), _reduction(n)
    indices = from_start(b, n.input(1), [axis_size(data, axis)])
    wide, updates = widened(b, data), widened(b, n.input(2))
    if reduction in ("MAXIMUM", "MINIMUM"):
        result = _extreme(b, reduction, wide, indices, updates, axis)
    else:
        result = b.add(ScatterElements(reduction), wide, indices, updates, b.ints(axis))
    return cast(b, result, data.dtype)


def _extreme(b: Builder, reduction: str, data: Value, indices: Value, updates: Value, axis: int) -> Value:
    """Put the updates in an order in which the last of a repeated index is the extreme one; the last one stays.

    The runtime does not combine by maximum or minimum itself.
    """
    along = b.ints(axis)
    values, order = b.add(
        TopKV2(largest=reduction == "MINIMUM"), updates, scalar_size(b, updates, axis), along, names=("", "")
    )
    placed = b.add(ScatterElements(), data, b.add(GatherElements(), indices, order, along), values, along)
    return calc(b, reduction, data, placed)


@onnx_op("ScatterND")
def scatter_nd(b: Builder, n: OnnxNode) -> Value:
    data, indices, reduction = n.input(0), n.input(1), _reduction(n)
    depth = indices.shape[-1] if indices.shape else None
    wide, updates = widened(b, data), widened(b, n.input(2))
    if reduction in ("MAXIMUM", "MINIMUM"):
        if not isinstance(depth, int) or indices.rank is None:
            raise n.refuse(f"ScatterND with reduction '{n.attr('reduction')}' needs indices of known rank and depth")
        return cast(b, _extreme_slices(b, reduction, wide, indices, updates, depth), data.dtype)
    if isinstance(depth, int) and data.shape is not None:
        indices = from_start(b, indices, data.shape[:depth])
    return cast(b, b.add(ScatterNd(reduction), indices, updates, b.add(ShapeOf(), data), wide), data.dtype)


def _extreme_slices(b: Builder, reduction: str, data: Value, indices: Value, updates: Value, depth: int) -> Value:
    """The same on matrices: rows are the slices of data, row numbers come from the index vectors."""
    last = (indices.rank or 1) - 1
    vectors, rows = b.add(Flatten(last), indices), b.add(Flatten(last), updates)
    numbers = b.ints([0])
    for i in range(depth):
        size = scalar_size(b, data, i)
        column = b.add(GatherV2(), vectors, b.ints(i), b.ints(1))
        column = calc(b, "ADD", column, calc(b, "MUL", calc(b, "LESS", column, 0), size))
        numbers = calc(b, "ADD", calc(b, "MUL", numbers, size), column)
    places = b.add(BroadcastTo(), b.add(Reshape((-1, 1)), numbers), b.add(ShapeOf(), rows))
    result = _extreme(b, reduction, b.add(Flatten(depth), data), places, rows, 0)
    return b.add(Reshape(), result, b.add(ShapeOf(), data))


@onnx_op("TensorScatter", since=24)
def tensor_scatter(b: Builder, n: OnnxNode) -> Value:
    """Writes a run of new entries into a cache, for each batch from its own place on."""
    cache, update = n.input(0), n.input(1)
    if update.rank is None:
        raise n.refuse("TensorScatter needs an update of known rank")
    axis = normal_axis(n.attr("axis", -2), update.rank)
    steps = b.add(Range(), b.ints(0), scalar_size(b, update, axis), b.ints(1))
    places = b.add(Reshape(tuple(-1 if i == axis else 1 for i in range(update.rank))), steps)
    if n.has(2):
        first = b.add(Reshape((-1, *(1,) * (update.rank - 1))), n.input(2))
        places = calc(b, "ADD", first, places)
    if n.attr("mode", "linear") == "circular":
        places = calc(b, "MOD", places, scalar_size(b, cache, axis))
    places = b.add(BroadcastTo(), places, b.add(ShapeOf(), update))
    wide = b.add(ScatterElements(), widened(b, cache), places, widened(b, update), b.ints(axis))
    return cast(b, wide, cache.dtype)
