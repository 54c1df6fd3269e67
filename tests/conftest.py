"""Fixtures that all tests share. Functions to import are in `graphs.py`: nested conftest modules hide this one."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
