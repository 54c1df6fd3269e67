"""Expressions that are computed twice are computed once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from mnnconvert.ir import Graph, Node, Value
from mnnconvert.passes.base import GraphPass, Notes, forward, unlink


@dataclass(frozen=True)
class ShareExpressions(GraphPass):
    """Keep the first of pure ops with equal attributes and operands."""

    name = "share-expressions"
    after = ("share-constants",)

    def change(self, graph: Graph, notes: Notes) -> int:
        first: dict[Hashable, Node] = {}
        replaced: dict[Value, Value] = {}
        gone: set[Node] = set()
        for node in graph.nodes:
            if not node.op.pure or node.op.subgraphs():
                continue
            kept = first.setdefault((node.op, *(id(replaced.get(v, v)) for v in node.inputs)), node)
            if kept is not node:
                gone.add(node)
                replaced.update(zip(node.outputs, kept.outputs, strict=True))
                kept.origin = tuple(dict.fromkeys((*kept.origin, *node.origin)))
        forward(graph, replaced)
        unlink(graph, gone)
        return len(gone)
