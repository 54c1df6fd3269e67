"""Inputs and outputs of a graph that does not say what they are."""

from __future__ import annotations

import math

from mnnconvert.frontends.tensorflow.model import SourceGraph, SourceNode
from mnnconvert.frontends.tensorflow.wire import bad

Port = tuple[str, str]  # its name for the user, and what it refers to
PLACEHOLDERS = ("Placeholder", "PlaceholderV2")
DEFAULTED = "PlaceholderWithDefault"
SILENT = ("NoOp", "Assert", "Print", "Const", "Placeholder", "PlaceholderV2", "PlaceholderWithDefault", "SaveV2",
          "MergeSummary", "ScalarSummary", "HistogramSummary")  # fmt: skip
PASSING = ("Identity", "StopGradient", "Snapshot")
FIRST_ONLY = ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")  # further results are for training


def place(reference: str) -> tuple[str, str]:
    """Node and port (empty, a number, or `result:index`) of a reference."""
    name, _, port = reference.partition(":")
    return name, port


def default_of(graph: SourceGraph, node: SourceNode) -> SourceNode | None:
    """The constant that a placeholder has by default, or None where the default is computed."""
    for _ in range(len(graph.nodes)):
        if not node.operands:
            break
        found = graph.nodes.get(place(node.operands[0])[0])
        if found is None or found.op not in PASSING:
            return found if found is not None and found.op == "Const" else None
        node = found
    return None


def is_input(graph: SourceGraph, node: SourceNode) -> bool:
    """Whether a node is fed. A default is one where it is computed or is a single number: a switch such as training."""
    if node.op != DEFAULTED:
        return node.op in PLACEHOLDERS
    default = default_of(graph, node)
    return default is not None and math.prod(default.attribute("value").shape) != 1


def reachable(graph: SourceGraph, roots: list[str]) -> set[str]:
    """The nodes that these nodes depend on by data."""
    seen: set[str] = set()
    stack = list(roots)
    while stack:
        name = stack.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in graph.nodes:
            stack += [place(i)[0] for i in graph.nodes[name].operands]
    return seen


def in_order(graph: SourceGraph, roots: list[str]) -> list[SourceNode]:
    """The nodes that these nodes depend on by data, each after its operands (where there is no loop)."""
    found: dict[str, SourceNode] = {}
    seen: set[str] = set()
    stack = list(reversed(roots))
    while stack:
        name = stack[-1]
        node = graph.nodes.get(name)
        if node is None or name in found:
            stack.pop()
        elif name in seen:
            found[name] = node
            stack.pop()
        else:
            seen.add(name)
            stack += [place(i)[0] for i in reversed(node.operands) if place(i)[0] not in seen]
    return list(found.values())


def result_count(node: SourceNode) -> int:
    """How many results a node has."""
    from mnnconvert.frontends.tensorflow import rules  # noqa: F401  (registers the rules)
    from mnnconvert.frontends.tensorflow.registry import RULES

    if node.op in FIRST_ONLY:
        return 1
    for name in ("num_split", "num"):
        if node.has(name):
            return int(node.attribute(name))
    for name in ("Tout", "output_types", "T"):
        kinds = node.attribute(name)
        if isinstance(kinds, list):
            return len(kinds)
    rule = RULES.get(node.op)
    return max(1, len(rule.results)) if rule is not None else 1


def is_pivot(graph: SourceGraph, node: SourceNode) -> bool:
    """Whether a node only says that a branch runs: a Switch of a predicate by itself, or what passes it on."""
    for _ in range(len(graph.nodes)):
        if node.op not in PASSING:
            return node.op in ("Switch", "RefSwitch") and len(set(node.operands)) == 1
        found = graph.nodes.get(place(node.operands[0])[0]) if node.operands else None
        if found is None:
            return False
        node = found
    return False


def ports(graph: SourceGraph) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """Inputs: the placeholders that outputs depend on. Outputs: what nobody reads."""
    read = {place(i)[0] for node in graph.nodes.values() for i in node.operands}
    unread = [node for node in graph.nodes.values() if node.name not in read and node.op not in SILENT]
    ends = [node for node in unread if not is_pivot(graph, node)]
    if not ends:
        raise bad("nothing is computed in it")
    outputs = [
        (node.name if port == 0 else f"{node.name}:{port}", f"{node.name}:{port}")
        for node in ends for port in range(result_count(node))
    ]  # fmt: skip
    used = reachable(graph, [node.name for node in ends])
    inputs = [(n.name, n.name) for n in graph.nodes.values() if n.name in used and is_input(graph, n)]
    return tuple(inputs), tuple(outputs)
