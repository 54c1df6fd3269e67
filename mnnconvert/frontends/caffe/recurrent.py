"""Import rules of recurrent layers: step after step, as a marker may begin a sequence anew in each of them.

x [T, N, ...] and markers [T, N], 0 where a sequence begins; T is known, as all sizes are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from mnnconvert.frontends.caffe.node import CaffeNode
from mnnconvert.frontends.caffe.registry import caffe_op
from mnnconvert.frontends.common.compose import apply, calc, reshape
from mnnconvert.frontends.common.moves import sliced
from mnnconvert.ir import Builder, Value
from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.matmul import MatMul
from mnnconvert.ops.slicing import Slice

MOST_STEPS = 512
State = tuple[Value, ...]
Step = Callable[[Value, Value, State], State]


def product(b: Builder, x: Value, weight: Value) -> Value:
    """x times the transpose of a weight [outputs, inputs]."""
    return b.add(MatMul(False, True), x, weight)


class _Sequence:
    """The operands of a recurrent layer, and its steps over them."""

    def __init__(self, b: Builder, n: CaffeNode, gates: int, states: int):
        p = n.params("recurrent_param")
        self.b, self.n = b, n
        self.hidden, self.exposed = p.integer("num_output", 0), p.flag("expose_hidden", False)
        starts = states if self.exposed else 0
        n.takes(2 + starts, 3 + starts)
        self.steps, self.count = n.sizes(n.input(0), 0, 2)
        if self.steps > MOST_STEPS or self.hidden < 1:
            raise n.refuse(f"{n.op} of {self.steps} steps and {self.hidden} outputs")
        self.rows, self.static = gates * self.hidden, n.input_count == 3 + starts
        first = n.input_count - starts
        self.starts = [reshape(b, n.input(first + i), (self.count, self.hidden)) for i in range(starts)]
        if not starts:
            n.limited(self.count, self.hidden)
            self.starts = [b.constant(np.zeros((self.count, self.hidden), np.float32))] * states

    @property
    def first_blob(self) -> int:
        """The first of the blobs behind those of the operands."""
        return 3 if self.static else 2

    def projected(self) -> list[Value]:
        """What the operands contribute to the gates [N, rows] of each step, in one product for all of them."""
        b, n, x = self.b, self.n, self.n.input(0)
        features = math.prod(n.sizes(x, 2))
        flat = reshape(b, x, (self.steps * self.count, features))
        y = calc(b, "ADD", product(b, flat, self._weight(0, features)), n.weight(b, 1, (self.rows,), "bias"))
        y = reshape(b, y, (self.steps, self.count, self.rows))
        if self.static:
            extra = n.input(2)
            wide = math.prod(n.sizes(extra, 1))
            y = calc(b, "ADD", y, product(b, reshape(b, extra, (self.count, wide)), self._weight(2, wide)))
        return [reshape(b, part, (self.count, self.rows)) for part in self._apart(y)]

    def _weight(self, index: int, columns: int) -> Value:
        return self.n.weight(self.b, index, (self.rows, columns), f"weight{index}")

    def _apart(self, x: Value) -> list[Value]:
        return [sliced(self.b, x, 0, t, t + 1) for t in range(self.steps)] if self.steps > 1 else [x]

    def markers(self) -> list[Value]:
        """[N, 1] for each step."""
        marks = reshape(self.b, self.n.input(1), (self.steps, self.count))
        return [reshape(self.b, part, (self.count, 1)) for part in self._apart(marks)]

    def walk(self, step: Step) -> list[State]:
        """The states after each step."""
        state: State = tuple(self.starts)
        states = []
        for row, mark in zip(self.projected(), self.markers(), strict=True):
            state = step(row, mark, state)
            states.append(state)
        return states

    def results(self, rows: Sequence[Value], last: State) -> tuple[Value, ...]:
        """The outputs [T, N, H] of all steps, and the last states [1, N, H] where they are wanted."""
        shape = (1, self.count, self.hidden)
        stacked = [reshape(self.b, row, shape) for row in rows]
        y = self.b.add(Concat(0), *stacked) if len(stacked) > 1 else stacked[0]
        return (y, *(reshape(self.b, s, shape) for s in last)) if self.exposed else (y,)


@caffe_op("LSTM", limits="up to 512 steps")
def lstm(b: Builder, n: CaffeNode) -> tuple[Value, ...]:
    """Gates i, f, o, g of x and of the last output: c' = f c + i g, h' = o tanh(c') (J. Donahue, LRCN, 2015)."""
    sequence = _Sequence(b, n, 4, 2)
    size = sequence.hidden
    recurrent = n.weight(b, sequence.first_blob, (4 * size, size), "recurrent")

    def step(row: Value, mark: Value, state: State) -> State:
        h, c = (calc(b, "MUL", s, mark) for s in state)
        parts = b.add(Slice(1, (size,) * 4), calc(b, "ADD", product(b, h, recurrent), row), names=[""] * 4)
        i, f, o = (apply(b, "SIGMOID", part) for part in parts[:3])
        c = calc(b, "ADD", calc(b, "MUL", f, c), calc(b, "MUL", i, apply(b, "TANH", parts[3])))
        return calc(b, "MUL", o, apply(b, "TANH", c)), c

    states = sequence.walk(step)
    return sequence.results([h for h, _ in states], states[-1])


@caffe_op("RNN", limits="up to 512 steps")
def rnn(b: Builder, n: CaffeNode) -> tuple[Value, ...]:
    """h' = tanh(x and h through their weights), o = tanh(W h' + b)."""
    sequence = _Sequence(b, n, 1, 1)
    size, first = sequence.hidden, sequence.first_blob
    recurrent = n.weight(b, first, (size, size), "recurrent")
    out, bias = n.weight(b, first + 1, (size, size), "output"), n.weight(b, first + 2, (size,), "output_bias")

    def step(row: Value, mark: Value, state: State) -> State:
        inner = product(b, calc(b, "MUL", state[0], mark), recurrent)
        return (apply(b, "TANH", calc(b, "ADD", inner, row)),)

    states = sequence.walk(step)
    rows = [apply(b, "TANH", calc(b, "ADD", product(b, h, out), bias)) for (h,) in states]
    return sequence.results(rows, states[-1])
