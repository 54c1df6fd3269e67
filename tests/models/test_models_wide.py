"""Every model of the wide zoo in both executors against onnxruntime.

The packages of models-wide.txt are large and their tests are marked slow: `make test-slow` fetches and runs them.
"""

from __future__ import annotations

import numpy as np
import pytest
from wide_models import MODELS, SLOW, WIDE_FOLDER, Zoo, agrees_but_for_steps

import mnnconvert
from mnnconvert.verify.compare import Tolerance
from mnnconvert.verify.engines import Engine, OnnxRuntimeEngine, SessionEngine
from mnnconvert.verify.mnn_engine import MnnEngine
from mnnconvert.verify.verification import VerificationResult, verify_engines

pytestmark = pytest.mark.models

TOLERANCE = Tolerance(1e-3, 1e-7)
missing = pytest.mark.skipif(not WIDE_FOLDER.is_dir(), reason="run `make models-wide` to get these models")
QUICK = [pytest.param(model, id=name) for name, model in MODELS.items()]
FULL = [pytest.param(m, id=name, marks=[pytest.mark.slow, missing]) for name, m in SLOW.items()]


@pytest.fixture(scope="module", params=[*QUICK, *FULL])
def zoo(request, tmp_path_factory) -> Zoo:
    return Zoo(request.param, tmp_path_factory.mktemp("wide"))


def compared(zoo: Zoo, candidate: Engine) -> VerificationResult:
    return verify_engines(OnnxRuntimeEngine(zoo.source), candidate, [feeds for feeds, _ in zoo.runs], TOLERANCE)


def test_the_conversion_proves_itself(zoo):
    """With default options, whatever the made-up inputs are."""
    assert zoo.report.verification is not None and zoo.report.verification.passed
    noted = [note for note in zoo.report.diagnostics if note.reference == "disputed-outputs"]
    assert bool(noted) == bool(zoo.report.verification.disputes())
    assert zoo.model.steps or not noted


def test_our_executor(zoo):
    """All runs are within the tolerance; of a model with steps a run may be disputed."""
    result = compared(zoo, SessionEngine(mnnconvert.load(zoo.path)))
    assert result.passed, result.lines()
    assert zoo.model.steps or not result.disputes()


@pytest.mark.mnn
def test_the_released_runtime(zoo):
    """The same, as far as it can."""
    with MnnEngine(zoo.path) as engine:
        agrees_but_for_steps(compared(zoo, engine), zoo.model.steps)


def test_the_outputs_are_worth_comparing(zoo):
    """Every output is so large in some run that the absolute slack hides nothing."""
    for name in zoo.runs[0][1]:
        assert max(np.abs(want[name]).max(initial=0) for _, want in zoo.runs) > 1e-2, name
