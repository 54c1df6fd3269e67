"""The probe of the machine does the arithmetic that it is timed for."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.mark.parametrize("rounds", [0, 1, 7])
def test_peak_fma(lib, rounds):
    y = np.arange(lib.lanes, dtype=np.float32)
    chains = np.arange(12.0)[:, None] + np.zeros(lib.lanes)
    for _ in range(rounds):
        chains = chains / 2 + y
    lib.call("peak_fma", y=y, rounds=rounds)
    np.testing.assert_array_equal(y, chains.sum(0))
