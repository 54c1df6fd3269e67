"""Opens the branches that a run takes, on both sides, so that what is inside of an `If` is compared layer by layer too.

Each `If` is replaced by the nodes of the branch taken; those that come to light inside are opened in turn. Loops stay
one layer. Where the two sides do not take the same branch, the layer of the condition tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import numpy as np

from mnnconvert.ir import Graph, Node, Value
from mnnconvert.ops.control import If, truth
from mnnconvert.ops.layout import Identity
from mnnconvert.runtime_ref.session import Session
from mnnconvert.verify.cut import cut, twin
from mnnconvert.verify.engines import Feeds
from mnnconvert.verify.layers import IntermediateEngine

DEEPEST = 16  # branches inside of branches


@runtime_checkable
class Branching(Protocol):
    """An engine that can put the branches taken in the place of their nodes, which it knows by their first result."""

    def with_branches(self, taken: Mapping[str, bool]) -> IntermediateEngine: ...


def opened(reference: IntermediateEngine, graph: Graph, feeds: Feeds) -> tuple[IntermediateEngine, Graph]:
    """Both sides with the branches that these inputs take in the place of their nodes."""
    if not isinstance(reference, Branching):
        return reference, graph
    for _ in range(DEEPEST):
        nodes = [node for node in graph.nodes if isinstance(node.op, If)]
        if not nodes:
            break
        graph = with_branches(graph, _conditions(graph, nodes, feeds))
    for _ in range(DEEPEST):
        taken = _source_conditions(reference, feeds)
        if not taken or not isinstance(reference, Branching):
            break
        reference = reference.with_branches(taken)
    return reference, graph


def _conditions(graph: Graph, nodes: list[Node], feeds: Feeds) -> dict[str, bool]:
    """Whether the conditions hold in the file, by the name of the first result."""
    values = list(dict.fromkeys(node.inputs[0] for node in nodes if not node.inputs[0].is_constant))
    part = cut(graph, graph.inputs, values)
    arrays = Session(part).run({v.name: np.asarray(feeds[v.name]) for v in part.inputs}) if values else {}
    return {
        node.output.name: truth(node.inputs[0].constant if node.inputs[0].is_constant else arrays[node.inputs[0].name])
        for node in nodes
    }


def _source_conditions(reference: IntermediateEngine, feeds: Feeds) -> dict[str, bool]:
    conditions = {layer.outputs[0]: layer.inputs[0] for layer in reference.layers() if layer.op == "If"}
    values = reference.run_values(feeds, list(dict.fromkeys(conditions.values()))) if conditions else {}
    return {name: truth(values[value]) for name, value in conditions.items() if value in values}


def with_branches(graph: Graph, taken: Mapping[str, bool]) -> Graph:
    """A copy of a graph in which the `If` nodes whose first result is in `taken` are the branches they take."""
    made = Graph(graph.name, subgraphs=dict(graph.subgraphs), source=graph.source)
    twins = {value: twin(value) for value in graph.inputs}
    made.inputs = [twins[value] for value in graph.inputs]
    names = {value.name for value in graph.values()}
    for node in graph.nodes:
        if isinstance(node.op, If) and node.output.name in taken:
            branch = graph.subgraphs[node.op.then_graph if taken[node.output.name] else node.op.else_graph]
            _inline(made, branch, node, twins, names)
        else:
            _copy(made, node, twins, {})
    made.outputs = [(name, _of(value, twins)) for name, value in graph.outputs]
    return made


def _of(value: Value, twins: dict[Value, Value]) -> Value:
    if value not in twins:
        twins[value] = twin(value)  # a constant
    return twins[value]


def _copy(made: Graph, node: Node, twins: dict[Value, Value], renamed: Mapping[Value, str]) -> None:
    inputs = [_of(value, twins) for value in node.inputs]
    for value in node.outputs:
        twins[value] = twin(value)
        twins[value].name = renamed.get(value, value.name)
    made.nodes.append(Node(node.op, inputs, [twins[value] for value in node.outputs], node.name, node.origin))


def _inline(made: Graph, branch: Graph, node: Node, twins: dict[Value, Value], names: set[str]) -> None:
    """The nodes of a branch, and its results under the names of those of the node."""
    inside = {inner: _of(value, twins) for inner, value in zip(branch.inputs, node.inputs[1:], strict=True)}
    made.subgraphs |= branch.subgraphs
    for each in branch.nodes:
        renamed = {v: f"{node.output.name}/{v.name}" for v in each.outputs if v.name in names}
        _copy(made, each, inside, renamed)
    for value, (_, result) in zip(node.outputs, branch.outputs, strict=True):
        twins[value] = twin(value)
        made.nodes.append(Node(Identity(), [_of(result, inside)], [twins[value]], value.name, node.origin))
