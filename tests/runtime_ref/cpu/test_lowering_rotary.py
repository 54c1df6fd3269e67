"""Rotary embeddings in programs: which graphs become one kernel, and that what looks alike does not."""

from __future__ import annotations

import numpy as np
import pytest
from test_lowering_attention import Attention as Program

from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.elementwise import Binary, Unary
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.shape import Permute, Reshape, Unsqueeze
from mnnconvert.ops.slicing import Slice, StridedSlice


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def part(b, x, places):
    return b.add(GatherV2(3), x, b.constant(np.array(places, np.int32)))


def arithmetic(b, function, left, right):
    return b.add(Binary(function), left, right)


def halves(b, x, cos, sin, *, u=range(8), v=range(8, 16), signs=("SUB", "ADD"), order=None, swap=False, tail=None):
    """concat(u cos - v sin, u sin + v cos), with what may be told apart as parameters."""
    u, v = part(b, x, u), part(b, x, v)
    first = arithmetic(b, signs[0], arithmetic(b, "MUL", u, cos), arithmetic(b, "MUL", v, sin))
    second = arithmetic(b, signs[1], arithmetic(b, "MUL", u, sin), arithmetic(b, "MUL", v, cos))
    y = b.add(Concat(3), *((second, first) if swap else (first, second)))
    y = y if order is None else part(b, y, order)
    return [y if tail is None else b.add(Concat(-1), y, part(b, x, tail))]


def turned(b, x, cos, sin, *, split=False, minus="NEG", swap=False, at=8, end=16):
    """x cos + concat(-(second half of x), first half) sin, as torch writes it."""
    if split:
        first, second = b.add(Slice(3, (8, 8)), x)
    else:
        bounds = [b.ints(np.array([n])) for n in (0, at, end, 3)]
        first = b.add(StridedSlice(from_type=1), x, bounds[0], bounds[1], bounds[3])
        second = b.add(StridedSlice(from_type=1), x, bounds[1], bounds[2], bounds[3])
    negative = b.add(Unary("NEG"), second) if minus == "NEG" else arithmetic(b, "MUL", second, b.constant(minus))
    around = b.add(Concat(-1), *((first, negative) if swap else (negative, first)))
    return [arithmetic(b, "ADD", arithmetic(b, "MUL", around, sin), arithmetic(b, "MUL", x, cos))]


def stacked(b, first, second):
    """first[0], second[0], first[1] ... from two values of a rank of four."""
    both = b.add(Concat(-1), b.add(Unsqueeze((4,)), first), b.add(Unsqueeze((4,)), second))
    return b.add(Reshape(), both, b.ints(np.array([0, 0, 0, -1])))


def in_pairs(b, x, cos, sin, *, starts=(0, 1), swap=False):
    """Even and odd elements, stacked again, as in complex numbers."""
    u, v = (part(b, x, range(start, 16, 2)) for start in starts)
    first = arithmetic(b, "SUB", arithmetic(b, "MUL", u, cos), arithmetic(b, "MUL", v, sin))
    second = arithmetic(b, "ADD", arithmetic(b, "MUL", u, sin), arithmetic(b, "MUL", v, cos))
    return [stacked(b, *((second, first) if swap else (first, second)))]


def turned_pairs(b, x, cos, sin, *, starts=(0, 1), concat=False):
    """x cos + stack(-odd, even) sin."""
    u, v = (part(b, x, range(start, 16, 2)) for start in starts)
    negative = b.add(Unary("NEG"), v)
    around = b.add(Concat(3), negative, u) if concat else stacked(b, negative, u)
    return [arithmetic(b, "ADD", arithmetic(b, "MUL", x, cos), arithmetic(b, "MUL", around, sin))]


