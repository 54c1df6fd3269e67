"""Files that the released converter made of real models, read by us: both executors compute the same from them."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_cases import assert_equal
from real_models import MODELS, OPTIONS, Conversions

import mnnconvert
from mnnconvert.verify.mnn_engine import MnnEngine

pytestmark = [pytest.mark.models, pytest.mark.mnn]


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("name", ["rec", "MiniLM"])
def test_both_executors_agree_on_the_released_file(name, kind, tmp_path):
    """On one and the same file: the released converter does not always write the same one."""
    conversions = Conversions(MODELS[name], tmp_path)
    path, (feeds, *_) = conversions.peer(kind), MODELS[name].feeds()
    session = mnnconvert.load(path)
    with MnnEngine(path) as engine:
        want = engine.run(feeds)
    for output, got in session.run(feeds).items():
        assert_equal(got, np.asarray(want[output]), rtol=2e-3, atol=1e-7, name=output)
