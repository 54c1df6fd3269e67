"""The arena: nothing that lives at the same time overlaps, and little is wasted."""

from hypothesis import given
from hypothesis import strategies as st

from mnnconvert.runtime_ref.planner import ALIGNMENT, Lifetime, lower_bound, plan


@st.composite
def lifetimes(draw):
    result = []
    for _ in range(draw(st.integers(0, 24))):
        first = draw(st.integers(0, 30))
        result.append(Lifetime(draw(st.integers(0, 5000)), first, first + draw(st.integers(0, 8))))
    return result


def live_together(a, b):
    return a.first <= b.last and b.first <= a.last


@given(lifetimes())
def test_buffers_that_live_together_never_overlap(lives):
    arena = plan(lives)
    for i, a in enumerate(lives):
        assert arena.offsets[i] % ALIGNMENT == 0 and arena.offsets[i] + a.nbytes <= arena.nbytes
        for j, b in enumerate(lives[:i]):
            if live_together(a, b) and a.nbytes and b.nbytes:
                below = arena.offsets[i] + a.nbytes <= arena.offsets[j]
                assert below or arena.offsets[j] + b.nbytes <= arena.offsets[i]


@given(lifetimes())
def test_between_the_lower_bound_and_no_sharing(lives):
    arena = plan(lives)
    assert lower_bound(lives) <= arena.nbytes <= sum(-(-a.nbytes // ALIGNMENT) * ALIGNMENT for a in lives)


def test_a_chain_needs_two_buffers():
    chain = [Lifetime(1000, i, i + 1) for i in range(20)]
    assert plan(chain).nbytes == lower_bound(chain) == 2 * 1024


def test_in_place_takes_the_place_of_what_nobody_reads_any_more():
    chain = [Lifetime(1000, i, i + 1, over=i - 1 if i else None) for i in range(20)]
    arena = plan(chain)
    assert arena.nbytes == 1024 and set(arena.offsets) == {0}


def test_not_in_place_while_it_is_still_read():
    a, b = Lifetime(1000, 0, 2), Lifetime(1000, 1, 2, over=0)
    assert plan([a, b]).offsets[0] != plan([a, b]).offsets[1]


def test_two_results_cannot_both_take_one_place():
    lives = [Lifetime(64, 0, 1), Lifetime(64, 1, 3, over=0), Lifetime(64, 1, 3, over=0)]
    arena = plan(lives)
    assert arena.offsets[1] != arena.offsets[2]