def compare(lib, build, *operands):
    """The kernels, and that the results are those of the ops."""
    case = Program(lib, build, *operands)
    assert "reference" not in case.kernels
    arrays = dict(case.feeds)
    for node in case.nodes:
        operands = [v.tensor.numpy() if v.tensor is not None else arrays[v] for v in node.inputs]
        result = node.op.ref(*operands)
        arrays.update(zip(node.outputs, result if isinstance(result, tuple) else (result,), strict=True))
    for got, value in zip(case.run(), case.outputs, strict=True):
        np.testing.assert_allclose(got, arrays[value], rtol=1e-5, atol=1e-5)
    return case.kernels


EVEN, ODD, MIXED = range(0, 16, 2), range(1, 16, 2), np.arange(16).reshape(2, 8).T.reshape(-1)


@pytest.mark.parametrize("tables", [(5, 8), (2, 1, 5, 8), (1, 1, 1, 8)])
@pytest.mark.parametrize(
    "form",
    [{}, {"u": EVEN, "v": ODD}, {"u": EVEN, "v": ODD, "order": MIXED}, {"order": MIXED}],
    ids=["halves", "neighbours to halves", "neighbours", "halves to neighbours"],
)
def test_halves_and_neighbours(lib, form, tables):
    x, cos, sin = numbers(2, 3, 5, 16), numbers(*tables, seed=1), numbers(*tables, seed=2)
    assert compare(lib, lambda b, *a: halves(b, *a, **form), x, cos, sin) == ["rotary"]


@pytest.mark.parametrize("form", [{}, {"u": EVEN, "v": ODD, "order": MIXED}])
def test_the_rest_of_a_head(lib, form):
    x, cos, sin = numbers(2, 3, 5, 21), numbers(5, 8, seed=1), numbers(5, 8, seed=2)
    assert compare(lib, lambda b, *a: halves(b, *a, **form, tail=range(16, 21)), x, cos, sin) == ["rotary"]


@pytest.mark.parametrize("form", [{}, {"split": True}, {"minus": np.float32([-1])}])
def test_torch_form(lib, form):
    x, cos, sin = numbers(2, 3, 5, 16), numbers(2, 1, 5, 16, seed=1), numbers(2, 1, 5, 16, seed=2)
    assert compare(lib, lambda b, *a: turned(b, *a, **form), x, cos, sin) == ["rotary"]


def test_heads_that_lie_side_by_side_are_not_copied(lib):
    x, cos, sin = numbers(2, 5, 3, 16), numbers(5, 16, seed=1), numbers(5, 16, seed=2)
    build = lambda b, x, *a: turned(b, b.add(Permute((0, 2, 1, 3)), x), *a)  # noqa: E731
    assert compare(lib, build, x, cos, sin) == ["rotary"]


def test_elements_far_apart_are_copied_first(lib):
    x, cos, sin = numbers(2, 3, 16, 5), numbers(5, 16, seed=1), numbers(5, 16, seed=2)
    build = lambda b, x, *a: turned(b, b.add(Permute((0, 1, 3, 2)), x), *a)  # noqa: E731
    assert compare(lib, build, x, cos, sin) == ["copy_strided", "rotary"]


@pytest.mark.parametrize(
    "change",
    [{"signs": ("ADD", "ADD")}, {"signs": ("ADD", "SUB")}, {"swap": True}, {"u": range(8, 16), "v": range(8)},
     {"u": range(1, 9)}, {"v": EVEN}, {"u": ODD, "v": EVEN}, {"order": range(15, -1, -1)}, {"u": range(8), "v": ODD}],
)  # fmt: skip
def test_what_is_no_rotation_of_halves(lib, change):
    x, cos, sin = numbers(2, 3, 5, 16), numbers(5, 8, seed=1), numbers(5, 8, seed=2)
    kernels = compare(lib, lambda b, *a: halves(b, *a, **change), x, cos, sin)
    assert kernels != ["rotary"] and ("rotary" not in kernels or "order" in change)


@pytest.mark.parametrize("change", [{"swap": True}, {"minus": np.float32([-2])}, {"minus": np.float32([1])}])
def test_what_is_no_rotation_as_in_torch(lib, change):
    x, cos, sin = numbers(2, 3, 5, 16), numbers(5, 16, seed=1), numbers(5, 16, seed=2)
    assert "rotary" not in compare(lib, lambda b, *a: turned(b, *a, **change), x, cos, sin)


