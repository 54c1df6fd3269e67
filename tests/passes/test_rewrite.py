"""The promises of the rewriting engine, each with the case that breaks when it is not kept."""

from __future__ import annotations

import cProfile
import time
from dataclasses import dataclass
from math import sqrt

import numpy as np
import pytest
from pass_cases import build, check_pass, kinds, noise

from mnnconvert.ir import Builder, verify
from mnnconvert.passes.pattern import Constant, resolve
from mnnconvert.passes.rewrite import Maker, RewritePass, Rule, apply


class GeluErf(Rule):
    """0.5 * x * (1 + erf(x / sqrt 2)) -> gelu(x)."""

    def pattern(self, op, x):
        return op.Mul(op.Mul(x, op.Add(op.Erf(op.Div(x, sqrt(2))), 1.0)), 0.5)

    def replace(self, op, x):
        return op.GeluStandard(x)


ROOT = sqrt(2)


def gelu(op, x, root=ROOT, half=0.5, leak=False, other=None):
    e = op.Add(1.0, op.Erf(op.Div(other or x, root)))
    y = op.Mul(half if isinstance(half, float) else op.constant(np.asarray(half, np.float32)), op.Mul(e, x))
    return (y, e) if leak else y


@dataclass(frozen=True)
class FuseGelu(RewritePass):
    name = "gelu"
    rules = (GeluErf,)


def test_fires_with_swapped_operands_and_keeps_names_and_origins():
    g = build(gelu, x=(3, 5))
    last = g.nodes[-1].name
    report = check_pass(FuseGelu(), g, rtol=1e-6, atol=1e-6)
    assert report.changes == 1
    assert kinds(g) == ["GELU_STANDARD"]
    assert (g.nodes[0].name, g.nodes[0].output.name, g.nodes[0].origin) == (last, last, ("source",))


@pytest.mark.parametrize(
    ("miss", "reason"),
    [
        ({"root": 2.0}, "is 2, not 1.41421"),
        ({"leak": True}, "is an output of the graph"),
        ({"half": [[[0.5]]]}, "float32[3,5] instead of float32[1,3,5]"),
        ({"half": [0.5] * 5}, "is not a single number"),
    ],
)
def test_leaves_near_misses_alone_and_says_why(miss, reason):
    g = build(lambda op, x: gelu(op, x, **miss), x=(3, 5))
    before = kinds(g)
    outcome = apply(GeluErf, g)
    assert outcome.fired == 0
    assert kinds(g) == before
    verify(g)
    assert reason in str(outcome.misses[0])


def test_one_placeholder_is_one_value():
    g = build(lambda op, x, z: gelu(op, x, other=z), x=(3, 5), z=(3, 5))
    assert apply(GeluErf, g).fired == 0


def test_a_hidden_rank_is_not_lost_where_ranks_are_unknown():
    g = build(lambda op, x: gelu(op, x, half=[0.5]), x=None)
    assert apply(GeluErf, g).fired == 0
    assert apply(GeluErf, build(gelu, x=None)).fired == 1


def test_an_inner_value_with_another_reader_blocks():
    def leaky(op, x):
        y = gelu(op, x)
        return op.Add(y, op.Abs(y.producer.inputs[1]))

    g = build(leaky, x=(2,))
    outcome = apply(GeluErf, g)
    assert outcome.fired == 0
    assert "has other readers" in outcome.misses[0].reason


class AddTwice(Rule):
    """a + (b + c) -> (a + b) + c would lose its inner sum when a is that sum."""

    def pattern(self, op, a, b, c):
        return op.Sub(a, op.Mul(b, c, bind="inner"))

    def replace(self, op, a, b, c, inner):
        assert inner.op.function == "MUL"
        return op.Abs(op.Add(op.Sub(a, b), c))


def test_an_inner_value_that_is_an_operand_as_well_blocks():
    def twice(op, x):
        m = op.Mul(x, x)
        return op.Sub(m, m)

    assert apply(AddTwice, build(twice, x=(2,))).fired == 0


class DropNegative(Rule):
    """-(-x) -> x."""

    def pattern(self, op, x):
        return op.Neg(op.Neg(x))

    def replace(self, op, x):
        return x


def test_runs_to_a_fixed_point_and_an_operand_may_be_the_replacement():
    def chain(op, x):
        for _ in range(8):
            x = op.Neg(x)
        return x

    g = build(chain, x=(2, 2))
    assert apply(DropNegative, g).fired == 4
    assert g.nodes == []
    assert g.outputs == [("y", g.inputs[0])]


