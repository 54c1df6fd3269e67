"""Thirty-two random inputs at two sizes for every real model, in both executors (slow: `make test-slow`).

Models that quantise activations while they run are left to `test_models_wide.py`, where runs may be disputed; so are
nets whose output on noise is next to nothing.
"""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from wide_models import MODELS, SLOW, WIDE_FOLDER, Zoo

from mnnconvert.errors import ConversionError
from mnnconvert.runtime_ref.session import load
from mnnconvert.verification import choose_feeds
from mnnconvert.verify.compare import Tolerance
from mnnconvert.verify.engines import OnnxRuntimeEngine, SessionEngine
from mnnconvert.verify.mnn_engine import MnnEngine
from mnnconvert.verify.verification import verify_engines

pytestmark = [pytest.mark.models, pytest.mark.slow]

INPUTS = 32
BOUND = Tolerance(1e-3, 1e-7)
HEAVY = ("dnsmos", "sig", "bak", "layout", "nudenet", "det")  # seconds a run here, or nothing found in noise
missing = pytest.mark.skipif(not WIDE_FOLDER.is_dir(), reason="run `make models-wide` to get these models")
STEADY = [
    pytest.param(model, id=name, marks=[missing] if name in SLOW else [])
    for name, model in {**MODELS, **SLOW}.items()
    if not model.steps and not any(word in model.file for word in HEAVY)
]


def feeds_for(reference: OnnxRuntimeEngine, candidate: SessionEngine) -> list[dict[str, np.ndarray]]:
    """Inputs that the model accepts: for each seed the first of those made up, at two sizes where these are open."""
    found = []
    for seed in range(INPUTS):
        choices = choose_feeds(reference, candidate, None, seed)
        found.append(next(f for f in islice(iter(choices[seed % len(choices)]), 8) if accepts(reference, f)))
    return found


def accepts(reference: OnnxRuntimeEngine, feeds: dict[str, np.ndarray]) -> bool:
    try:
        reference.run(feeds)
    except ConversionError:
        return False
    return True


@pytest.mark.mnn
@pytest.mark.parametrize("model", STEADY)
def test_thirty_two_inputs_in_both_executors(model, tmp_path):
    zoo = Zoo(model, tmp_path)
    reference, ours = OnnxRuntimeEngine(zoo.source), SessionEngine(load(zoo.path))
    feeds = feeds_for(reference, ours)
    with MnnEngine(zoo.path) as peer:
        for candidate in (ours, peer):
            result = verify_engines(reference, candidate, feeds, BOUND)
            assert len(result.runs) == INPUTS and result.passed, result.lines()[:6]
