"""Reductions, running sums and positions of extremes on OpenCL: all functions, odd sizes, maps, what is not finite."""

from __future__ import annotations

import numpy as np
import pytest
from one_op import check, graph_of, kernels

from mnnconvert.ops.reduction import REDUCTIONS, ArgMax, ArgMin, CumProd, CumSum, Reduction
from mnnconvert.runtime_ref.opencl.lowering import reduction
from mnnconvert.runtime_ref.session import Session

AXES = [None, (0,), (1,), (3,), (2, 3), (0, 2), (1, 2, 3)]


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("operation", REDUCTIONS)
def test_every_function(rng, guarded, operation, axes):
    for shape in [(2, 5, 3, 17), (1, 63, 1, 70)]:
        x = rng.standard_normal(shape).astype(np.float32)
        for keep in (False, True):
            check(Reduction(operation, axes, keep), x, bound=2e-5)
        check(Reduction(operation, axes), (10 * x).astype(np.int32))
    assert not sum(p.broken_guards() for p in guarded)


@pytest.mark.parametrize("operation", ["SUM", "MEAN", "MAXIMUM", "PROD"])
@pytest.mark.parametrize("channels", [1, 8, 17])
def test_maps_are_reduced_as_they_lie(rng, channels, operation):
    x = rng.standard_normal((2, channels, 5, 9)).astype(np.float32)
    for axes in [(1,), (2, 3)]:
        for keep in (False, True):
            session = check(Reduction(operation, axes, keep), x, maps=True, bound=2e-5)
            assert sum(k.startswith("copy") for k in kernels(session, {"x0": x})) <= 2  # into the map, and the output


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("operation", ["SUM", "MEAN", "MAXIMUM", "MINIMUM"])
def test_what_is_not_finite(rng, operation, value):
    x = rng.standard_normal((3, 37)).astype(np.float32)
    x[1, 36], x[2, 4] = value, value
    for axes in [(0,), (1,), None]:
        check(Reduction(operation, axes), x)


def test_long_sums_are_exact_and_in_parts(monkeypatch):
    x = np.full((2, 300_001), 0.1, np.float32)
    for axes in [(1,), (0, 1)]:
        graph, feeds = graph_of(Reduction("SUM", axes), x)
        session = Session(graph, "opencl")
        got = session.run(feeds)["y0"]
        assert np.allclose(got, x.astype(np.float64).sum(axes), rtol=1e-6)
        assert kernels(session, feeds).count("reduce_rows") == 2
    monkeypatch.setattr(reduction, "LONG", 64)
    for shape in [(3, 1000), (3, 1000, 5)]:
        check(Reduction("MEAN", (1,)), np.linspace(-1, 2, np.prod(shape), dtype=np.float32).reshape(shape))
        check(Reduction("ANY", (1,)), np.ones(shape, np.int32))


def test_halves_do_not_overflow_on_the_way():
    x = np.full((1, 8, 300, 300), 7.0, np.float32)
    for maps in (False, True):
        check(Reduction("MEAN", (2, 3)), x, maps=maps, precision="half", bound=1e-2)


def test_nothing_to_reduce():
    x = np.zeros((3, 0), np.float32)
    for operation in REDUCTIONS:
        check(Reduction(operation, (1,)), x)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("op", [ArgMax, ArgMin])
def test_positions(rng, op, axis):
    x = rng.integers(-3, 3, (5, 17, 9)).astype(np.float32)
    check(op(axis), x)
    check(op(axis), x.astype(np.int32))
    x[2, 3, 4], x[4, 16, 8] = np.nan, np.inf
    check(op(axis), x)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_running_sums(rng, axis):
    x = rng.standard_normal((5, 17, 9)).astype(np.float32)
    for exclusive in (False, True):
        for reverse in (False, True):
            check(CumSum(exclusive, reverse), x, np.int32(axis))
            check(CumSum(exclusive, reverse), (9 * x).astype(np.int32), np.int32(axis))
    check(CumProd(axis), x)
