"""Convolutions cut in two so that blocks of input channels fit."""

from __future__ import annotations

import pytest
from pass_cases import build, check_pass, kinds, noise

from mnnconvert.passes.split_channels import SplitChannels

CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def conv(op, x, channels, **attributes):
    w, b = op.constant(noise(5, channels, 3, 3), "w"), op.constant(noise(5, seed=1), "b")
    return op.Convolution(x, w, b, **attributes)


@pytest.mark.parametrize("activation", ["", "relu", "relu6"])
@pytest.mark.parametrize("channels", [17, 23, 37])
def test_channels_that_no_block_divides_are_cut(channels, activation):
    g = build(lambda op, x: conv(op, x, channels, pads=(1, 1, 1, 1), activation=activation), x=("n", channels, 6, 5))
    assert check_pass(SplitChannels(16), g, **CLOSE).changes == 1
    assert kinds(g)[:4] == ["Slice", "Convolution", "Convolution", "ADD"]
    parts = [n.inputs[1].shape[1] for n in g.nodes if n.op.kind == "Convolution"]
    assert parts == [channels // 16 * 16, channels % 16]


@pytest.mark.parametrize("channels", [3, 16, 24, 32, 48])
def test_channels_that_fit_stay(channels):
    g = build(lambda op, x: conv(op, x, channels), x=(1, channels, 6, 5))
    assert check_pass(SplitChannels(16), g, **CLOSE).changes == 0


def test_grouped_convolutions_stay():
    def grouped(op, x):
        return op.Convolution(x, op.constant(noise(4, 17, 1, 1)), op.constant(noise(4)), group=2)

    g = build(grouped, x=(1, 34, 3, 3))
    assert check_pass(SplitChannels(16), g, **CLOSE).changes == 0
