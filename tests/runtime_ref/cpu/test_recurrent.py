"""Recurrent layers: the kernels at many sizes, and what graphs become; against the definitions of the ops."""

from __future__ import annotations

import numpy as np
import pytest
from kernels import guard, guarded

from mnnconvert.ir import Builder, Graph
from mnnconvert.ops.recurrent import GRU, LSTM, RNN
from mnnconvert.runtime_ref.cpu import lowering as _rules  # noqa: F401  (registers them)
from mnnconvert.runtime_ref.cpu.lower import Call, Lowering
from mnnconvert.runtime_ref.cpu.program import Program
from mnnconvert.runtime_ref.lower import Constants

SIZES = [(1, 1, 5, 4), (3, 2, 5, 4), (2, 1, 7, 1), (4, 5, 3, 17), (1, 1, 128, 128), (6, 30, 9, 12), (5, 3, 40, 33)]
"""Steps, batch, inputs, hidden."""


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def lstm(steps, batch, inputs, hidden, directions=1, gates=4):
    """x, w, r, b of an LSTM, or of an RNN with one gate."""
    r = numbers(directions, gates * hidden, hidden, seed=2) / np.float32(np.sqrt(hidden))
    w = numbers(directions, gates * hidden, inputs, seed=1) / np.float32(np.sqrt(inputs))
    return [numbers(steps, batch, inputs), w, r, numbers(directions, gates * hidden, seed=3)]


def gru(steps, batch, inputs, hidden, directions=1):
    operands = [numbers(steps, batch, inputs)]
    for d in range(directions):
        shapes = [
            (inputs + hidden, 2 * hidden),
            (1, 2 * hidden),
            (inputs + hidden, hidden),
            (1, hidden),
            (1, 3 * hidden),
        ]
        operands += [numbers(*shape, seed=10 * d + i) / np.float32(np.sqrt(hidden)) for i, shape in enumerate(shapes)]
    return operands


def check(lib, op, operands, starts=(), fixed=True):
    """The kernels called for an op; asserts that they give what the op does, for one and for two threads."""
    results = []
    for threads in (1, 2):
        builder, feeds = Builder(Graph()), {}
        values = []
        for i, array in enumerate([*operands, *starts]):
            constant = fixed and 0 < i < len(operands)
            values.append(builder.constant(array) if constant else builder.input(f"x{i}", array.dtype, array.shape))
            if not constant:
                feeds[values[-1]] = array
        count = len(op.infer(*(v.spec for v in values)))
        outputs = list(builder.add(op, *values, names=[f"y{i}" for i in range(count)]))
        ctx = Lowering(lib, lib.pool(threads), Constants(), outputs)
        for value, array in feeds.items():
            ctx.feed(value, array.shape)
        ctx.lower(builder.graph.nodes)
        program = Program(ctx, {value: ctx.read(value) for value in outputs})
        for _ in range(2):  # a second run finds the states of the first
            made = program.run(feeds, compute=lambda node, arrays: node.op.ref(*arrays))
        results.append([np.array(made[value]) for value in outputs])
    for one, two, want in zip(*results, op.ref(*operands, *starts), strict=True):
        assert one.tobytes() == two.tobytes()
        assert np.abs(one - want).max() <= 2e-6
    return [step.kernel.name if isinstance(step, Call) else "reference" for step in ctx.steps]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("directions", [1, 2])
def test_lstm(lib, sizes, directions):
    _, batch, _, hidden = sizes
    starts = [numbers(directions, batch, hidden, seed=i) for i in (5, 6)]
    for given in ([], starts):
        assert check(lib, LSTM(hidden), lstm(*sizes, directions), given) == ["gemm_f32", "lstm_f32"]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("directions", [1, 2])
def test_rnn(lib, sizes, directions):
    _, batch, _, hidden = sizes
    for given in ([], [numbers(directions, batch, hidden, seed=5)]):
        assert check(lib, RNN(hidden), lstm(*sizes, directions, gates=1), given) == ["gemm_f32", "rnn_f32"]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("linear", [False, True])
def test_gru(lib, sizes, directions, linear):
    _, batch, _, hidden = sizes
    for given in ([], [numbers(directions, batch, hidden, seed=5)]):
        op = GRU(hidden, bidirectional=directions == 2, linear_before_reset=linear)
        assert check(lib, op, gru(*sizes, directions), given) == ["gemm_f32", "gru_f32"]


def test_weights_from_outside_are_left_to_the_definition(lib):
    assert check(lib, LSTM(4), lstm(3, 2, 5, 4), fixed=False) == ["reference"]
    assert check(lib, GRU(4), gru(3, 2, 5, 4), fixed=False) == ["reference"]
    assert check(lib, RNN(4), lstm(3, 2, 5, 4, gates=1), fixed=False) == ["reference"]


@pytest.mark.parametrize("sizes", SIZES)
def test_kernels_stay_within_their_arrays(lib, sizes):
    steps, batch, _, hidden = sizes
    shapes = {"y": (steps, 2, batch, hidden), "h": (2, batch, hidden), "c": (2, batch, hidden)}

    def packed(columns):
        size = -(-columns // (2 * lib.lanes)) * 2 * lib.lanes * hidden
        return guarded(np.zeros((2, size), np.float32))

    def run(kernel, gates, results, **operands):
        outputs = {name: guard(shapes[name]) for name in results}
        contents, inside = guard((steps, batch, 2, gates * hidden))
        contents[...] = 0
        made = {name: array for name, (array, _) in outputs.items()}
        sizes = {"steps": steps, "batch": batch, "directions": 2, "hidden": hidden}
        lib.call(kernel, lib.pool(2), gates=contents, **operands, **made, **sizes)
        for array, inside_too in [(contents, inside), *outputs.values()]:
            inside_too()
            assert not np.isnan(array).any()

    start = guarded(numbers(2, batch, hidden))
    run("lstm_f32", 4, "yhc", r=packed(4 * hidden), h_start=start, c_start=start)
    run("rnn_f32", 1, "yh", r=packed(hidden), h_start=start)
    bias = guarded(numbers(2, hidden))
    for linear in (0, 1):
        operands = {"r": packed(2 * hidden), "s": packed(hidden), "bias": bias, "h_start": start, "linear": linear}
        run("gru_f32", 3, "yh", **operands)
