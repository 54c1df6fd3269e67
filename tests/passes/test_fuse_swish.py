"""SiLU and hard swish, canonical algebra, and near misses."""

from __future__ import annotations

import numpy as np
import pytest
from pass_cases import build, check_pass, kinds

from mnnconvert.passes.algebra import CanonicalAlgebra
from mnnconvert.passes.fuse_swish import FuseSwish


@pytest.mark.parametrize(
    ("name", "make", "function"),
    [
        ("silu", lambda op, x: op.Mul(op.Sigmoid(x), x), "SILU"),
        ("spelled", lambda op, x: op.Div(x, op.Add(1.0, op.Exp(op.Neg(x)))), "SILU"),
        ("times then sixth", lambda op, x: op.Div(op.Mul(x, op.ReLU6(op.Add(x, 3.0))), 6.0), "HARDSWISH"),
        ("sixth of the gate", lambda op, x: op.Mul(op.Div(op.ReLU6(op.Add(3.0, x)), 6.0), x), "HARDSWISH"),
        ("factor", lambda op, x: op.Mul(op.Mul(op.ReLU6(op.Add(x, 3.0)), x), 1 / 6), "HARDSWISH"),
        ("hard sigmoid", lambda op, x: op.Mul(x, op.ReLU6(op.Add(op.Mul(x, 1 / 6), 0.5), maximum=1.0)), "HARDSWISH"),
    ],
)
def test_fuses(name, make, function):
    g = build(make, x=(4, 50))
    assert check_pass(FuseSwish(), g, rtol=1e-6, atol=1e-6).changes == 1
    assert kinds(g) == [function]


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("gate of another", lambda op, x: op.Mul(op.Sigmoid(op.Abs(x)), x)),
        ("relu of another bound", lambda op, x: op.Div(op.Mul(x, op.ReLU6(op.Add(x, 3.0), maximum=5.0)), 6.0)),
        ("another shift", lambda op, x: op.Div(op.Mul(x, op.ReLU6(op.Add(x, 2.0))), 6.0)),
        ("onnx hard sigmoid of 0.2", lambda op, x: op.Mul(x, op.ReLU6(op.Add(op.Mul(x, 0.2), 0.5), maximum=1.0))),
        ("six over", lambda op, x: op.Div(6.0, op.Mul(x, op.ReLU6(op.Add(x, 3.0))))),
    ],
)
def test_near_misses_stay(name, make):
    assert check_pass(FuseSwish(), build(make, x=(4, 5)), rtol=0, atol=0).changes == 0


def test_a_gate_with_another_reader_stays():
    def make(op, x):
        gate = op.Sigmoid(x)
        return op.Mul(x, gate), gate

    assert FuseSwish().run(build(make, x=(3,))).changes == 0


@pytest.mark.parametrize(
    ("name", "make", "left"),
    [
        ("pow 2", lambda op, x: op.Pow(x, 2.0), ["SQUARE"]),
        ("times itself", lambda op, x: op.Mul(x, x), ["SQUARE"]),
        ("root", lambda op, x: op.Pow(op.Abs(x), 0.5), ["ABS", "SQRT"]),
        ("inverse root", lambda op, x: op.Div(1.0, op.Pow(op.Abs(x), 0.5)), ["ABS", "RSQRT"]),
        ("pow -0.5", lambda op, x: op.Pow(op.Abs(x), -0.5), ["ABS", "RSQRT"]),
        ("twice negated", lambda op, x: op.Exp(op.Neg(op.Neg(x))), ["EXP"]),
        ("relu", lambda op, x: op.Maximum(0.0, x), ["ReLU"]),
        ("clip", lambda op, x: op.Minimum(op.Maximum(x, -0.5), 0.7), ["ReLU6"]),
        ("clip, other order", lambda op, x: op.Maximum(-0.5, op.Minimum(0.7, x)), ["ReLU6"]),
        ("pow 3 stays", lambda op, x: op.Pow(x, 3.0), ["POW"]),
        ("2 to the x stays", lambda op, x: op.Pow(2.0, x), ["POW"]),
        ("bounds out of order stay", lambda op, x: op.Maximum(op.Minimum(x, -0.5), 0.5), ["MINIMUM", "MAXIMUM"]),
        ("maximum with another number stays", lambda op, x: op.Maximum(x, 0.1), ["MAXIMUM"]),
        ("2 over a root stays", lambda op, x: op.Div(2.0, op.Sqrt(op.Abs(x))), ["ABS", "SQRT", "REALDIV"]),
    ],
)
def test_canonical_algebra(name, make, left):
    g = build(make, x=(4, 5))
    check_pass(CanonicalAlgebra(), g, rtol=3e-7, atol=0)  # one rounding more or less
    assert kinds(g) == left


def test_integers_are_clipped_as_before():
    g = build(lambda op, x: op.Maximum(op.Minimum(x, 2), 0), x=np.array([1, 2], np.int32))
    assert check_pass(CanonicalAlgebra(), g, rtol=0, atol=0).changes == 0
