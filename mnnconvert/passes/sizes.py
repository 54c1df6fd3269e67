"""Arithmetic on sizes: what holds for every size is decided, and the same sizes are computed once.

A symbol stands for one size everywhere in a graph, so vectors of equal symbols are equal, whatever computes them. This
is how the guards around `expand` in torch's exports go, and with them the doubt about every shape behind them.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from mnnconvert.ir import Dim, Graph, Node, Value
from mnnconvert.ir.types import I32
from mnnconvert.passes.base import GraphPass, Notes, forward, reinfer


@dataclass(frozen=True)
class ResolveSizes(GraphPass):
    """Decide comparisons of sizes and selections by known conditions, share equal sizes, follow the shapes again."""

    name = "resolve-sizes"

    def change(self, graph: Graph, notes: Notes) -> int:
        decided = sum(_decide(node) for node in graph.nodes)
        chosen = {n.output: c for n in graph.nodes if n.op.kind == "Select" and (c := _choice(n)) is not None}
        forward(graph, chosen)
        if decided or chosen:
            reinfer(graph)
        shared = _shared(graph)
        forward(graph, shared)
        changes = decided + len(chosen) + len(shared)
        return changes + (graph.prune() if changes else 0)


def _decide(node: Node) -> bool:
    """Make the result of an EQUAL of sizes known where every pair is decided."""
    if node.op.kind != "Binary" or node.op.function != "EQUAL" or node.output.spec.content is not None:  # type: ignore[attr-defined]
        return False
    a, b, shape = node.inputs[0].sizes, node.inputs[1].sizes, node.output.shape
    if a is None or b is None or shape is None or len(shape) > 1:
        return False
    count = max(len(a), len(b))
    pairs = zip(a * (count // max(1, len(a))), b * (count // max(1, len(b))), strict=True)
    answers = [_equal(p, q) for p, q in pairs]
    if None in answers:
        return False
    node.output.spec.content = np.array(answers, I32).reshape([d for d in shape if isinstance(d, int)])
    return True


def _equal(a: Dim, b: Dim) -> bool | None:
    """Whether two sizes are equal; None when that depends on the run."""
    if a is None or b is None:
        return None
    if (isinstance(a, int) and isinstance(b, int)) or a == b:
        return a == b
    symbol, number = (a, b) if isinstance(a, str) else (b, a)
    below = isinstance(number, int) and number < 0 and "-" not in str(symbol)  # a plain size is not negative
    return False if below else None


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
