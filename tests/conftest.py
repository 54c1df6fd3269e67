"""Fixtures that all tests share. Functions to import are in `graphs.py`: nested conftest modules hide this one."""

from __future__ import annotations

import os

import numpy as np
import pytest

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # before any test imports onnxruntime


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def opencl_device():
    """The OpenCL device: a computer without one skips, CI fails."""
    from mnnconvert.errors import UsageError
    from mnnconvert.runtime_ref.opencl.device import device

    try:
        return device()
    except UsageError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
