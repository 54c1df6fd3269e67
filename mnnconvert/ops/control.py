"""Control flow: ops that run other graphs. In a graph everything goes by position; the names that a file uses for it
are put on when it is written, and resolved by `settle` when it is read.

A graph that is run sees nothing of the outside: what it needs is passed to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mnnconvert.ir.graph import CallGraph, Graph, Node, Value
from mnnconvert.ir.types import I32, Dim, Shape, Spec
from mnnconvert.ops.base import Emission, Fields, Form, Op, register

Graphs = Mapping[str, Graph]
Names = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Aliases:
    """How a file says what goes where: names of tensors of the graphs that are run (FORMAT: IfParam, WhileParam)."""

    inputs: Names = ()
    outputs: Names = ()
    updates: Names = ()


def join(a: Spec, b: Spec) -> Spec:
    """What is known of a value that is one of two."""
    if a.dtype != b.dtype:
        raise ValueError(f"a value is {a.dtype} on one way and {b.dtype} on the other")
    content = a.content if a.content is not None and b.content is not None and _equal(a.content, b.content) else None
    return Spec(a.dtype, _join_shapes(a.shape, b.shape), content)


def _join_shapes(a: Shape | None, b: Shape | None) -> Shape | None:
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(x if x == y else None for x, y in zip(a, b, strict=True))


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and (a.tobytes() == b.tobytes() if a.dtype != object else (a == b).all())
    )


def outside(spec: Spec, operands: Sequence[Spec]) -> Spec:
    """The spec of a result without symbols that only its own graph knows."""
    known = {name for s in operands for d in s.shape or () for name in _names(d)}
    known |= {name for s in operands for d in s.sizes or () for name in _names(d)}

    def visible(dim: Dim) -> Dim:
        return dim if _names(dim) <= known else None

    content = spec.constant
    return Spec(spec.dtype, None if spec.shape is None else tuple(map(visible, spec.shape)), content)


def _names(dim: Dim) -> set[str]:
    """The symbols in a derived size."""
    if not isinstance(dim, str):
        return set()
    return {p for p in re.split(r"[()+*/,-]", dim) if p not in ("", "min", "max") and not p.isdigit()}


def truth(condition: Any) -> bool:
    """Whether a condition (one number, of any rank) holds: greater than zero."""
    return bool(np.asarray(condition).reshape(-1)[0] > 0)


@register()
class If(Op):
    """Operands (condition, x...): the results of `then_graph(x...)` if condition > 0, else of `else_graph(x...)`."""

    then_graph: str
    else_graph: str
    aliases: Aliases | None = field(default=None, compare=False, repr=False)

    form = Form("If", "IfParam", {"then_graph": "then_graph", "else_graph": "else_graph"})

    def subgraphs(self) -> tuple[str, ...]:
        return self.then_graph, self.else_graph

    def infer(self, condition: Spec, *inputs: Spec, graphs: Graphs) -> tuple[Spec, ...]:
        branches = [_outputs(graphs, name, len(inputs)) for name in self.subgraphs()]
        if len(branches[0]) != len(branches[1]):
            raise ValueError(f"the branches have {len(branches[0])} and {len(branches[1])} results")
        return tuple(outside(join(a, b), inputs) for a, b in zip(*branches, strict=True))

    def feed(self, operands: Sequence[Spec], graphs: Graphs) -> None:
        """Tell the graphs what is known of their inputs."""
        for name in self.subgraphs():
            for value, spec in zip(graphs[name].inputs, operands[1:], strict=False):
                value.spec = spec

    def ref(self, condition: np.ndarray, *inputs: np.ndarray, call: CallGraph) -> tuple[np.ndarray, ...]:
        return tuple(call(self.then_graph if truth(condition) else self.else_graph, list(inputs)))

    def emit(self, *inputs: Spec, graphs: Graphs) -> Emission:
        made = super().emit(*inputs)
        ports = [[v.name for v in graphs[name].inputs] for name in self.subgraphs()]
        named = [list(dict.fromkeys(names)) for names in zip(*ports, strict=True)]
        made.fields["aliases_inputs"] = [{"data": names} for names in [[], *named]]
        return made

    @classmethod
    def parse(cls, type: str, fields: Fields) -> If:
        aliases = Aliases(_lists(fields["aliases_inputs"]), _lists(fields["aliases_outputs"]))
        return cls(_name(fields["then_graph"]), _name(fields["else_graph"]), aliases)

    def settled(self, node: Node, graphs: Graphs) -> If:
        """This op by position: the graphs' inputs and outputs are put into the order of the operands and results."""
        if self.aliases is None:
            return self
        feeds = [(v, names) for v, names in zip(node.inputs, self.aliases.inputs, strict=False) if names]
        for branch, name in enumerate(self.subgraphs()):
            graph = graphs[name]
            graph.inputs = _ordered_inputs(graph, feeds)
            if self.aliases.outputs:
                graph.outputs = [_named_output(graph, pair[branch]) for pair in self.aliases.outputs]
        node.set_inputs([node.inputs[0], *(v for v, _ in feeds)])
        return If(self.then_graph, self.else_graph)


