"""Padding into convolutions and poolings where it is exact, and where it is not."""

from __future__ import annotations

import numpy as np
import pytest
from pass_cases import build, check_pass, kinds, noise

from mnnconvert.passes.fuse_padding import FusePadding

EXACT = {"rtol": 1e-6, "atol": 1e-6}


def pad(op, x, *amounts, value=None, **attributes):
    """x with (top, bottom, left, right) more rows and columns, or with eight amounts."""
    full = amounts if len(amounts) == 8 else (0, 0, 0, 0, *amounts)
    fill = [] if value is None else [op.constant(np.array(value, np.float32))]
    return op.Padding(x, op.constant(np.array(full, np.int32)), *fill, **attributes)


def conv(op, x, **attributes):
    return op.Convolution(x, op.constant(noise(3, 4, 3, 3)), op.constant(noise(3)), **attributes)


def pool(op, x, function="MAXPOOL", **attributes):
    return op.Pooling(x, function=function, kernel=(3, 3), strides=(2, 2), **attributes)


FITS = {
    "convolution": lambda op, x: conv(op, pad(op, x, 1, 2, 0, 1)),
    "convolution with pads": lambda op, x: conv(
        op, pad(op, x, 1, 1, 1, 1, value=0.0), pads=(1, 0, 0, 2), strides=(2, 2)
    ),
    "maximum over -inf": lambda op, x: pool(op, pad(op, x, 0, 1, 0, 1, value=-np.inf)),
    "maximum of what is positive": lambda op, x: pool(op, pad(op, op.ReLU(x), 1, 1, 1, 1)),
    "mean": lambda op, x: pool(op, pad(op, x, 1, 1, 2, 2), "AVEPOOL"),
}


@pytest.mark.parametrize("name", FITS)
@pytest.mark.parametrize("shape", [(2, 4, 7, 8), ("n", 4, 7, 8)])
def test_fuses(name, shape):
    g = build(FITS[name], x=shape)
    assert check_pass(FusePadding(), g, **EXACT).changes == 1
    assert "Padding" not in kinds(g)


STAYS = {
    "another value": lambda op, x: conv(op, pad(op, x, 1, 1, 1, 1, value=0.5)),
    "mirrored": lambda op, x: conv(op, pad(op, x, 1, 1, 1, 1, mode="REFLECT")),
    "channels": lambda op, x: op.Convolution(pad(op, x, 0, 0, 0, 1, 1, 1, 1, 1), op.constant(noise(3, 5, 3, 3))),
    "crop": lambda op, x: conv(op, pad(op, x, -1, 1, 1, 1)),
    "same": lambda op, x: conv(op, pad(op, x, 1, 1, 1, 1), pad_mode="SAME"),
    "maximum with 0": lambda op, x: pool(op, pad(op, x, 1, 1, 1, 1)),
    "window of padding": lambda op, x: pool(op, pad(op, x, 3, 0, 0, 0, value=-np.inf)),
    "rounded up": lambda op, x: pool(op, pad(op, op.ReLU(x), 1, 1, 1, 1), ceil=True),
    "mean with pads": lambda op, x: pool(op, pad(op, x, 1, 1, 1, 1), "AVEPOOL", pads=(1, 1, 1, 1)),
    "one-sided mean": lambda op, x: pool(op, pad(op, x, 0, 1, 0, 1), "AVEPOOL"),
    "leaky": lambda op, x: pool(op, pad(op, op.ReLU(x, slope=0.1), 1, 1, 1, 1)),
}


@pytest.mark.parametrize("name", STAYS)
def test_stays(name):
    g = build(STAYS[name], x=(2, 4, 7, 8))
    assert check_pass(FusePadding(), g, rtol=0, atol=0).changes == 0
