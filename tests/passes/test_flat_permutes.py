"""Matrices that are transposed while their batch axes are flat."""

from __future__ import annotations

import numpy as np
import pytest
from pass_cases import build, check_pass, kinds

from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.shape import Permute, Reshape, ShapeOf
from mnnconvert.passes.flat_permutes import PermuteApart

EXACT = {"rtol": 0, "atol": 0}


def flat(op, x, whole=(1, 4, 8, -1), dims=(0, 2, 1), sizes=(4, -1, 8)):
    return op.add(Reshape(whole), op.Permute(op.add(Reshape(sizes), x), dims=dims))


def computed(op, x):
    """As torch.export writes it where batch and length are open."""
    ints = [op.constant(np.array([n], np.int32)) for n in (-1, 8)]
    shape = op.add(ShapeOf(), x)
    length = op.StridedSlice(shape, *(op.constant(np.array([n], np.int32)) for n in (2, 3)))
    lead = op.StridedSlice(shape, *(op.constant(np.array([n], np.int32)) for n in (0, 2)))
    turned = op.Permute(op.add(Reshape(), x, op.add(Concat(0), ints[0], length, ints[1])), dims=(0, 2, 1))
    return op.add(Reshape(), turned, op.add(Concat(0), lead, ints[1], length))


@pytest.mark.parametrize(
    ("make", "shape"), [(flat, (1, 4, "s", 8)), (flat, (1, 2, 2, 5, 8)), (computed, ("n", 4, "s", 8))]
)
def test_the_axes_stay_apart(make, shape):
    g = build(make, x=shape)
    assert check_pass(PermuteApart(), g, **EXACT).changes == 1
    assert [n.op.dims for n in g.nodes if isinstance(n.op, Permute)] == [(0, 1, 3, 2)]


NEAR = {
    "another split": lambda op, x: flat(op, x, (1, 4, 4, 10)),
    "another order": lambda op, x: flat(op, x, (1, 5, 4, -1), dims=(1, 0, 2)),
    "three axes": lambda op, x: flat(op, x, (4, 8, -1)),
    "a second reader": lambda op, x: (
        op.add(Reshape((1, 4, 8, -1)), y := op.Permute(op.add(Reshape((4, -1, 8)), x), dims=(0, 2, 1))),
        op.Neg(y),
    ),
}


@pytest.mark.parametrize("miss", NEAR)
def test_near_misses_stay(miss):
    g = build(NEAR[miss], x=(1, 4, 5, 8))
    before = kinds(g)
    assert check_pass(PermuteApart(), g, **EXACT).changes == 0
    assert kinds(g) == before