@register()
class While(Op):
    """Runs `body_graph` again and again.

    Without `cond_graph`: operands (limit, condition, x...); turn i = 0, 1, ... computes (condition, x..., y...) =
    body(i, condition, x...) while i < limit and condition > 0. Results: the last x..., then each y stacked on a new
    axis 0 (which has no row where there is no turn).

    With `cond_graph`: operands and results are x...; x... = body(x...) while cond(x...) > 0.
    """

    body_graph: str
    cond_graph: str = ""
    aliases: Aliases | None = field(default=None, compare=False, repr=False)

    form = Form("While", "WhileParam", {"body_graph": "body_graph"})

    def subgraphs(self) -> tuple[str, ...]:
        return (self.body_graph, self.cond_graph) if self.cond_graph else (self.body_graph,)

    def infer(self, *inputs: Spec, graphs: Graphs) -> tuple[Spec, ...]:
        results = _outputs(graphs, self.body_graph, len(inputs))
        carried = inputs if self.cond_graph else inputs[2:]
        if not self.cond_graph:
            results = results[1:]
        if len(results) < len(carried):
            raise ValueError(f"the body gives {len(results)} values for {len(carried)} that it takes")
        state = [outside(join(a, b), inputs) for a, b in zip(carried, results, strict=False)]
        scans = [
            outside(Spec(s.dtype, None if s.shape is None else (None, *s.shape)), inputs)
            for s in results[len(carried) :]
        ]
        return (*state, *scans)

    def feed(self, operands: Sequence[Spec], graphs: Graphs) -> None:
        """Tell the graphs what is known of their inputs: all of those that stay as they are, the type of others."""
        body = graphs[self.body_graph]
        first = 0 if self.cond_graph else 1
        returned = [value for _, value in body.outputs[first:]]
        for i, (value, spec) in enumerate(zip(body.inputs, operands, strict=False)):
            if not self.cond_graph and i < 2:
                value.spec = Spec(I32, () if i == 0 else None)
            elif i - 2 * first < len(returned) and returned[i - 2 * first] is value:
                value.spec = spec
            else:
                value.spec = Spec(spec.dtype, value.shape)
        if self.cond_graph:
            for inner, value in zip(graphs[self.cond_graph].inputs, body.inputs, strict=False):
                inner.spec = Spec(value.dtype, value.shape, value.spec.content)

    def ref(self, *inputs: np.ndarray, call: CallGraph) -> tuple[np.ndarray, ...]:
        if self.cond_graph:
            state = list(inputs)
            while truth(call(self.cond_graph, state)[0]):
                state = call(self.body_graph, state)
            return tuple(state)
        return self._counted(int(inputs[0].reshape(-1)[0]), inputs[1], list(inputs[2:]), call)

    def _counted(
        self, limit: int, condition: np.ndarray, state: list[np.ndarray], call: CallGraph
    ) -> tuple[np.ndarray, ...]:
        rows: list[list[np.ndarray]] = []
        while len(rows) < limit and truth(condition):
            condition, *results = call(self.body_graph, [np.asarray(len(rows), I32), condition, *state])
            state, row = results[: len(state)], results[len(state) :]
            rows.append(row)
        if not rows:  # what a turn would give has the shapes of the rows that there are none of
            _, *results = call(self.body_graph, [np.asarray(0, I32), condition, *state])
            return (*state, *(np.empty((0, *row.shape), row.dtype) for row in results[len(state) :]))
        return (*state, *(np.stack(column) for column in zip(*rows, strict=True)))

    def emit(self, *inputs: Spec, graphs: Graphs) -> Emission:
        made = super().emit(*inputs)
        if self.cond_graph:
            made.fields.update(self._conditional_fields(graphs[self.body_graph], graphs[self.cond_graph]))
        return made

    def _conditional_fields(self, body: Graph, condition: Graph) -> dict[str, Any]:
        """Names of what goes where. Values that a turn leaves alone have no update: the runtime would never end."""
        fed = [list(dict.fromkeys(v.name for v in pair)) for pair in zip(body.inputs, condition.inputs, strict=True)]
        turns = zip(body.inputs, (value for _, value in body.outputs), fed, strict=True)
        updates = [[after.name, name] for before, after, names in turns if after is not before for name in names]
        return {
            "cond_graph": self.cond_graph,
            "aliases_inputs": [{"data": names} for names in fed],
            "aliases_updates": [{"data": pair} for pair in updates],
            "aliases_outputs": [value.name for value in body.inputs],
        }

    @classmethod
    def parse(cls, type: str, fields: Fields) -> While:
        condition = fields["cond_graph"] or ""
        outputs = tuple((name,) for name in fields["aliases_outputs"] or ())
        aliases = Aliases(_lists(fields["aliases_inputs"]), outputs, _lists(fields["aliases_updates"]))
        return cls(_name(fields["body_graph"]), condition, aliases if condition else None)

    def settled(self, node: Node, graphs: Graphs) -> While:
        """This op by position; see `If.settled`. Values that a turn does not change are passed on by the body."""
        if self.aliases is None:
            return self
        body, condition = graphs[self.body_graph], graphs[self.cond_graph]
        source = {name: update[0] for update in self.aliases.updates for name in update[1:]}
        slots: dict[tuple[int, str], list[str]] = {}  # (operand, what replaces it for the next turn) -> inputs
        for index, names in enumerate(self.aliases.inputs):
            for name in names:
                slots.setdefault((index, source.get(name, "")), []).append(name)
        feeds = [(node.inputs[index], tuple(names)) for (index, _), names in slots.items()]
        results = {v.name: v for v in body.values()}
        body.inputs = _ordered_inputs(body, feeds)
        condition.inputs = _ordered_inputs(condition, feeds)
        body.outputs = [
            (name or v.name, results[name] if name else v) for (_, name), v in zip(slots, body.inputs, strict=True)
        ]
        node.set_inputs([v for v, _ in feeds])
        node.outputs = _settled_results(node, list(slots), slots, self.aliases.outputs)
        return While(self.body_graph, self.cond_graph)


