"""Softmax over any axis, with scale and mask."""

from __future__ import annotations

import numpy as np
import pytest
from kernels import both, guarded


def _softmax(x: np.ndarray, axis: int) -> np.ndarray:
    """The difference to the maximum is rounded to float32, as in the definition of the op."""
    e = np.exp((x - x.max(axis, keepdims=True)).astype(np.float64))
    return e / e.sum(axis, keepdims=True)


def _run(lib, x, mask=None, scale=1.0, b=1, c=1, strides=(0, 0, 0)):
    outer, n, inner = x.shape
    mask = None if mask is None else guarded(mask)
    return both(lib, "softmax", x.shape, x=guarded(x), mask=mask, outer=outer, n=n, inner=inner, b=b, c=c,
                mask_a=strides[0], mask_b=strides[1], mask_c=strides[2], scale=scale)  # fmt: skip


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 1), (40, 17, 1), (9, 1000, 1), (2, 3, 5), (1, 63, 100), (3, 7, 16),
                                   (1, 2, 8400), (0, 4, 1), (3, 0, 2)])  # fmt: skip
@pytest.mark.parametrize("scale", [1.0, 0.125])
def test_axes(lib, shape, scale, rng):
    x = (rng.normal(size=shape) * 9).astype(np.float32)
    want = _softmax(x * np.float32(scale), 1) if x.size else x
    np.testing.assert_allclose(_run(lib, x, scale=scale), want, rtol=2e-6, atol=1e-37)


@pytest.mark.parametrize("mask_shape", [(1, 1, 1, 33), (2, 1, 1, 33), (1, 1, 5, 33), (2, 3, 5, 33), (1, 3, 1, 33)])
def test_masks(lib, mask_shape, rng):
    x = rng.normal(size=(2, 3, 5, 33)).astype(np.float32)
    mask = np.where(rng.random(mask_shape) < 0.5, -np.inf, rng.normal(size=mask_shape)).astype(np.float32)
    strides = [0 if size == 1 else step // 4 for size, step in zip(mask_shape[:3], mask.strides[:3], strict=True)]
    got = _run(lib, x.reshape(30, 33, 1), mask, 0.5, 3, 5, strides)
    with np.errstate(invalid="ignore"):
        want = _softmax(x * np.float32(0.5) + mask, -1).reshape(30, 33, 1)
    np.testing.assert_allclose(got, want, rtol=2e-6)


def test_what_is_no_number_fills_its_row(lib):
    for inner in (1, 9):
        x = np.zeros((4, 19, inner), np.float32)
        x[0, 3], x[1, 3], x[2] = np.nan, np.inf, -np.inf
        got = _run(lib, x)
        assert np.isnan(got[:3]).all()
        np.testing.assert_allclose(got[3], 1 / 19, rtol=1e-6)
