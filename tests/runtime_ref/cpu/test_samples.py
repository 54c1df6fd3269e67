"""Every sample of every op: compiled kernels agree with the numpy definition, at each level and for any threads."""

from __future__ import annotations

import pytest
from op_samples import CASES, choices, close, graph_of

from mnnconvert.runtime_ref.cpu import library
from mnnconvert.runtime_ref.session import Session

BOUND = 4e-6
"""Of the largest value: sums in another order, and functions of 2 ulp after one another."""


@pytest.mark.parametrize("level", library.runnable_levels())
@pytest.mark.parametrize(("cls", "sample"), CASES)
def test_agrees_with_reference(cls, sample, level, monkeypatch):
    monkeypatch.setenv("MNNCONVERT_ISA", level)
    for fixed in choices(sample):
        graph, feeds = graph_of(cls, sample, fixed)
        expected = Session(graph, "reference").run(feeds)
        one, two = (Session(graph, "cpu", threads).run(feeds) for threads in (1, 2))
        for name, want in expected.items():
            assert one[name].dtype == want.dtype and one[name].shape == want.shape
            assert one[name].tobytes() == two[name].tobytes()
            assert close(one[name], want, BOUND), (name, fixed)
