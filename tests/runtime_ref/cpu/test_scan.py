"""Running sums and products against numpy, bit for bit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from kernels import both, guarded

from mnnconvert.ops.reduction import CumSum
from mnnconvert.runtime_ref.cpu import library

pytestmark = pytest.mark.skipif(not library.runnable_levels(), reason="no compiled kernels")


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 1), (1, 17, 63), (2, 3, 200), (1, 40000, 1), (300, 70, 1)])
def test_sums(lib, rng, shape, dtype):
    x = (rng.standard_normal(shape) * 4e8).astype(dtype)
    for exclusive, reverse in itertools.product([False, True], repeat=2):
        y = both(lib, f"scan_{'f' if dtype == np.float32 else 'i'}32", shape, dtype, x=guarded(x), outer=shape[0],
                 n=shape[1], inner=shape[2], exclusive=exclusive, reverse=reverse, product=False)  # fmt: skip
        with np.errstate(over="ignore"):
            want = CumSum(exclusive=exclusive, reverse=reverse).ref(x, np.array(1))
        assert y.tobytes() == want.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_products(lib, rng, dtype):
    x = rng.uniform(-3, 3, (2, 30, 5)).astype(dtype)
    y = both(lib, f"scan_{'f' if dtype == np.float32 else 'i'}32", x.shape, dtype, x=guarded(x), outer=2, n=30, inner=5,
             exclusive=False, reverse=False, product=True)  # fmt: skip
    np.testing.assert_array_equal(y, np.cumprod(x, 1, dtype=dtype))


def test_nothing_is_written_for_an_empty_axis(lib):
    y = both(lib, "scan_f32", (2, 0, 3), x=np.zeros((2, 0, 3), np.float32), outer=2, n=0, inner=3, exclusive=True,
             reverse=True, product=False)  # fmt: skip
    assert y.shape == (2, 0, 3)
