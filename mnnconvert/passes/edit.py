"""Rebuilding a graph node by node: the shared half of passes that insert or replace nodes by rule, not by pattern."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mnnconvert.ir import Builder, Graph, Node, Value

Replace = Callable[[Builder, Node], Sequence[Value] | None]


def replace_nodes(graph: Graph, replace: Replace) -> int:
    """Offer every node to `replace`; where it builds substitutes for the results, the node goes. Returns how many.

    The substitutes take over the names, users and outputs of what they replace. Nodes built on the way stand where the
    node stood, and remember its origin.
    """
    builder, count = Builder(graph), 0
    nodes, graph.nodes = graph.nodes, []
    for node in nodes:
        start = len(graph.nodes)
        with builder.at(node.name, *node.origin):
            substitutes = replace(builder, node)
        if substitutes is None:
            graph.nodes.append(node)
            continue
        count += 1
        made = set(graph.nodes[start:])
        for old, new in zip(node.outputs, substitutes, strict=True):
            _take_over(graph, builder, old, new, made)
        for value in node.inputs:
            value.users.remove(node)
    return count


def _take_over(graph: Graph, builder: Builder, old: Value, new: Value, made: set[Node]) -> None:
    """Let `new` stand for `old` everywhere, under its name where `new` is a result made for this."""
    graph.replace_value(old, new)
    new.steps = new.steps or old.steps
    if new.producer in made:
        name, old.name = old.name, builder.unique(f"{old.name}/replaced")
        rename(builder, new, name)


def rename(builder: Builder, value: Value, name: str) -> None:
    """Give a value a name that nothing else has; the node that makes it is named after it."""
    builder.names.discard(value.name)
    builder.names.add(name)
    value.name = name
    if value.producer is not None and value.producer.output is value:
        value.producer.name = name
