"""Plain to blocked maps and back."""

from __future__ import annotations

import numpy as np
import pytest
from blocked import blocked_shape, from_blocked, to_blocked
from kernels import both, guarded

from mnnconvert.runtime_ref.cpu import library

pytestmark = pytest.mark.skipif(not library.runnable_levels(), reason="no compiled kernels")

SHAPES = [(1, 1, 1, 1), (2, 3, 5, 7), (1, 17, 3, 1), (2, 16, 4, 8), (1, 63, 9, 5), (1, 64, 40, 41)]


@pytest.mark.parametrize("shape", SHAPES)
def test_there_and_back(lib, rng, shape):
    x = rng.standard_normal(shape, dtype=np.float32)
    sizes = {"batch": shape[0], "channels": shape[1], "pixels": shape[2] * shape[3]}
    y = both(lib, "nchw_to_blocked", blocked_shape(shape, lib.lanes), x=guarded(x), **sizes)
    np.testing.assert_array_equal(from_blocked(y, shape[1]), x)
    back = both(lib, "blocked_to_nchw", shape, x=guarded(to_blocked(x, lib.lanes)), **sizes)
    np.testing.assert_array_equal(back, x)
