"""Sizes that are symbols: arithmetic gives equal text for equal sizes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnnconvert.ir import types as sizes
from mnnconvert.ir.types import Spec


def test_numbers_are_computed():
    assert (sizes.add(2, 3), sizes.mul(2, 3), sizes.floordiv(7, 2), sizes.ceildiv(7, 2)) == (5, 6, 3, 4)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (sizes.add("h", 3), sizes.add(3, "h")),
        (sizes.add(sizes.add("h", 3), -3), "h"),
        (sizes.add(sizes.add("h", 5), -3), sizes.add("h", 2)),
        (sizes.mul("h", "w"), sizes.mul("w", "h")),
        (sizes.mul(sizes.mul("h", 2), "w"), sizes.mul("w", sizes.mul("h", 2))),
        (sizes.mul(2, sizes.mul("h", 3)), sizes.mul("h", 6)),
        (sizes.floordiv(sizes.mul("h", 8), 8), "h"),
        (sizes.floordiv(sizes.mul("n", sizes.mul("h", "w")), sizes.mul("w", "h")), "n"),
        (sizes.mul("h", 1), "h"),
        (sizes.floordiv("h", "h"), 1),
        (sizes.floordiv(sizes.mul("h", 12), 4), sizes.mul("h", 3)),
        (sizes.product(["n", 4, "h"]), sizes.mul(4, sizes.mul("h", "n"))),
    ],
)
def test_equal_sizes_have_equal_text(left, right):
    assert left == right


@pytest.mark.parametrize(
    "unknown", [sizes.add(None, 3), sizes.mul(None, "h"), sizes.floordiv(None, 2), sizes.add("h", None)]
)
def test_unknown_stays_unknown(unknown):
    assert unknown is None


def test_zero_times_unknown_is_zero():
    assert sizes.mul(None, 0) == 0


def test_symbols_do_not_grow_without_bound():
    size = "h"
    for i in range(60):
        size = sizes.floordiv(sizes.add(size, i + 1), 7)
    assert size is None or len(size) <= sizes.LONGEST_SYMBOL


@given(st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 50))
def test_offsets_evaluate_to_what_they_say(a, b, h):
    text = sizes.add(sizes.add("h", a), b)
    assert (eval(text, {"h": h}) if isinstance(text, str) else text) == h + a + b


@given(
    st.lists(st.sampled_from([2, 3, "h", "w", "n"]), max_size=5),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(1, 9),
)
def test_products_evaluate_to_what_they_say(factors, h, w, n):
    names = {"h": h, "w": w, "n": n}
    text = sizes.product(factors)
    assert (eval(text, names) if isinstance(text, str) else text) == int(np.prod([names.get(f, f) for f in factors]))


@pytest.mark.parametrize(
    ("shapes", "result"),
    [
        (((2, 3), (3,)), (2, 3)),
        ((("n", 1), (1, 4)), ("n", 4)),
        ((("n",), (1,)), ("n",)),
        ((("n",), (5,)), (5,)),
        ((("n",), ("m",)), (None,)),
        (((None,), (1,)), (None,)),
        (((), (2,)), (2,)),
        (((0,), (1,)), (0,)),
    ],
)
def test_broadcast(shapes, result):
    assert sizes.broadcast(*shapes) == result


def test_broadcast_of_unknown_rank_is_unknown():
    assert sizes.broadcast((2,), None) is None


def test_sizes_that_cannot_broadcast_are_named():
    with pytest.raises(ValueError, match=r"\[2, 3\]"):
        sizes.broadcast((2,), (3,))


def test_merge_prefers_what_is_more_exact():
    assert sizes.merge((None, "h", 3), (2, 4, None)) == (2, 4, 3)
    assert sizes.merge(None, (1,)) == (1,)


def test_content_of_sizes():
    partly = Spec(sizes.I32, (2,), sizes.size_content(["n", 3]))
    fully = Spec(sizes.I32, (2,), sizes.size_content([2, 3]))
    assert partly.constant is None and partly.sizes == ["n", 3]
    assert fully.constant is not None and fully.sizes == [2, 3]


@pytest.mark.parametrize(("axis", "rank", "want"), [(0, 3, 0), (-1, 3, 2), (2, 3, 2)])
def test_axis_is_counted_from_the_start(axis, rank, want):
    assert sizes.normal_axis(axis, rank) == want


def test_axis_out_of_range_is_named():
    with pytest.raises(ValueError, match="axis 3 is out of range for rank 3"):
        sizes.normal_axis(3, 3)
