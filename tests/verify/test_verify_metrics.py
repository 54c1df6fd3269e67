"""The numbers, and the corner cases whose conventions the module states."""

from __future__ import annotations

import json
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from mnnconvert.verify.metrics import compare_arrays, kind_of

finite = arrays(
    np.float32, array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4), elements=st.floats(-1e6, 1e6, width=32)
)


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_numbers_of_a_plain_difference():
    m = compare_arrays(f32(1, 2, 3.5), f32(1, 2, 4))
    assert (m.max_abs, m.max_rel, m.largest, m.wrong, m.where, m.got, m.want) == (0.5, 0.125, 4, 1, (2,), 3.5, 4)
    assert m.sqnr == pytest.approx(10 * math.log10(21 / 0.25), rel=1e-12)  # float64 arithmetic
    assert m.cosine == pytest.approx(19 / math.sqrt(17.25 * 21), rel=1e-12)


@given(finite)
def test_anything_equals_itself(a):
    m = compare_arrays(a, a.copy())
    assert (m.max_abs, m.max_rel, m.sqnr, m.cosine, m.wrong, m.where) == (0, 0, math.inf, 1, 0, None)
    assert m.top1 in (None, 1.0)


@given(finite, st.floats(0.5, 100, width=32))
def test_a_shift_is_measured(a, shift):
    b = a.astype(np.float64) + shift
    m = compare_arrays(b, a)
    assert m.max_abs == pytest.approx(shift if a.size else 0, rel=1e-6)  # 1e6 + 0.5 in float64
    assert m.wrong == a.size


def test_empty_arrays_are_exact():
    m = compare_arrays(np.zeros((0, 3)), np.zeros((0, 3)))
    assert (m.max_abs, m.sqnr, m.cosine, m.top1, m.largest) == (0, math.inf, 1, None, 0)


def test_empty_arrays_of_other_shapes_are_not_measured():
    m = compare_arrays(np.zeros((0, 3)), np.zeros((3, 0)))
    assert not m.same_shape and m.max_abs is None


def test_scalars():
    m = compare_arrays(np.array(1.0), np.array(2.0))
    assert (m.max_abs, m.where, m.top1) == (1, (), None)


def test_all_zero_reference():
    exact, off = compare_arrays(f32(0, 0), f32(0, 0)), compare_arrays(f32(0, 1), f32(0, 0))
    assert (exact.max_rel, exact.sqnr, exact.cosine) == (0, math.inf, 1)
    assert (off.max_rel, off.sqnr, off.cosine) == (math.inf, -math.inf, 0)


def test_equal_infinities_and_nans_are_left_out():
    want = f32(np.inf, -np.inf, np.nan, 2)
    m = compare_arrays(f32(np.inf, -np.inf, np.nan, 1), want)
    assert (m.odd, m.wrong, m.max_abs, m.largest) == (0, 1, 1, 2)


@pytest.mark.parametrize(
    "got, want", [(np.nan, 1), (1, np.nan), (np.inf, 1), (1, np.inf), (np.inf, -np.inf), (np.nan, np.inf)]
)
def test_an_odd_position_passes_no_gate(got, want):
    m = compare_arrays(f32(5, got), f32(5, want))
    assert (m.odd, m.where, m.max_abs, m.max_rel, m.sqnr, m.cosine) == (1, (1,), math.inf, math.inf, -math.inf, 0)


def test_integers_are_compared_as_integers():
    big = np.array([2**53, 7])
    m = compare_arrays(big + np.array([1, 0]), big)
    assert (m.wrong, m.where, m.got, m.want) == (1, (0,), 2**53 + 1, 2**53)


def test_huge_values_do_not_overflow():
    m = compare_arrays(np.array([1e300, 1e300]), np.array([1e300, 1.1e300]))
    assert math.isfinite(m.sqnr) and m.cosine == pytest.approx(1, abs=0.01)  # 10 % of one of two values


@pytest.mark.parametrize(
    "got, want, share",
    [
        ([[1, 2], [3, 0]], [[0, 5], [0, 9]], 0.5),
        ([[2, 1]], [[7, 7]], 1.0),  # both classes win the reference
        ([[np.nan, 1]], [[0, 1]], 1.0),
        ([[1], [2]], [[1], [2]], None),  # one class is none
    ],
)
def test_top1(got, want, share):
    assert compare_arrays(np.array(got, np.float32), np.array(want, np.float32)).top1 == share


def test_pictures_and_integers_have_no_top1():
    assert compare_arrays(np.ones((1, 3, 4, 4)), np.ones((1, 3, 4, 4))).top1 is None
    assert compare_arrays(np.arange(3), np.arange(3)).top1 is None


@pytest.mark.parametrize(
    "dtype, kind",
    [
        (np.bool_, "bool"),
        (np.int64, "int"),
        (ml_dtypes.int4, "int"),
        (np.uint8, "uint"),
        (np.float16, "float"),
        (ml_dtypes.bfloat16, "float"),
        (object, "text"),
    ],
)
def test_kinds(dtype, kind):
    assert kind_of(np.dtype(dtype)) == kind


def test_bfloat16_is_measured():
    assert compare_arrays(np.array([1.5], ml_dtypes.bfloat16), f32(1)).max_abs == 0.5


def test_texts():
    m = compare_arrays(np.array(["a", "b"], object), np.array(["a", "c"], object))
    assert (m.wrong, m.where, m.max_abs) == (1, (1,), None)


def test_the_dict_is_strict_json():
    facts = compare_arrays(f32(1, np.nan), f32(1, 2)).to_dict()
    assert json.loads(json.dumps(facts, allow_nan=False))["max_abs"] == "inf"
    assert facts["got"] == "nan" and facts["want_shape"] == [2]
