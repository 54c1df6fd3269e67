"""Two engines on the same inputs, without any framework: engines here are small functions."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from mnnconvert.errors import ConversionError
from mnnconvert.verify.compare import Tolerance
from mnnconvert.verify.engines import Feeds, Outputs, TensorInfo
from mnnconvert.verify.inputs import ladder
from mnnconvert.verify.verification import verify_engines

TOLERANCE = Tolerance(relative=1e-3, absolute=1e-5)
X = TensorInfo("x", np.dtype("float32"), ("n", "m"))


class Fake:
    """An engine that computes y from x."""

    exact_kinds = True
    notes = ()
    outputs = (TensorInfo("y", np.dtype("float32"), ("n", "m")),)

    def __init__(self, name: str, compute: Callable[[np.ndarray], np.ndarray], inputs: tuple[TensorInfo, ...] = (X,)):
        self.name, self.compute, self.inputs = name, compute, inputs

    def run(self, feeds: Feeds) -> Outputs:
        return {"y": self.compute(feeds["x"])}


def refuses_unless(columns: int) -> Callable[[np.ndarray], np.ndarray]:
    def compute(x: np.ndarray) -> np.ndarray:
        if x.shape[1] != columns:
            raise ConversionError.of("source-engine-failed", "cannot")
        return x

    return compute


def feeds(*shape: int) -> dict[str, np.ndarray]:
    return {"x": np.ones(shape, np.float32)}


def random_unless(off: int) -> Callable[[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    return lambda x: x if x.shape[1] == off else x + rng.standard_normal(x.shape, np.float32)


def test_inputs_with_random_answers_prove_nothing():
    same = Fake("b", lambda x: x)
    result = verify_engines(Fake("a", random_unless(3)), same, [[feeds(1, 2), feeds(1, 3)]], TOLERANCE)
    assert result.passed and result.runs[0].shapes == {"x": (1, 3)}
    assert result.runs[0].notes == ("a gives another answer each time on x [1, 2]",)
    result = verify_engines(Fake("a", random_unless(9)), same, [[feeds(1, 2), feeds(1, 3)]], TOLERANCE)
    assert not result.passed and result.runs[0].problems[0].reference == "source-random"


def test_switches_are_off_at_last():
    flag = TensorInfo("training", np.dtype("bool"), None)
    made = [feed["training"].item() for seed in range(8) for feed in ladder([flag], seed)]
    assert True in made and made[-1] is False and all(np.ndim(f["training"]) == 0 for f in ladder([flag], 0))


def test_agreement():
    seen = []
    double, sum_up = Fake("a", lambda x: x * 2), Fake("b", lambda x: x + x)
    result = verify_engines(
        double, sum_up, [feeds(1, 2), feeds(2, 3)], TOLERANCE, lambda done, all_: seen.append((done, all_))
    )
    assert result.passed and seen == [(1, 2), (2, 2)]
    assert [run.shapes for run in result.runs] == [{"x": (1, 2)}, {"x": (2, 3)}]
    assert result.lines() == [
        "b agrees with a on 2 runs (tolerance 1e-05 + 0.001 x largest value)",
        "  run 1 (x [1, 2]): equal, at worst y: off by 0 of 2",
        "  run 2 (x [2, 3]): equal, at worst y: off by 0 of 2",
    ]


def test_difference():
    result = verify_engines(Fake("a", lambda x: x), Fake("b", lambda x: x * 1.5), [feeds(1, 2)], TOLERANCE)
    assert not result.passed
    assert result.lines()[0].startswith("b does not agree with a on 1 run ")
    assert result.lines()[2] == "    y: off by 0.5 at [0,0] (largest value 1)"


def test_no_runs_prove_nothing():
    assert not verify_engines(Fake("a", np.abs), Fake("b", np.abs), [], TOLERANCE).passed


def test_nan_in_the_same_places_is_equal():
    logarithm = Fake("a", lambda x: np.where(x > 0.5, x, np.nan))
    x = {"x": np.array([[0.0, 1.0]], np.float32)}
    assert verify_engines(logarithm, logarithm, [x], TOLERANCE).passed
    assert not verify_engines(logarithm, Fake("b", lambda x: x), [x], TOLERANCE).passed


def test_refused_sizes_are_replaced_and_reported():
    picky = Fake("picky", refuses_unless(128))
    result = verify_engines(picky, Fake("b", lambda x: x), [ladder([X], 0)], TOLERANCE)
    assert result.passed and result.runs[0].shapes == {"x": (1, 128)}
    assert result.runs[0].notes[0] == "picky refused the sizes x [1, 16]"
    assert "    note: picky refused the sizes x [1, 16]" in result.lines()


def test_when_nothing_is_accepted_the_sizes_tried_are_named():
    with pytest.raises(ConversionError, match=r"cannot\n.*accepted none of 7 sets.*\[1, 16\]"):
        verify_engines(Fake("picky", refuses_unless(77)), Fake("b", np.abs), [ladder([X], 0)], TOLERANCE)


def test_given_feeds_are_not_replaced():
    with pytest.raises(ConversionError, match=r"^source-engine-failed: cannot$"):
        verify_engines(Fake("picky", refuses_unless(77)), Fake("b", np.abs), [feeds(1, 2)], TOLERANCE)


def test_a_candidate_that_fails_is_a_failed_run():
    result = verify_engines(Fake("a", np.abs), Fake("b", refuses_unless(77)), [feeds(1, 2)], TOLERANCE)
    assert not result.passed and result.runs[0].problems[0].message == "cannot"
    assert result.lines()[1:] == ["  run 1 (x [1, 2]): could not be run", "    source-engine-failed: cannot"]


def test_inputs_that_the_candidate_lacks_are_noted():
    given = feeds(1, 2) | {"unused": np.ones(1)}
    result = verify_engines(Fake("a", np.abs), Fake("b", np.abs), [given], TOLERANCE)
    assert result.passed and result.runs[0].notes == ("b has no input unused",)


def test_loose_kinds_are_a_property_of_the_candidate():
    bools, ints = Fake("a", lambda x: x > 0), Fake("b", lambda x: (x > 0).astype(np.int32))
    assert not verify_engines(bools, ints, [feeds(1, 2)], TOLERANCE).passed
    ints.exact_kinds = False
    assert verify_engines(bools, ints, [feeds(1, 2)], TOLERANCE).passed


def test_the_dict_is_strict_json():
    nan = Fake("b", lambda x: x * np.nan)
    facts = verify_engines(Fake("a", np.abs), nan, [feeds(1, 2)], TOLERANCE).to_dict()
    text = json.loads(json.dumps(facts, allow_nan=False))
    assert text["tolerance"] == {"relative": 1e-3, "absolute": 1e-5}
    assert text["runs"][0]["comparison"]["outputs"][0]["reason"] == "NaN at [0,0] instead of 1, and 1 more"


def test_inputs_of_unknown_rank_take_any_rank(onnx_file, tmp_path):
    """onnxruntime describes them like scalars."""
    import mnnconvert

    path = onnx_file("(float[2,3] x, int64[] i) => (float[2,k] y) { y = GatherElements<axis=1>(x, i) }")
    np.savez(tmp_path / "feeds.npz", x=np.ones((2, 3), np.float32), i=np.array([[0, -1], [2, 1]]))
    report = mnnconvert.convert(path, tmp_path / "m.mnn", inputs=tmp_path / "feeds.npz")
    assert report.verification is not None and report.verification.passed
