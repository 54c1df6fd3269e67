"""Import rules of recurrent layers: MNN's own layers where those do what is asked, else a loop over the steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from mnnconvert.frontends.common.compose import calc, choose
from mnnconvert.frontends.common.moves import permuted
from mnnconvert.frontends.onnx.cells import CELLS, LstmCell, Rule, parts, read_activations
from mnnconvert.frontends.onnx.control import run_loop, turns_over
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.ir import Builder, Value
from mnnconvert.ops.arrange import BroadcastTo, Concat, Reverse, ReverseSequence
from mnnconvert.ops.elementwise import Select
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.matmul import MatMul
from mnnconvert.ops.recurrent import GRU, LSTM, RNN
from mnnconvert.ops.shape import ShapeOf, Unsqueeze
from mnnconvert.ops.slicing import Slice

DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
Results = tuple[Value, ...]  # y [steps, directions, batch, hidden], then states [directions, batch, hidden]


@onnx_op("LSTM", "GRU", "RNN")
def recurrent(b: Builder, n: OnnxNode) -> Results:
    layer = Layer(b, n)
    results = layer.native() if layer.is_plain() else layer.joined([layer.composed(d) for d in range(layer.count)])
    if not layer.batch_first:
        return results
    y, *states = results
    return permuted(b, y, (2, 0, 1, 3)), *(permuted(b, s, (1, 0, 2)) for s in states)


class Layer:
    """A recurrent node: its operands with time on the first axis, and its attributes."""

    def __init__(self, b: Builder, n: OnnxNode):
        self.b, self.n = b, n
        self.cell = CELLS[n.op_type.removeprefix("DynamicQuantize")]
        direction = str(n.attr("direction", "forward")).lower()
        if direction not in DIRECTIONS:
            raise n.refuse(f"there is no direction '{direction}'")
        self.backwards = DIRECTIONS[direction]
        self.count = len(self.backwards)
        self.w, self.r = n.input(1), n.input(2)
        self.hidden = self._hidden()
        self.batch_first = bool(n.attr("layout", 0))
        self.x = self._timed(n.input(0))
        self.activations = read_activations(n, self.cell, self.count)
        self.clip = float(n.attr("clip", 0.0))
        self.lengths = self._lengths()
        self.states = [self._timed(n.input(5 + i)) if n.has(5 + i) else None for i in range(self.cell.states)]
        self.peepholes = self._peepholes()
        width = 2 * self.cell.gates * self.hidden
        n.limited(width)
        self.bias = n.optional(3) or b.constant(np.zeros((self.count, width), np.float32))

    def _hidden(self) -> int:
        size = self.n.attr("hidden_size") or (self.r.shape[-1] if self.r.shape else None)
        if not isinstance(size, int):
            raise self.n.refuse(f"the attribute hidden_size of {self.n.op_type} is missing")
        return size

    def _timed(self, value: Value) -> Value:
        """`value` with its batch on the second axis."""
        return permuted(self.b, value, (1, 0, 2)) if self.batch_first else value

    def _lengths(self) -> Value | None:
        """The lengths of the sequences, unless all are known to be whole."""
        if not self.n.has(4):
            return None
        known, steps = self.n.constant(4), self.x.shape[0] if self.x.shape else None
        return None if known is not None and isinstance(steps, int) and (known == steps).all() else self.n.input(4)

    def _peepholes(self) -> Value | None:
        """Peephole weights [directions, 3 hidden] of an LSTM, unless they are known to be zero."""
        if not isinstance(self.cell, LstmCell) or not self.n.has(7):
            return None
        known = self.n.constant(7)
        return None if known is not None and not known.any() else self.n.input(7)

    def is_plain(self) -> bool:
        """Whether MNN's layer of this kind does it."""
        usual = all(found.names == self.cell.usual for found in self.activations)
        extras = self.lengths is not None or self.peepholes is not None or self.n.attr("input_forget", 0)
        return usual and not self.clip and not extras

    def native(self) -> Results:
        """MNN's layer. It walks forwards, or both ways; of a GRU both ways the runtime gets the last state wrong."""
        if self.n.op_type == "GRU":
            return self.joined([self._gru(d) for d in range(self.count)])
        op = LSTM(self.hidden) if self.n.op_type == "LSTM" else RNN(self.hidden)
        turned = self.backwards == (True,)
        x = self._turned(self.x) if turned else self.x
        y, *states = self.b.add(
            op, x, self.w, self.r, self._summed_bias(), *self._given_states(), names=[""] * (1 + self.cell.states)
        )
        return (self._turned(y) if turned else y), *states

    def _summed_bias(self) -> Value:
        inputs, recurrent = parts(self.b, self.bias, 1, 2)
        return calc(self.b, "ADD", inputs, recurrent)

    def _given_states(self) -> list[Value]:
        """The states to start from, all or none."""
        if all(s is None for s in self.states):
            return []
        return [self._zeros((self.count,)) if s is None else s for s in self.states]

    def _zeros(self, leading: tuple[int, ...]) -> Value:
        """Zeros [leading..., batch, hidden]."""
        batch = self.x.shape[1] if self.x.shape else None
        if isinstance(batch, int):
            self.n.limited(*leading, batch, self.hidden)
            return self.b.constant(np.zeros((*leading, batch, self.hidden), np.float32))
        sizes = self.b.add(
            Concat(0), self.b.ints(leading), self.b.add(ShapeOf(1, 2), self.x), self.b.ints([self.hidden])
        )
        return self.b.add(BroadcastTo(), self.b.floats(np.zeros((1,) * (len(leading) + 2))), sizes)

    def _gru(self, d: int) -> Results:
        """One direction as a GRU of its own. Weights have a row per input, a column per gate: z, r; candidate."""
        b, h = self.b, self.hidden
        columns = [permuted(b, self._part(v, d), (1, 0)) for v in (self.w, self.r)]
        split = [b.add(Slice(1, (2 * h, h)), v, names=["", ""]) for v in columns]
        gate, candidate = (b.add(Concat(0), split[0][i], split[1][i]) for i in (0, 1))
        gate_bias, candidate_bias, recurrent_bias = b.add(
            Slice(1, (2 * h, h, 3 * h)), self._row(self.bias, d), names=[""] * 3
        )
        start = [] if self.states[0] is None else [self._row(self.states[0], d)]
        op = GRU(h, linear_before_reset=bool(self.n.attr("linear_before_reset", 0)))
        operands = (gate, gate_bias, candidate, candidate_bias, recurrent_bias, *start)
        y, state = b.add(op, self._walked(self.x, d), *operands, names=["", ""])
        return self._walked(y, d), state

    def _part(self, value: Value, d: int) -> Value:
        """What belongs to direction `d`, without the axis of directions."""
        return self.b.add(GatherV2(0), value, self.b.ints(d))

    def _row(self, value: Value, d: int) -> Value:
        """What belongs to direction `d`, with an axis of directions of size 1."""
        return value if self.count == 1 else self.b.add(GatherV2(0), value, self.b.ints([d]))

    def _walked(self, value: Value, d: int) -> Value:
        """Steps in the order in which direction `d` walks, and back."""
        return self._turned(value) if self.backwards[d] else value

    def _turned(self, value: Value) -> Value:
        """Steps in opposite order; of each sequence only as many as it has."""
        if self.lengths is None:
            return self.b.add(Reverse(), value, self.b.ints([0]))
        return self.b.add(ReverseSequence(value.rank - 2 if value.rank else 1, 0), value, self.lengths)

    def composed(self, d: int) -> Results:
        """One direction as a loop: the product with the input weights for all steps at once, then step by step."""
        b, n = self.b, self.n
        x = self._walked(self.x, d)
        bias, weights = self.cell.weights(b, self._recurrent_weight(d), self._part(self.bias, d))
        projected = calc(b, "ADD", self._projected(x, d), bias)
        if self.peepholes is not None:
            weights["peepholes"] = self._part(self.peepholes, d)
        rule = self._rule(d)

        def turn(scope: Any, i: Value, condition: Value, state: list[Value]) -> list[Value]:
            inner: Builder = scope.builder
            row = inner.add(GatherV2(0), scope.take(projected), i)
            taken = {name: scope.take(v) for name, v in weights.items()}
            after = self.cell.step(inner, rule, row, state, taken)
            if self.lengths is None:
                return [condition, *after, after[0]]
            runs = inner.add(Unsqueeze((1,)), calc(inner, "GREATER", scope.take(self.lengths), i))
            kept = [inner.add(Select(), runs, new, old) for new, old in zip(after, state, strict=True)]
            return [condition, *kept, choose(inner, runs, after[0], 0.0, after[0])]

        states = [self._zeros(()) if s is None else self._part(s, d) for s in self.states]
        *last, y = run_loop(b, n, turns_over(b, x), None, states, turn)
        return b.add(Unsqueeze((1,)), self._walked(y, d)), *(b.add(Unsqueeze((0,)), s) for s in last)

    def _projected(self, x: Value, d: int) -> Value:
        """The products of all steps with the input weights, without bias."""
        return self.b.add(MatMul(transpose_b=True), x, self._part(self.w, d))

    def _recurrent_weight(self, d: int) -> Value:
        return self._part(self.r, d)

    def _rule(self, d: int) -> Rule:
        before_reset, forget = (bool(self.n.attr(name, 0)) for name in ("linear_before_reset", "input_forget"))
        return Rule(self.activations[d], self.clip, before_reset, forget)

    def joined(self, runs: list[Results]) -> Results:
        """The directions together."""
        if len(runs) == 1:
            return runs[0]
        y, *states = zip(*runs, strict=True)
        return self.b.add(Concat(1), *y), *(self.b.add(Concat(0), *s) for s in states)
