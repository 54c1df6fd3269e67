"""Compiled kernels on the real models: as near to onnxruntime as numpy is, the same bits for any number of threads."""

from __future__ import annotations

import numpy as np
import pytest
from real_models import KEYWORDS, MODELS, Conversions

from mnnconvert.runtime_ref.cpu import library
from mnnconvert.runtime_ref.session import load

pytestmark = [
    pytest.mark.models,
    pytest.mark.skipif(not library.runnable_levels(), reason="no compiled kernels"),
]

NEAR = 2e-5
"""Of the largest value."""
LOUD = {"mel spectrogram"}
"""The logarithm of energies: in silence all of it is what rounding the samples to 8 bits leaves."""
SCALE = 3
"""Where rounding alone moves a model further: so many times what separates numpy from onnxruntime."""


@pytest.fixture(scope="module", params=MODELS)
def conversions(request, tmp_path_factory):
    return Conversions(MODELS[request.param], tmp_path_factory.mktemp("cpu"))


def distance(got, want):
    largest = np.abs(want).max(initial=0) or 1.0
    return float(np.abs(got.astype(np.float64) - want).max(initial=0) / largest)


def test_as_near_to_onnxruntime_as_numpy_is(conversions):
    compiled, numpy = (load(conversions.path("float"), backend) for backend in ("cpu", "reference"))
    for feeds, expected in conversions.runs:
        got, reference = compiled.run(feeds), numpy.run(feeds)
        for name, want in expected.items():
            scale = distance(reference[name], want)
            assert distance(got[name], want) <= max(NEAR, SCALE * scale), (name, scale)


@pytest.mark.parametrize("kind", KEYWORDS)
@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_the_number_of_threads_changes_no_bit(conversions, kind, precision):
    one, two, three = (
        load(conversions.path(kind), "cpu", threads=threads, precision=precision) for threads in (1, 2, 3)
    )
    feeds, _ = conversions.runs[0]
    expected = one.run(feeds)
    for other in (two, three):
        for name, got in other.run(feeds).items():
            assert got.tobytes() == expected[name].tobytes(), name


@pytest.mark.parametrize("kind", ["8 bit", "4 bit"])
def test_codes_are_computed_on_as_their_floats(conversions, kind):
    path = conversions.path(kind)
    exact, fast, numpy = load(path, "cpu"), load(path, "cpu", precision="fast"), load(path, "reference")
    feeds, _ = conversions.runs[0]
    reference, got, rough = numpy.run(feeds), exact.run(feeds), fast.run(feeds)
    for name, want in reference.items():
        assert distance(got[name], want) <= 1e-4, name
        if any(conversions.model is MODELS[name] for name in LOUD):
            continue
        noise = np.square(rough[name].astype(np.float64) - want).sum() / max(
            np.square(want.astype(np.float64)).sum(), 1e-30
        )
        assert noise <= 0.05, name  # activations rounded to 8 bits: 13 dB at the very least
