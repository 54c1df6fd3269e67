"""Nodes whose results nobody reads, and chains that end in them."""

from __future__ import annotations

from dataclasses import dataclass

from mnnconvert.ir import Graph
from mnnconvert.passes.base import GraphPass, Notes


@dataclass(frozen=True)
class RemoveDeadCode(GraphPass):
    """Take out what does not reach an output."""

    name = "remove-dead-code"

    def change(self, graph: Graph, notes: Notes) -> int:
        return graph.prune()