def _settled_results(
    node: Node, keys: list[tuple[int, str]], slots: Mapping[tuple[int, str], list[str]], wanted: Names
) -> list[Value]:
    """One result per slot: those the file names, and new ones that nobody reads."""
    found: dict[tuple[int, str], Value] = {}
    for value, (name,) in zip(node.outputs, wanted, strict=True):
        key = next((k for k in keys if name == k[1] or name in slots[k]), None)
        if key is None or key in found:
            raise ValueError(f"the result '{name}' is not carried from turn to turn")
        found[key] = value
    results = [found.get(key) or Value(f"{node.name}/unread_{i}", node.inputs[i].spec) for i, key in enumerate(keys)]
    for value in results:
        value.producer = node
    return results


def _ordered_inputs(graph: Graph, feeds: Sequence[tuple[Value, tuple[str, ...]]]) -> list[Value]:
    """One input per operand, in order: those named by the aliases, and new ones where this graph takes none."""
    by_name = {v.name: v for v in graph.inputs}
    ordered = []
    for i, (operand, names) in enumerate(feeds):
        found = [by_name.pop(name) for name in names if name in by_name]
        value, *doubles = found or [Value(f"{graph.name}/unread_{i}", Spec(operand.dtype))]
        for double in doubles:
            graph.replace_value(double, value)
        ordered.append(value)
    if by_name:
        raise ValueError(f"nothing feeds the input '{next(iter(by_name))}' of the graph '{graph.name}'")
    return ordered


def _named_output(graph: Graph, name: str) -> tuple[str, Value]:
    for value in (*graph.values(),):
        if value.name == name:
            return name, value
    raise ValueError(f"the graph '{graph.name}' has no tensor '{name}'")


def _outputs(graphs: Graphs, name: str, operands: int) -> list[Spec]:
    if name not in graphs:
        raise ValueError(f"there is no graph '{name}'")
    if len(graphs[name].inputs) != operands:
        raise ValueError(f"the graph '{name}' takes {len(graphs[name].inputs)} values instead of {operands}")
    return [value.spec for _, value in graphs[name].outputs]


def _lists(rows: Any) -> Names:
    return tuple(tuple(row["data"] or ()) for row in rows or ())


def _name(name: str | None) -> str:
    if not name:
        raise ValueError("a graph to run has no name")
    return name


def tell_apart(graphs: Graphs) -> None:
    """Rename values of condition graphs that are named like one of the body: a file's updates go by name alone."""
    for graph in graphs.values():
        for node in graph.nodes:
            if isinstance(node.op, While) and node.op.cond_graph:
                taken = {v.name for v in graphs[node.op.body_graph].values()}
                for value in graphs[node.op.cond_graph].values():
                    while value.name in taken:
                        value.name = f"{node.op.cond_graph}/{value.name}"
                    taken.add(value.name)
