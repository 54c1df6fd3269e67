"""What a pass is: a frozen dataclass whose fields are its options and whose `run` rewrites a graph and reports."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Protocol

from mnnconvert.ir import Graph, Node, Spec, Value
from mnnconvert.ir.types import merge


@dataclass(frozen=True)
class Report:
    """What a pass did: how many changes, in how many seconds, and what a person may want to know about them.

    `misses` says of what was nearly changed why it was not.
    """

    name: str
    changes: int
    seconds: float
    notes: list[str] = field(default_factory=list)
    misses: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Pass(Protocol):
    """Anything with a name, the names of passes it must come after, and `run`."""

    @property
    def name(self) -> str: ...
    @property
    def after(self) -> tuple[str, ...]: ...
    def run(self, graph: Graph) -> Report: ...


@dataclass
class Notes:
    """What a pass collects for its report while it works on the graphs of `whole`."""

    whole: Graph
    notes: list[str] = field(default_factory=list)
    misses: list[str] = field(default_factory=list)


class GraphPass:
    """Base of passes that treat each graph, subgraphs included, by itself. A subclass writes `change`."""

    name: ClassVar[str]
    after: ClassVar[tuple[str, ...]] = ()

    def change(self, graph: Graph, notes: Notes) -> int:
        """Rewrite this graph (not the graphs inside it) and return the number of changes."""
        raise NotImplementedError(self.name)

    def run(self, graph: Graph) -> Report:
        """Rewrite the graph and every graph inside it."""
        started, notes = time.perf_counter(), Notes(graph)
        changes = sum(self.change(inner, notes) for inner in graph.graphs())
        return Report(self.name, changes, time.perf_counter() - started, notes.notes, notes.misses)


def unlink(graph: Graph, gone: set[Node]) -> None:
    """Take nodes out whose results nobody outside of `gone` reads, in time linear in the graph."""
    for value in {v for node in gone for v in node.inputs}:
        value.users = [u for u in value.users if u not in gone]
    graph.nodes = [n for n in graph.nodes if n not in gone]


def forward(graph: Graph, replaced: dict[Value, Value]) -> None:
    """Make every reader of a replaced value, and every output that it is, use its replacement (followed to its end)."""
    readers = dict.fromkeys(user for old in replaced for user in old.users)
    for node in readers:
        for i, value in enumerate(node.inputs):
            if value in replaced:
                node.inputs[i] = end = _end(replaced, value)
                end.users.append(node)
    for old in replaced:
        old.users = []
    graph.outputs = [(name, _end(replaced, value)) for name, value in graph.outputs]


def _end(replaced: dict[Value, Value], value: Value) -> Value:
    while value in replaced:
        value = replaced[value]
    return value


def reinfer(graph: Graph) -> None:
    """Run the shape rules again, so that what a pass has learned reaches the values after it."""
    for node in graph.nodes:
        if node.op.subgraphs():
            continue
        result = node.op.infer(*(v.spec for v in node.inputs))
        for value, spec in zip(node.outputs, (result,) if isinstance(result, Spec) else result, strict=False):
            content = value.spec.content if spec.content is None or value.spec.constant is not None else spec.content
            value.spec = Spec(value.dtype, merge(value.shape, spec.shape), content)


def same_type(old: Spec, new: Spec) -> bool:
    """Whether `new` may stand for `old`: element type and rank are equal, and no size that is known of both differs.

    Two symbols count as the same size only when their text is equal.
    """
    if old.dtype != new.dtype or (old.shape is None) != (new.shape is None):
        return False
    if old.shape is None or new.shape is None:
        return True
    return len(old.shape) == len(new.shape) and all(
        a is None or b is None or a == b for a, b in zip(old.shape, new.shape, strict=True)
    )
