"""Slices that reach beyond their axis: what is left of it, in the shape as in the values."""

import numpy as np
import pytest

from mnnconvert.ir import F32, Builder
from mnnconvert.ops.slicing import SliceTf
from mnnconvert.runtime_ref.session import Session


def sliced(size, begin, count):
    b = Builder()
    y = b.add(SliceTf(), b.input("x", F32, (size,)), b.ints([begin]), b.ints([count]), name="y")
    b.output(y)
    return b.graph, y


@pytest.mark.parametrize(("begin", "count", "left"), [(0, 3, 3), (1, 9, 2), (3, 1, 0), (2, -1, 1), (3, -1, 0)])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_size_beyond_the_axis_is_cut(backend, begin, count, left):
    graph, y = sliced(3, begin, count)
    assert y.shape == (left,)
    x = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(Session(graph, backend).run({"x": x})["y"], x[begin:][:left])


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_an_axis_that_is_known_at_run_time_is_cut_too(backend):
    session = Session(sliced("n", 1, 1)[0], backend)
    for n, left in ((4, 1), (2, 1), (1, 0), (3, 1)):
        assert session.run({"x": np.full(n, 7, np.float32)})["y"].tolist() == [7.0] * left
