"""HQQ: against a plain reading of the algorithm, against round-to-nearest, and on degenerate blocks."""

import numpy as np
import pytest
from ways import block_errors, same, use

from mnnconvert.errors import ConversionError, UsageError
from mnnconvert.quantizers import blocks, hqq, rtn
from mnnconvert.runtime_ref.cpu import library

F = np.float32


def oracle(block, bits):
    """One block in float64, as the paper writes it: (scale, minimum)."""
    top = 2**bits - 1
    scale = (block.max() - block.min()) / top
    zero = -block.min() / scale
    for _ in range(20):
        codes = np.clip(np.round(block / scale + zero), 0, top)
        residual = block - scale * (codes - zero)
        size = np.maximum(np.abs(residual), 1e-30)
        e = np.sign(residual) * np.maximum(size - size**-0.3 / 10, 0)
        zero = np.mean(codes - (block - e) / scale)
    return scale, -zero * scale


@pytest.mark.parametrize("deviation", [0.05, 3.0])
@pytest.mark.parametrize("bits", [3, 4, 8])
def test_follows_the_algorithm(way, bits, deviation):
    weights = (np.random.default_rng(0).standard_normal((6, 96)) * deviation).astype(F)
    coded = hqq.quantize(weights, bits, 48)
    expected = [oracle(block.astype(np.float64), bits) for block in weights.reshape(-1, 48)]
    scale, minimum = np.array(expected).T.reshape(2, 6, 2)
    np.testing.assert_allclose(coded.scale, scale, rtol=1e-6)
    close = np.isclose(coded.minimum, minimum, rtol=0, atol=1e-5 * deviation)  # float32 sums
    assert close.mean() > 0.9  # a tie that falls the other way leads to another fixed point


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("block", [32, 64])
def test_no_block_of_small_weights_gets_worse(way, bits, block):
    weights = (np.random.default_rng(1).laplace(size=(64, 256)) * 0.03).astype(F)
    fitted, plain = (block_errors(q.quantize(weights, bits, block), weights) for q in (hqq, rtn))
    assert (fitted <= plain * 1.001).all()  # float32 roundings of an offset that is already optimal
    assert fitted.sum() < 0.95 * plain.sum()


def reference(weights, block, bits):
    """The published loop in float64, over the whole matrix: minima [blocks of all rows]."""
    w = weights.astype(np.float64).reshape(-1, block)
    top = 2**bits - 1
    scale = (w.max(axis=1) - w.min(axis=1))[:, None] / top
    zero, least = -w.min(axis=1)[:, None] / scale, np.inf
    for _ in range(20):
        codes = np.clip(np.round(w / scale + zero), 0, top)
        residual = w - scale * (codes - zero)
        size = np.maximum(np.abs(residual), 1e-30)
        e = np.sign(residual) * np.maximum(size - size**-0.3 / 10, 0)
        zero = np.mean(codes - (w - e) / scale, axis=1, keepdims=True)
        if np.abs(residual).mean() >= least:
            break
        least = np.abs(residual).mean()
    return (-zero * scale)[:, 0]


@pytest.mark.parametrize("deviation", [0.05, 3.0])
def test_the_reference_variant_stops_with_the_whole_matrix(deviation, monkeypatch):
    weights = (np.random.default_rng(3).standard_normal((30, 96)) * deviation).astype(F)
    coded = hqq.quantize(weights, 3, 48, variant="reference")
    close = np.isclose(coded.minimum.reshape(-1), reference(weights, 48, 3), rtol=0, atol=1e-5 * deviation)
    assert close.mean() > 0.9
    alone = np.concatenate([hqq.quantize(w[None], 3, 48, variant="reference").minimum for w in weights])
    assert (alone != coded.minimum).any()  # a block that would go on is stopped by the others, and the other way round
    monkeypatch.setattr(blocks, "LARGE_TILE", 2 * 96)
    monkeypatch.setattr(blocks, "SMALL_TILE", 2 * 96)
    assert same(coded, hqq.quantize(weights, 3, 48, variant="reference"))


@pytest.mark.parametrize("bits", [2, 4])
def test_small_weights_get_the_least_squares_offset(bits):
    """No residual reaches 0.17: nothing shrinks, and the offset ends as the mean of what the codes leave."""
    weights = (np.random.default_rng(4).standard_normal((16, 64)) * 0.05).astype(F)
    coded = hqq.quantize(weights, bits, 32)
    scale = np.repeat(coded.scale, 32, axis=1).astype(np.float64)
    left = weights - (coded.codes - coded.lowest) * scale
    mean = left.reshape(16, 2, 32).mean(axis=2)
    settled = np.abs(mean - coded.minimum) < 1e-6
    assert settled.mean() > 0.9  # the others were still moving after 20 rounds


@pytest.mark.parametrize("deviation", [0.05, 3.0])
@pytest.mark.parametrize(("rows", "columns", "block"), [(1, 5, 0), (3, 51, 17), (17, 96, 16), (40, 33, 1)])
def test_all_ways_have_the_same_bits(rows, columns, block, deviation, monkeypatch):
    weights = (np.random.default_rng(5).standard_normal((rows, columns)) * deviation).astype(F)
    results = []
    for name in ("numpy", *library.runnable_levels()):
        use(name, monkeypatch)
        results.append(hqq.quantize(weights, 4, block))
    assert all(same(results[0], other) for other in results[1:])


def test_one_block_is_summed_like_many(way):
    """numpy would add a single column pairwise and change the last bit."""
    weights = np.random.default_rng(2).standard_normal((3, 4096)).astype(F) * F(0.05)
    many = hqq.quantize(weights, 4)
    alone = [hqq.quantize(weights[i : i + 1], 4).minimum[0, 0] for i in range(3)]
    assert many.minimum[:, 0].tolist() == alone


def test_degenerate_blocks(way):
    weights = np.zeros((4, 64), F)
    weights[1] = 0.3
    weights[2] = 1e-30
    weights[3, 32:] = 0.5
    for half in (False, True):
        decoded = hqq.quantize(weights, 4, 32, half_scales=half).decode()
        tolerance = 1e-3 if half else np.finfo(F).eps
        np.testing.assert_allclose(decoded, weights, rtol=tolerance, atol=1e-29)
        assert (decoded[0] == 0).all()


def test_refusals():
    with pytest.raises(UsageError, match="hqq-needs-asymmetric"):
        hqq.quantize(np.ones((1, 32), F), 4, 32, symmetric=True)
    with pytest.raises(ConversionError, match="non-finite-weight"):
        hqq.quantize(np.full((1, 32), np.nan, F), 4, 32)
