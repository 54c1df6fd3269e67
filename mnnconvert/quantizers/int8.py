"""Which layers run in integers, which values are held in steps for them, and which of these share their steps."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from mnnconvert.ir import ArrayTensor, Builder, Graph, Node, Tensor, Value
from mnnconvert.ir.types import F32, Spec, Steps
from mnnconvert.ops.arrange import Concat, Pack
from mnnconvert.ops.base import Op
from mnnconvert.ops.convolution import Convolution
from mnnconvert.ops.pooling import Pooling
from mnnconvert.ops.steps import MOVES
from mnnconvert.quantizers.thresholds import rounded


@dataclass
class Int8Plan:
    """`layers` run in integers; `skipped` pairs the names of others with the reason.

    `owners` has every value to be held in steps, with the value whose statistics decide: itself, or what it shares its
    steps with.
    """

    layers: list[Node]
    skipped: list[tuple[str, str]] = field(default_factory=list)
    owners: dict[Value, Value] = field(default_factory=dict)

    @property
    def observed(self) -> list[Value]:
        """The values that decide, in the order of the graph."""
        return list(dict.fromkeys(self.owners.values()))

    def set_steps(self, steps: dict[Value, Steps]) -> None:
        """Give every value the steps of its owner."""
        for value, owner in self.owners.items():
            value.steps = steps[owner]


def plan_int8(graph: Graph, skip: Collection[str] = ()) -> Int8Plan:
    """Convolutions (of the main graph) with constant weights run in integers, except those named in `skip`.

    Their data operands and results are held in steps. What only moves values (also the maximum of windows) between
    held values holds them in the same steps: the inputs of a concatenation those of its result, the result of any
    other move those of its input. A mean of windows has a range of its own, much smaller where it takes in a plane.
    """
    plan = Int8Plan([])
    for node in graph.nodes:
        if isinstance(node.op, Convolution):
            reason = _why_not(node, skip)
            if reason:
                plan.skipped.append((node.name, reason))
            else:
                plan.layers.append(node)
    held = _held(graph, plan.layers)
    parents = {value: value for value in graph.values() if value in held}
    for node in graph.nodes:
        _share(node, parents)
    plan.owners = {value: _root(parents, value) for value in parents}
    return plan


def _why_not(node: Node, skip: Collection[str]) -> str:
    if node.name in skip or node.output.name in skip:
        return "named in skip_quant_op_names"
    if node.inputs[1].tensor is None or (len(node.inputs) > 2 and node.inputs[2].tensor is None):
        return "its weights are computed"
    return ""


def _held(graph: Graph, layers: Iterable[Node]) -> set[Value]:
    """Operands and results of the layers, and what reaches such an operand by moves and means alone."""
    held = {value for node in layers for value in (node.inputs[0], node.output)}
    for node in reversed(graph.nodes):
        lends = _moves(node) or _is_mean(node)  # MNN 3.6.1 lends the steps of such a result to operands without any
        if lends and not held.isdisjoint(node.outputs) and all(v.tensor is None for v in _data(node)):
            held.update(_data(node))
    return held | {n.output for n in graph.nodes if _is_mean(n) and n.inputs[0] in held}


def _is_mean(node: Node) -> bool:
    return isinstance(node.op, Pooling) and node.op.function != "MAXPOOL"


def _moves(node: Node) -> bool:
    if isinstance(node.op, Pooling):
        return node.op.function == "MAXPOOL" and not node.op.indices
    return isinstance(node.op, MOVES)


def _data(node: Node) -> list[Value]:
    """The operands that hold what is moved, without shapes and axes."""
    return node.inputs if isinstance(node.op, (Concat, Pack)) else node.inputs[:1]


def _share(node: Node, parents: dict[Value, Value]) -> None:
    """Join the steps of a move's operands and its results."""
    data = _data(node)
    if not _moves(node) or any(v not in parents for v in data):
        return
    for result in (v for v in node.outputs if v in parents):
        if len(data) > 1:
            for value in data:
                parents[_root(parents, value)] = result
        else:
            parents[result] = _root(parents, data[0])


def _root(parents: dict[Value, Value], value: Value) -> Value:
    while parents[value] is not value:
        value = parents[value]
    return value


class _Hold(Op):
    """x as it is after being held in steps. Exists in memory only."""

    def __init__(self, steps: Steps):
        object.__setattr__(self, "steps", steps)

    def infer(self, x: Spec) -> Spec:
        return Spec(x.dtype, x.shape)

    def ref(self, x: np.ndarray) -> np.ndarray:
        return rounded(x, self.steps).astype(F32)  # type: ignore[attr-defined]


def simulate(graph: Graph) -> dict[Value, Value]:
    """Let every value that has steps be rounded to them, in float arithmetic, and forget the steps.

    Changes the graph, which then computes in any engine what an integer engine computes from its file. Returns for
    every such value the rounded one.
    """
    builder, held = Builder(graph), {}
    for value in [v for v in graph.values() if v.steps is not None]:
        assert value.steps is not None
        readers, outputs = list(value.users), [name for name, v in graph.outputs if v is value]
        after = builder.add(_Hold(value.steps), value, name=f"{value.name}/held")
        for reader in dict.fromkeys(readers):
            for index, operand in enumerate(reader.inputs):
                if operand is value:
                    reader.replace_input(index, after)
        graph.outputs = [(name, after if name in outputs and v is value else v) for name, v in graph.outputs]
        value.steps, held[value] = None, after
    graph.sort()
    return held


def matrix_of(node: Node) -> np.ndarray:
    """The weight of a convolution as float64 [output channels, the rest]."""
    weight: Any = node.inputs[1].tensor
    rows: np.ndarray = weight.numpy().astype(np.float64)
    return rows.reshape(len(rows), -1)


def bias_of(node: Node) -> np.ndarray:
    """The bias of a convolution as float64 [output channels]; zeros where it has none."""
    if len(node.inputs) < 3:
        return np.zeros(node.inputs[1].tensor.shape[0])  # type: ignore[union-attr]  # planned layers have constants
    bias: Any = node.inputs[2].tensor
    return np.asarray(bias.numpy(), np.float64).reshape(-1)


def set_constant(node: Node, index: int, tensor: Tensor | np.ndarray) -> None:
    """Let a node read this (an array as float32) from now on, as a constant of its own."""
    if isinstance(tensor, np.ndarray):
        tensor = ArrayTensor(np.ascontiguousarray(tensor, F32))
    name = node.inputs[index].name if index < len(node.inputs) else f"{node.name}/bias"
    content = tensor.numpy() if prod(tensor.shape) <= 64 else None
    value = Value(name, Spec(F32, tuple(tensor.shape), content), tensor)
    if index < len(node.inputs):
        node.replace_input(index, value)
    else:
        node.set_inputs([*node.inputs, value])
