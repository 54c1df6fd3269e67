"""GELU in the spellings of exporters, and near misses."""

from __future__ import annotations

from math import pi, sqrt

import numpy as np
import pytest
from pass_cases import build, check_pass, kinds

from mnnconvert.passes.algebra import CanonicalAlgebra
from mnnconvert.passes.fuse_gelu import ApproximateGelu, FuseGelu

R = sqrt(2)
K = sqrt(2 / pi)

ERF = {
    "torch": lambda op, x: op.Mul(op.Mul(x, op.Add(op.Erf(op.Div(x, R)), 1.0)), 0.5),
    "torch, half first": lambda op, x: op.Mul(op.Mul(0.5, x), op.Add(1.0, op.Erf(op.Div(x, R)))),
    "keras": lambda op, x: op.Mul(op.Mul(x, 0.5), op.Add(op.Erf(op.Mul(x, 0.70710678)), 1.0)),
    "half on the gate": lambda op, x: op.Mul(x, op.Mul(0.5, op.Add(1.0, op.Erf(op.Mul(0.7071067811865476, x))))),
    "distributed": lambda op, x: op.Mul(op.Add(op.Mul(op.Erf(op.Div(x, R)), 0.5), 0.5), x),
    "halved": lambda op, x: op.Div(op.Mul(op.Add(op.Erf(op.Div(x, R)), 1.0), x), 2.0),
}


@pytest.mark.parametrize("spelling", ERF)
@pytest.mark.parametrize("shape", [(3, 5), ("n", 5)])
def test_erf_form(spelling, shape):
    g = build(ERF[spelling], x=shape)
    assert check_pass(FuseGelu(), g, rtol=1e-6, atol=1e-6).changes == 1
    assert kinds(g) == ["GELU_STANDARD"]


def halved(op, x, inner):
    return op.Mul(op.Mul(0.5, x), op.Add(1.0, op.Tanh(inner)))


def cubed(op, x):
    return op.Mul(0.044715, op.Pow(x, 3.0))


TANH = {
    "torch": lambda op, x: halved(op, x, op.Mul(K, op.Add(x, cubed(op, x)))),
    "products": lambda op, x: halved(op, x, op.Mul(op.Add(x, op.Mul(op.Mul(op.Mul(x, x), x), 0.044715)), K)),
    "factored": lambda op, x: halved(op, x, op.Mul(op.Mul(x, K), op.Add(1.0, op.Mul(op.Mul(0.044715, x), x)))),
    "scaled cube": lambda op, x: halved(op, x, op.Mul(K, op.Add(op.Mul(op.Mul(op.Mul(x, 0.044715), x), x), x))),
    "half last": lambda op, x: op.Mul(0.5, op.Mul(x, op.Add(op.Tanh(op.Mul(K, op.Add(x, cubed(op, x)))), 1.0))),
}


@pytest.mark.parametrize("spelling", TANH)
def test_tanh_form(spelling):
    g = build(TANH[spelling], x=(3, 5))
    CanonicalAlgebra().run(g)
    assert check_pass(FuseGelu(), g, rtol=1e-6, atol=1e-6).changes == 1
    assert kinds(g) == ["GELU"]


NEAR = {
    "another root": lambda op, x: op.Mul(op.Mul(x, op.Add(op.Erf(op.Div(x, 1.42)), 1.0)), 0.5),
    "another half": lambda op, x: op.Mul(op.Mul(x, op.Add(op.Erf(op.Div(x, R)), 1.0)), 0.25),
    "minus": lambda op, x: op.Mul(op.Mul(x, op.Sub(1.0, op.Erf(op.Div(x, R)))), 0.5),
    "another value": lambda op, x: op.Mul(op.Mul(op.Abs(x), op.Add(op.Erf(op.Div(x, R)), 1.0)), 0.5),
    "inverted": lambda op, x: op.Mul(op.Mul(x, op.Add(op.Erf(op.Div(R, x)), 1.0)), 0.5),
    "relu inside": lambda op, x: op.Mul(op.Mul(x, op.Add(op.Erf(op.Div(x, R)), 1.0, activation=1)), 0.5),
    "square": lambda op, x: halved(op, x, op.Mul(K, op.Add(x, op.Mul(0.044715, op.Pow(x, 2.0))))),
}  # fmt: skip


@pytest.mark.parametrize("miss", NEAR)
def test_near_misses_stay(miss):
    g = build(NEAR[miss], x=(3, 5))
    assert check_pass(FuseGelu(), g, rtol=0, atol=0).changes == 0


def test_the_approximation_is_within_what_it_promises():
    g = build(lambda op, x: op.GeluStandard(x), x=(1001,))
    report = check_pass(
        ApproximateGelu(), g, rtol=0, atol=5e-4, feeds={"x": np.linspace(-6, 6, 1001, dtype=np.float32)}
    )
    assert report.changes == 1
