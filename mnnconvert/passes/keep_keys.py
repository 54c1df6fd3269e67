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
MASK = {
    "attention",
    "mask",
}  # words in the name of an input that has a column for each key, whatever its sizes are called


@dataclass(frozen=True)
class Past:
    """An input [batch, heads, positions, size], what is appended to it, and the node that does so."""

    source: Value
    new: Value
    whole: Node


@dataclass(frozen=True)
class Lengths:
    """What is known of sizes when the pasts are gone: axes of the inputs that stay, by size.

    `names` are what the number of positions before is called, `new` is the number of new ones, and `whole` an axis of
    both together; `assumed` names an input that is only taken to have that.
    """

    places: dict[Dim, Place]
    names: frozenset[str]
    new: Dim
    whole: Place | None
    assumed: str = ""

    def part(self, b: Builder, dim: Dim) -> Value:
        """A size as int32 [1]; UnlikeError where nothing tells it."""
        if isinstance(dim, int):
            return b.ints(np.array([dim]))
        if dim in self.places:
            value, axis = self.places[dim]
            return b.add(ShapeOf(axis, axis + 1), value)
        if self.whole is None or (dim not in self.names and dim not in {add(name, self.new) for name in self.names}):
            raise UnlikeError("the length of the past follows from no other input")
        value, axis = self.whole
        whole = b.add(ShapeOf(axis, axis + 1), value)
        return b.add(Binary("SUB"), whole, self.part(b, self.new)) if dim in self.names else whole


@dataclass
class Kept:
    """All of a graph: forms that read what is new only, and what becomes of sizes (by node) and of the pasts."""

    forms: list[AttentionForm]
    pasts: list[Past]
    sizes: dict[Node, tuple[Dim, ...]]
    lengths: Lengths

    def size(self, b: Builder, node: Node) -> Value:
        """What a ShapeOf gave, from other inputs."""
        parts = [self.lengths.part(b, dim) for dim in self.sizes[node]]
        return parts[0] if len(parts) == 1 else b.add(Concat(0), *parts)

    def forget(self, graph: Graph) -> None:
        """Take the inputs and outputs out, once nothing else reads them."""
        gone = {past.source for past in self.pasts}
        whole = {past.whole.output for past in self.pasts}
        graph.outputs = [(name, value) for name, value in graph.outputs if value not in whole]
        graph.prune()
        assert not any(value.users for value in gone)  # `kept_keys` has looked
        graph.inputs = [value for value in graph.inputs if value not in gone]

    def notes(self) -> list[str]:
        """What a person may want to know."""
        assumed = self.lengths.assumed
        taken = [f"the size of '{assumed}' is taken to be that of past and new positions together"] if assumed else []
        return [f"{len(self.pasts)} inputs with the keys and values of earlier calls are kept inside", *taken]


def kept_keys(graph: Graph, forms: Iterable[AttentionForm]) -> Kept | None:
    """What can be kept; None where nothing is handed on from call to call. UnlikeError where it cannot be kept."""
    pairs = [(f, _past(graph, f.k), _past(graph, f.v)) for f in forms]
    found = [(f, k, v) for f, k, v in pairs if k is not None and v is not None]
    if not found:
        return None
    pasts = list({past.source: past for _, k, v in found for past in (k, v)}.values())
    inside, sizes = _readers(pasts, [f.last for f, _, _ in found])
    _check(graph, inside, [f for f, _, _ in found], pasts)
    kept = Kept([replace(f, k=_new(f.k, k), v=_new(f.v, v)) for f, k, v in found], pasts, sizes, _lengths(graph, pasts))
    scratch = Builder()
    for dims in sizes.values():
        for dim in dims:
            kept.lengths.part(scratch, dim)  # raises where a size is not known
    return kept


def _lengths(graph: Graph, pasts: Sequence[Past]) -> Lengths:
    sources = {past.source for past in pasts}
    others = [value for value in graph.inputs if value not in sources]
    places: dict[Dim, Place] = {
        dim: (value, axis)
        for value in reversed(others) for axis, dim in enumerate(value.shape or ()) if isinstance(dim, str)
    }  # fmt: skip
    names = {(past.source.shape or ())[2] for past in pasts}
    new = {(past.new.shape or ())[2] for past in pasts}
    if len(new) > 1 or None in new or not all(isinstance(name, str) and name not in places for name in names):
        raise UnlikeError("the pasts are not known to have one length, which is open")
    count, known = new.pop(), frozenset(str(name) for name in names)
    whole = next((places[add(name, count)] for name in known if add(name, count) in places), None)
    assumed = next((v for v in others if v.rank == 2 and set(v.name.split("_")) >= MASK), None)
    size = (assumed.shape or ())[1] if assumed is not None else None
    if whole is None and assumed is not None and isinstance(size, str) and size != count:
        return Lengths(places, known, count, (assumed, 1), assumed.name)
    return Lengths(places, known, count, whole)


def _past(graph: Graph, heads: Repeated) -> Past | None:
    """What keys or values are appended to, where that is an input."""
    node = _unturned(heads.source).producer
    if node is None or not isinstance(node.op, Concat) or len(node.inputs) != 2 or node.output.rank != 4:
        return None
    source, new = node.inputs
    return Past(source, new, node) if node.op.axis in (2, -2) and source in graph.inputs else None


def _unturned(value: Value) -> Value:
    """A value before its last two of four axes changed places."""
    node = value.producer
    turned = node is not None and isinstance(node.op, Permute) and node.op.dims == (0, 1, 3, 2)
    return node.inputs[0] if node is not None and turned else value


def _new(heads: Repeated, past: Past) -> Repeated:
    turned = _unturned(heads.source) is not heads.source
    return Repeated(past.new, heads.group, heads.swapped != turned, heads.nodes)


def _readers(pasts: Sequence[Past], ends: Sequence[Node]) -> tuple[set[Value], dict[Node, tuple[Dim, ...]]]:
    """What is made of the pasts, up to the attentions; and the nodes that ask for sizes of it, with these."""
    inside = {past.source for past in pasts}
    sizes: dict[Node, tuple[Dim, ...]] = {}
    ahead = [user for past in pasts for user in past.source.users]
    while ahead:
        node = ahead.pop()
        if isinstance(node.op, ShapeOf):
            sizes[node] = (node.inputs[0].shape or (None,))[node.op.start : node.op.end]
        elif node.output not in inside and node not in ends:
            inside.update(node.outputs)
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
