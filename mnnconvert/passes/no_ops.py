"""Ops that change nothing: copies, casts to the same type, neutral operands, orders and shapes that stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mnnconvert.ir import Graph, Node, Spec, Value
from mnnconvert.passes.base import GraphPass, Notes, forward, unlink
from mnnconvert.passes.pattern import op_key

LARGEST_NEUTRAL = 1 << 18  # bytes of a constant that are looked at

NEUTRAL: dict[str, tuple[float, tuple[int, ...]]] = {  # function: neutral element, places of the operand that stays
    "ADD": (0, (0, 1)), "SUB": (0, (0,)), "MUL": (1, (0, 1)), "REALDIV": (1, (0,)), "POW": (1, (0,)),
}  # fmt: skip


@dataclass(frozen=True)
class RemoveNoOps(GraphPass):
    """Take out ops that give their operand back, where element type and shape are known to stay."""

    name = "remove-no-ops"

    def change(self, graph: Graph, notes: Notes) -> int:
        replaced: dict[Value, Value] = {}
        gone: set[Node] = set()
        for node in graph.nodes:
            source = _unchanged(node)
            if source is not None:
                replaced[node.output] = source
                gone.add(node)
        forward(graph, replaced)
        unlink(graph, gone)
        return len(gone)


def _unchanged(node: Node) -> Value | None:
    """The operand that a node gives back, or None."""
    rule = RULES.get(node.op.kind)
    source = rule(node, node.op) if rule is not None and len(node.outputs) == 1 else None
    return source if source is not None and same_shape(source.spec, node.output.spec) else None


def same_shape(a: Spec, b: Spec) -> bool:
    """Whether element type and shape are known to be equal."""
    return a.dtype == b.dtype and a.shape is not None and a.shape == b.shape and None not in a.shape


def _same_order(node: Node, op: Any) -> Value | None:
    rank = node.output.rank or 0
    moved = op.dims and [d % max(rank, 1) for d in op.dims] != list(range(rank))
    return None if moved or (not op.dims and rank > 1) else node.inputs[0]


def _neutral(node: Node, op: Any) -> Value | None:
    element, places = NEUTRAL.get(op_key(op)[1], (0, ()))
    if op.activation:
        return None
    return next((node.inputs[i] for i in places if _all_are(node.inputs[1 - i], element)), None)


def _all_are(value: Value, element: float) -> bool:
    if value.tensor is None or value.tensor.nbytes > LARGEST_NEUTRAL:
        return False
    return bool(np.all(value.tensor.numpy() == element))


def _always(node: Node, op: Any) -> Value | None:
    return node.inputs[0]


def _single(node: Node, op: Any) -> Value | None:
    return node.inputs[0] if len(node.inputs) == 1 else None


def _zero_padding(node: Node, op: Any) -> Value | None:
    return node.inputs[0] if len(node.inputs) > 1 and _all_are(node.inputs[1], 0) else None


RULES: dict[str, Callable[[Node, Any], Value | None]] = {
    "Identity": lambda node, op: node.inputs[0] if len(node.inputs) == 1 else None,
    "Cast": lambda node, op: None if op.to == "DT_BOOL" else node.inputs[0],
    "ConvertTensor": lambda node, op: node.inputs[0] if op.source == op.dest else None,
    "Reshape": _always, "Flatten": _always, "Squeeze": _always, "Unsqueeze": _always, "BroadcastTo": _always,
    "Permute": _same_order, "Binary": _neutral, "Concat": _single, "Padding": _zero_padding,
}  # fmt: skip
