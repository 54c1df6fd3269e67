"""The device that the kernels are tested on: a computer without one skips, CI fails."""

from __future__ import annotations

import os

import pytest

from mnnconvert.errors import UsageError
from mnnconvert.runtime_ref.opencl import device as devices


@pytest.fixture(scope="session")
def device():
    try:
        return devices.device()
    except UsageError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch, device):
    """Tests neither see nor leave tunings of the user."""
    monkeypatch.setenv("MNNCONVERT_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))
