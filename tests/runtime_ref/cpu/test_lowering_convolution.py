"""What convolutions and pooling become: one kernel each, with the addition and the activation that follow."""

from __future__ import annotations

import numpy as np
import pytest

from mnnconvert.ir import F32, Builder, Graph
from mnnconvert.ops.activation import ReLU
from mnnconvert.ops.convolution import Convolution
from mnnconvert.ops.elementwise import Binary
from mnnconvert.ops.pooling import Pooling
from mnnconvert.runtime_ref.cpu import library
from mnnconvert.runtime_ref.session import Session

pytestmark = pytest.mark.skipif(not library.runnable_levels(), reason="no compiled kernels")

SAME = (1, 1, 1, 1)


class Network:
    """A graph in the making, with random weights."""

    def __init__(self, rng, shape):
        self.rng, self.b = rng, Builder(Graph())
        self.feeds = {"x": rng.standard_normal(shape, dtype=np.float32)}
        self.x = self.b.input("x", F32, shape)

    def conv(self, x, outputs, kernel=(3, 3), **attributes):
        op = Convolution(**attributes)
        w = self.rng.standard_normal((outputs, x.shape[1] // op.group, *kernel), dtype=np.float32)
        w /= np.sqrt(w[0].size)
        bias = self.b.constant(self.rng.standard_normal(outputs, dtype=np.float32))
        return self.b.add(op, x, self.b.constant(w), bias)

    def check(self, y, kernels):
        """Every level agrees with the definition and runs these kernels."""
        self.b.output(y, "y")
        graph = self.b.graph
        want = Session(graph, "reference").run(self.feeds)["y"]
        for level in library.runnable_levels():
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("MNNCONVERT_ISA", level)
                one, two = (Session(graph, "cpu", threads).run(self.feeds)["y"] for threads in (1, 2))
                found = [row.kernel for row in Session(graph, "cpu").profile(self.feeds)]
            assert one.tobytes() == two.tobytes()
            np.testing.assert_allclose(one, want, rtol=0, atol=1e-5 * np.abs(want).max())
            assert [k for k in found if not k.startswith(("nchw_", "blocked_"))] == kernels


@pytest.mark.parametrize("swap", [False, True])
def test_residual_blocks(rng, swap):
    """The last kernel reads one tensor as its input and as its residual, and must not write over it."""
    net = Network(rng, (1, 32, 9, 10))
    y = net.conv(net.conv(net.x, 32, strides=(1, 1), pads=(0, 2, 2, 0), activation="relu"), 32, (1, 1))
    y = net.b.add(ReLU(), net.b.add(Binary("ADD"), *((net.x, y) if swap else (y, net.x))))
    y = net.b.add(Binary("ADD"), net.conv(y, 32, (5, 3), pads=(2, 1, 2, 1)), y)
    net.check(y, ["winograd", "conv_f32", "conv_f32"])


def test_few_channels_are_read_plain(rng):
    net = Network(rng, (2, 3, 20, 21))
    net.check(net.conv(net.x, 24, strides=(2, 2), pads=SAME, activation="relu6"), ["conv_f32"])


def test_depthwise_separable(rng):
    net = Network(rng, (1, 40, 11, 12))
    y = net.conv(net.conv(net.x, 40, (5, 5), group=40, pads=(2, 2, 2, 2), activation="relu6"), 24, (1, 1))
    y = net.b.add(Pooling("MAXPOOL", (3, 3), (2, 2), pads=SAME), y)
    net.check(net.b.add(Pooling("AVEPOOL", whole=True), y), ["depthwise_f32", "conv_f32", "pool_f32", "pool_all_f32"])


def expanded(net, channels=24, **attributes):
    """A 1x1 convolution with many results, ReLU6, and its depthwise convolution."""
    y = net.conv(net.x, channels, (1, 1), activation="relu6")
    return y, net.conv(y, channels, (3, 3), group=channels, pads=SAME, **attributes)


@pytest.mark.parametrize("activation", ["", "relu6"])
def test_large_expansions_are_never_there_as_a_whole(rng, activation):
    net = Network(rng, (1, 16, 80, 81))
    _, y = expanded(net, strides=(2, 2), activation=activation)
    net.check(net.conv(y, 16, (1, 1)), ["expand_depthwise_f32", "conv_f32"])


def test_expansions_that_others_read_are_kept(rng):
    net = Network(rng, (1, 16, 80, 81))
    y, z = expanded(net)
    net.check(net.b.add(Binary("ADD"), y, z), ["conv_f32", "depthwise_f32"])


def test_small_expansions_are_kept(rng):
    net = Network(rng, (1, 16, 20, 21))
    net.check(expanded(net)[1], ["conv_f32", "depthwise_f32"])


def test_groups_after_expansions_are_kept(rng):
    net = Network(rng, (1, 16, 80, 81))
    y = net.conv(net.x, 32, (1, 1), activation="relu6")
    net.check(net.conv(y, 32, (3, 3), group=2, pads=SAME), ["conv_f32", "conv_f32"])


@pytest.mark.parametrize("group", [2, 5])
def test_odd_groups(rng, group):
    net = Network(rng, (1, 10, 6, 7))
    net.check(net.b.add(ReLU(), net.conv(net.x, 20, group=group, pads=SAME)), ["conv_f32"])


@pytest.mark.parametrize("group", [1, 24])
def test_lines(rng, group):
    net = Network(rng, (2, 24, 33))
    y = net.conv(net.x, 24, (3, 1), group=group, pads=(2, 0, 1, 0), dilations=(2, 1))
    net.check(y, ["depthwise_f32" if group > 1 else "conv_f32"])
