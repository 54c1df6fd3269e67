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
    nodes, builder, count = graph.nodes, Builder(graph), 0
    graph.nodes = []
    for node in nodes:
        with builder.at(node.name, *node.origin):
            substitutes = replace(builder, node)
        if substitutes is None:
            graph.nodes.append(node)
            continue
        count += 1
        for old, new in zip(node.outputs, substitutes, strict=True):
            take_over(graph, builder, old, new)
        for value in node.inputs:
            value.users.remove(node)
    return count


def take_over(graph: Graph, builder: Builder, old: Value, new: Value) -> None:
    """Let `new` stand for `old` everywhere, under its name where `new` is a result made for this."""
    graph.replace_value(old, new)
    if new.producer is not None and new.producer in graph.nodes[-64:]:
        name, old.name = old.name, builder.unique(f"{old.name}/replaced")
        builder.names.discard(new.name)
        new.name = name
        new.producer.name = name if new.producer.output is new else new.producer.name
