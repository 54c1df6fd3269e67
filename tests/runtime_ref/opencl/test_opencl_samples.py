"""Every sample of every op: OpenCL kernels agree with the numpy definition, and write nothing beside their results."""

from __future__ import annotations

import numpy as np
import pytest
from op_samples import CASES, choices, close, graph_of

from mnnconvert.runtime_ref.session import Session

BOUND = 2e-5
"""Of the largest value: functions of OpenCL may be 16 ulp off, and sums are in another order."""

HALF_BOUND = 2e-3


@pytest.mark.parametrize(("cls", "sample"), CASES)
def test_agrees_with_reference(cls, sample, guarded):
    for fixed in choices(sample):
        graph, feeds = graph_of(cls, sample, fixed)
        expected = Session(graph, "reference").run(feeds)
        session = Session(graph, "opencl")
        one, again = session.run(feeds), session.run(feeds)
        for name, want in expected.items():
            assert one[name].dtype == want.dtype and one[name].shape == want.shape
            assert one[name].tobytes() == again[name].tobytes()
            assert close(one[name], want, BOUND), (name, fixed)
    assert not sum(p.broken_guards() for p in guarded)


@pytest.mark.parametrize(("cls", "sample"), CASES)
def test_halves_of_numbers_that_halves_hold(cls, sample, guarded):
    """Floats are rounded when they are stored, and nowhere else: so integers and choices stay exact."""
    for fixed in choices(sample):
        graph, feeds = graph_of(cls, sample.rounded(np.float16), fixed)
        expected = Session(graph, "reference").run(feeds)
        got = Session(graph, "opencl", precision="half").run(feeds)
        for name, want in expected.items():
            with np.errstate(over="ignore"):
                want = want.astype(np.float16).astype(want.dtype) if want.dtype.kind == "f" else want
            assert close(got[name], want, HALF_BOUND), (name, fixed)
    assert not sum(p.broken_guards() for p in guarded)
