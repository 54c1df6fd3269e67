"""Reshapes: merged in a row, and given constant targets where sizes allow it."""

from __future__ import annotations

import numpy as np
import pytest
from pass_cases import build, check_pass, kinds

from mnnconvert.ops.shape import Reshape
from mnnconvert.passes.reshapes import MergeReshapes, ResolveReshapes, target_of

EXACT = {"rtol": 0, "atol": 0}


@pytest.mark.parametrize(
    ("source", "result", "dims"),
    [
        (("n", 6), ("n", 2, 3), (0, 2, 3)),
        (("n", 6), (2, "n", 3), (2, -1, 3)),
        (("n", "s", 6), ("n", "s", 2, 3), (0, 0, 2, 3)),
        (("n", "s", 6), ("(n*s)", 6), (-1, 6)),
        (("a", "b", 6), ("b", "a", 6), None),
        (("a", "b"), ("b", None), None),
        ((0, 3), (0, 3), (0, 3)),
        (None, ("n", 3), (-1, 3)),
        ((2, 3), None, None),
        ((), (1, 1), (1, 1)),
    ],
)
def test_targets(source, result, dims):
    assert target_of(source, result) == dims


def from_shape(op, x, *parts):
    """x reshaped to its first size followed by `parts`, computed as exporters write it."""
    first = op.StridedSlice(op.ShapeOf(x), ints(op, 0), ints(op, 1), ints(op, 0), ints(op, 1))
    return op.add(Reshape(), x, op.Concat(first, *(ints(op, p) for p in parts), axis=0))


def ints(op, *values):
    return op.constant(np.array(values, np.int32))


def test_a_computed_target_becomes_constant_and_its_computation_goes():
    g = build(lambda op, x: from_shape(op, x, 2, 6), x=("n", 3, 4))
    assert check_pass(ResolveReshapes(), g, **EXACT).changes >= 1
    assert kinds(g) == ["Reshape"]
    assert g.nodes[0].op.dims == (0, 2, 6)


def test_a_target_of_two_unknown_sizes_stays_computed():
    def swap(op, x):
        sizes = op.ShapeOf(x)
        return op.add(Reshape(), x, op.GatherV2(sizes, ints(op, 1, 0, 2), ints(op, 0)))

    g = build(swap, x=("a", "b", 2))
    assert check_pass(ResolveReshapes(), g, **EXACT).changes == 0


@pytest.mark.parametrize(
    ("name", "make", "left"),
    [
        ("there and back", lambda op, x: op.Neg(op.add(Reshape((2, 3, 4)), op.add(Reshape((-1,)), x))), ["NEG"]),
        ("squeeze and back", lambda op, x: op.Neg(op.Squeeze(op.Unsqueeze(x, axes=(1,)), axes=(1,))), ["NEG"]),
        (
            "three in a row",
            lambda op, x: op.add(Reshape((0, -1)), op.Unsqueeze(op.Flatten(x, axis=1), axes=(0,))),
            ["Reshape"],
        ),
        ("permutes", lambda op, x: op.Permute(op.Permute(x, dims=(1, 2, 0)), dims=(0, 2, 1)), ["Permute"]),
    ],
)  # fmt: skip
def test_merges(name, make, left):
    g = build(make, x=(2, 3, 4))
    assert check_pass(MergeReshapes(), g, **EXACT).changes >= 1
    assert kinds(g) == left


def test_an_intermediate_with_other_readers_is_kept_for_them():
    def make(op, x):
        flat = op.add(Reshape((-1,)), x)
        return op.add(Reshape((4, 6)), flat), op.Neg(flat)

    g = build(make, x=(2, 3, 4))
    assert check_pass(MergeReshapes(), g, **EXACT).changes == 1
    assert kinds(g) == ["Reshape", "Reshape", "NEG"]
    assert g.nodes[1].inputs == [g.inputs[0]]


def test_permutes_that_cannot_be_joined_stay():
    def make(op, x):
        return op.Permute(op.add(Reshape((6, 4)), op.Permute(x, dims=(1, 0, 2))), dims=(1, 0))

    assert check_pass(MergeReshapes(), build(make, x=(2, 3, 4)), **EXACT).changes == 0


def test_a_copied_size_refers_to_the_new_operand_after_a_merge():
    def make(op, x):
        return op.add(Reshape((0, 0, 2, 3)), op.add(Reshape((3, -1, 6)), x))

    g = build(make, x=("n", 6, 3))
    check_pass(MergeReshapes(), g, **EXACT)
