"""States what a legal graph is. Runs between passes in tests and with `--debug`."""

from __future__ import annotations

from mnnconvert.errors import ConversionError
from mnnconvert.ir.graph import Graph, Node, Value
from mnnconvert.ir.types import Spec, format_shape, known


def verify(graph: Graph, after: str = "") -> None:
    """Raise `illegal-graph` when an invariant is broken; `after` names the pass that ran last.

    Every read value is an input, a constant or the result of an earlier node of the same graph; names are unique;
    users and producers agree with the nodes; and the shape rule of each op still gives what is recorded.
    """
    problems = [*_links(graph), *_names(graph), *_shapes(graph)]
    for name, inner in graph.subgraphs.items():
        verify(inner, f"{after} in {name}" if after else name)
    if problems:
        suffix = f" after {after}" if after else ""
        raise ConversionError.of(
            "illegal-graph", f"the graph is not legal{suffix}: {problems[0]}", problems=len(problems)
        )


def _links(graph: Graph) -> list[str]:
    problems = []
    available: set[Value] = set(graph.inputs)
    for node in graph.nodes:
        for value in node.inputs:
            if not value.is_constant and value not in available:
                problems.append(f"'{node.name}' reads '{value.name}' before it is made")
            if node not in value.users:
                problems.append(f"'{value.name}' does not know its reader '{node.name}'")
        for value in node.outputs:
            if value.producer is not node:
                problems.append(f"'{value.name}' does not know its producer '{node.name}'")
        available.update(node.outputs)
    members = set(graph.nodes)
    for value in graph.values():
        problems += [f"'{value.name}' has a stale reader '{u.name}'" for u in value.users if u not in members]
    for name, value in graph.outputs:
        if not value.is_constant and value not in available:
            problems.append(f"output '{name}' is never made")
    return problems


def _names(graph: Graph) -> list[str]:
    seen: set[str] = set()
    problems = []
    for value in graph.values():
        if value.name in seen:
            problems.append(f"two values are named '{value.name}'")
        seen.add(value.name)
    return problems


def _shapes(graph: Graph) -> list[str]:
    problems = []
    for node in graph.nodes:
        if node.op.subgraphs():
            continue
        result = node.op.infer(*(v.spec for v in node.inputs))
        specs = (result,) if isinstance(result, Spec) else result
        if len(specs) != len(node.outputs):
            problems.append(f"'{node.name}' has {len(node.outputs)} results instead of {len(specs)}")
        problems += [p for value, spec in zip(node.outputs, specs, strict=False) if (p := _disagree(node, value, spec))]
    return problems


def _disagree(node: Node, value: Value, spec: Spec) -> str:
    if value.dtype != spec.dtype:
        return f"'{value.name}' of {node.op.kind} is {value.dtype}, its rule says {spec.dtype}"
    if known(value.shape) and known(spec.shape) and value.shape != spec.shape:
        return (
            f"'{value.name}' of {node.op.kind} is {format_shape(value.shape)}, its rule says {format_shape(spec.shape)}"
        )
    return ""
