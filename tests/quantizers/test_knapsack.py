"""The knapsack against brute force, and its promises."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnnconvert.quantizers import knapsack
from mnnconvert.quantizers.knapsack import choose, useful

ITEMS = st.lists(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20).map(float)), min_size=1, max_size=4),
    min_size=1,
    max_size=5,
)


def totals(items, answer):
    return tuple(sum(items[k][i][part] for k, i in enumerate(answer)) for part in (0, 1))


@given(ITEMS, st.integers(0, 120))
def test_equals_brute_force(items, budget):
    every = (totals(items, a) for a in itertools.product(*(range(len(o)) for o in items)))
    legal = [(cost, size) for size, cost in every if size <= budget]
    answer = choose(items, budget)
    if not legal:
        assert answer is None
    else:
        assert totals(items, answer)[::-1] == min(legal)


@given(ITEMS)
def test_more_bytes_never_cost_more(items):
    costs = [totals(items, a)[1] for budget in range(150) if (a := choose(items, budget)) is not None]
    assert costs == sorted(costs, reverse=True)


def test_large_budgets_are_kept_and_nearly_used(monkeypatch):
    monkeypatch.setattr(knapsack, "CELLS", 1 << 14)
    rng = np.random.default_rng(0)
    items = [[(int(n * b / 8), float(n * 4.0**-b)) for b in (2, 3, 4, 8)] for n in rng.integers(10_000, 5_000_000, 60)]
    low, high = (sum(o[i][0] for o in items) for i in (0, -1))
    for budget in np.linspace(low, high, 7).astype(int):
        size, _ = totals(items, choose(items, int(budget)))
        assert 0.99 * budget <= size <= budget


def test_nothing_to_choose():
    assert choose([], 0) == []
    assert choose([[(5, 1.0)]], 4) is None


@pytest.mark.parametrize("options", [[(4, 1.0), (3, 1.0), (8, 0.5), (9, 0.7), (2, 3.0)]])
def test_only_useful_options_are_kept(options):
    assert useful(options) == [4, 1, 2]
