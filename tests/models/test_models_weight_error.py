"""Coding the weights of a real transformer, without data: which method loses how much."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from real_models import MODELS, source

from mnnconvert.quantizers import hqq, lsq, rtn

pytestmark = pytest.mark.models


@pytest.fixture(scope="module")
def matrices():
    """Every linear layer of MiniLM, [outputs, inputs], of which every fourth output."""
    model = onnx.load(source(MODELS["MiniLM"].file))
    arrays = [numpy_helper.to_array(t) for t in model.graph.initializer if len(t.dims) == 2]
    linear = [a.T for a in arrays if a.dtype == np.float32 and max(a.shape) <= 1536 and min(a.shape) >= 384]
    assert len(linear) >= 18
    return [np.ascontiguousarray(w[::4]) for w in linear]


def relative_error(matrices, method, *options):
    """The mean over layers of |w - decoded|^2 / |w|^2."""
    errors = [np.linalg.norm(method.quantize(w, *options).decode() - w) / np.linalg.norm(w) for w in matrices]
    return np.mean(np.square(errors))


@pytest.mark.parametrize(
    ("bits", "block", "of_hqq", "of_rtn", "symmetric_of_rtn"),
    [(4, 64, 0.90, 0.83, 0.71), (4, 32, 0.89, 0.80, 0.72), (3, 64, 0.81, 0.75, 0.51), (2, 32, 0.66, 0.59, 0.28)],
)
def test_least_squares_grids_lose_least(matrices, bits, block, of_hqq, of_rtn, symmetric_of_rtn):
    ours, fitted, plain = (relative_error(matrices, m, bits, block, False, True) for m in (lsq, hqq, rtn))
    assert ours <= of_hqq * fitted and ours <= of_rtn * plain
    ours, plain = (relative_error(matrices, m, bits, block, True, True) for m in (lsq, rtn))
    assert ours <= symmetric_of_rtn * plain
