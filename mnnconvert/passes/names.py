"""Every graph output leaves under its own name, as the result of a node: what the file format needs."""

from __future__ import annotations

from dataclasses import dataclass

from mnnconvert.ir import Builder, Graph, Value
from mnnconvert.ops.layout import Identity
from mnnconvert.passes.base import GraphPass, Notes


@dataclass(frozen=True)
class NameOutputs(GraphPass):
    """Rename a result to its output name; copy (Identity) what is an input, a constant or an output already."""

    name = "name-outputs"
    after = ("layout",)

    def change(self, graph: Graph, notes: Notes) -> int:
        builder, changed = Builder(graph), 0
        taken: set[Value] = {v for n, v in graph.outputs if v.name == n and v.producer is not None}
        outputs: list[tuple[str, Value]] = []
        for name, value in graph.outputs:
            if value.name == name and value.producer is not None and (name, value) not in outputs:
                outputs.append((name, value))
                continue
            changed += 1
            if value.producer is None or value in taken:
                value = self._copy(builder, name, value)
            else:
                _rename(graph, builder, value, name)
                taken.add(value)
            outputs.append((name, value))
        graph.outputs = outputs
        return changed

    def _copy(self, builder: Builder, name: str, value: Value) -> Value:
        if value.name == name:  # an input or constant that is an output under its own name keeps it for the output
            value = _step_aside(builder, value)
        copied = builder.add(Identity(), value, name=name)
        return copied


def _step_aside(builder: Builder, value: Value) -> Value:
    builder.names.discard(value.name)
    if value.tensor is not None:
        value.name = builder.unique(f"{value.name}/stored")
    return value


def _rename(graph: Graph, builder: Builder, value: Value, name: str) -> None:
    other = next((v for v in graph.values() if v.name == name and v is not value), None)
    if other is not None:
        builder.names.discard(name)
        other.name = builder.unique(f"{name}/inner")
    builder.names.discard(value.name)
    builder.names.add(name)
    value.name = name
    if value.producer is not None and value.producer.output is value:
        value.producer.name = name
