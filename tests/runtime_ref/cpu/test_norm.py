"""Layer, RMS, instance and group normalisation."""

from __future__ import annotations

import numpy as np
import pytest
from kernels import guard, guarded


def _norm(x, gamma, beta, rms, epsilon):
    x = x.astype(np.float64)
    centred = x if rms else x - x.mean(1, keepdims=True)
    y = centred / np.sqrt(np.square(centred).mean(1, keepdims=True) + epsilon)
    return y if gamma is None else y * gamma[:, None] + beta[:, None]


def _run(lib, x, gamma=None, beta=None, addend=None, rms=0, epsilon=1e-5):
    outer, n, inner = x.shape
    runs = []
    for threads in (1, 2):
        (y, check_y), (total, check_total) = guard(x.shape), guard(x.shape)
        given = {k: None if v is None else guarded(v) for k, v in
                 {"x": x, "addend": addend, "gamma": gamma, "beta": beta}.items()}  # fmt: skip
        lib.call("normalize", lib.pool(threads), **given, total=total, y=y, outer=outer, n=n, inner=inner, rms=rms,
                 epsilon=epsilon)  # fmt: skip
        check_y()
        check_total()
        runs.append((y, total))
    assert runs[0][0].tobytes() == runs[1][0].tobytes()
    return runs[0]


SHAPES = [
    (1, 1, 1),
    (7, 5, 1),
    (33, 384, 1),
    (2, 63, 1),
    (3, 5000, 1),
    (2, 17, 3),
    (1, 3136, 8),
    (3, 50, 40),
    (2, 9, 16),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rms", [0, 1])
@pytest.mark.parametrize("affine", [False, True])
def test_norms(lib, shape, rms, affine, rng):
    x = (rng.normal(size=shape) + 3).astype(np.float32)
    gamma, beta = rng.normal(size=(2, shape[1])).astype(np.float32) if affine else (None, None)
    y, _ = _run(lib, x, gamma, beta, rms=rms, epsilon=1e-3)
    np.testing.assert_allclose(y, _norm(x, gamma, beta, rms, 1e-3), rtol=2e-6, atol=5e-6)


@pytest.mark.parametrize("shape", [(7, 5, 1), (33, 384, 1), (3, 50, 40)])
def test_addend(lib, shape, rng):
    x, addend = rng.normal(size=(2, *shape)).astype(np.float32)
    y, total = _run(lib, x, addend=addend)
    assert np.array_equal(total, x + addend)
    np.testing.assert_allclose(y, _norm(x + addend, None, None, 0, 1e-5), rtol=2e-6, atol=5e-6)


@pytest.mark.parametrize("inner", [1, 8])
def test_far_from_zero(lib, inner, rng):
    """The mean is taken away before squares are summed: a large common part costs no digits of the deviation."""
    x = (rng.normal(size=(2, 4000, inner)) + 1000).astype(np.float32)
    y, _ = _run(lib, x)
    np.testing.assert_allclose(y, _norm(x, None, None, 0, 1e-5), atol=3e-4)


def test_not_a_number_fills_its_row(lib):
    x = np.zeros((3, 20, 1), np.float32)
    x[1, 7] = np.nan
    y, _ = _run(lib, x)
    assert np.isnan(y[1]).all() and (y[[0, 2]] == 0).all()
