"""Writes what a released MNN runtime computes wrong in a form that it computes right, and refuses what has none.

What is wrong, and the forms, are data: the tables in `defects`. Everything there is measured on MNN 3.6.1; our executor
computes both forms alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mnnconvert.errors import ConversionError, Diagnostic
from mnnconvert.ir import I8, Builder, Graph, Node, Value
from mnnconvert.passes.base import GraphPass, Notes
from mnnconvert.passes.defects import DEFECTS, Defect, RefusedError
from mnnconvert.passes.edit import replace_nodes

HINT = "--target none writes the file for another runtime"


@dataclass(frozen=True)
class Legalize(GraphPass):
    """Make a graph right for the target runtime. Raises `runtime-defect` with every op that cannot be.

    At `level` 2 indices are taken to count from the start, as exporters write them.
    """

    target: str = "mnn-3.6.1"
    level: int = 1

    name = "legalize"

    def change(self, graph: Graph, notes: Notes) -> int:
        table: dict[str, list[Defect]] = {}
        for defect in DEFECTS[self.target]:
            if self.level < 2 or not defect.negative_index:
                table.setdefault(defect.kind, []).append(defect)
        if self.level > 1:
            notes.notes.append("level 2: indices are taken to be non-negative")
        problems: list[Diagnostic] = []

        def replace(b: Builder, node: Node) -> Sequence[Value] | None:
            try:
                return _first(b, node, table.get(node.op.kind, ()))
            except RefusedError as refusal:
                problems.append(_diagnostic(node, str(refusal)))
                return None

        if table:
            problems += _biased(graph)
        count = replace_nodes(graph, replace)
        if problems:
            raise ConversionError(problems)
        return count + (graph.prune() if count else 0)


def _first(b: Builder, node: Node, defects: Sequence[Defect]) -> Sequence[Value] | None:
    for defect in defects:
        made = defect.form(b, node)
        if made is not None:
            return made
    return None


def _biased(graph: Graph) -> list[Diagnostic]:
    """int8 tensors are stored with 128 added on x86, and go in and out as they are stored."""
    named = [(v.name, v) for v in graph.inputs] + graph.outputs
    return [
        Diagnostic("runtime-defect", f"MNN 3.6.1 adds 128 to the int8 values of '{name}'", {"value": name}, HINT)
        for name, value in named
        if value.dtype == I8
    ]


def _diagnostic(node: Node, reason: str) -> Diagnostic:
    return Diagnostic(
        "runtime-defect",
        f"MNN 3.6.1 computes this wrong, and no other form of it is known: {reason}",
        {"node": ", ".join(node.origin) or node.name, "op": node.op.kind},
        HINT,
    )
