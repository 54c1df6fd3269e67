"""Parts of a graph as graphs of their own, so that a layer can be run, written and looked at by itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from mnnconvert.ir import Graph, Node, Value


def nodes_between(graph: Graph, inputs: Collection[Value], outputs: Iterable[Value]) -> list[Node]:
    """The nodes that `outputs` need when `inputs` are given, in the order of the graph."""
    needed: set[Node] = set()
    open_values = [value for value in outputs if value not in inputs]
    while open_values:
        producer = open_values.pop().producer
        if producer is not None and producer not in needed:
            needed.add(producer)
            open_values += [value for value in producer.inputs if value not in inputs]
    return [node for node in graph.nodes if node in needed]


def cut(graph: Graph, inputs: Collection[Value], outputs: Sequence[Value]) -> Graph:
    """A copy of what computes `outputs`; its inputs are those of `inputs` (and of the graph) that this reads.

    Weights, and the graphs that ops of control flow run, are shared with the whole.
    """
    nodes = nodes_between(graph, inputs, outputs)
    made = Graph(graph.name, subgraphs=graph.subgraphs, source=graph.source)
    twins: dict[Value, Value] = {}
    made_here = {value for node in nodes for value in node.outputs}
    for value in dict.fromkeys([v for node in nodes for v in node.inputs] + list(outputs)):
        if value not in made_here and value not in twins:
            twins[value] = twin(value)
            if not value.is_constant:
                made.inputs.append(twins[value])
    for node in nodes:
        for value in node.outputs:
            twins[value] = twin(value)
        inputs, results = ([twins[v] for v in side] for side in (node.inputs, node.outputs))
        made.nodes.append(Node(node.op, inputs, results, node.name, node.origin))
    made.outputs = [(value.name, twins[value]) for value in outputs]
    return made


def twin(value: Value) -> Value:
    """A value of the same name, type and content, without users."""
    made = Value(value.name, replace(value.spec), value.tensor)
    made.steps = value.steps
    return made
