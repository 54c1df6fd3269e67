"""Winograd convolution on blocked maps against float64."""

from __future__ import annotations

import numpy as np
import pytest
from blocked import blocked_shape, from_blocked, to_blocked
from kernels import both, guard, guarded, lib  # noqa: F401

from mnnconvert.ops.convolution import Convolution
from mnnconvert.runtime_ref.cpu import library
from mnnconvert.runtime_ref.winograd import weight_matrix

pytestmark = pytest.mark.skipif(not library.runnable_levels(), reason="no compiled kernels")

IDENTITY, CLIP, LEAKY = 0, 1, 8
BOUND = {2: 1e-6, 4: 1e-5}  # of the largest result


def pack(lib, w, tile):  # noqa: F811
    outputs, inputs = w.shape[:2]
    panel = 2 * lib.lanes
    shape = ((tile + 2) ** 2, -(-outputs // panel), -(-inputs // lib.lanes) * lib.lanes, panel)
    packed, unhurt = guard(shape)
    lib.call(
        "winograd_pack", w=guarded(w), g=weight_matrix(tile), packed=packed, outputs=outputs, inputs=inputs, tile=tile
    )
    unhurt()
    return packed


def check(lib, rng, shape, outputs, pads, tile, activation=IDENTITY, extras=True):  # noqa: F811
    x = rng.standard_normal(shape, dtype=np.float32)
    w = rng.standard_normal((outputs, shape[1], 3, 3), dtype=np.float32)
    bias = rng.standard_normal(outputs, dtype=np.float32)
    sums = Convolution(pads=pads).ref(x.astype(np.float64), w.astype(np.float64))
    residual = rng.standard_normal(sums.shape, dtype=np.float32)
    if extras:
        sums += bias.reshape(1, -1, 1, 1) + residual
    y = both(
        lib, "winograd", blocked_shape(sums.shape, lib.lanes), x=guarded(to_blocked(x, lib.lanes)),
        packed=guarded(pack(lib, w, tile)), bias=guarded(bias) if extras else None,
        residual=guarded(to_blocked(residual, lib.lanes)) if extras else None, images=shape[0], inputs=shape[1],
        height=shape[2], width=shape[3], outputs=outputs, out_height=sums.shape[2], out_width=sums.shape[3],
        top=pads[0], left=pads[1], tile=tile, activation=activation, low=0.25, high=2.0,
    )  # fmt: skip
    want = sums
    if activation:
        want = np.clip(sums, 0.25, 2.0) if activation == CLIP else np.where(sums < 0, sums * 0.25, sums)
    np.testing.assert_allclose(from_blocked(y, outputs), want, rtol=0, atol=BOUND[tile] * np.abs(sums).max())


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (3, 5), (16, 16), (17, 63), (64, 33)])
def test_sizes(lib, rng, inputs, outputs, tile):  # noqa: F811
    for size in [(1, 1), (3, 5), (8, 8), (5, 17), (31, 17)]:
        check(lib, rng, (1, inputs, *size), outputs, (1, 1, 1, 1), tile)


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (2, 0, 1, 3), (0, 7, 5, 0)])
def test_pads(lib, rng, pads, tile):  # noqa: F811
    check(lib, rng, (3, 20, 9, 11), 24, pads, tile)


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("activation", [IDENTITY, CLIP, LEAKY])
def test_epilogue(lib, rng, activation, tile):  # noqa: F811
    check(lib, rng, (2, 8, 7, 7), 40, (1, 1, 1, 1), tile, activation)
    check(lib, rng, (2, 8, 7, 7), 40, (1, 1, 1, 1), tile, activation, extras=False)


@pytest.mark.parametrize("tile", [2, 4])
def test_many_channels(lib, rng, tile):  # noqa: F811
    """Several chunks of outputs; threads that share them, since there is one group of tiles."""
    check(lib, rng, (1, 256, 7, 7), 200, (1, 1, 1, 1), tile)


def test_nothing(lib, rng):  # noqa: F811
    y = both(
        lib, "winograd", (0, 1, 3, 3, lib.lanes), x=None, packed=None, bias=None, residual=None, images=0, inputs=1,
        height=3, width=3, outputs=1, out_height=3, out_width=3, top=1, left=1, tile=4, activation=0, low=0, high=0,
    )  # fmt: skip
    assert y.size == 0
