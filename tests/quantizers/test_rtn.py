"""Round to nearest: bits against a scalar oracle, the promised error bound, and degenerate blocks."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mnnconvert.errors import ConversionError
from mnnconvert.quantizers.blocks import LARGE_TILE, SMALL_TILE
from mnnconvert.quantizers.rtn import quantize

F = np.float32


def oracle(block, bits, symmetric):
    """One block, one float32 operation at a time: (codes, scale, minimum)."""
    top = 2 ** (bits - 1) - 1 if symmetric else 2**bits - 1
    low = F(0) if symmetric else min(block)
    scale = F((max(abs(w) for w in block) if symmetric else F(max(block) - low)) / F(top))
    codes = []
    for w in block:
        x = float(F(F(w - low) / scale)) if scale else 0.0
        code = int(math.copysign(math.floor(abs(x) + 0.5), x))
        codes.append(max(-top if symmetric else 0, min(top, code)) - (0 if symmetric else 2 ** (bits - 1)))
    return codes, scale, low


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize(("columns", "block"), [(37, 0), (96, 32), (51, 17), (5, 1)])
def test_every_bit_is_that_of_the_scalar_oracle(way, bits, symmetric, columns, block):
    weights = np.random.default_rng(bits).standard_normal((4, columns)).astype(F)
    coded = quantize(weights, bits, block, symmetric)
    for row in range(4):
        for b, values in enumerate(weights[row].reshape(coded.blocks, -1)):
            codes, scale, low = oracle(list(values), bits, symmetric)
            assert coded.codes[row].reshape(coded.blocks, -1)[b].tolist() == codes
            assert coded.scale[row, b] == scale
            assert symmetric or coded.minimum[row, b] == low


def test_halves_are_rounded_away_from_zero_and_the_number_before_a_half_is_not(way):
    edge = np.nextafter(F(0.5), F(0))
    weights = np.array([[7, 0.5, -0.5, 1.5, -2.5, edge, -edge]], F)
    assert quantize(weights, 4, symmetric=True).codes.tolist() == [[7, 1, -1, 2, -3, 0, 0]]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 8),
    st.booleans(),
    st.booleans(),
    st.integers(-30, 3),
    st.sampled_from([0.0, 1.0, 1e3]),
    st.integers(),
)
def test_each_weight_decodes_to_within_half_a_step(bits, symmetric, half, exponent, offset, seed):
    assume(not (half and offset * 10.0**exponent > 1e4))
    rng = np.random.default_rng(abs(seed))
    weights = ((rng.standard_normal((3, 64)) + offset) * 10.0**exponent).astype(F)
    coded = quantize(weights, bits, 16, symmetric, half)
    step = np.repeat(coded.scale, 16, axis=1).astype(np.float64)
    rounding = 4 * np.finfo(F).eps * (np.abs(weights) + step * 2**bits)  # decoding: two operations in float32
    assert (np.abs(coded.decode().astype(np.float64) - weights) <= step / 2 + rounding).all()


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_degenerate_rows(way, bits, half, symmetric):
    weights = np.zeros((5, 64), F)
    weights[1] = 0.3
    weights[2, 32:] = 0.5
    weights[3] = 1e-30
    weights[4] = -0.3
    decoded = quantize(weights, bits, 32, symmetric, half).decode()
    assert np.isfinite(decoded).all()
    assert (decoded[0] == 0).all()
    tolerance = 1e-3 if half else np.finfo(F).eps  # relative: float16 scale, or one rounding of float32
    np.testing.assert_allclose(decoded[[1, 2, 4]], weights[[1, 2, 4]], rtol=tolerance)
    assert (np.abs(decoded[3]) <= (1e-7 if half else 1.1e-30)).all()


def test_a_constant_is_its_own_minimum(way):
    coded = quantize(np.full((1, 32), F(0.3)), 4, 32)
    assert coded.scale == 0 and (coded.decode() == F(0.3)).all()


def test_small_weights_keep_their_detail(way):
    """A step of 1e-6 or less is no reason to flatten a block."""
    weights = np.linspace(-1e-4, 1e-4, 64, dtype=F)[None]
    np.testing.assert_allclose(quantize(weights, 8).decode(), weights, atol=2e-4 / 255 / 2 * 1.001)


def test_half_scales_are_float16_numbers_that_span_the_block(way):
    weights = (1000 + np.random.default_rng(0).standard_normal((8, 64))).astype(F)
    coded = quantize(weights, 4, 32, half_scales=True)
    for numbers in (coded.scale, coded.minimum):
        assert (numbers == numbers.astype(np.float16).astype(F)).all()
    ends = coded.minimum.astype(np.float64) + 15 * coded.scale.astype(np.float64)
    assert (coded.minimum <= weights.reshape(8, 2, 32).min(2)).all() and (
        ends >= weights.reshape(8, 2, 32).max(2)
    ).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("symmetric", [False, True])
def test_non_finite_weights_are_refused(way, bad, symmetric):
    weights = np.ones((2, 32), F)
    weights[1, 5] = bad
    with pytest.raises(ConversionError, match="non-finite-weight"):
        quantize(weights, 4, 16, symmetric)


def test_numbers_out_of_range_are_refused(way):
    with pytest.raises(ConversionError, match="weight-range"):
        quantize(np.array([[-3e38, 3e38]], F), 8)
    with pytest.raises(ConversionError, match="half-overflow"):
        quantize(np.array([[-7e4, 0]], F), 8, half_scales=True)


def test_block_must_divide_the_columns():
    with pytest.raises(ValueError, match="do not divide"):
        quantize(np.ones((2, 33), F), 4, 32)


@pytest.mark.parametrize("long", [False, True])
def test_tiles_do_not_show(way, long):
    tile = SMALL_TILE if way == "numpy" else LARGE_TILE
    shape = (3, tile + 64) if long else (tile // 64 * 2 + 1, 64)
    weights = np.random.default_rng(0).standard_normal(shape).astype(F)
    coded = quantize(weights.T[:, :].T, 4, 32)
    ends = quantize(np.ascontiguousarray(weights[-1:, -64:]), 4, 32)
    assert (coded.codes[-1, -64:] == ends.codes).all() and (coded.scale[-1, -2:] == ends.scale).all()


def test_a_memory_map_is_read_in_tiles(tmp_path):
    import tracemalloc

    weights = np.memmap(tmp_path / "w", F, "w+", shape=(2048, 2048))
    weights[:] = np.arange(2048, dtype=F)
    tracemalloc.start()
    coded = quantize(weights, 8, 64)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * coded.codes.nbytes // 2  # 16 MiB of weights: the 4 MiB of codes, scales and small temporaries
