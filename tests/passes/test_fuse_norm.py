"""Layer and RMS normalisation in the spellings of exporters, and near misses."""

from __future__ import annotations

import numpy as np
import pytest
from pass_cases import build, check_pass, kinds, noise

from mnnconvert.passes.algebra import CanonicalAlgebra
from mnnconvert.passes.expressions import ShareExpressions
from mnnconvert.passes.fuse_norm import FuseNorm

CLOSE = {"rtol": 1e-6, "atol": 1e-6}


def mean(op, x, axes=(-1,), keep=True, operation="MEAN"):
    return op.Reduction(x, operation=operation, dims=axes, keep_dims=keep)


def torch_norm(op, x, axes=(-1,), variance_axes=None, eps=1e-5):
    d = op.Sub(x, mean(op, x, axes))
    return op.Div(d, op.Sqrt(op.Add(mean(op, op.Pow(d, 2.0), variance_axes or axes), eps)))


def paddle_norm(op, x):
    m = mean(op, x)
    return op.Div(op.Sub(x, m), op.Sqrt(op.Add(mean(op, op.Pow(op.Sub(x, m), 2.0)), 1e-5)))


def tensorflow_norm(op, x):
    m = mean(op, x)
    return op.Mul(op.Sub(x, m), op.Rsqrt(op.Add(mean(op, op.SquaredDifference(x, m)), 1e-5)))


def reciprocal_norm(op, x):
    d = op.Sub(x, mean(op, x))
    return op.Mul(op.Reciprocal(op.Sqrt(op.Add(1e-5, mean(op, op.Mul(d, d))))), d)


def keras_norm(op, x):
    m = mean(op, x)
    s = op.Mul(op.Rsqrt(op.Add(mean(op, op.SquaredDifference(x, m)), 1e-3)), op.constant(noise(6)))
    return op.Add(op.Mul(x, s), op.Sub(op.constant(noise(6, seed=1)), op.Mul(m, s)))


def affine(op, y):
    return op.Add(op.Mul(op.constant(noise(6)), y), op.constant(noise(1, 6, seed=1)))


def prepared(make, shape=(2, 4, 6)):
    g = build(make, x=shape)
    CanonicalAlgebra().run(g)
    ShareExpressions().run(g)
    return g


@pytest.mark.parametrize("spelling", [torch_norm, paddle_norm, tensorflow_norm, reciprocal_norm])
@pytest.mark.parametrize("shape", [(2, 4, 6), ("n", "s", 6)])
def test_spellings_with_and_without_affine(spelling, shape):
    for make in (spelling, lambda op, x: affine(op, spelling(op, x))):
        g = prepared(make, shape)
        check_pass(FuseNorm(), g, **CLOSE)
        assert kinds(g) == ["LayerNorm"]
        assert [v.shape for v in g.nodes[0].inputs[1:]] == [(6,), (6,)]
        assert not g.nodes[0].op.rms


def test_the_spelling_of_keras():
    g = prepared(keras_norm)
    check_pass(FuseNorm(), g, **CLOSE)
    assert kinds(g) == ["LayerNorm"]


@pytest.mark.parametrize("axes", [(-1,), (1, 2), (1,)])
def test_other_axes(axes):
    g = prepared(lambda op, x: torch_norm(op, x, axes))
    assert check_pass(FuseNorm(), g, **CLOSE).changes == 1
    assert kinds(g) == ["LayerNorm"]


def test_channels_first_parameters():
    g = prepared(lambda op, x: op.Mul(torch_norm(op, x, (1,)), op.constant(noise(4, 1))))
    check_pass(FuseNorm(), g, **CLOSE)
    assert kinds(g) == ["LayerNorm"]
    g = prepared(lambda op, x: op.Mul(torch_norm(op, x, (1,)), op.constant(noise(6))))
    check_pass(FuseNorm(), g, **CLOSE)
    assert kinds(g) == ["LayerNorm", "MUL"]


@pytest.mark.parametrize(
    "make",
    [
        lambda op, x: op.Mul(op.constant(noise(6)), op.Mul(x, op.Rsqrt(op.Add(mean(op, op.Pow(x, 2.0)), 1e-6)))),
        lambda op, x: op.Mul(op.Div(x, op.Sqrt(op.Add(mean(op, op.Mul(x, x)), 1e-6))), op.constant(noise(6))),
        lambda op, x: op.Mul(
            op.Mul(x, op.Div(1.0, op.Sqrt(op.Add(mean(op, op.Pow(x, 2.0)), 1e-6)))), op.constant(noise(6))
        ),
    ],
)
def test_rms(make):
    g = prepared(make)
    check_pass(FuseNorm(), g, **CLOSE)
    assert kinds(g) == ["LayerNorm"]
    assert g.nodes[0].op.rms


def leaking(op, x):
    d = op.Sub(x, mean(op, x))
    return op.Div(d, op.Sqrt(op.Add(mean(op, op.Pow(d, 2.0)), 1e-5))), d


NEAR = {
    "sum": lambda op, x: op.Div(x, op.Sqrt(op.Add(mean(op, op.Pow(x, 2.0), operation="SUM"), 1e-5))),
    "cube": lambda op, x: op.Div(x, op.Sqrt(op.Add(mean(op, op.Pow(x, 3.0)), 1e-5))),
    "epsilon per element": lambda op, x: torch_norm(op, x, eps=op.constant(np.abs(noise(6)))),
    "variance of another": lambda op, x: op.Div(
        op.Sub(x, mean(op, x)), op.Sqrt(op.Add(mean(op, op.Pow(op.Abs(x), 2.0)), 1e-5))
    ),
}  # fmt: skip


@pytest.mark.parametrize("miss", NEAR)
def test_near_misses_stay(miss):
    assert check_pass(FuseNorm(), prepared(NEAR[miss]), rtol=0, atol=0).changes == 0


@pytest.mark.parametrize("make", [leaking, lambda op, x: torch_norm(op, x, (-1,), (1, 2))])
def test_where_the_mean_is_needed_or_another_only_the_root_mean_square_fuses(make):
    g = prepared(make)
    check_pass(FuseNorm(), g, **CLOSE)
    assert kinds(g) == ["Reduction", "SUB", "LayerNorm"]
    assert g.nodes[2].op.rms


def test_a_factor_over_rows_stays_outside():
    g = prepared(lambda op, x: op.Mul(torch_norm(op, x), op.constant(noise(4, 1))))
    check_pass(FuseNorm(), g, **CLOSE)
    assert kinds(g) == ["LayerNorm", "MUL"]
