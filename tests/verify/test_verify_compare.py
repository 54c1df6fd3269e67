"""Verdicts and their reasons."""

from __future__ import annotations

import numpy as np
import pytest

from mnnconvert.verify.compare import Tolerance, compare_outputs

EXACT = Tolerance(relative=0, absolute=0)


def reason(got, want, tolerance=EXACT, **options) -> str:
    return compare_outputs({"y": np.asarray(got)}, {"y": np.asarray(want)}, tolerance, **options).outputs[0].reason


def test_equal_outputs_pass():
    comparison = compare_outputs({"y": np.ones(3)}, {"y": np.ones(3, np.float32)}, EXACT)
    assert comparison.passed and not comparison.failures


def test_the_bound_is_absolute_plus_relative_of_the_largest():
    tolerance = Tolerance(relative=0.25, absolute=0.5)  # allows 2.5 where the largest value is 8
    assert not reason([10.5, 0.0], [8.0, 0.0], tolerance)
    assert reason([8.0, 2.75], [8.0, 0.0], tolerance) == "off by 2.75 at [1] (largest value 8)"


def test_infinities_do_not_widen_the_bound():
    assert reason([np.inf, 2.0], [np.inf, 1.0], Tolerance(relative=0.1, absolute=0)).startswith("off by 1 ")


@pytest.mark.parametrize(
    "got, want, text",
    [
        (np.ones((2, 3)), np.ones((3, 2)), "shape [2, 3] instead of [3, 2]"),
        ([[0, np.nan]], [[0.0, 4.0]], "NaN at [0,1] instead of 4"),
        ([np.inf, np.nan], [1.0, 1.0], "inf at [0] instead of 1, and 1 more"),
        ([1, 3], [1, 2], "1 of 2 values differ, for example at [1]: 3 instead of 2"),
        ([True], [False], "1 of 1 values differ, for example at [0]: True instead of False"),
        (np.int32(1), np.float32(1), "element type int32 instead of float32"),
        (np.int32(1), np.bool_(True), "element type int32 instead of bool"),
        (np.int32(1), np.uint8(1), "element type int32 instead of uint8"),
        (np.array(["a"], object), np.array(["b"], object), "1 of 1 values differ, for example at [0]"),
        (np.array(["a"], object), np.ones(1), "element type object instead of float64"),
    ],
)
def test_reasons(got, want, text):
    assert reason(got, want) == text


def test_int64_may_come_back_as_int32():
    assert not reason(np.array([5], np.int32), np.array([5], np.int64))
    assert "differ" in reason(np.array([2**33]).astype(np.int32), np.array([2**33]))


def test_integers_are_exact_whatever_the_tolerance():
    assert "differ" in reason([100], [101], Tolerance(relative=1, absolute=1000))


def test_loose_kinds_let_integers_stand_for_bools_but_not_for_floats():
    assert not reason(np.int32(1), np.bool_(True), exact_kinds=False)
    assert not reason(np.int32(200), np.uint8(200), exact_kinds=False)
    assert "differ" in reason(np.int32(2), np.bool_(True), exact_kinds=False)
    assert "element type" in reason(np.int32(1), np.float32(1), exact_kinds=False)


def test_missing_and_extra_outputs():
    comparison = compare_outputs({"b": np.ones(1)}, {"a": np.ones(1)}, EXACT)
    assert [(v.name, v.reason.split(":")[0]) for v in comparison.failures] == [("a", "missing"), ("b", "extra")]


def test_every_result_states_its_tolerance():
    facts = compare_outputs({}, {}, Tolerance(relative=1e-3, absolute=1e-5)).to_dict()
    assert facts == {"passed": True, "tolerance": {"relative": 1e-3, "absolute": 1e-5}, "outputs": []}
