"""Tests of the OpenCL backend."""

from __future__ import annotations

import pytest

from mnnconvert.runtime_ref.opencl import executor, program
from mnnconvert.runtime_ref.opencl.tuning import Tuning
from mnnconvert.runtime_ref.session import Session


@pytest.fixture(scope="session")
def device(opencl_device):
    return opencl_device


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch, device):
    """Tests neither see nor leave tunings of the user."""
    monkeypatch.setenv("MNNCONVERT_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def variants(monkeypatch):
    """Runs a graph once with each variant that its launches have: yields which, and the outputs by name."""

    def run(graph, feeds, **options):
        taken, most = 0, [1]

        def best(self, offered, time):
            most.append(len(offered))
            return min(taken, len(offered) - 1)

        monkeypatch.setattr(Tuning, "best", best)
        while taken < max(most):
            yield taken, Session(graph, "opencl", **options).run(feeds)
            taken += 1

    return run


@pytest.fixture
def guarded(monkeypatch):
    """Programs made in a test, which keep bytes around each tensor that nobody may write."""
    made = []

    class Guarded(program.Program):
        def __init__(self, *arguments):
            super().__init__(*arguments, guard=True)
            made.append(self)

    monkeypatch.setattr(executor, "Program", Guarded)
    return made
