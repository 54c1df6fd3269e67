"""Every sample of every op: OpenCL kernels agree with the numpy definition, and write nothing beside their results."""

from __future__ import annotations

import pytest
from op_samples import CASES, choices, close, graph_of

from mnnconvert.runtime_ref.session import Session

BOUND = 2e-5
"""Of the largest value: functions of OpenCL may be 16 ulp off, and sums are in another order."""


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
