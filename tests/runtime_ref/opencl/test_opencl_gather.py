"""Gathers and scatters on OpenCL: odd sizes, repeated and negative indices, and indices that nothing lies at."""

from __future__ import annotations

import numpy as np
import pytest
from one_op import check, graph_of

from mnnconvert.errors import ConversionError
from mnnconvert.ir import I32
from mnnconvert.ops.gather import GatherElements, GatherND, GatherV2, OneHot
from mnnconvert.ops.scatter import UFUNCS, ScatterElements, ScatterNd
from mnnconvert.runtime_ref.session import Session


def indices(rng, size, *shape):
    """Indices of an axis, also those that count from its end."""
    return rng.integers(-size, size, shape).astype(I32)


@pytest.mark.parametrize("maps", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_gather(rng, guarded, axis, maps):
    x = rng.standard_normal((3, 17, 5, 9)).astype(np.float32)
    for shape in [(), (1,), (63,), (3, 5)]:
        check(GatherV2(axis), x, indices(rng, x.shape[axis], *shape), maps=maps, bound=0)
    check(GatherV2(axis), x, np.arange(2, 3, dtype=I32), maps=maps, bound=0)
    assert not sum(p.broken_guards() for p in guarded)


@pytest.mark.parametrize("width", [1, 3, 8, 63, 1030])
def test_rows_of_a_table(rng, width):
    table = rng.standard_normal((40, width)).astype(np.float32)
    table[3] = np.nan
    check(GatherV2(0), [table, indices(rng, 40, 2, 17)], bound=0)
    check(GatherV2(0), [table.astype(np.int8).view(np.uint8), indices(rng, 40, 5)], bound=0)
    check(GatherV2(0), [table, indices(rng, 40, 5)], precision="half", bound=1e-3)


def test_vectors_of_indices(rng, guarded):
    x = rng.standard_normal((2, 5, 7, 3)).astype(np.float32)
    for depth in (1, 2, 3):
        vectors = np.stack([indices(rng, n, 2, 17) for n in x.shape[:depth]], -1)
        check(GatherND(), [x, vectors], bound=0)
    check(GatherND(1), [x, indices(rng, 5, 2, 4, 1)], bound=0)
    assert not sum(p.broken_guards() for p in guarded)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_elements(rng, axis):
    x = rng.standard_normal((5, 7, 9)).astype(np.float32)
    check(GatherElements(), [x, indices(rng, x.shape[axis], 4, 6, 8)], np.int32(axis), bound=0)
    check(GatherElements(), [x.astype(I32), indices(rng, x.shape[axis], 4, 6, 8)], np.int32(axis), bound=0)


@pytest.mark.parametrize("kind", [np.float32, np.int32])
@pytest.mark.parametrize("reduction", ["", *UFUNCS])
def test_scatters(rng, guarded, reduction, kind):
    data = (10 * rng.standard_normal((5, 7, 9))).astype(kind)
    for axis in (0, 1, 2):
        places = indices(rng, data.shape[axis], 5, 6, 8)
        updates = (10 * rng.standard_normal(places.shape)).astype(kind)
        check(ScatterElements(reduction), [data, places, updates], np.int32(axis))
    for depth in (1, 2, 3):
        vectors = np.stack([indices(rng, n, 31) for n in data.shape[:depth]], -1)
        updates = (10 * rng.standard_normal((31, *data.shape[depth:]))).astype(kind)
        graph, feeds = graph_of(ScatterNd(reduction), [vectors, updates], np.array(data.shape, I32), data)
        got, want = Session(graph, "opencl", strict=True).run(feeds)["y0"], Session(graph, "reference").run(feeds)["y0"]
        assert np.allclose(got, want, rtol=1e-5, atol=1e-5)
    assert not sum(p.broken_guards() for p in guarded)


def test_one_hot():
    for axis in (0, 1, -1):
        check(OneHot(axis), np.array([[0, 3, 9], [-1, 2, 1]], I32), np.int32(5), np.float32(2), np.float32(-1))
        check(OneHot(axis), np.array([[0, 3, 9], [-1, 2, 1]], I32), np.int32(5), np.int32(2), np.int32(-1))


@pytest.mark.parametrize("bad", [5, -6, 1 << 30, -(1 << 31)])
def test_an_index_beyond_its_axis_ends_the_run(bad):
    x, good = np.ones((5, 3), np.float32), np.array([1, -5, 4], I32)
    wrong = np.array([1, bad, 2], I32)
    cases = [
        (GatherV2(0), [x, good], [x, wrong]),
        (GatherND(), [x, good[:, None]], [x, wrong[:, None]]),
        (GatherElements(), [x, good[None]], [x, wrong[None]]),
        (ScatterElements(), [x, good[None], x[:1]], [x, wrong[None], x[:1]]),
    ]
    for op, fine, broken in cases:
        graph, feeds = graph_of(op, fine)
        session = Session(graph, "opencl", strict=True)
        want = session.run(feeds)["y0"]
        with pytest.raises(ConversionError, match="an index is beyond its axis") as caught:
            session.run({f"x{i}": array for i, array in enumerate(broken)})
        assert caught.value.diagnostics[0].reference == "run-failed"
        assert np.array_equal(session.run(feeds)["y0"], want)