class Endless(Rule):
    def pattern(self, op, x):
        return op.Abs(x)

    def replace(self, op, x):
        return op.Abs(op.Neg(x))


@dataclass(frozen=True)
class EndlessPass(RewritePass):
    name = "endless"
    rules = (Endless,)


def test_a_rule_that_never_settles_is_stopped_and_reported():
    report = EndlessPass().run(build(lambda op, x: op.Abs(x), x=(2,)))
    assert report.changes == 16
    assert "stopped" in report.notes[0]


class WrongType(Rule):
    def pattern(self, op, x):
        return op.Exp(op.Abs(x))

    def replace(self, op, x):
        return op.Greater(x, 0.0)


class WrongOperands(Rule):
    def pattern(self, op, x):
        return op.Exp(op.Abs(x))

    def replace(self, op, x):
        return op.Greater(x, op.constant(np.zeros(7, np.float32)))


@pytest.mark.parametrize(
    ("rule", "reason"), [(WrongType, "int32[3] instead of float32[3]"), (WrongOperands, "Binary cannot take")]
)
def test_a_replacement_of_another_type_is_refused(rule, reason):
    g = build(lambda op, x: op.Exp(op.Abs(x)), x=(3,))
    outcome = apply(rule, g)
    assert outcome.fired == 0
    assert reason in outcome.misses[0].reason
    verify(g)
    assert g.inputs[0].users == [g.nodes[0]]


class ScaleByConstant(Rule):
    def pattern(self, op, x, c: Constant):
        return op.either(x * c, op.Abs(x) / op.either(2.0, 4.0))

    def check(self, c):
        return "too large" if c is not None and c.constant.max() > 10 else None

    def replace(self, op, x, c):
        return op.Neg(x)


@pytest.mark.parametrize(
    ("make", "fired"),
    [
        (lambda op, x: op.Mul(op.constant(noise(3)), x), 1),
        (lambda op, x: op.Mul(x, op.constant(noise(3) + 99)), 0),
        (lambda op, x: op.Mul(x, x), 0),
        (lambda op, x: op.Div(op.Abs(x), 4.0), 1),
        (lambda op, x: op.Div(op.Abs(x), 3.0), 0),
    ],
)
def test_constants_alternatives_and_conditions(make, fired):
    assert apply(ScaleByConstant, build(make, x=(3,))).fired == fired


class MeanOnly(Rule):
    def pattern(self, op, x):
        return op.Abs(op.Reduction(x, operation="MEAN", dims=lambda d: d is not None))

    def replace(self, op, x):
        return op.Reduction(op.Neg(x), operation="MEAN", dims=(0,), keep_dims=True)


@pytest.mark.parametrize(
    ("attributes", "fired"),
    [({"operation": "MEAN", "dims": (0,)}, 1), ({"operation": "SUM", "dims": (0,)}, 0), ({"operation": "MEAN"}, 0)],
)
def test_attributes_are_constrained(attributes, fired):
    g = build(lambda op, x: op.Abs(op.Reduction(x, keep_dims=True, **attributes)), x=(3,))
    assert apply(MeanOnly, g).fired == fired


def test_names_of_ops_and_functions():
    assert resolve("Convolution") == ("Convolution", "")
    assert resolve("GeluStandard") == ("Unary", "GELU_STANDARD")
    assert resolve("Div") == resolve("RealDiv") == ("Binary", "REALDIV")
    with pytest.raises(AttributeError, match="no op or function Frobnicate"):
        resolve("Frobnicate")


def long_chain(blocks: int):
    builder = Builder()
    op, x = Maker(builder), builder.input("x", np.dtype("float32"), (1, 8))
    for _ in range(blocks):
        x = op.Add(gelu(op, op.Mul(x, 0.25)), op.Sigmoid(x))
    builder.output(x)
    return builder.graph


def work(blocks: int) -> int:
    """Calls of Python functions that one run over a graph of so many blocks makes: time without a clock."""
    graph, profile = long_chain(blocks), cProfile.Profile()
    profile.runcall(apply, GeluErf, graph)
    assert kinds(graph).count("GELU_STANDARD") == blocks
    return sum(entry.callcount for entry in profile.getstats())


def test_work_grows_with_the_graph_and_not_faster():
    assert work(400) < 11 * work(40)


def test_a_graph_of_1500_nodes_takes_well_under_a_tenth_of_a_second():
    times = []
    for _ in range(3):
        graph = long_chain(190)
        started = time.perf_counter()
        apply(DropNegative, graph)
        times.append(time.perf_counter() - started)
    assert min(times) < 0.1
