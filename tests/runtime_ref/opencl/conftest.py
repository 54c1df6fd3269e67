"""Tests of the OpenCL backend."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def device(opencl_device):
    return opencl_device


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch, device):
    """Tests neither see nor leave tunings of the user."""
    monkeypatch.setenv("MNNCONVERT_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))
