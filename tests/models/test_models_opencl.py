"""Real models on OpenCL: every op has a kernel, and the answers are those of the numpy definitions."""

from __future__ import annotations

import numpy as np
import pytest
from real_models import MODELS, Conversions

from mnnconvert.runtime_ref.session import load

pytestmark = pytest.mark.models

NEAR = 1e-4
"""Of the largest value."""


@pytest.fixture(scope="module", params=MODELS)
def conversions(request, tmp_path_factory, opencl_device):
    return Conversions(MODELS[request.param], tmp_path_factory.mktemp("opencl"))


def test_without_a_fallback_and_as_numpy(conversions):
    path = conversions.path("float")
    opencl, numpy = load(path, "opencl"), load(path, "reference")
    for feeds, _ in conversions.runs:
        got = opencl.run(feeds)
        for name, want in numpy.run(feeds).items():
            largest = np.abs(want).max(initial=0) or 1.0
            assert np.abs(got[name].astype(np.float64) - want).max(initial=0) <= NEAR * largest, name
    assert opencl.fallbacks == {}
