"""Samples at given points against the definition, bit for bit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from blocked import blocked_shape, from_blocked, to_blocked
from kernels import both, guarded

from mnnconvert.ops.vision import GridSample
from mnnconvert.runtime_ref.cpu import library

pytestmark = pytest.mark.skipif(not library.runnable_levels(), reason="no compiled kernels")


def run(lib, op, x, points):
    (n, channels), sizes, places = x.shape[:2], [1, *x.shape[2:]][-3:], points.shape[1:-1]
    flat = (n, channels, -1, sizes[2])  # depth and height lie one after the other
    y = both(lib, "grid_sample", blocked_shape((n, channels, 1, int(np.prod(places))), lib.lanes),
             x=guarded(to_blocked(x.reshape(flat), lib.lanes)), grid=guarded(points), n=n, channels=channels,
             axes=x.ndim - 2, depth=sizes[0], height=sizes[1], width=sizes[2], points=int(np.prod(places)),
             nearest=op.mode == "NEAREST", zeros=op.padding == "ZEROS", align=op.align_corners)  # fmt: skip
    assert np.isfinite(y[:, -1, ..., (channels - 1) % lib.lanes + 1 :]).all()
    return from_blocked(np.nan_to_num(y, nan=7e30), channels).reshape(n, channels, *places)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", ["ZEROS", "CLAMP"])
@pytest.mark.parametrize("mode", ["BILINEAR", "NEAREST"])
def test_points(lib, rng, mode, padding, align):
    op = GridSample(mode=mode, padding=padding, align_corners=align)
    shapes = [((1, 1, 1, 1), (3, 1)), ((2, 17, 5, 6), (31, 33)), ((1, 40, 63, 3), (1, 5)), ((2, 3, 3, 4, 5), (2, 9, 7))]
    for shape, places in shapes:
        x = rng.standard_normal(shape, np.float32)
        points = rng.uniform(-1.4, 1.4, (shape[0], *places, len(shape) - 2)).astype(np.float32)
        points[0].reshape(-1)[:3] = -1, 1, 0
        np.testing.assert_array_equal(run(lib, op, x, points), op.ref(x, points))


def test_points_far_away_and_nowhere(lib, rng):
    x = rng.standard_normal((1, 3, 4, 5), np.float32)
    x[0, 0, 0, 0] = np.inf  # does not leak into what is outside
    far = np.array(list(itertools.product([1e30, -1e30, np.inf, np.nan], repeat=2)), np.float32).reshape(1, 1, -1, 2)
    with np.errstate(invalid="ignore", over="ignore"):
        want = np.nan_to_num(GridSample().ref(x, far), nan=7e30)
        np.testing.assert_array_equal(run(lib, GridSample(), x, far), want)
        nearest = run(lib, GridSample(mode="NEAREST"), x, far)
    np.testing.assert_array_equal(nearest, 0)
    assert np.isfinite(run(lib, GridSample(mode="NEAREST", padding="CLAMP"), x, far)[0, 1:]).all()
