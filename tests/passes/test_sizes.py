"""Arithmetic on sizes: guards that always hold go, equal sizes are computed once, doubt is kept."""

from __future__ import annotations

import numpy as np
import pytest
from pass_cases import build, check_pass, kinds

from mnnconvert.ops.shape import Reshape
from mnnconvert.passes.sizes import ResolveSizes

EXACT = {"rtol": 0, "atol": 0}


def ints(op, *values):
    return op.constant(np.array(values, np.int32))


def expanded(op, x, y):
    """y broadcast to the sizes of x, with the guard that torch's exporter writes around them."""
    sizes = op.ShapeOf(x)
    target = op.Select(op.Equal(sizes, ints(op, -1, -1)), ints(op, 1, 1), sizes)
    return op.Add(op.Exp(op.BroadcastTo(y, target)), x)


def test_the_guard_around_expand_goes_and_shapes_are_known_again():
    g = build(expanded, x=("b", "s"), y=(1, "s"))
    assert g.outputs[0][1].shape == ("b", "s") or None in g.outputs[0][1].shape
    assert check_pass(ResolveSizes(), g, **EXACT).changes > 0
    assert kinds(g) == ["ShapeOf", "BroadcastTo", "EXP", "ADD"]
    assert g.nodes[1].output.shape == ("b", "s")


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("equal to a number", lambda op, x: op.Equal(op.ShapeOf(x), ints(op, 4, 3))),
        ("a difference may be negative", lambda op, x: op.Equal(op.Sub(op.ShapeOf(x), 2), ints(op, -1, -1))),
        ("two symbols", lambda op, x: op.Equal(op.ShapeOf(x, end=1), op.ShapeOf(x, start=1))),
    ],
)
def test_what_depends_on_the_run_is_not_decided(name, make):
    assert check_pass(ResolveSizes(), build(make, x=("b", "s")), **EXACT).changes == 0


def test_an_equal_symbol_is_equal():
    g = build(lambda op, x, y: op.Equal(op.ShapeOf(x), op.ShapeOf(y)), x=("b", 3), y=("b", 4))
    np.testing.assert_array_equal(g.outputs[0][1].constant, [1, 0])


def test_a_selection_by_a_mixed_condition_stays():
    g = build(lambda op, x: op.Select(ints(op, 1, 0), op.ShapeOf(x), ints(op, 7, 7)), x=("b", "s"))
    assert check_pass(ResolveSizes(), g, **EXACT).changes == 0


def test_equal_sizes_are_computed_once():
    def make(op, x):
        y = op.Exp(x)
        targets = [op.Concat(op.ShapeOf(v, end=-1), ints(op, 2, 3), axis=0) for v in (x, y)]
        return op.Add(op.add(Reshape(), x, targets[0]), op.add(Reshape(), y, targets[1]))

    g = build(make, x=("b", "s", 6))
    assert check_pass(ResolveSizes(), g, **EXACT).changes > 0
    assert kinds(g).count("Concat") == 1
