"""Layouts keep their promises on any graph: nothing overlaps, edges point down, chains are straight."""

from __future__ import annotations

import time

import numpy as np
import pytest

from mnnconvert.report.graph_view import View, view


def random_edges(rng: np.random.Generator, count: int, reach: int) -> list[tuple[int, int]]:
    """Two operands for most items, from the `reach` items before them."""
    pairs = [(int(rng.integers(max(0, i - reach), i)), i) for i in range(1, count) for _ in range(2)]
    return sorted({pair for pair in pairs if rng.random() < 0.8})


def check(made: View, edges: list[tuple[int, int]], count: int) -> None:
    assert sorted(m for box in made.boxes for m in box.members) == list(range(count))
    places = [(box.rank, box.lane) for box in made.boxes]
    assert len(set(places)) == len(places)
    assert places == sorted(places, key=lambda p: p[0])
    assert all(0 <= box.rank < made.ranks and 0 <= box.lane < made.lanes for box in made.boxes)
    box_of = {m: i for i, box in enumerate(made.boxes) for m in box.members}
    expected = {(box_of[a], box_of[b]) for a, b in edges if box_of[a] != box_of[b]}
    assert {(a, b) for a, b, _ in made.edges} == expected
    for a, b, gutter in made.edges:
        assert made.boxes[a].rank < made.boxes[b].rank
        assert -1 <= gutter < made.gutters
        if gutter < 0 and made.boxes[b].rank > made.boxes[a].rank + 1:
            check_free(made, a, b)


def check_free(made: View, a: int, b: int) -> None:
    """A direct line over several ranks passes no box."""
    lane, first, last = made.boxes[a].lane, made.boxes[a].rank, made.boxes[b].rank
    assert made.boxes[b].lane == lane
    assert not [box for box in made.boxes if box.lane == lane and first < box.rank < last]


@pytest.mark.parametrize("collapsed", [False, True])
@pytest.mark.parametrize(("count", "reach"), [(1, 1), (2, 1), (40, 1), (60, 4), (200, 50), (120, 120)])
def test_random_graphs(rng: np.random.Generator, count: int, reach: int, collapsed: bool) -> None:
    for _ in range(5):
        edges = random_edges(rng, count, reach)
        check(view(count, edges, collapsed), edges, count)


def test_nothing_at_all() -> None:
    assert view(0, []) == View((), (), 0, 0, 0)


def test_a_chain_is_one_box_between_its_ends() -> None:
    edges = [(i, i + 1) for i in range(9)]
    made = view(10, edges, collapsed=True)
    assert [box.members for box in made.boxes] == [(0,), tuple(range(1, 9)), (9,)]
    assert view(10, edges).lanes == 1


def test_a_detour_does_not_bend_the_chain() -> None:
    edges = [(0, 1), (1, 2), (2, 3), (0, 3), (3, 4)]  # a residual block
    made = view(5, edges)
    assert {box.lane for box in made.boxes} == {0}
    assert [e for e in made.edges if e[2] >= 0] == [(0, 3, 0)]


def test_a_value_read_everywhere_has_one_gutter() -> None:
    edges = [(i, i + 1) for i in range(1, 20)] + [(0, i) for i in range(3, 20, 4)]
    made = view(21, edges)
    assert made.gutters == 1
    assert made.boxes[[b.members for b in made.boxes].index((0,))].rank == 1  # just above its first reader


def test_gutters_are_used_again() -> None:
    edges = [(i, i + 1) for i in range(30)] + [(i, i + 3) for i in range(0, 27, 4)]
    assert view(31, edges).gutters == 1


def test_time_grows_with_size_alone(rng: np.random.Generator) -> None:
    edges = random_edges(rng, 4000, 6)
    started = time.perf_counter()
    view(4000, edges)
    view(4000, edges, collapsed=True)
    assert time.perf_counter() - started < 2  # a few hundredths of a second; the bound is for busy machines
