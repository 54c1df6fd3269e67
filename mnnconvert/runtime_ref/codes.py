"""From a graph whose values have steps to one that computes on their codes, for executors that know nothing of steps.

A node that computes on codes (`ops.steps.on_codes`) becomes the same op on int8, a `ConvInt8`, or the same op on floats
between `Int8ToFloat` and `FloatToInt8`. A code that a float op or the caller reads is decoded; a float that an op on
codes reads is coded. Graphs without steps are left as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mnnconvert.ir import F32, I8, ArrayTensor, Graph, Node, Spec, Steps, Value
from mnnconvert.ir.graph import Operation
from mnnconvert.ops.convolution import Convolution
from mnnconvert.ops.elementwise import Binary
from mnnconvert.ops.integer import ConvInt8
from mnnconvert.ops.padding import Padding
from mnnconvert.ops.pooling import Pooling
from mnnconvert.ops.quantization import FloatToInt8, Int8ToFloat
from mnnconvert.ops.steps import MOVES, activated, integer_weight, on_codes

LARGEST_BIAS = 2.0**22  # in products, so that a sum and what it starts from are exact in float32


@dataclass
class Coded:
    """A graph on codes, and by the name of each value that exists only as codes, these and their steps."""

    graph: Graph
    codes: dict[str, tuple[Value, Steps]] = field(default_factory=dict)


def with_codes(graph: Graph) -> Coded:
    """The graph that executors run."""
    if not any(on_codes(node) for each in graph.graphs() for node in each.nodes):
        return Coded(graph)
    made = Graph(graph.name, metadata=graph.metadata, source=graph.source, source_types=graph.source_types)
    made.subgraphs = {name: with_codes(inner).graph for name, inner in graph.subgraphs.items()}
    return _Coder(graph, made).run()


@dataclass(eq=False)
class _Coder:
    """One walk over a graph; `floats` and `codes` are the forms in which its values exist in the new one."""

    graph: Graph
    made: Graph
    floats: dict[Value, Value] = field(default_factory=dict)
    codes: dict[Value, Value] = field(default_factory=dict)

    def run(self) -> Coded:
        self.made.inputs = [self._new(v, v.name) for v in self.graph.inputs]
        self.floats = dict(zip(self.graph.inputs, self.made.inputs, strict=True))
        for node in self.graph.nodes:
            if on_codes(node):
                self._on_codes(node)
            elif not self._is_at_hand(node):
                outputs = [self._new(v, v.name) for v in node.outputs]
                self._add(node.op, [self.float(v) for v in node.inputs], outputs, node)
                self.floats.update(zip(node.outputs, outputs, strict=True))
        only_codes = {v.name: (code, v.steps) for v, code in self.codes.items() if v not in self.floats and v.steps}
        self.made.outputs = [(name, self.float(v)) for name, v in self.graph.outputs]
        return Coded(self.made, only_codes)

    def _is_at_hand(self, node: Node) -> bool:
        """Whether a conversion gives what there is already: the codes of a value, or the value of these codes."""
        op, y = node.op, node.outputs[0]
        if isinstance(op, FloatToInt8) and node.inputs[0] in self.codes and _makes(op, _steps(node.inputs[0])):
            self.floats[y] = self.codes[node.inputs[0]]
        elif isinstance(op, Int8ToFloat) and y.steps and (op.scale, op.zero) == ((y.steps.scale,), (y.steps.zero,)):
            self.codes[y] = self.float(node.inputs[0])
        else:
            return False
        return True

    def float(self, value: Value) -> Value:
        """A value that is no code."""
        if value not in self.floats:
            constant = value.is_constant
            self.floats[value] = self._new(value, value.name) if constant else self._decoded(value, value.name)
        return self.floats[value]

    def code(self, value: Value) -> Value:
        """The codes of a value with steps."""
        if value not in self.codes:
            self.codes[value] = self._coded(self.float(value), value)
        return self.codes[value]

    def _on_codes(self, node: Node) -> None:
        op = node.op
        if isinstance(op, Convolution):
            codes = [self._new(node.output, f"{node.output.name}/int8", I8)]
            self._add(*self._convolution(node, op), codes, node)
        elif isinstance(op, (*MOVES, Padding, Pooling)):
            codes = [self._new(v, f"{v.name}/int8", I8) for v in node.outputs]
            operands = [self.code(v) if v.steps else self.float(v) for v in node.inputs]
            self._add(op, [*operands, *_filling(op, node.output)], codes, node)
        else:
            operands = [self._decoded(v, f"{v.name}/float") if v.steps else self.float(v) for v in node.inputs]
            result = self._new(node.output, f"{node.output.name}/float")
            self._add(op, operands, [result], node)
            relu = isinstance(op, Binary) and op.activation
            codes = [self._coded(result, node.output, activated(_steps(node.output), "relu" if relu else ""))]
        self.codes.update(zip(node.outputs, codes, strict=True))

    def _convolution(self, node: Node, op: Convolution) -> tuple[ConvInt8, list[Value]]:
        x, y, coded = _steps(node.inputs[0]), _steps(node.output), integer_weight(node)
        assert coded is not None
        weight = coded.codes.reshape(node.inputs[1].tensor.shape)  # type: ignore[union-attr]
        bias = node.inputs[2].constant
        assert bias is not None
        numbers = integer_numbers(coded.scale[:, 0], bias, x, y, depthwise(op, weight))
        sums = coded.codes.sum(1, dtype=np.int64)
        start = numbers[0] - round(x.zero) * sums
        y = activated(y, op.activation)
        made = ConvInt8(op.strides, op.dilations, op.pads, op.group, op.pad_mode, round(x.zero), y.low, y.high)
        arrays = (weight, start.astype(np.int32), *numbers[1:])
        constants = [_constant(f"{node.name}/{i}", array) for i, array in enumerate(arrays)]
        return made, [self.code(node.inputs[0]), *constants]

    def _coded(self, source: Value, value: Value, steps: Steps | None = None) -> Value:
        steps = steps or _steps(value)
        made = self._new(value, f"{value.name}/int8", I8)
        reciprocal = float(np.float32(1) / np.float32(steps.scale))
        self._add(FloatToInt8((reciprocal,), (steps.zero,), steps.low, steps.high), [source], [made])
        return made

    def _decoded(self, value: Value, name: str) -> Value:
        """What the codes of a value stand for. Ops on codes each get their own, so that they can be one with it."""
        steps = _steps(value)
        made = self._new(value, name, F32)
        self._add(Int8ToFloat((steps.scale,), (steps.zero,)), [self.code(value)], [made])
        return made

    def _new(self, value: Value, name: str, dtype: np.dtype | None = None) -> Value:
        spec = replace(value.spec) if dtype is None else Spec(dtype, value.shape)
        return Value(name, spec, value.tensor if dtype is None else None)

    def _add(self, op: Operation, inputs: Sequence[Value], outputs: list[Value], node: Node | None = None) -> None:
        name, origin = (outputs[0].name, ()) if node is None else (node.name, node.origin)
        self.made.nodes.append(Node(op, list(inputs), outputs, name, origin))


def _steps(value: Value) -> Steps:
    assert value.steps is not None, value
    return value.steps


def _makes(op: FloatToInt8, steps: Steps) -> bool:
    """Whether the codes of values that have these steps are what an op makes of them."""
    reciprocal = float(np.float32(1) / np.float32(steps.scale))
    return (op.scale, op.zero) == ((reciprocal,), (steps.zero,)) and op.low <= steps.low <= steps.high <= op.high


def depthwise(op: Convolution, weight: np.ndarray) -> bool:
    """Whether every channel has a filter of its own, which MNN computes with other numbers."""
    return op.group > 1 and op.group == len(weight) and weight.shape[1] == 1


def integer_numbers(
    scale: np.ndarray, bias: np.ndarray, x: Steps, y: Steps, whole_bias: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Start, scale and shift [outputs] with code = (sum + start) * scale + shift, before it is rounded.

    `sum` is that of the products of weights with codes less their zero. With `whole_bias` the bias is rounded towards
    zero to a whole number of products, the zero point of the result likewise, as MNN does for depthwise convolutions;
    otherwise, and where a channel has no such number, both are part of the shift.
    """
    zero, step = np.float32(y.zero), np.float32(y.scale)
    factor = scale * (np.float32(x.scale) / step)
    shift = (bias / step + zero).astype(np.float32)
    if not whole_bias:
        return np.zeros(len(scale), np.int64), factor, shift
    factor = (scale * np.float32(x.scale)) * (np.float32(1) / step)
    with np.errstate(all="ignore"):
        start = np.trunc(bias / (scale * np.float32(x.scale))) + np.trunc(zero / factor)
    fits = np.abs(start) < LARGEST_BIAS  # not so for NaN
    return np.where(fits, start, 0).astype(np.int64), factor, np.where(fits, np.float32(0), shift)


def _filling(op: Operation, result: Value) -> list[Value]:
    """The operand of a Padding that says what it fills with: the code of 0."""
    return [_constant("zero", np.array(round(_steps(result).zero), I8))] if isinstance(op, Padding) else []


def _constant(name: str, array: np.ndarray) -> Value:
    return Value(name, Spec(array.dtype, array.shape, array if array.size <= 64 else None), ArrayTensor(array))
