"""Convolutions by Winograd and transposed convolutions in programs: which kernels run, and what they compute."""

from __future__ import annotations

import numpy as np
import pytest

from mnnconvert.ir import F32, Builder, Graph
from mnnconvert.ops.convolution import Convolution
from mnnconvert.ops.deconvolution import Deconvolution
from mnnconvert.ops.elementwise import Binary, Unary
from mnnconvert.runtime_ref.cpu import library
from mnnconvert.runtime_ref.cpu import lowering as _rules  # noqa: F401  (registers them)
from mnnconvert.runtime_ref.cpu.lower import RULES, Call, Lowering
from mnnconvert.runtime_ref.cpu.lowering.winograd import best_tile, direct_cost, lower_winograd, winograd_cost
from mnnconvert.runtime_ref.cpu.program import Program
from mnnconvert.runtime_ref.lower import Constants
from mnnconvert.runtime_ref.session import Session

pytestmark = pytest.mark.skipif(not library.runnable_levels(), reason="no compiled kernels")


def run(lib, rng, op, x_shape, w_shape, outputs, residual=False, activation=None, constant=True):
    """The kernels that compute op(x, w, bias) + residual and an activation; asserts that the result is right."""
    builder = Builder(Graph())
    x, r = builder.input("x", F32, x_shape), builder.input("r", F32, ("n", outputs, "h", "w"))
    w = rng.standard_normal(w_shape, dtype=np.float32)
    weight = builder.constant(w) if constant else builder.input("w", F32, w_shape)
    y = builder.add(op, x, weight, builder.constant(rng.standard_normal(outputs, dtype=np.float32)), name="c")
    if residual:
        y = builder.add(Binary("ADD"), y, r, name="a")
    if activation:
        y = builder.add(Unary(activation), y, name="f")
    builder.output(y, "y")
    feeds = {"x": rng.standard_normal(x_shape, dtype=np.float32), "w": w}
    made = op.infer(x.spec, weight.spec).shape
    feeds["r"] = rng.standard_normal(made, dtype=np.float32)
    ctx = Lowering(lib, lib.pool(2), Constants(), [y])
    for value in builder.graph.inputs:
        ctx.feed(value, feeds[value.name].shape)
    assert ctx.lower(builder.graph.nodes) == len(builder.graph.nodes)
    assert all(isinstance(step, Call) for step in ctx.steps)
    program = Program(ctx, {y: ctx.read(y)})
    got = program.run({v: feeds[v.name] for v in builder.graph.inputs}, compute=None)[y]
    want = Session(builder.graph, "reference").run({v.name: feeds[v.name] for v in builder.graph.inputs})["y"]
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())
    return [step.kernel.name for step in ctx.steps if "nchw" not in step.kernel.name]


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize(("residual", "activation"), [(False, None), (True, "SILU")])
def test_winograd(lib, rng, tile, residual, activation, monkeypatch):
    def rule(ctx, node):
        lower_winograd(ctx, node, ctx.epilogue(node, node.op.activation), node.op.pads[:2], tile)
        return True

    monkeypatch.setitem(RULES, Convolution, rule)
    op = Convolution(pads=(1, 0, 1, 2))
    assert run(lib, rng, op, (2, 20, 9, 7), (24, 20, 3, 3), 24, residual, activation) == ["winograd"]


@pytest.mark.parametrize(
    ("op", "w_shape", "kernel"),
    [
        (Deconvolution(strides=(2, 2)), (12, 20, 2, 2), "deconv"),
        (Deconvolution(strides=(2, 2), pads=(1, 1, 1, 1)), (12, 3, 4, 4), "deconv_few"),
        (Deconvolution(strides=(2, 2), pad_mode="SAME", group=12), (12, 1, 3, 3), "deconv_depthwise"),
        (Deconvolution(strides=(2, 3), pad_mode="SAME", group=3), (12, 2, 5, 2), "deconv"),
    ],
)
@pytest.mark.parametrize("constant", [True, False])
def test_transposed(lib, rng, op, w_shape, kernel, constant):
    outputs = w_shape[1] * op.group
    for residual, activation in [(False, None), (True, None), (False, "SIGMOID"), (True, "SILU")]:
        names = run(lib, rng, op, (2, 12, 5, 6), w_shape, outputs, residual, activation, constant)
        assert names == ([] if constant else [f"{kernel}_pack"]) + [kernel]


def test_choice():
    """Few channels, single rows, and one tile stay direct; many tiles are large, few are small."""
    assert best_tile(4, 4, (1, 112, 112), 8) is None
    assert best_tile(64, 64, (1, 1, 64), 8) is None
    assert best_tile(64, 64, (1, 2, 2), 8) is None
    assert best_tile(64, 64, (1, 56, 56), 8) == 4
    assert best_tile(512, 512, (1, 7, 7), 8) == 2
    assert best_tile(512, 512, (8, 7, 7), 8) == 4
    assert winograd_cost(4, 64, 64, (1, 56, 56), 8) < direct_cost(64, 64, 56 * 56, 8) / 2
