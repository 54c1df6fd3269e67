"""Recurrent layers on OpenCL: odd sizes, both directions, states to begin with, all variants, halves."""

from __future__ import annotations

import numpy as np
import pytest
from one_op import check, graph_of

from mnnconvert.ops.recurrent import GRU, LSTM, RNN
from mnnconvert.runtime_ref.session import Session

SIZES = [(1, 1, 3, 1), (5, 2, 7, 9), (3, 1, 4, 16), (2, 3, 5, 33)]
"""Steps, batch, inputs, units."""


def numbers(rng, *shape):
    return (rng.standard_normal(shape) / 2).astype(np.float32)


def simple(op, gates, sizes, directions, starts, rng):
    """The operands of an LSTM or RNN behind x, all constant."""
    _, batch, width, n = sizes
    weights = [numbers(rng, directions, gates * n, k) for k in (width, n)]
    states = 2 if op is LSTM else 1
    return [*weights, numbers(rng, directions, gates * n), *[numbers(rng, directions, batch, n)] * (states * starts)]


def gru(sizes, directions, starts, rng):
    _, batch, width, n = sizes
    each = [(width + n, 2 * n), (1, 2 * n), (width + n, n), (1, n), (1, 3 * n)]
    return [numbers(rng, *shape) for _ in range(directions) for shape in each] + [
        numbers(rng, directions, batch, n)
    ] * starts


def layer(kind, sizes, directions, starts, rng):
    """An op and its operands behind x."""
    n = sizes[3]
    if kind in (LSTM, RNN):
        return kind(n), simple(kind, 4 if kind is LSTM else 1, sizes, directions, starts, rng)
    return GRU(n, directions == 2, kind == "linear"), gru(sizes, directions, starts, rng)


@pytest.mark.parametrize("starts", [False, True])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("kind", [LSTM, RNN, "gru", "linear"])
def test_layers(rng, guarded, kind, directions, starts):
    for sizes in SIZES:
        op, operands = layer(kind, sizes, directions, starts, rng)
        check(op, numbers(rng, *sizes[:3]), *operands, bound=2e-5)
    assert not sum(p.broken_guards() for p in guarded)


@pytest.mark.parametrize("kind", [LSTM, RNN, "gru", "linear"])
def test_every_variant(rng, variants, kind):
    op, operands = layer(kind, SIZES[1], 2, True, rng)
    graph, feeds = graph_of(op, numbers(rng, *SIZES[1][:3]), *operands)
    want = Session(graph, "reference").run(feeds)
    count = 0
    for _, got in variants(graph, feeds, strict=True):
        assert all(np.allclose(got[name], want[name], atol=1e-5) for name in want)
        count += 1
    assert count >= 2


def test_what_is_not_finite(rng):
    op, operands = layer(LSTM, SIZES[1], 2, False, rng)
    x = numbers(rng, *SIZES[1][:3])
    x[2, 1, 3], x[4, 0, 0] = np.nan, np.inf
    check(op, x, *operands, bound=2e-5)


def test_halves(rng):
    op, operands = layer(LSTM, SIZES[3], 1, True, rng)
    check(op, numbers(rng, *SIZES[3][:3]), *operands, precision="half", bound=1e-2)
