"""Import rules of recurrent layers.

The states that they keep are variable tensors: inputs and outputs of the graph (`state.py`). A plain layer over a whole
sequence is an op of MNN; peepholes, projections, layer norms, coupled gates and limits are written out step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mnnconvert.frontends.common.compose import along, apply, calc, reshape
from mnnconvert.frontends.common.moves import clip, permuted, reduced, sliced, squeezed, unsqueezed
from mnnconvert.frontends.common.nodes import FIX_SIZES, known_rank
from mnnconvert.frontends.tflite.compose import ACTIVATIONS, activated
from mnnconvert.frontends.tflite.model import BAD
from mnnconvert.frontends.tflite.node import TfliteNode
from mnnconvert.frontends.tflite.registry import tflite_op
from mnnconvert.ir import Builder, Value
from mnnconvert.ops.arrange import Concat, Pack, Reverse
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.matmul import MatMul
from mnnconvert.ops.recurrent import LSTM, RNN

MOST_STEPS = 256  # of a layer that is written out
NORM_EPSILON = 1e-8
FLOATS_ONLY = "float activations"


def _product(b: Builder, x: Value, w: Value) -> Value:
    return b.add(MatMul(False, True), x, w)


def _matrix(b: Builder, n: TfliteNode, index: int) -> Value | None:
    return n.weight(b, index, (0, 1), 0) if n.has(index) else None


def _whole(b: Builder, n: TfliteNode, index: int) -> np.ndarray:
    """A weight as numbers."""
    value = n.input(index).constant
    if value is None:
        raise n.refuse(f"the weights of {n.op} must be known when the model is converted")
    return value.astype(np.float32)


def _require_floats(n: TfliteNode) -> None:
    if n.source(0).quantized:
        raise n.refuse(f"{n.op} on quantized activations is not supported", reference="unsupported-type")


def _sequence(b: Builder, n: TfliteNode) -> tuple[Value, bool]:
    """The operand as [steps, batch, in], and whether it was so."""
    x, major = n.input(0), bool(n.option("TimeMajor", False))
    if known_rank(n, x) != 3:
        raise n.refuse(f"{n.op} takes an operand of rank 3, not {x.rank}", reference=BAD)
    return (x if major else permuted(b, x, (1, 0, 2))), major


def _restored(b: Builder, y: Value, major: bool) -> Value:
    return y if major else permuted(b, y, (1, 0, 2))


def _steps(b: Builder, n: TfliteNode, x: Value) -> list[Value]:
    """The rows of a sequence whose length is known."""
    count = x.shape[0] if x.shape else None
    if not isinstance(count, int) or count > MOST_STEPS:
        raise n.refuse(f"this form of {n.op} needs a known length of at most {MOST_STEPS} steps", hint=FIX_SIZES)
    return [b.add(GatherV2(), x, b.ints(i), b.ints(0)) for i in range(count)]


@dataclass
class Rnn:
    """h' = f(W x + R h + b (+ A aux))."""

    w: int
    r: int
    bias: int
    state: int
    aux: int = -1  # weight of the second input

    def run(self, b: Builder, n: TfliteNode, x: Value, backwards: bool = False, aux: Value | None = None) -> Value:
        """All steps [steps, batch, hidden]; the last state goes back to its tensor."""
        kind = n.choice("FusedActivationFunction", "ActivationFunctionType", "TANH")
        h = n.input(self.state)
        x = b.add(Reverse(), x, b.ints([0])) if backwards else x
        if kind == "TANH" and aux is None:
            y, h = self._layer(b, n, x, h)
        else:
            rows = [_product(b, x, n.weight(b, self.w, (0, 1), 0))]
            if aux is not None:
                rows.append(_product(b, aux, n.weight(b, self.aux, (0, 1), 0)))
            projected = calc(b, "ADD", rows[0] if aux is None else calc(b, "ADD", *rows), n.input(self.bias))
            results = []
            for row in _steps(b, n, projected):
                h = ACTIVATIONS[kind](b, calc(b, "ADD", row, _product(b, h, n.weight(b, self.r, (0, 1), 0))))
                results.append(h)
            y = b.add(Pack(0), *results)
        n.update(self.state, h)
        return b.add(Reverse(), y, b.ints([0])) if backwards else y

    def _layer(self, b: Builder, n: TfliteNode, x: Value, h: Value) -> tuple[Value, Value]:
        w, r, bias = (_whole(b, n, i) for i in (self.w, self.r, self.bias))
        operands = (b.floats(w[None]), b.floats(r[None]), b.floats(bias[None]), unsqueezed(b, h, 0))
        y, last = b.add(RNN(len(w)), x, *operands, names=["", ""])
        return squeezed(b, y, 1), squeezed(b, last, 0)


