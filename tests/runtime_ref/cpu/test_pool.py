"""Pooling on blocked maps against the definition of the op."""

from __future__ import annotations

import numpy as np
import pytest
from blocked import blocked_shape, from_blocked, to_blocked
from kernels import both, guarded

from mnnconvert.ops.pooling import Pooling
from mnnconvert.runtime_ref.cpu import library

pytestmark = pytest.mark.skipif(not library.runnable_levels(), reason="no compiled kernels")


def run(lib, op, x):
    (kh, sh, top, oh), (kw, sw, left, ow) = (op.window(i, x.shape[i + 2]) for i in (0, 1))
    counted = op.count == "INCLUDE_PADDING"
    y = both(
        lib, "pool_f32", blocked_shape((*x.shape[:2], oh, ow), lib.lanes), x=guarded(to_blocked(x, lib.lanes)),
        n=x.shape[0], channels=x.shape[1], h=x.shape[2], width=x.shape[3], out_h=oh, out_w=ow, kernel_h=kh, kernel_w=kw,
        stride_h=sh, stride_w=sw, top=top, left=left, margin_h=top if counted else 0, margin_w=left if counted else 0,
        mean=op.function == "AVEPOOL",
    )  # fmt: skip
    return from_blocked(np.nan_to_num(y, nan=7e30), x.shape[1])


@pytest.mark.parametrize("function", ["MAXPOOL", "AVEPOOL"])
@pytest.mark.parametrize(("kernel", "strides", "pads"), [
    ((2, 2), (2, 2), (0, 0, 0, 0)), ((3, 3), (2, 2), (1, 1, 1, 1)), ((3, 2), (1, 3), (1, 0, 2, 1)),
    ((5, 1), (3, 1), (4, 0, 4, 0)), ((9, 9), (1, 1), (0, 0, 0, 0)),
])  # fmt: skip
@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("count", ["INCLUDE_PADDING", "EXCLUDE_PADDING"])
def test_windows(lib, rng, function, kernel, strides, pads, ceil, count):
    op = Pooling(function=function, kernel=kernel, strides=strides, pads=pads, ceil=ceil, count=count)
    for shape in ((2, 3, 7, 6), (1, 17, 9, 13), (1, 64, 5, 5)):
        x = rng.standard_normal(shape, dtype=np.float32)
        np.testing.assert_allclose(run(lib, op, x), op.ref(x), rtol=2e-6, atol=1e-6)


def test_nan_stays(lib, rng):
    x = rng.standard_normal((1, 2, 6, 6), dtype=np.float32)
    x[0, 1, 2, 3] = np.nan
    for function in ("MAXPOOL", "AVEPOOL"):
        op = Pooling(function=function, kernel=(3, 3), strides=(1, 1))
        np.testing.assert_array_equal(run(lib, op, x) == np.float32(7e30), np.isnan(op.ref(x)))


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 17, 3, 5), (1, 64, 7, 7), (3, 40, 1, 2)])
@pytest.mark.parametrize("function", ["MAXPOOL", "AVEPOOL"])
def test_whole_planes(lib, rng, shape, function):
    x = rng.standard_normal(shape, dtype=np.float32)
    y = both(lib, "pool_all_f32", blocked_shape((*shape[:2], 1, 1), lib.lanes), x=guarded(to_blocked(x, lib.lanes)),
             n=shape[0], channels=shape[1], pixels=shape[2] * shape[3], mean=function == "AVEPOOL")  # fmt: skip
    want = Pooling(function=function, whole=True).ref(x)
    np.testing.assert_allclose(from_blocked(y, shape[1]), want, rtol=2e-6, atol=1e-6)
