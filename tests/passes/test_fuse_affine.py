"""Batch normalisation, scales, biases and activations around convolutions, and near misses."""

from __future__ import annotations

import numpy as np
import pytest
from pass_cases import build, check_pass, kinds, noise

from mnnconvert.passes.fuse_activation import FuseActivation
from mnnconvert.passes.fuse_affine import FuseAffine

CLOSE = {"rtol": 2e-6, "atol": 1e-6}


def conv(op, x, group=1, outputs=8, bias=True, **attributes):
    w = op.constant(noise(outputs, 4 // group, 3, 3), "w")
    return op.Convolution(
        x, w, *([op.constant(noise(outputs, seed=1), "b")] if bias else []), group=group, **attributes
    )


def deconv(op, x, group=1, bias=True, **attributes):
    w = op.constant(noise(4, 8 // group, 2, 2), "w")
    return op.Deconvolution(
        x, w, *([op.constant(noise(8, seed=1), "b")] if bias else []), group=group, strides=(2, 2), **attributes
    )


def channels(op, seed, *ones):
    return op.constant(noise(8, *ones, seed=seed), f"c{seed}")


AFTER = {
    "scale": lambda op, y: op.Scale(y, channels(op, 2), channels(op, 3)),
    "mul": lambda op, y: op.Mul(channels(op, 2, 1, 1), y),
    "add": lambda op, y: op.Add(y, op.constant(noise(1, 8, 1, 1, seed=3))),
    "sub": lambda op, y: op.Sub(y, channels(op, 3, 1, 1)),
    "mul, add": lambda op, y: op.Add(op.Mul(y, channels(op, 2, 1, 1)), channels(op, 3, 1, 1)),
    "single numbers": lambda op, y: op.Add(op.Mul(y, 0.5), 2.0),
}


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("make", [conv, deconv])
def test_goes_into_weight_and_bias(make, bias, group, after):
    g = build(lambda op, x: AFTER[after](op, make(op, x, group=group, bias=bias)), x=("n", 4, 6, 5))
    assert check_pass(FuseAffine(), g, **CLOSE).changes >= 1
    assert kinds(g) == ["Convolution" if make is conv else "Deconvolution"]


def test_a_deconvolution_with_a_given_size():
    def make(op, x):
        w, size = op.constant(noise(4, 8, 2, 2)), op.constant(np.array([1, 13, 11, 8], np.int32))
        y = op.Deconvolution(x, w, channels(op, 1), size, strides=(2, 2), sized=True)
        return op.Scale(y, channels(op, 2), channels(op, 3))

    g = build(make, x=(1, 4, 6, 5))
    assert check_pass(FuseAffine(), g, **CLOSE).changes == 1
    assert g.nodes[0].op.sized


def test_a_large_weight_is_scaled_when_it_is_used():
    def make(op, x):
        return op.Mul(op.Convolution(x, op.constant(noise(8, 40000, 1, 1), "w")), channels(op, 2, 1, 1))

    g = build(make, x=(1, 40000, 1, 1))
    source = g.nodes[0].inputs[1].tensor
    assert check_pass(FuseAffine(), g, **CLOSE).changes == 1
    assert g.nodes[0].inputs[1].tensor.source is source


NEAR = {
    "activation in between": lambda op, x: op.Mul(conv(op, x, activation="relu"), channels(op, 2, 1, 1)),
    "along the width": lambda op, x: op.Mul(conv(op, x, outputs=8), op.constant(noise(8))),
    "per row": lambda op, x: op.Add(conv(op, x), op.constant(noise(8, 8, 1))),
    "per image": lambda op, x: op.Add(conv(op, x), op.constant(noise(2, 1, 1, 1))),
    "rank grows": lambda op, x: op.Mul(conv(op, x), op.constant(noise(1, 1, 8, 1, 1))),
    "a computed factor": lambda op, x: op.Mul(conv(op, x), op.Reduction(x, operation="MEAN")),
    "subtracted from": lambda op, x: op.Sub(channels(op, 2, 1, 1), conv(op, x)),
}


@pytest.mark.parametrize("miss", NEAR)
def test_near_misses_stay(miss):
    g = build(NEAR[miss], x=(2, 4, 10, 10))
    assert check_pass(FuseAffine(), g, rtol=0, atol=0).changes == 0


def test_a_result_with_another_reader_stays():
    def make(op, x):
        y = conv(op, x)
        return op.Mul(y, channels(op, 2, 1, 1)), op.Abs(y)

    assert FuseAffine().run(build(make, x=(1, 4, 6, 5))).changes == 0


def test_a_weight_that_two_convolutions_share_is_scaled_for_one():
    def make(op, x):
        w = op.constant(noise(8, 4, 3, 3), "w")
        return op.Mul(op.Convolution(x, w), channels(op, 2, 1, 1)), op.Convolution(op.Neg(x), w)

    assert check_pass(FuseAffine(), build(make, x=(1, 4, 6, 5)), **CLOSE).changes == 1


@pytest.mark.parametrize(
    ("name", "make", "left"),
    [
        ("relu", lambda op, x: op.ReLU(conv(op, x)), "relu"),
        ("relu6", lambda op, x: op.ReLU6(conv(op, x)), "relu6"),
        ("relu of relu6", lambda op, x: op.ReLU(conv(op, x, activation="relu6")), "relu6"),
        ("relu6 of relu", lambda op, x: op.ReLU6(op.ReLU(conv(op, x))), "relu6"),
        ("deconvolution", lambda op, x: op.ReLU(deconv(op, x)), "relu"),
        ("through a reshape", lambda op, x: op.Reshape(conv(op, x), dims=(0, -1)), ""),
        ("through a reshape", lambda op, x: op.ReLU(op.Reshape(conv(op, x), dims=(0, -1))), "relu"),
    ],
)
def test_activations_become_attributes(name, make, left):
    g = build(make, x=("n", 4, 6, 5))
    check_pass(FuseActivation(), g, rtol=0, atol=0)
    assert [n.op.kind for n in g.nodes][1:] in ([], ["Reshape"])
    assert g.nodes[0].op.activation == left


def test_relu_of_a_sum_is_part_of_the_sum():
    g = build(lambda op, x: op.ReLU(op.Add(x, op.Exp(x))), x=(3, 4))
    assert check_pass(FuseActivation(), g, rtol=0, atol=0).changes == 1
    assert kinds(g) == ["EXP", "ADD"]
    assert g.nodes[1].op.activation == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda op, x: op.ReLU(conv(op, x), slope=0.1),
        lambda op, x: op.ReLU6(conv(op, x), maximum=5.0),
        lambda op, x: op.ReLU6(conv(op, x), minimum=-1.0),
        lambda op, x: op.ReLU(op.Permute(conv(op, x), dims=(0, 2, 3, 1))),
        lambda op, x: op.ReLU(op.Div(x, 3.0)),
    ],
)
def test_other_activations_stay(make):
    assert check_pass(FuseActivation(), build(make, x=(1, 4, 6, 5)), rtol=0, atol=0).changes == 0
