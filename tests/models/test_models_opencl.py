"""Real models on OpenCL: every op has a kernel, and the answers are those of the numpy definitions."""

from __future__ import annotations

import numpy as np
import pytest
import wide_models
from real_models import MODELS, Conversions

import mnnconvert
from mnnconvert.runtime_ref.session import load

pytestmark = pytest.mark.models

NEAR = 1e-4
"""Of the largest value."""


def distance(got, want):
    largest = np.abs(want).max(initial=0) or 1.0
    return float(np.abs(got.astype(np.float64) - want).max(initial=0) / largest)


@pytest.fixture(scope="module", params=MODELS)
def conversions(request, tmp_path_factory, opencl_device):
    return Conversions(MODELS[request.param], tmp_path_factory.mktemp("opencl"))


def test_without_a_fallback_and_as_numpy(conversions):
    path = conversions.path("float")
    opencl, numpy = load(path, "opencl"), load(path, "reference")
    for feeds, _ in conversions.runs:
        got = opencl.run(feeds)
        for name, want in numpy.run(feeds).items():
            assert distance(got[name], want) <= NEAR, name
    assert opencl.fallbacks == {}


WIDE = {name: model for name, model in {**wide_models.MODELS, **wide_models.SLOW}.items() if not model.steps}


@pytest.mark.slow
@pytest.mark.parametrize("name", WIDE)
def test_wide_models_without_a_fallback(name, tmp_path, opencl_device):
    """Models that round activations at run time are left out: they step, and no two ways of adding up agree on all."""
    model = WIDE[name]
    mnnconvert.convert(wide_models.source_of(model), tmp_path / "m.mnn", verify="never")
    opencl, numpy = load(tmp_path / "m.mnn", "opencl"), load(tmp_path / "m.mnn", "reference")
    for feeds in model.feeds():
        got = opencl.run(feeds)
        for key, want in numpy.run(feeds).items():
            assert distance(got[key], want) <= NEAR, key
    assert opencl.fallbacks == {}
