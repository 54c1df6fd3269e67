"""What the tests of the quantizers share: every way to compute, and errors as they count."""

from __future__ import annotations

import numpy as np
import pytest

from mnnconvert.quantizers import compiled
from mnnconvert.runtime_ref.cpu import library


@pytest.fixture(params=["numpy", *library.runnable_levels()])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Quantizers compute with numpy, or with the kernels of a level."""
    use(request.param, monkeypatch)
    return request.param


def use(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = None if name == "numpy" else library.load(name)
    if kernels is not None and "fit_grids" not in kernels.kernels:
        pytest.skip("the kernels of the quantizers were not built")
    monkeypatch.setattr(compiled, "kernels", lambda: kernels)


def same(a, b) -> bool:
    """Whether two coded weights have the same bits."""
    equal = a.codes.tobytes() == b.codes.tobytes() and a.scale.tobytes() == b.scale.tobytes()
    return equal and (a.minimum is None if b.minimum is None else a.minimum.tobytes() == b.minimum.tobytes())


def block_errors(coded, weights, importance=None):
    """Weighted squared errors [rows, blocks] of the decoded weights, in float64."""
    difference = coded.decode().astype(np.float64) - weights
    weighted = difference**2 * (1.0 if importance is None else importance)
    return weighted.reshape(len(weights), coded.blocks, -1).sum(axis=2)
