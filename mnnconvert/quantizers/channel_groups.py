"""Where the channels that a layer reads can be rescaled for free: a producer that takes 1/s, readers that take s.

y = W x is (W s)(x / s) for any s > 0 per channel. Dividing x costs nothing where x comes from something with a factor
or a row per channel: the gain of a norm, a multiplication by constants, or another layer. Between the two may lie what
only moves channels around, one side of a product with other activations (gated units), and attention, whose
probabilities mix positions but not channels. A nonlinearity in between is a dead end, but for ReLU, which commutes with
positive factors: GELU(x / s) is not GELU(x) / s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mnnconvert.ir import ArrayTensor, Graph, Node, Spec, Value
from mnnconvert.ops.activation import ReLU
from mnnconvert.ops.convolution import Convolution
from mnnconvert.ops.elementwise import Binary
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.layout import ConvertTensor
from mnnconvert.ops.matmul import MatMul
from mnnconvert.ops.normalization import LayerNorm
from mnnconvert.ops.shape import Permute, Reshape

Index = NDArray[np.intp]
Reading = tuple[Node, int]  # a node and the number of the operand


@dataclass(frozen=True)
class Place:
    """A value whose `axes`, taken together in row order, run through channels; `index` [channels of the layer] says
    which of them each input channel of the layer is."""

    value: Value
    axes: tuple[int, ...]
    index: Index

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of the axes, -1 where one is not known: values inside of branches may not even have a rank."""
        shape = self.value.shape
        return tuple(s if shape is not None and isinstance((s := shape[a]), int) else -1 for a in self.axes)


@dataclass(frozen=True)
class Source:
    """What takes the factors 1/s: operands of a node with one row or element per channel."""

    node: Node
    operands: tuple[int, ...]
    channels: int


@dataclass
class ChannelGroup:
    """Layers that read channels of one source. `index` maps their input channels to those of the source."""

    source: Source
    index: Index
    layers: list[Node] = field(default_factory=list)
    readings: set[Reading] = field(default_factory=set)

    def fold(self, scale: NDArray[np.float64]) -> None:
        """Divide what the source makes by `scale` [channels of the source], and let the layers make up for it."""
        for number in self.source.operands:
            _multiply(self.source.node, number, 1 / scale, 0)
        for node in self.layers:
            _multiply(node, 1, scale[self.index], 1)


def find_groups(graph: Graph, layers: Iterable[Node]) -> list[ChannelGroup]:
    """Groups of 1x1 convolutions among `layers` whose input channels can be rescaled without another op.

    All readers of what is rescaled are in the group; a value that also leads elsewhere (a residual connection, a graph
    output) is left alone.
    """
    groups: dict[tuple[Node, bytes], ChannelGroup] = {}
    for node in layers:
        found = _trace(node)
        if found is None:
            continue
        source, index, readings = found
        group = groups.setdefault((source.node, index.tobytes()), ChannelGroup(source, index))
        group.layers.append(node)
        group.readings |= readings
    outputs = graph.output_values
    return [g for g in groups.values() if _is_exclusive(g, outputs)]


def _is_exclusive(group: ChannelGroup, outputs: set[Value]) -> bool:
    values = {node.inputs[number] for node, number in group.readings}
    readings = {(u, i) for v in values for u in v.users for i, operand in enumerate(u.inputs) if operand is v}
    return not values & outputs and readings <= group.readings


def read_by(node: Node) -> Place | None:
    """The input channels of a convolution that is a product with a matrix: 1x1, in one group."""
    shape = node.inputs[1].shape or ()
    op = node.op
    if not isinstance(op, Convolution) or op.group != 1 or shape[2:] != (1, 1) or not isinstance(shape[1], int):
        return None
    return Place(node.inputs[0], (1,), np.arange(shape[1]))


def _trace(node: Node) -> tuple[Source, Index, set[Reading]] | None:
    """From a layer back to what could take its factors."""
    start = read_by(node)
    if start is None:
        return None
    readings: list[Reading] = [(node, 0)]
    found = _source(start, readings)
    return None if found is None else (*found, set(readings))


def _source(place: Place, readings: list[Reading]) -> tuple[Source, Index] | None:
    node = place.value.producer
    if node is None or len(node.outputs) != 1 or min(place.sizes) < 1:
        return None
    own = own_factors(node, place)
    if own is not None:
        return own, place.index
    for number, before in places_before(node, place):
        attempt = [*readings, (node, number)]
        found = _source(before, attempt)
        if found is not None:
            readings[:] = attempt
            return found
    return None


def own_factors(node: Node, place: Place) -> Source | None:
    """The node as a source, when it has a constant per channel."""
    op, channels = node.op, math.prod(place.sizes)
    constants = [v.is_constant for v in node.inputs]
    if isinstance(op, Convolution) and op.group == 1 and op.activation in ("", "relu") and place.axes == (1,):
        return Source(node, tuple(range(1, len(node.inputs))), channels) if all(constants[1:]) else None
    if isinstance(op, LayerNorm) and len(node.inputs) == 3 and op.group == 1:
        last = len(place.value.shape or ()) - 1
        if place.axes == (last,) and op.axes in ((-1,), (last,)) and all(constants[1:]):
            return Source(node, (1, 2), channels)
    if isinstance(op, Binary) and op.function == "MUL" and not op.activation:
        rank = len(place.value.shape or ())
        for number, value in enumerate(node.inputs):
            behind = len(value.shape or ()) - rank + place.axes[0] if len(place.axes) == 1 else -1
            if constants[number] and behind >= 0 and math.prod(_ints(value)) == channels == _ints(value)[behind]:
                return Source(node, (number,), channels)
    return None


