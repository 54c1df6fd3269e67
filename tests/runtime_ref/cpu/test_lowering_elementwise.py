"""Chains, reductions and norms in programs: what becomes one call, what stays blocked, what is left to numpy."""

from __future__ import annotations

import numpy as np
import pytest

from mnnconvert.ir import F32, Builder, Graph
from mnnconvert.ir.types import Spec
from mnnconvert.ops.activation import PReLU, ReLU
from mnnconvert.ops.elementwise import Binary, Cast, Select, Unary
from mnnconvert.ops.normalization import LayerNorm, Scale, Softmax
from mnnconvert.ops.reduction import Reduction
from mnnconvert.runtime_ref.cpu import lowering as _rules  # noqa: F401  (registers them)
from mnnconvert.runtime_ref.cpu.lower import Lowering
from mnnconvert.runtime_ref.cpu.program import Program
from mnnconvert.runtime_ref.lower import BLOCKED, Buffer, Constants, Reference, Tensor
from mnnconvert.runtime_ref.session import Session


class Net:
    """A graph that `build(builder, *inputs)` makes; it returns the outputs. Inputs named in `blocked` lie in blocks."""

    def __init__(self, lib, build, *arrays, blocked=()):
        builder = Builder(Graph())
        inputs = [builder.input(f"x{i}", a.dtype, a.shape) for i, a in enumerate(arrays)]
        outputs = build(builder, *inputs)
        self.outputs = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
        for value in self.outputs:
            builder.output(value)
        self.graph, self.arrays = builder.graph, {f"x{i}": a for i, a in enumerate(arrays)}
        self.ctx, self.feeds = Lowering(lib, lib.pool(2), Constants(), self.outputs), {}
        for i, (value, array) in enumerate(zip(inputs, arrays, strict=True)):
            self._feed(value, array, i in blocked)
        self.ctx.lower(self.graph.nodes)

    def _feed(self, value, array, blocked):
        self.feeds[value] = array
        if not blocked:
            return self.ctx.feed(value, array.shape)
        lanes = self.ctx.lanes
        n, c, *rest = array.shape
        filled = np.zeros((n, -(-c // lanes) * lanes, *rest), F32)
        filled[:, :c] = array
        split = np.moveaxis(filled.reshape(n, -1, lanes, *rest), 2, -1)
        self.feeds[value] = np.ascontiguousarray(split)
        self.ctx.specs[value] = Spec(F32, array.shape)
        self.ctx.define(value, Tensor(Buffer(split.nbytes, fed=value), array.shape, np.dtype(F32), BLOCKED))

    @property
    def steps(self):
        """Names of the kernels, and of the ops that numpy computes."""
        return [type(s.node.op).__name__ if isinstance(s, Reference) else s.kernel.name for s in self.ctx.steps]

    def check(self, rtol=2e-6):
        """Assert that all results are those of the reference."""
        wanted = Session(self.graph, "reference").run(self.arrays)
        results = {v: self.ctx.read(v) for v in self.outputs}
        got = Program(self.ctx, results).run(self.feeds, compute=None)
        for value in self.outputs:
            want = wanted[value.name]
            np.testing.assert_allclose(got[value], want, rtol=0, atol=rtol * max(1, np.abs(want).max(initial=0)))


@pytest.fixture
def x(rng):
    return rng.normal(size=(2, 13, 5, 7)).astype(np.float32)


def test_silu_with_bias_is_one_call(lib, x, rng):
    """Two readers of a value inside of the chain do not make it a result."""
    bias = rng.normal(size=(13, 1, 1)).astype(np.float32)

    def build(b, x):
        t = b.add(Binary("ADD"), x, b.constant(bias))
        return b.add(Binary("MUL"), t, b.add(Unary("SIGMOID"), t), name="y")

    net = Net(lib, build, x)
    assert net.steps == ["chain"]
    net.check()


def test_values_that_others_read_are_results_too(lib, x):
    def build(b, x, z):
        t = b.add(Binary("ADD"), x, z)
        return b.add(ReLU(), t, name="y"), b.add(Softmax(1), t, name="s")

    net = Net(lib, build, x, x[::-1].copy())
    assert net.steps == ["chain", "softmax"]
    net.check()


def test_chains_end_where_the_shape_changes(lib, x):
    def build(b, x, z):
        return b.add(Binary("MUL"), b.add(Unary("TANH"), z), x, name="y")

    net = Net(lib, build, x, x[:1, :, :1, :1].copy())
    assert net.steps == ["chain", "chain"]
    net.check()


def test_bytes_are_rounded_between_functions(lib):
    """A cast to uint8 loses bits that a later cast must not see."""

    def build(b, x):
        return b.add(Cast("DT_FLOAT"), b.add(Cast("DT_UINT8"), x), name="y")

    net = Net(lib, build, np.array([300.5, -1, 7], np.float32))
    assert net.steps == ["chain", "chain"]
    net.check(0)


def test_comparison_and_selection_on_several_types(lib, x):
    def build(b, x, z):
        larger = b.add(Binary("GREATER"), x, z)
        return b.add(Select(), larger, x, b.add(Unary("NEG"), z), name="y")

    net = Net(lib, build, x, x[:, :, ::-1].copy())
    assert net.steps in (["chain"], ["chain", "chain"])
    net.check(0)


@pytest.mark.parametrize("channels", [13, 16])
def test_blocked_maps_stay_blocked(lib, channels, rng):
    x, z = rng.normal(size=(2, 2, channels, 5, 7)).astype(np.float32)
    gate = rng.normal(size=(2, channels, 1, 1)).astype(np.float32)
    pixels = rng.normal(size=(2, 1, 5, 7)).astype(np.float32)
    slope, bias = rng.normal(size=(2, channels)).astype(np.float32)

    def build(b, x, z, gate, pixels):
        t = b.add(Binary("MUL"), b.add(Binary("ADD"), x, z), gate)
        t = b.add(Binary("ADD"), b.add(PReLU(), t, b.constant(slope)), pixels)
        t = b.add(Scale(), t, b.constant(slope), b.constant(bias))
        return b.add(Binary("MUL"), t, b.constant(np.array(0.5, np.float32)), name="y")

    net = Net(lib, build, x, z, gate, pixels, blocked=(0, 1, 2))
    assert net.steps == ["chain"] and set(net.ctx.layouts(net.outputs[0])) == {BLOCKED}
    net.check()


def test_unused_lanes_never_become_infinite(lib, x):
    """13 channels: what divides is computed plain, because the lanes behind the last channel hold zeros."""
    net = Net(lib, lambda b, x: b.add(Unary("RECIPROCAL"), x, name="y"), x, blocked=(0,))
    assert "chain" in net.steps and BLOCKED not in [c.layout for s in net.ctx.steps[1:] for c in s.tensors]
    net.check()


def test_small_powers_are_products(lib, x):
    def build(b, x):
        return [b.add(Binary("POW"), x, b.constant(np.array(p, np.float32)), name=f"y{p}") for p in (2, 3, 2.5)]

    Net(lib, build, np.abs(x)).check()


def test_reductions_of_blocked_maps(lib, rng):
    for channels in (13, 16):
        x = rng.normal(size=(2, channels, 5, 7)).astype(np.float32)
        for keep in (True, False):
            net = Net(lib, lambda b, x, k=keep: b.add(Reduction("MEAN", (2, 3), k), x, name="y"), x, blocked=(0,))
            if keep or channels == 16:
                assert net.steps == ["reduce_f32"]
            net.check()


@pytest.mark.parametrize("dims", [(0, 2), (1, 3), (0, 1, 3), (2,), None])
def test_reductions_over_several_groups_of_axes(lib, x, dims):
    for operation in ("SUM", "MEAN", "SUMSQ", "ALL", "MAXIMUM"):
        net = Net(lib, lambda b, x, o=operation: b.add(Reduction(o, dims, True), x, name="y"), x)
        assert set(net.steps) == {"reduce_f32"}
        net.check()


def test_sum_and_layer_norm_are_one_call(lib, rng):
    x, z = rng.normal(size=(2, 3, 11, 40)).astype(np.float32)
    gamma, beta = rng.normal(size=(2, 40)).astype(np.float32)

    def build(b, x, z):
        total = b.add(Binary("ADD"), x, z)
        y = b.add(LayerNorm((-1,), 1e-5), total, b.constant(gamma), b.constant(beta), name="y")
        return y, b.add(Unary("NEG"), total, name="n")

    net = Net(lib, build, x, z)
    assert net.steps == ["normalize", "chain"]
    net.check()


def test_instance_norm_of_a_blocked_map(lib, x):
    net = Net(lib, lambda b, x: b.add(LayerNorm((2, 3), 1e-5), x, name="y"), x, blocked=(0,))
    assert net.steps == ["normalize"]
    net.check()
