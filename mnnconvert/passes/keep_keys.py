"""Decoders that take the keys and values of earlier calls and give back the longer ones: Attention keeps them itself.

The inputs and outputs for them go. What the graph asks of their sizes is computed from other inputs: how many positions
there have been is the size of one whose name is a sum, such as a mask [batch, past + sequence], without the new ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mnnconvert.ir import Builder, Graph, Node, Value
from mnnconvert.ir.types import Dim, add
from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.attention_form import AttentionForm, Repeated, UnlikeError
from mnnconvert.ops.elementwise import Binary
from mnnconvert.ops.shape import Permute, ShapeOf

Place = tuple[Value, int]  # an axis of an input


@dataclass(frozen=True)
class Past:
    """An input [batch, heads, positions, size], what is appended to it, and the node that does so."""

    source: Value
    new: Value
    whole: Node


@dataclass
class Kept:
    """All of a graph: forms that read what is new only, and what becomes of sizes (by node) and of the pasts."""

    forms: dict[Node, AttentionForm]
    pasts: list[Past]
    sizes: dict[Node, tuple[Dim, ...]]
    places: dict[Dim, Place]
    longer: tuple[Place, Place] | None  # axes of past + new and of new positions

    def size(self, b: Builder, node: Node) -> Value:
        """What a ShapeOf gave, from other inputs."""
        parts = [self._part(b, dim) for dim in self.sizes[node]]
        return parts[0] if len(parts) == 1 else b.add(Concat(0), *parts)

    def _part(self, b: Builder, dim: Dim) -> Value:
        if isinstance(dim, int):
            return b.ints(np.array([dim]))
        if dim in self.places:
            return _axis(b, self.places[dim])
        assert self.longer is not None  # `kept_keys` has asked
        return b.add(Binary("SUB"), *(_axis(b, place) for place in self.longer))

    def forget(self, graph: Graph) -> None:
        """Take the inputs and outputs out, once nothing else reads them."""
        gone = {past.source for past in self.pasts}
        whole = {past.whole.output for past in self.pasts}
        graph.outputs = [(name, value) for name, value in graph.outputs if value not in whole]
        graph.prune()
        assert not any(value.users for value in gone)  # `kept_keys` has looked
        graph.inputs = [value for value in graph.inputs if value not in gone]


def _axis(b: Builder, place: Place) -> Value:
    return b.add(ShapeOf(place[1], place[1] + 1), place[0])


def kept_keys(graph: Graph, forms: Iterable[AttentionForm]) -> Kept | None:
    """What can be kept; None where nothing is handed on from call to call. UnlikeError where it cannot be kept."""
    pairs = {f.first: (f, _past(graph, f.k), _past(graph, f.v)) for f in forms}
    found = {first: (f, k, v) for first, (f, k, v) in pairs.items() if k is not None and v is not None}
    if not found:
        return None
    kept = {first: replace(f, k=_new(f.k, k), v=_new(f.v, v)) for first, (f, k, v) in found.items()}
    pasts = list({past.source: past for _, k, v in found.values() for past in (k, v) if past is not None}.values())
    lengths = {past.source.shape[2] for past in pasts}  # type: ignore[index]  # they have four axes
    if len(lengths) > 1 or not isinstance(length := lengths.pop(), str):
        raise UnlikeError("the pasts are not known to have one length, which is open")
    nodes, sizes = _readers(graph, pasts, [f.last for f, _, _ in found.values()])
    inside = {value for node in nodes for value in node.outputs} | {past.source for past in pasts}
    _check(graph, inside, [f for f, _, _ in found.values()], pasts)
    sources = {past.source for past in pasts}
    places: dict[Dim, Place] = {
        dim: (value, axis)
        for value in reversed(graph.inputs) if value not in sources
        for axis, dim in enumerate(value.shape or ()) if isinstance(dim, str)
    }  # fmt: skip
    longer = _longer(places, length)
    unknown = {d for dims in sizes.values() for d in dims if not isinstance(d, int) and d not in places and d != length}
    if unknown or (longer is None and any(length in dims for dims in sizes.values())):
        raise UnlikeError("the length of the past follows from no other input")
    return Kept(kept, pasts, sizes, places, longer)


def _past(graph: Graph, heads: Repeated) -> Past | None:
    """What keys or values are appended to, where that is an input."""
    node = _unturned(heads.source).producer
    if node is None or not isinstance(node.op, Concat) or len(node.inputs) != 2 or node.output.rank != 4:
        return None
    source, new = node.inputs
    return Past(source, new, node) if node.op.axis in (2, -2) and source in graph.inputs else None


def _unturned(value: Value) -> Value:
    node = value.producer
    return (
        node.inputs[0] if node is not None and isinstance(node.op, Permute) and node.op.dims == (0, 1, 3, 2) else value
    )


def _new(heads: Repeated, past: Past) -> Repeated:
    turned = _unturned(heads.source) is not heads.source
    return Repeated(past.new, heads.group, heads.swapped != turned, heads.nodes)


def _readers(
    graph: Graph, pasts: Sequence[Past], ends: Sequence[Node]
) -> tuple[set[Node], dict[Node, tuple[Dim, ...]]]:
    """The nodes that make something of the pasts, up to the attentions; and those that ask for sizes, with these."""
    inside: set[Node] = set()
    sizes: dict[Node, tuple[Dim, ...]] = {}
    ahead = [user for past in pasts for user in past.source.users]
    while ahead:
        node = ahead.pop()
        if isinstance(node.op, ShapeOf):
            sizes[node] = (node.inputs[0].shape or (None,))[node.op.start : node.op.end]
        elif node not in inside and node not in ends:
            inside.add(node)
            ahead += [user for value in node.outputs for user in value.users]
    return inside, sizes


def _check(graph: Graph, inside: set[Value], forms: Sequence[AttentionForm], pasts: Sequence[Past]) -> None:
    """UnlikeError where more than the attentions depends on a past."""
    if graph.subgraphs:
        raise UnlikeError("there are subgraphs, which may read the past")
    whole = {past.whole.output for past in pasts}
    for name, value in graph.outputs:
        if value in inside and value not in whole:
            raise UnlikeError(f"the output '{name}' depends on the past beside the attentions")
    for form in forms:
        for value in (form.q, *(mask.value for mask in form.masks)):
            if value in inside:
                raise UnlikeError(f"'{value.name}' depends on the past")


def _longer(places: dict[Dim, Place], length: str) -> tuple[Place, Place] | None:
    """Axes of the sizes length + n and n."""
    for dim, place in places.items():
        if add(dim, length) in places:
            return places[add(dim, length)], place
    return None
