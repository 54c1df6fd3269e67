"""Permutations sink through what takes any order of axes, and vanish where they meet their inverse."""

from __future__ import annotations

import numpy as np
import pytest
from pass_cases import build, check_pass, kinds, noise

from mnnconvert.ir import Steps
from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.normalization import Softmax
from mnnconvert.ops.padding import Padding
from mnnconvert.ops.reduction import Reduction
from mnnconvert.ops.shape import Permute, Reshape
from mnnconvert.ops.slicing import Slice, SliceTf, StridedSlice
from mnnconvert.passes.permutes import SinkPermutes

EXACT = {"rtol": 0, "atol": 0}
LAST, FIRST = Permute((0, 2, 3, 1)), Permute((0, 3, 1, 2))
IMAGE = (2, 3, 4, 5)
OPEN = ("n", 3, "h", "w")


def sunk(make, *shapes, rtol: float = 0.0, **inputs) -> list[str]:
    """What is left of a graph; its values are checked."""
    named = dict(zip("xyz", shapes, strict=False)) | inputs
    graph = build(make, **named)
    check_pass(SinkPermutes(), graph, rtol=rtol, atol=0)
    return kinds(graph)


def between(*body):
    """Ops applied between a permutation and its inverse."""

    def make(op, x):
        y = op.add(LAST, x)
        for each in body:
            y = each(op, y)
        return op.add(FIRST, y)

    return make


def ints(op, *rows):
    """int32 constants."""
    return [op.constant(np.array(row, np.int32)) for row in rows]


SINKING = {
    "nothing": (),
    "function": (lambda op, y: op.Sigmoid(y),),
    "number": (lambda op, y: op.Mul(y, 2.0),),
    "vector over channels": (lambda op, y: op.Mul(y, op.constant(noise(3))),),
    "table": (lambda op, y: op.Add(y, op.constant(noise(4, 1, 3))),),
    "itself": (lambda op, y: op.Add(y, op.Sigmoid(y)),),
    "softmax": (lambda op, y: op.add(Softmax(-1), y),),
    "padding": (lambda op, y: op.add(Padding(), y, op.constant(np.array([0, 0, 1, 2, 0, 1, 3, 0], np.int32))),),
    "concat": (lambda op, y: op.add(Concat(3), y, op.Sigmoid(y)),),
    "concat with constants": (lambda op, y: op.add(Concat(-1), y, op.constant(noise(2, 4, 5, 2))),),
    "mean that stays": (lambda op, y: op.add(Reduction("MEAN", (1, 2), True), y),),
    "slices": (
        lambda op, y: op.add(StridedSlice(), y, *ints(op, [1], [3], [2], [1])),
    ),
    "slices of all axes": (
        lambda op, y: op.add(
            StridedSlice(1, 4, from_type=0), y,
            *ints(op, [0, 1, 0, 2], [2, 3, 0, 0], [1, 1, 2, -1]),
        ),
    ),
    "slice of TensorFlow": (
        lambda op, y: op.add(SliceTf(), y, *ints(op, [0, 1, 0, 1], [-1, 2, 3, 2])),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SINKING)
def test_permutations_around_an_op_vanish(name):
    assert "Permute" not in sunk(between(*SINKING[name]), IMAGE, rtol=1e-6)


def test_open_sizes():
    assert sunk(between(lambda op, y: op.Add(op.Sigmoid(y), op.constant(noise(3)))), OPEN) == ["SIGMOID", "ADD"]


def test_parts():
    def make(op, x):
        parts = op.builder.add(Slice(3, (1, 2)), op.add(LAST, x), names=["", ""])
        return tuple(op.add(FIRST, p) for p in parts)

    assert sunk(make, IMAGE) == ["Slice"]


def test_two_permutations_become_one():
    def make(op, x, y):
        return op.Add(op.add(LAST, x), op.add(LAST, y))

    assert sunk(make, IMAGE, IMAGE) == ["ADD", "Permute"]


def test_axes_that_are_dropped_need_no_permutation():
    def make(op, x):
        return op.add(Reduction("SUM", (1, 2)), op.add(LAST, x))

    assert sunk(make, IMAGE, rtol=1e-6) == ["Reduction"]


def test_dropping_others_leaves_a_smaller_permutation():
    def make(op, x):
        return op.add(Reduction("SUM", (2,)), op.add(LAST, x))

    assert sunk(make, IMAGE, rtol=1e-6) == ["Reduction", "Permute"]


def test_a_reshape_of_a_vector_reads_what_was_permuted():
    def make(op, x):
        return op.add(Reshape((2, 3)), op.add(LAST, x))

    assert sunk(make, (2, 3, 1, 1)) == ["Reshape"]


def test_a_gate_of_one_number_for_each_channel_is_reshaped():
    def make(op, x, y):
        return op.add(FIRST, op.Mul(op.add(LAST, x), op.add(Reshape((2, 1, 1, 3)), y)))

    assert "Permute" not in sunk(make, IMAGE, (2, 3))


def test_padding_goes_behind():
    def make(op, x):
        return op.add(FIRST, op.add(Padding(), x, op.constant(np.array([0, 0, 1, 2, 0, 1, 0, 0], np.int32))))

    assert sunk(make, (2, 4, 5, 3)) == ["Permute", "Padding"]


def test_steps_stay_with_their_values():
    graph = build(between(lambda op, y: op.Sigmoid(y)), x=IMAGE)
    graph.nodes[1].output.steps = steps = Steps(0.5, 3)
    SinkPermutes().run(graph)
    assert [n.output.steps for n in graph.nodes] == [steps]


NEAR = {
    "another order": lambda op, x: op.add(Permute((0, 2, 1, 3)), op.Sigmoid(op.add(LAST, x))),
    "a lone permutation": lambda op, x: op.Sigmoid(op.add(LAST, x)),
    "an op that minds": lambda op, x: op.add(
        FIRST,
        op.add(
            GatherV2(), op.add(LAST, x), op.constant(np.array([1, 0], np.int32)), op.constant(np.array(1, np.int32))
        ),
    ),
    "a reshape of planes": lambda op, x: op.add(Reshape((2, -1)), op.add(LAST, x)),
}


@pytest.mark.parametrize("name", NEAR)
def test_near_misses_compute_the_same(name):
    before = kinds(build(NEAR[name], x=IMAGE))
    left = sunk(NEAR[name], IMAGE)
    assert left.count("Permute") >= 1 and len(left) <= len(before)


def test_a_value_that_others_read_keeps_its_order():
    """The other reader gets a permutation of its own."""

    def make(op, x):
        y = op.Sigmoid(op.add(LAST, x))
        return op.add(FIRST, y), y

    assert sorted(sunk(make, IMAGE)) == ["Permute", "SIGMOID"]


def test_a_number_of_higher_rank_keeps_its_rank():
    def make(op, x):
        return op.add(Reduction("SUM", (0,), False), op.Add(op.add(Permute((1, 0)), x), op.constant(noise(1, 1, 1, 1))))

    sunk(make, (2, 3), rtol=1e-6)
