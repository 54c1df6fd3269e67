"""Arithmetic on sizes: what holds for every size is not computed at run time, and the same sizes only once.

A symbol stands for one size everywhere in a graph, so vectors of equal symbols are equal, whatever computes them. This
is how the guards around `expand` in torch's exports go: the ops know which comparisons of sizes are certain.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from mnnconvert.ir import Graph, Node, Value
from mnnconvert.ir.types import I32
from mnnconvert.passes.base import GraphPass, Notes, forward, reinfer


@dataclass(frozen=True)
class ResolveSizes(GraphPass):
    """Replace selections by known conditions, share equal sizes, follow the shapes again."""

    name = "resolve-sizes"

    def change(self, graph: Graph, notes: Notes) -> int:
        chosen = {n.output: c for n in graph.nodes if n.op.kind == "Select" and (c := _choice(n)) is not None}
        forward(graph, chosen)
        if chosen:
            reinfer(graph)
        shared = _shared(graph)
        forward(graph, shared)
        changes = len(chosen) + len(shared)
        return changes + (graph.prune() if changes else 0)


def _choice(node: Node) -> Value | None:
    """The operand that a Select gives whole."""
    condition, a, b = node.inputs
    known = condition.spec.constant
    if known is None or not (known.all() or not known.any()):
        return None
    chosen = a if known.all() else b
    return chosen if chosen.shape == node.output.shape and None not in (chosen.shape or (None,)) else None


def _shared(graph: Graph) -> dict[Value, Value]:
    """Later values that hold the same sizes as earlier ones."""
    first: dict[Hashable, Value] = {}
    replaced: dict[Value, Value] = {}
    for value in (v for node in graph.nodes for v in node.outputs):
        sizes = value.sizes
        if value.dtype == I32 and sizes and None not in sizes and any(isinstance(s, str) for s in sizes):
            kept = first.setdefault((value.shape, tuple(sizes)), value)
            if kept is not value:
                replaced[value] = kept
    return replaced
