"""Ops that move elements on OpenCL: plain tensors and maps, odd sizes, small devices, halves; what moves nothing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from one_op import check, graph_of, kernels

from mnnconvert.ir import F32, I32, Builder, Graph
from mnnconvert.ops.arrange import BroadcastTo, Concat, Pack, Reverse, Tile, Unpack
from mnnconvert.ops.elementwise import Unary
from mnnconvert.ops.padding import NUMPY_MODES, Padding
from mnnconvert.ops.pooling import Pooling
from mnnconvert.ops.shape import Permute, Reshape
from mnnconvert.ops.slicing import Slice, SliceTf
from mnnconvert.ops.vision import DepthToSpace, SpaceToDepth
from mnnconvert.runtime_ref.opencl.copies import plan
from mnnconvert.runtime_ref.opencl.device import Device
from mnnconvert.runtime_ref.session import Session
from mnnconvert.runtime_ref.strided import phantom, split

ORDERS = [*itertools.permutations(range(4))][1:]
SHAPES = [(1, 1, 1, 1), (2, 3, 5, 7), (2, 17, 9, 11), (1, 8, 1, 1), (3, 16, 1, 5)]


def numbers(shape, dtype=np.float32):
    return np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)


@pytest.mark.parametrize("maps", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_orders(guarded, order, maps):
    for shape in SHAPES:
        check(Permute(order), numbers(shape), maps=maps, bound=0)
    assert not sum(p.broken_guards() for p in guarded)


@pytest.mark.parametrize("order", [(1, 0), (0, 2, 1), (3, 1, 2, 0)])
def test_orders_of_integers_and_of_bytes(order):
    shape = (19, 33, 2, 5)[: len(order)]
    check(Permute(order), numbers(shape, np.int32), bound=0)
    check(Permute(order), numbers(shape, np.int32).astype(np.uint8), bound=0)


@pytest.mark.parametrize("maps", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_joining_and_parting(guarded, axis, maps):
    for sizes in [(3, 5, 1), (8, 8, 4), (1, 1, 17)]:
        parts = [numbers([size if i == axis else n for i, n in enumerate((2, 3, 5, 7))]) for size in sizes]
        check(Concat(axis), parts, maps=maps, bound=0)
        whole = np.concatenate(parts, axis)
        check(Slice(axis, sizes), whole, maps=maps, bound=0)
    check(Pack(axis), [numbers((2, 3, 5)), -numbers((2, 3, 5))], bound=0)
    check(Unpack(axis), whole, maps=maps, bound=0)
    assert not sum(p.broken_guards() for p in guarded)


@pytest.mark.parametrize("maps", [False, True])
@pytest.mark.parametrize("mode", NUMPY_MODES)
def test_borders(guarded, mode, maps):
    for shape in [(2, 3, 5, 7), (1, 16, 4, 4), (1, 9, 3, 130)]:
        for pads in ([0, 0, 0, 0, 1, 2, 2, 0], [0, 0, 1, 2, 0, 0, 0, 1], [0, 1, 0, 0, -1, 1, 1, -2]):
            pads = [min(p, n - 1) for p, n in zip(pads, np.repeat(shape, 2), strict=True)]
            extra = (np.float32(-3),) if mode == "CONSTANT" else ()
            check(Padding(mode), numbers(shape), np.array(pads, I32), *extra, maps=maps, bound=0)
    assert not sum(p.broken_guards() for p in guarded)


@pytest.mark.parametrize("maps", [False, True])
def test_blocks_repeats_and_reversals(guarded, maps):
    x = numbers((2, 16, 4, 6))
    for mode in ("DCR", "CRD"):
        check(DepthToSpace(2, mode), x, maps=maps, bound=0)
    check(SpaceToDepth(2), x, maps=maps, bound=0)
    check(Tile(), x, np.array([1, 3, 2, 1], I32), maps=maps, bound=0)
    check(BroadcastTo(), x[:, :, :1], np.array([2, 16, 5, 6], I32), maps=maps, bound=0)
    for axis in range(4):
        check(Reverse(), x, np.array([axis], I32), maps=maps, bound=0)
    assert not sum(p.broken_guards() for p in guarded)


def test_what_is_not_finite_is_moved_too():
    x = numbers((1, 5, 3, 3))
    x[0, :3, 0, 0] = np.nan, np.inf, -np.inf
    for maps in (False, True):
        check(Permute((0, 2, 3, 1)), x, maps=maps)
        check(Concat(1), [x, x], maps=maps)


def test_halves():
    x = np.random.default_rng(0).standard_normal((2, 9, 5, 7)).astype(np.float32)
    for maps in (False, True):
        check(Permute((0, 2, 3, 1)), x, maps=maps, precision="half", bound=1e-3)
        check(Padding(), x, np.array([0, 0, 0, 0, 1, 1, 1, 1], I32), maps=maps, precision="half", bound=1e-3)


@pytest.mark.parametrize("limits", ["lanes=4", "work_group=1"])
def test_small_devices(monkeypatch, device, limits):
    monkeypatch.setenv("MNNCONVERT_OPENCL_LIMITS", limits)
    small = Device(device.cl)
    monkeypatch.setattr("mnnconvert.runtime_ref.opencl.device.device", lambda: small)
    x = numbers((2, 17, 9, 33))
    for maps in (False, True):
        for order in ((0, 2, 3, 1), (0, 1, 3, 2), (3, 2, 1, 0)):
            check(Permute(order), x, maps=maps, bound=0)
        check(Padding("REFLECT"), x, np.array([0, 0, 0, 0, 1, 1, 1, 1], I32), maps=maps, bound=0)
        check(Concat(1), [x, x], maps=maps, bound=0)


def chain(*ops, shape):
    """A map that a pooling makes, and what ops make of it one after the other."""
    builder = Builder(Graph())
    value = builder.add(Pooling("AVEPOOL"), builder.input("x", F32, shape), name="m")
    for i, (op, *constants) in enumerate(ops):
        operands = [builder.constant(np.array(c, I32), f"c{i}") for c in constants]
        value = builder.add(op, value, *operands, name=f"v{i}")
    builder.output(builder.add(Unary("NEG"), value, name="y"))
    return builder.graph, {"x": numbers(shape)}


@pytest.mark.parametrize(
    ("copies", "shape", "ops"),
    [
        (1, (1, 16, 3, 5), [(Permute((0, 2, 3, 1)),), (Reshape((1, 15, 16)),)]),
        (1, (2, 16, 3, 5), [(Reshape((2, 16, 15)),), *[(Permute((0, 2, 1)),)] * 3]),
        (0, (4, 32, 1, 1), [(Reshape((4, 32)),)]),
        (0, (1, 64, 1, 1), [(SliceTf(), [0, 32, 0, 0], [1, 32, 1, 1])]),
        (2, (2, 16, 4, 8), [(SliceTf(), [1, 0, 0, 0], [1, 16, 4, 8])]),
    ],
)
def test_what_lies_there_already_is_not_moved(copies, shape, ops):
    """Copies are those of the input into a map, and of a map into an output."""
    graph, feeds = chain(*ops, shape=shape)
    session = Session(graph, "opencl")
    (got,), (want,) = (s.run(feeds).values() for s in (session, Session(graph, "reference")))
    assert np.array_equal(got, want)
    assert sum(k.startswith("copy") for k in kernels(session, feeds)) == copies


def test_parts_that_begin_anywhere_are_read_where_they_lie():
    """A part inside of a buffer, at a place to which the device does not align, is copied once for those that ask."""
    graph, feeds = graph_of(Slice(0, (1, 2, 4)), numbers((7, 3)))
    builder = Builder(graph)
    for i, (_, value) in enumerate(list(graph.outputs)):
        builder.output(builder.add(Unary("NEG"), value, name=f"n{i}"))
    session = Session(graph, "opencl")
    got, want = session.run(feeds), Session(graph, "reference").run(feeds)
    assert all(np.array_equal(got[name], want[name]) for name in want)


def test_every_copy_has_a_plan():
    """Random views: the numbers of a plan are those of all elements."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        shape = rng.integers(1, 9, rng.integers(1, 6))
        order = rng.permutation(len(shape))
        source, target = phantom(shape, F32).transpose(order), phantom(shape[order], F32)
        made = plan(source, target, 16)
        count = np.prod([made.numbers.get(f"n{i}", 1) for i in range(8)])
        tile = made.numbers["rows"] * made.numbers["columns"] if made.kernel == "copy_tiles" else 1
        assert count * tile == shape.prod()


def test_views_that_cannot_be():
    view = phantom((4, 6), F32)
    assert split(view, (2, 2, 6)).strides == (48, 24, 4)
    with pytest.raises(ValueError, match="is no"):
        split(view.T, (24,))
