"""Every graph output leaves under its own name: what the file format needs."""

from __future__ import annotations

from dataclasses import dataclass

from mnnconvert.ir import Builder, Graph, Value
from mnnconvert.ops.layout import Identity
from mnnconvert.passes.base import GraphPass, Notes
from mnnconvert.passes.edit import rename


@dataclass(frozen=True)
class NameOutputs(GraphPass):
    """Rename a result to its output name; copy (Identity) what is an input, a constant, or an output already.

    Names of inputs stay. A result or constant that has the name of an output by chance gets another.
    """

    name = "name-outputs"
    after = ("layout",)

    def change(self, graph: Graph, notes: Notes) -> int:
        builder, changed = Builder(graph), 0
        taken = {value for name, value in graph.outputs if value.name == name}
        holders = {v.name: v for v in graph.values()}
        for i, (name, value) in enumerate(graph.outputs):
            if value.name == name:
                continue
            changed += 1
            if value.producer is None or value in taken:
                value = builder.add(Identity(), value)
            _make_way(graph, builder, holders, name)
            holders.pop(value.name, None)
            rename(builder, value, name)
            holders[name] = value
            taken.add(value)
            graph.outputs[i] = (name, value)
        return changed


def _make_way(graph: Graph, builder: Builder, holders: dict[str, Value], name: str) -> None:
    """Take a name from the value that has it."""
    holder = holders.get(name)
    if holder is not None and holder not in graph.inputs:
        other = builder.unique(f"{name}/inner")
        rename(builder, holder, other)
        holders[other] = holder
