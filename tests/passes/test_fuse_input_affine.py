"""One factor and summand before a convolution, and near misses."""

from __future__ import annotations

import pytest
from pass_cases import build, check_pass, kinds, noise

from mnnconvert.passes.fuse_input_affine import FuseInputAffine

CLOSE = {"rtol": 5e-6, "atol": 1e-6}


def conv(op, x, **attributes):
    return op.Convolution(x, op.constant(noise(8, 4, 3, 3), "w"), op.constant(noise(8, seed=1), "b"), **attributes)


BEFORE = {
    "factor and summand": lambda op, x: op.Add(op.Mul(x, 0.5), 2.0),
    "factor": lambda op, x: op.Mul(-1.5, x),
    "summand": lambda op, x: op.Add(x, 0.25),
}


@pytest.mark.parametrize("before", BEFORE)
def test_goes_into_the_convolution(before):
    g = build(lambda op, x: conv(op, BEFORE[before](op, x), strides=(2, 1), activation="relu"), x=("n", 4, 6, 5))
    assert check_pass(FuseInputAffine(), g, **CLOSE).changes >= 1
    assert kinds(g) == ["Convolution"]


def test_a_factor_goes_through_padding():
    g = build(lambda op, x: conv(op, op.Mul(x, 0.5), pads=(1, 1, 1, 1)), x=(2, 4, 6, 5))
    assert check_pass(FuseInputAffine(), g, **CLOSE).changes == 1


@pytest.mark.parametrize(
    "miss",
    [
        lambda op, x: conv(op, op.Add(x, 0.5), pads=(1, 0, 0, 0)),
        lambda op, x: conv(op, op.Add(op.Mul(x, 0.5), 1.0), pad_mode="SAME"),
        lambda op, x: conv(op, op.Mul(x, op.constant(noise(4, 1, 1), "per channel"))),
        lambda op, x: (conv(op, y := op.Add(x, 0.5)), y),
    ],
    ids=["padded", "same", "per channel", "used elsewhere"],
)
def test_leaves_near_misses_alone(miss):
    g = build(miss, x=(1, 4, 6, 5))
    check_pass(FuseInputAffine(), g, **CLOSE)
    assert {"ADD", "MUL"} & set(kinds(g))
