"""Softmax and normalisations on OpenCL: any axis, odd sizes, maps, every variant, halves, what is not finite."""

from __future__ import annotations

import numpy as np
import pytest
from one_op import check, graph_of, kernels

from mnnconvert.ir import F32, Builder, Graph
from mnnconvert.ops.elementwise import Binary
from mnnconvert.ops.normalization import LayerNorm, Softmax
from mnnconvert.runtime_ref.session import Session

SHAPES = [(1, 1, 1, 1), (2, 5, 3, 17), (1, 63, 1, 5), (3, 16, 4, 9)]


@pytest.mark.parametrize("maps", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_softmax(rng, guarded, axis, maps):
    for shape in SHAPES:
        check(Softmax(axis), 8 * rng.standard_normal(shape).astype(np.float32), maps=maps)
    assert not sum(p.broken_guards() for p in guarded)


@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_of_what_is_not_finite(axis):
    x = np.linspace(-200, 200, 5 * 37, dtype=np.float32).reshape(5, 37)
    x[0, 3], x[1, 36], x[2, 0], x[3] = np.nan, np.inf, -np.inf, -np.inf
    check(Softmax(axis), x)


@pytest.mark.parametrize("maps", [False, True])
@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("axes", [(3,), (1,), (2, 3), (1, 2, 3), (0,)])
def test_layer_norm(rng, guarded, axes, rms, maps):
    for shape in SHAPES[1:]:
        x = 3 + rng.standard_normal(shape).astype(np.float32)
        count = int(np.prod([shape[a] for a in axes]))
        gamma, beta = rng.standard_normal((2, count)).astype(np.float32)
        check(LayerNorm(axes, 1e-3, rms), x, maps=maps, bound=2e-5)
        check(LayerNorm(axes, 1e-3, rms), x, gamma, beta, maps=maps, bound=2e-5)
    assert not sum(p.broken_guards() for p in guarded)


def test_groups_of_channels(rng):
    check(LayerNorm((1, 2, 3), 1e-3, group=4), rng.standard_normal((2, 12, 5, 3)).astype(np.float32), bound=2e-5)


def test_means_far_from_zero_cancel(rng):
    x = 1e4 + rng.standard_normal((3, 1000)).astype(np.float32)
    check(LayerNorm((1,), 1e-6), x, bound=1e-3)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_norms_of_what_is_not_finite(rng, value):
    x = rng.standard_normal((3, 37)).astype(np.float32)
    x[1, 36] = value
    check(LayerNorm((1,), 1e-3), x)


def added(shape, rms):
    """An Add, and the norm of the sum, which is a result too."""
    b = Builder(Graph())
    x, y = (b.input(name, F32, shape) for name in "ab")
    total = b.add(Binary("ADD"), x, y, name="s")
    gamma, beta = (b.constant(np.linspace(low, 2, shape[-1], dtype=np.float32), f"g{low}") for low in (0, 1))
    b.output(b.add(LayerNorm((-1,), 1e-3, rms), total, gamma, beta, name="n"))
    b.output(total)
    return b.graph


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 5, 17), (3, 7, 64)])
def test_every_variant(rng, variants, shape, rms):
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name in "ab"}
    graph = added(shape, rms)
    want = Session(graph, "reference").run(feeds)
    assert kernels(Session(graph, "opencl"), feeds) == ["normalize_rows"]
    count = 0
    for _, got in variants(graph, feeds, strict=True):
        assert all(np.allclose(got[name], want[name], rtol=1e-4, atol=1e-5) for name in want)
        count += 1
    assert count == 2
    graph, feeds = graph_of(Softmax(-1), feeds["a"])
    want = Session(graph, "reference").run(feeds)["y0"]
    assert [np.allclose(got["y0"], want, atol=1e-6) for _, got in variants(graph, feeds)] == [True, True]


def test_halves(rng):
    x = rng.standard_normal((2, 9, 5, 40)).astype(np.float32)
    for maps in (False, True):
        for axis in (1, 3):
            check(Softmax(axis), x, maps=maps, precision="half", bound=1e-2)
            check(LayerNorm((axis,), 1e-3), x, maps=maps, precision="half", bound=1e-2)