@tflite_op("RNN", limits=FLOATS_ONLY)
def rnn(b: Builder, n: TfliteNode) -> Value:
    _require_floats(n)
    row = calc(b, "ADD", _product(b, n.input(0), n.weight(b, 1, (0, 1), 0)), n.input(3))
    h = activated(b, n, calc(b, "ADD", row, _product(b, n.input(4), n.weight(b, 2, (0, 1), 0))))
    n.update(4, h)
    return h


@tflite_op("UNIDIRECTIONAL_SEQUENCE_RNN", limits=FLOATS_ONLY)
def sequence_rnn(b: Builder, n: TfliteNode) -> Value:
    _require_floats(n)
    x, major = _sequence(b, n)
    return _restored(b, Rnn(1, 2, 3, 4).run(b, n, x), major)


def _both(b: Builder, n: TfliteNode, forth: Value, back: Value, major: bool) -> tuple[Value, ...]:
    """The results of two directions, beside each other where they are merged."""
    results = [_restored(b, y, major) for y in (forth, back)]
    return (b.add(Concat(2), *results),) if n.option("MergeOutputs", False) else tuple(results)


@tflite_op("BIDIRECTIONAL_SEQUENCE_RNN", limits=FLOATS_ONLY)
def bidirectional_rnn(b: Builder, n: TfliteNode) -> tuple[Value, ...]:
    _require_floats(n)
    x, major = _sequence(b, n)
    if n.has(9):
        raise n.refuse(f"{n.op} with a second input is not supported")
    return _both(b, n, Rnn(1, 2, 3, 4).run(b, n, x), Rnn(5, 6, 7, 8).run(b, n, x, True), major)


