"""Every model of the wide zoo in both executors against onnxruntime.

The packages of models-wide.txt are large and their tests are marked slow: `make test-slow` fetches and runs them.
"""

from __future__ import annotations

import numpy as np
import pytest
from wide_models import MODELS, SLOW, WIDE_FOLDER, Zoo, error

import mnnconvert
from mnnconvert.verify.mnn_engine import MnnEngine

pytestmark = pytest.mark.models

TOLERANCE = 1e-3
missing = pytest.mark.skipif(not WIDE_FOLDER.is_dir(), reason="run `make models-wide` to get these models")
QUICK = [pytest.param(model, id=name) for name, model in MODELS.items()]
FULL = [pytest.param(m, id=name, marks=[pytest.mark.slow, missing]) for name, m in SLOW.items()]


@pytest.fixture(scope="module", params=[*QUICK, *FULL])
def zoo(request, tmp_path_factory) -> Zoo:
    return Zoo(request.param, tmp_path_factory.mktemp("wide"))


def agrees(zoo: Zoo, run) -> None:
    """All runs are within the tolerance.

    Of a model with steps most runs are, and the others are no further off than onnxruntime is from itself.
    """
    errors = [error(run(feeds), want) for feeds, want in zoo.runs]
    if zoo.model.steps and max(errors) > TOLERANCE:
        assert max(errors) <= 3 * zoo.spread, (errors, zoo.spread)
    else:
        assert max(errors) <= TOLERANCE, errors


def test_our_executor(zoo):
    agrees(zoo, mnnconvert.load(zoo.path).run)


@pytest.mark.mnn
def test_the_released_runtime(zoo):
    with MnnEngine(zoo.path) as engine:
        agrees(zoo, engine.run)


def test_the_outputs_are_worth_comparing(zoo):
    """Every output is so large in some run that the slack of `error` hides nothing."""
    for name in zoo.runs[0][1]:
        assert max(np.abs(want[name]).max(initial=0) for _, want in zoo.runs) > 1e-2, name
