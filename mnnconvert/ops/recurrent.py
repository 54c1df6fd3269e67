"""Recurrent layers over whole sequences: x [steps, batch, in] -> y [steps, directions, batch, hidden] and last states.

The second direction walks from the last step to the first. What all steps have in common, the product of x with the
input weights, is one matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mnnconvert.ir.types import F32, Dim, Spec
from mnnconvert.ops.base import Fields, Form, Op, register
from mnnconvert.ops.samples import grid

State = tuple[np.ndarray, ...]
Step = Callable[[np.ndarray, State], State]


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)), without overflow."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)), x.dtype)


def run_direction(projected: np.ndarray, state: State, step: Step, backwards: bool) -> tuple[np.ndarray, State]:
    """All steps of one direction: the first state after each of them, and the last state of all."""
    rows = np.empty((*projected.shape[:2], state[0].shape[-1]), np.float32)
    order = range(len(projected))
    for t in reversed(order) if backwards else order:
        state = step(projected[t], state)
        rows[t] = state[0]
    return rows, state


def _states(x: Spec, weight: Spec, hidden: int, states: int) -> tuple[Spec, ...]:
    """Specs of y and of the last states."""
    steps, batch = (x.shape[0], x.shape[1]) if x.shape is not None and len(x.shape) == 3 else (None, None)
    if x.shape is not None and len(x.shape) != 3:
        raise ValueError("a recurrent layer takes [steps, batch, in]")
    directions: Dim = weight.shape[0] if weight.shape else None
    return Spec(F32, (steps, directions, batch, hidden)), *((Spec(F32, (directions, batch, hidden)),) * states)


def _start(given: np.ndarray | None, x: np.ndarray, direction: int, hidden: int) -> np.ndarray:
    return np.zeros((x.shape[1], hidden), np.float32) if given is None else given[direction]


def _collected(
    x: np.ndarray, hidden: int, states: int, runs: Sequence[tuple[np.ndarray, State]]
) -> tuple[np.ndarray, ...]:
    y = np.stack([rows for rows, _ in runs], 1).reshape(x.shape[0], len(runs), x.shape[1], hidden)
    return y, *(np.stack([state[i] for _, state in runs]) for i in range(states))


@register()
class LSTM(Op):
    """i, o, f, g = gates of W x + R h + b in this order, i, o, f = sigmoid, g = tanh; c' = f c + i g; h' = o tanh(c').

    Operands x, W [directions, 4 hidden, in], R [directions, 4 hidden, hidden], b [directions, 4 hidden], and both or
    none of h, c [directions, batch, hidden]. Results y, h, c.
    """

    hidden: int

    form = Form("LSTM", "LSTM", {"hidden": "outputCount"})

    def infer(
        self, x: Spec, w: Spec, r: Spec, b: Spec, h: Spec | None = None, c: Spec | None = None
    ) -> tuple[Spec, ...]:
        return _states(x, w, self.hidden, 2)

    def ref(self, x: np.ndarray, w: np.ndarray, r: np.ndarray, b: np.ndarray, h: np.ndarray | None = None,
            c: np.ndarray | None = None) -> tuple[np.ndarray, ...]:  # fmt: skip
        runs = []
        for d in range(len(w)):
            start = _start(h, x, d, self.hidden), _start(c, x, d, self.hidden)
            runs.append(run_direction(x @ w[d].T + b[d], start, self._step(r[d].T), d == 1))
        return _collected(x, self.hidden, 2, runs)

    def _step(self, r: np.ndarray) -> Step:
        n = self.hidden

        def step(row: np.ndarray, state: State) -> State:
            h, c = state
            gates = row + h @ r
            i, o, f = (sigmoid(gates[:, k * n : (k + 1) * n]) for k in range(3))
            c = f * c + i * np.tanh(gates[:, 3 * n :])
            return o * np.tanh(c), c

        return step

    @classmethod
    def parse(cls, type: str, fields: Fields) -> LSTM:
        if fields["weightI"] is not None:
            raise ValueError("an LSTM with its weights inside the table is of a kind that is not supported")
        return cls(fields["outputCount"])

    samples = grid(hidden=[4], x=[(3, 2, 5)], w=[(1, 16, 5)], r=[(1, 16, 4)], b=[(1, 16)]) + grid(
        hidden=[2], x=[(3, 2, 5)], w=[(2, 8, 5)], r=[(2, 8, 2)], b=[(2, 8)], h=[(2, 2, 2)], c=[(2, 2, 2)]
    )


@register()
class RNN(Op):
    """h' = tanh(W x + R h + b). Operands x, W [directions, hidden, in], R, b and h where it does not start at 0."""

    hidden: int

    form = Form("RNN", "LSTM", {"hidden": "outputCount"})

    def infer(self, x: Spec, w: Spec, r: Spec, b: Spec, h: Spec | None = None) -> tuple[Spec, ...]:
        return _states(x, w, self.hidden, 1)

    def ref(
        self, x: np.ndarray, w: np.ndarray, r: np.ndarray, b: np.ndarray, h: np.ndarray | None = None
    ) -> tuple[np.ndarray, ...]:
        runs = []
        for d in range(len(w)):
            step = self._step(r[d].T)
            runs.append(run_direction(x @ w[d].T + b[d], (_start(h, x, d, self.hidden),), step, d == 1))
        return _collected(x, self.hidden, 1, runs)

    def _step(self, r: np.ndarray) -> Step:
        return lambda row, state: (np.tanh(row + state[0] @ r),)

    samples = grid(hidden=[4], x=[(3, 2, 5)], w=[(1, 4, 5)], r=[(1, 4, 4)], b=[(1, 4)]) + grid(
        hidden=[2], x=[(3, 2, 5)], w=[(2, 2, 5)], r=[(2, 2, 2)], b=[(2, 2)], h=[(2, 2, 2)]
    )


@register()
class GRU(Op):
    """z, r = sigmoid(gates); n = tanh(candidate); h' = z h + (1 - z) n. OpType RNNSequenceGRU.

    Operands x, then for each direction gate weight [in + hidden, 2 hidden] (z, r), gate bias [1, 2 hidden], candidate
    weight [in + hidden, hidden], candidate bias [1, hidden], recurrent bias [1, 3 hidden]; then h [directions, batch,
    hidden] where it does not start at 0. With `linear_before_reset` the reset gate multiplies what the state
    contributes to the candidate, with its bias, else the state. Results y, h.
    """

    hidden: int
    bidirectional: bool = False
    linear_before_reset: bool = False

    form = Form(
        "RNNSequenceGRU",
        "RNNParam",
        {"hidden": "numUnits", "bidirectional": "isBidirectionalRNN", "linear_before_reset": "linearBeforeReset"},
        fixed={"keepAllOutputs": True},
    )

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    def infer(self, x: Spec, *operands: Spec) -> tuple[Spec, ...]:
        if len(operands) not in (5 * self.directions, 5 * self.directions + 1):
            raise ValueError(f"a GRU of {self.directions} directions does not take {len(operands)} weights and states")
        return _states(x, Spec(F32, (self.directions,)), self.hidden, 1)

    def ref(self, x: np.ndarray, *operands: np.ndarray) -> tuple[np.ndarray, ...]:
        h = operands[-1] if len(operands) > 5 * self.directions else None
        runs = []
        for d in range(self.directions):
            gate_w, gate_b, candidate_w, candidate_b, recurrent_b = operands[5 * d : 5 * d + 5]
            width, rb = x.shape[2], recurrent_b.reshape(-1)
            weight = np.concatenate([gate_w[:width], candidate_w[:width]], 1)
            bias = np.concatenate([gate_b.reshape(-1) + rb[: 2 * self.hidden], candidate_b.reshape(-1)])
            step = self._step(gate_w[width:], candidate_w[width:], rb[2 * self.hidden :])
            runs.append(run_direction(x @ weight + bias, (_start(h, x, d, self.hidden),), step, d == 1))
        return _collected(x, self.hidden, 1, runs)

    def _step(self, gate_r: np.ndarray, candidate_r: np.ndarray, bias: np.ndarray) -> Step:
        n = self.hidden

        def step(row: np.ndarray, state: State) -> State:
            h = state[0]
            gates = sigmoid(row[:, : 2 * n] + h @ gate_r)
            z, r = gates[:, :n], gates[:, n:]
            inner = r * (h @ candidate_r + bias) if self.linear_before_reset else (r * h) @ candidate_r + bias
            return (z * h + (1 - z) * np.tanh(row[:, 2 * n :] + inner),)

        return step

    samples = grid(
        hidden=[4], linear_before_reset=[False, True], x=[(3, 2, 5)], gate_w=[(9, 8)], gate_b=[(1, 8)],
        candidate_w=[(9, 4)], candidate_b=[(1, 4)], recurrent_b=[(1, 12)],
    ) + grid(
        hidden=[2], bidirectional=[True], x=[(3, 2, 5)], gate_w=[(7, 4)], gate_b=[(1, 4)], candidate_w=[(7, 2)],
        candidate_b=[(1, 2)], recurrent_b=[(1, 6)], gate_w2=[(7, 4)], gate_b2=[(1, 4)], candidate_w2=[(7, 2)],
        candidate_b2=[(1, 2)], recurrent_b2=[(1, 6)], h=[(2, 2, 2)],
    )  # fmt: skip