def test_uneven_halves(lib):
    x, cos, sin = numbers(2, 3, 5, 16), numbers(5, 16, seed=1), numbers(5, 16, seed=2)
    assert "rotary" not in compare(lib, lambda b, *a: turned(b, *a, at=6), x, cos, sin)


def test_other_values_of_x(lib):
    x, z, cos, sin = numbers(2, 3, 5, 16), numbers(2, 3, 5, 16, seed=3), numbers(5, 16, seed=1), numbers(5, 16, seed=2)

    def build(b, x, z, cos, sin):
        (first, second), (other, _) = b.add(Slice(3, (8, 8)), x), b.add(Slice(3, (8, 8)), z)
        around = b.add(Concat(-1), b.add(Unary("NEG"), second), other)
        return [arithmetic(b, "ADD", arithmetic(b, "MUL", x, cos), arithmetic(b, "MUL", around, sin)), first]

    assert "rotary" not in compare(lib, build, x, z, cos, sin)


def test_what_others_read_is_computed(lib):
    x, cos, sin = numbers(2, 3, 5, 16), numbers(5, 8, seed=1), numbers(5, 8, seed=2)

    def build(b, x, cos, sin):
        u, v = part(b, x, range(8)), part(b, x, range(8, 16))
        first = arithmetic(b, "SUB", arithmetic(b, "MUL", u, cos), arithmetic(b, "MUL", v, sin))
        second = arithmetic(b, "ADD", arithmetic(b, "MUL", u, sin), arithmetic(b, "MUL", v, cos))
        return [b.add(Concat(3), first, second), second]

    assert "rotary" not in compare(lib, build, x, cos, sin)


def test_pairs_that_are_stacked(lib):
    x, cos, sin = numbers(2, 3, 5, 16), numbers(5, 8, seed=1), numbers(5, 8, seed=2)
    assert compare(lib, in_pairs, x, cos, sin) == ["rotary"]
    for change in ({"starts": (1, 0)}, {"swap": True}):
        assert "rotary" not in compare(lib, lambda b, *a, c=change: in_pairs(b, *a, **c), x, cos, sin)


def test_turned_pairs_that_are_stacked(lib):
    x, cos, sin = numbers(2, 3, 5, 16), numbers(5, 16, seed=1), numbers(5, 16, seed=2)
    assert compare(lib, turned_pairs, x, cos, sin) == ["rotary"]
    for change in ({"starts": (1, 0)}, {"concat": True}):
        assert "rotary" not in compare(lib, lambda b, *a, c=change: turned_pairs(b, *a, **c), x, cos, sin)


def test_numbers_that_are_stacked(lib):
    """Values without any axis, or with one, are looked at as well."""
    x, y = numbers(), numbers(seed=1)

    def build(b, x, y):
        total, difference = arithmetic(b, "ADD", x, y), arithmetic(b, "SUB", x, y)
        both = b.add(Concat(0), b.add(Unsqueeze((0,)), difference), b.add(Unsqueeze((0,)), total))
        return [both, arithmetic(b, "ADD", arithmetic(b, "MUL", x, y), arithmetic(b, "MUL", y, y))]

    assert "rotary" not in compare(lib, build, x, y)


def test_a_single_pair_of_one_axis(lib):
    x, cos, sin = numbers(2), numbers(1, seed=1), numbers(1, seed=2)

    def build(b, x, cos, sin):
        u, v = (b.add(GatherV2(0), x, b.constant(np.int32([i]))) for i in (0, 1))
        first = arithmetic(b, "SUB", arithmetic(b, "MUL", u, cos), arithmetic(b, "MUL", v, sin))
        second = arithmetic(b, "ADD", arithmetic(b, "MUL", u, sin), arithmetic(b, "MUL", v, cos))
        return [b.add(Concat(0), first, second)]

    assert compare(lib, build, x, cos, sin) == ["rotary"]