def places_before(node: Node, place: Place) -> list[tuple[int, Place]]:
    """The operands through which factors of a result can be taken further back, and where the channels are there."""
    for kinds, rule in RULES:
        if isinstance(node.op, kinds):
            return rule(node, place)
    return []


def _same(node: Node, place: Place) -> list[tuple[int, Place]]:
    return [(0, Place(node.inputs[0], place.axes, place.index))]


def _relu(node: Node, place: Place) -> list[tuple[int, Place]]:
    return _same(node, place) if isinstance(node.op, ReLU) and node.op.slope >= 0 else []


def _permute(node: Node, place: Place) -> list[tuple[int, Place]]:
    assert isinstance(node.op, Permute)
    return [(0, Place(node.inputs[0], tuple(node.op.dims[a] for a in place.axes), place.index))]


def _reshape(node: Node, place: Place) -> list[tuple[int, Place]]:
    """The axes of the operand that hold the same elements: as many, with as many elements behind them."""
    axes = place.axes
    if axes != tuple(range(axes[0], axes[0] + len(axes))):
        return []
    behind, before = _product((place.value.shape or ())[axes[-1] + 1 :]), node.inputs[0].shape or ()
    for stop in range(len(before), 0, -1):
        if behind < 0 or _product(before[stop:]) != behind:
            continue
        for start in range(stop - 1, -1, -1):
            if _product(before[start:stop]) == math.prod(place.sizes):
                held = tuple(a for a in range(start, stop) if before[a] != 1) or (start,)
                return [(0, Place(node.inputs[0], held, place.index))]
    return []


def _product(sizes: Iterable[object]) -> int:
    """The product of sizes; -1 when one is not known."""
    known = [s for s in sizes if isinstance(s, int)]
    return math.prod(known) if len(known) == len(list(sizes)) else -1


def _ints(value: Value) -> tuple[int, ...]:
    return tuple(s if isinstance(s, int) else -1 for s in value.shape or ())


def _gather(node: Node, place: Place) -> list[tuple[int, Place]]:
    """Repeated or reordered slices, as of the keys and values that several heads share."""
    indices = node.inputs[1].constant
    axis = node.inputs[2].constant if len(node.inputs) > 2 else np.asarray(getattr(node.op, "axis", 0))
    x = node.inputs[0]
    if indices is None or indices.ndim != 1 or axis is None or x.shape is None:
        return []
    at = int(axis.reshape(-1)[0]) % len(x.shape)
    before = Place(x, place.axes, place.index)
    if at not in place.axes or min(before.sizes) < 1:
        return [(0, before)] if at not in place.axes else []
    parts = list(np.unravel_index(place.index, place.sizes))
    number = place.axes.index(at)
    parts[number] = indices.astype(np.intp)[parts[number]] % before.sizes[number]
    return [(0, Place(x, place.axes, np.ravel_multi_index(parts, before.sizes)))]


def _product_of_matrices(node: Node, place: Place) -> list[tuple[int, Place]]:
    """P V: the columns of V are those of the result, and so are its batches where V has them all."""
    op, v = node.op, node.inputs[1]
    rank = len(place.value.shape or ())
    if not isinstance(op, MatMul) or op.transpose_b or len(node.inputs) != 2 or v.is_constant or v.rank != rank:
        return []
    before = Place(v, place.axes, place.index)
    if rank - 2 in place.axes or rank - 1 not in place.axes or before.sizes != place.sizes:
        return []
    return [(1, before)]


def _gated(node: Node, place: Place) -> list[tuple[int, Place]]:
    """A product of activations: either side may take the factors. A product with one constant number: the other."""
    if getattr(node.op, "function", "") != "MUL" or getattr(node.op, "activation", ""):
        return []
    shape = place.value.shape
    if any(v.is_constant and _product(v.shape or ()) != 1 for v in node.inputs):
        return []
    sides = [(i, v) for i, v in enumerate(node.inputs) if not v.is_constant and v.shape == shape]
    return [(i, Place(v, place.axes, place.index)) for i, v in reversed(sides)]


RULES: tuple[tuple[type, Callable[[Node, Place], list[tuple[int, Place]]]], ...] = (
    (ConvertTensor, _same),
    (ReLU, _relu),
    (Permute, _permute),
    (Reshape, _reshape),
    (GatherV2, _gather),
    (MatMul, _product_of_matrices),
    (Binary, _gated),
)


def _multiply(node: Node, number: int, factors: NDArray[np.float64], axis: int) -> None:
    """Give a node a constant operand multiplied along `axis` (of all axes but those of size 1, where it has one)."""
    value = node.inputs[number]
    array = np.asarray(value.constant)
    shape = [1] * array.ndim
    shape[axis if array.shape[axis] == len(factors) else array.shape.index(len(factors))] = len(factors)
    scaled = (array * factors.reshape(shape)).astype(array.dtype)
    spec = Spec(value.dtype, value.shape, scaled if value.spec.content is not None else None)
    node.replace_input(number, Value(f"{value.name}/{node.name}", spec, ArrayTensor(scaled)))
