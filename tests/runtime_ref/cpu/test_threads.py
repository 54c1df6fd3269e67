"""Threads share work without changing it: many or few, awake or asleep, also where some never get a processor."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from mnnconvert.runtime_ref.cpu import library

pytestmark = pytest.mark.skipif(not library.runnable_levels(), reason="no compiled kernels")


def product(lib: library.Library, pool: library.Pool, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a b, of which every thread computes some columns."""
    (m, k), n = a.shape, b.shape[1]
    y = np.full((m, n), np.nan, np.float32)
    strides: dict[str, Any] = dict.fromkeys(
        ("a_outer", "a_inner", "b_outer", "b_inner", "y_outer", "y_inner", "packed", "activation", "low", "high"), 0
    )
    lib.call("gemm_f32", pool, a=a, b=b, y=y, bias=None, residual=None, m=m, n=n, k=k, outer=1, inner=1, a_row=k,
             a_column=1, b_row=n, b_column=1, y_row=n, **strides)  # fmt: skip
    return y


@pytest.mark.parametrize("threads", [2, 5, 70])
def test_any_number_of_threads_computes_the_same(lib, rng, threads):
    a, b = rng.standard_normal((40, 96), np.float32), rng.standard_normal((96, 700), np.float32)
    expected = product(lib, library.Pool(lib, 1), a, b)
    np.testing.assert_allclose(expected, a @ b, rtol=1e-4, atol=1e-4)
    pool = library.Pool(lib, threads)
    for call in range(40):
        if call % 10 == 9:
            time.sleep(0.002)  # all of them sleep now
        assert product(lib, pool, a, b).tobytes() == expected.tobytes()


def test_pools_come_and_go(lib, rng):
    a, b = rng.standard_normal((40, 96), np.float32), rng.standard_normal((96, 700), np.float32)
    expected = product(lib, library.Pool(lib, 1), a, b)
    for threads in (3, 2, 4) * 5:
        pool = library.Pool(lib, threads)
        assert product(lib, pool, a, b).tobytes() == expected.tobytes()
        del pool