@dataclass
class Lstm:
    """Where the operands of one direction stand: the first of each group of gates (input, forget, cell, output)."""

    w: int = 1
    r: int = 5
    peepholes: int = 9  # of input, forget, output
    bias: int = 12
    projection: int = 16
    h: int = 18
    c: int = 19
    norms: int = 20

    def run(self, b: Builder, n: TfliteNode, x: Value, backwards: bool = False) -> Value:
        """All steps [steps, batch, hidden]; the last states go back to their tensors."""
        x = b.add(Reverse(), x, b.ints([0])) if backwards else x
        if self._is_plain(n):
            y, h, c = self._layer(b, n, x)
        else:
            h, c, results = n.input(self.h), n.input(self.c), []
            for row in _steps(b, n, x):
                h, c = self.step(b, n, row, h, c)
                results.append(h)
            y = b.add(Pack(0), *results)
        n.update(self.h, h)
        n.update(self.c, c)
        return b.add(Reverse(), y, b.ints([0])) if backwards else y

    def _is_plain(self, n: TfliteNode) -> bool:
        """Whether this is what MNN's LSTM computes."""
        more = [*range(self.peepholes, self.peepholes + 3), self.projection, self.projection + 1]
        more += range(self.norms, self.norms + 4) if self.norms else ()
        clipped = float(n.option("CellClip", 0.0)) > 0 or float(n.option("ProjClip", 0.0)) > 0
        tanh = n.choice("FusedActivationFunction", "ActivationFunctionType", "TANH") == "TANH"
        return tanh and not clipped and n.has(self.w) and not any(n.has(i) for i in more)

    def _layer(self, b: Builder, n: TfliteNode, x: Value) -> tuple[Value, Value, Value]:
        order = (0, 3, 1, 2)  # input, output, forget, cell
        w, r, bias = (np.concatenate([_whole(b, n, first + i) for i in order]) for first in (self.w, self.r, self.bias))
        state = [unsqueezed(b, n.input(i), 0) for i in (self.h, self.c)]
        constants = [b.floats(v[None]) for v in (w, r, bias)]
        y, h, c = b.add(LSTM(len(w) // 4), x, *constants, *state, names=[""] * 3)
        return squeezed(b, y, 1), squeezed(b, h, 0), squeezed(b, c, 0)

    def step(self, b: Builder, n: TfliteNode, x: Value, h: Value, c: Value) -> tuple[Value, Value]:
        """One step of all the forms that there are (H. Sak et al., 2014; with layer norms, J. L. Ba et al., 2016)."""
        f = apply(b, "SIGMOID", self._gate(b, n, 1, x, h, c, 1))
        if n.has(self.w):
            i = apply(b, "SIGMOID", self._gate(b, n, 0, x, h, c, 0))
        else:
            i = calc(b, "SUB", b.floats(1), f)
        kind = n.choice("FusedActivationFunction", "ActivationFunctionType", "TANH")
        g = ACTIVATIONS[kind](b, self._gate(b, n, 2, x, h))
        c = self._limited(b, n, "CellClip", calc(b, "ADD", calc(b, "MUL", f, c), calc(b, "MUL", i, g)))
        o = apply(b, "SIGMOID", self._gate(b, n, 3, x, h, c, 2))
        h = calc(b, "MUL", o, ACTIVATIONS[kind](b, c))
        projection = _matrix(b, n, self.projection)
        if projection is not None:
            h = _product(b, h, projection)
            h = calc(b, "ADD", h, n.input(self.projection + 1)) if n.has(self.projection + 1) else h
            h = self._limited(b, n, "ProjClip", h)
        return h, c

    def _limited(self, b: Builder, n: TfliteNode, option: str, x: Value) -> Value:
        limit = float(n.option(option, 0.0))
        return clip(b, x, -limit, limit) if limit > 0 else x

    def _gate(
        self, b: Builder, n: TfliteNode, gate: int, x: Value, h: Value, c: Value | None = None, peephole: int = 0
    ) -> Value:
        """What goes into the activation of a gate."""
        w, r = (n.weight(b, first + gate, (0, 1), 0) for first in (self.w, self.r))
        y = calc(b, "ADD", _product(b, x, w), _product(b, h, r))
        if c is not None and n.has(self.peepholes + peephole):
            y = calc(b, "ADD", y, calc(b, "MUL", c, n.input(self.peepholes + peephole)))
        if self.norms and n.has(self.norms + gate):
            centred = calc(b, "SUB", y, along(b, "MEAN", y, (-1,)))
            variance = along(b, "MEAN", apply(b, "SQUARE", centred), (-1,))
            scaled = calc(b, "MUL", centred, apply(b, "RSQRT", calc(b, "ADD", variance, NORM_EPSILON)))
            y = calc(b, "MUL", scaled, n.input(self.norms + gate))
        return calc(b, "ADD", y, n.input(self.bias + gate))


@tflite_op("UNIDIRECTIONAL_SEQUENCE_LSTM", limits=FLOATS_ONLY)
def sequence_lstm(b: Builder, n: TfliteNode) -> Value:
    _require_floats(n)
    x, major = _sequence(b, n)
    return _restored(b, Lstm().run(b, n, x), major)


@tflite_op("BIDIRECTIONAL_SEQUENCE_LSTM", limits=FLOATS_ONLY)
def bidirectional_lstm(b: Builder, n: TfliteNode) -> tuple[Value, ...]:
    _require_floats(n)
    x, major = _sequence(b, n)
    if n.has(39):
        raise n.refuse(f"{n.op} with a second input is not supported")
    forth = Lstm(h=35, c=36, norms=0).run(b, n, x)
    back = Lstm(18, 22, 26, 29, 33, 37, 38, 0).run(b, n, x, True)
    return _both(b, n, forth, back, major)


@tflite_op("LSTM", limits=FLOATS_ONLY)
def lstm(b: Builder, n: TfliteNode) -> tuple[Value, ...]:
    """One step. In the basic form the weights of all gates are one matrix, and states are plain operands."""
    _require_floats(n)
    if n.choice("KernelType", "LSTMKernelType", "FULL") == "FULL":
        h, c = Lstm().step(b, n, n.input(0), n.input(18), n.input(19))
        n.update(18, h)
        n.update(19, c)
        return (h,)
    both = b.add(Concat(1), n.input(0), n.input(1))
    gates = calc(b, "ADD", _product(b, both, n.weight(b, 2, (0, 1), 0)), n.input(3))
    size = gates.shape[1] if gates.shape else None
    if not isinstance(size, int):
        raise n.refuse(f"{n.op} needs the sizes of its weights")
    i, g, f, o = (sliced(b, gates, 1, k * size // 4, (k + 1) * size // 4) for k in range(4))
    kept = calc(b, "MUL", apply(b, "SIGMOID", f), n.input(4))
    c = calc(b, "ADD", kept, calc(b, "MUL", apply(b, "SIGMOID", i), apply(b, "TANH", g)))
    return calc(b, "MUL", apply(b, "SIGMOID", o), apply(b, "TANH", c)), c, both, gates


@tflite_op("SVDF", limits=FLOATS_ONLY)
def svdf(b: Builder, n: TfliteNode) -> Value:
    """Features of the newest input join those of the last steps, which filters over time weigh.

    R. Nakkiran et al., Compressing Deep Neural Networks using a Rank-Constrained Topology, 2015.
    """
    _require_floats(n)
    rank, w = int(n.option("Rank", 1)), n.weight(b, 1, (0, 1), 0)
    filters, memory = n.source(2).shape or (0, 0)
    if min(filters, memory, rank) < 1 or filters % rank:
        raise n.refuse(f"{n.op} has {filters} filters of rank {rank}", reference=BAD)
    newest = unsqueezed(b, _product(b, n.input(0), w), 2)
    state = reshape(b, n.input(4), (-1, filters, memory))
    parts: Sequence[Value] = [sliced(b, state, 2, 1), newest] if memory > 1 else [newest]
    state = b.add(Concat(2), *parts)
    n.update(4, reshape(b, state, (-1, filters * memory)))
    y = reduced(b, "SUM", calc(b, "MUL", state, n.input(2)), 2, keep=False)
    y = reduced(b, "SUM", reshape(b, y, (-1, filters // rank, rank)), 2, keep=False)
    return activated(b, n, calc(b, "ADD", y, n.input(3)) if n.has(3) else y)
