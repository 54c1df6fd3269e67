"""Gates: reading them, judging by them, and what a wrong one says."""

from __future__ import annotations

import numpy as np
import pytest

from mnnconvert.errors import UsageError
from mnnconvert.verify.compare import Comparison, Tolerance, compare_outputs
from mnnconvert.verify.gates import Gate, evaluate, failures_table, read_gates

TOLERANCE = Tolerance(relative=1e-3, absolute=1e-5)


def comparison(**errors: float) -> Comparison:
    """Outputs [[1, 2]] of which the last value is off by the given error."""
    want = {name: np.array([[1.0, 2.0]]) for name in errors}
    got = {name: np.array([[1.0, 2.0 + error]]) for name, error in errors.items()}
    return compare_outputs(got, want, TOLERANCE)


def written(tmp_path, text: str):
    path = tmp_path / "gates.toml"
    path.write_text(text)
    return path


def test_reading(tmp_path):
    text = '[[gate]]\nmetric = "sqnr"\noutput = "prob*"\nbound = 30\n[[gate]]\nmetric = "max_abs"\nbound = 0.5\n'
    assert read_gates(written(tmp_path, text)) == [Gate("sqnr", 30.0, "prob*"), Gate("max_abs", 0.5, "*")]


@pytest.mark.parametrize(
    "text, message",
    [
        ('[[gate]]\nmetric = "psnr"\nbound = 1', "no metric 'psnr'"),
        ('[[gate]]\nmetric = "sqnr"', "takes metric, bound and output"),
        ('[[gate]]\nmetric = "sqnr"\nbound = 1\nlayers = "x"', "takes metric, bound and output"),
        ('[[gate]]\nmetric = "sqnr"\nbound = 1\nlayer = "x"\noutput = "y"', "says two things"),
        ("[[gate]]\nbound = 1", "says two things, or nothing"),
        ('[[gate]]\nmetric = "size"\nbound = "many"', "wrong type"),
        ('[[gate]]\nfunction = "a:b"\nbound = 1\nbetter = "more"', "lower or higher"),
        ('[[gate]]\nmetric = "sqnr"\nbound = "30"', "wrong type"),
        ('[[gate]]\nmetric = "sqnr"\nbound = true', "wrong type"),
        ('[[gate]]\nmetric = "sqnr"\nbound = nan', "not a number"),
        ("gate = 3", "other than"),
        ("", "other than"),
        ("[[gate", "cannot be read"),
    ],
)
def test_wrong_files_are_usage_errors(tmp_path, text, message):
    with pytest.raises(UsageError, match=message) as caught:
        read_gates(written(tmp_path, text))
    assert caught.value.diagnostics[0].reference == "bad-gate"


def test_a_missing_file_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match=r"bad-gate.*none\.toml"):
        read_gates(tmp_path / "none.toml")


@pytest.mark.parametrize(
    "metric, loose, tight",
    [("max_abs", 0.3, 0.2), ("max_rel", 0.2, 0.1), ("sqnr", 15, 25), ("cosine", 0.99, 0.9999), ("top1", 0.5, 1.1)],
)
def test_each_metric_has_its_direction(metric, loose, tight):
    runs = [comparison(y=0.25)]  # sqnr = 10 log10(5 / 0.0625) = 19 dB, cosine = 5.5 / sqrt(5 * 6.0625) = 0.99898
    assert [result.passed for result in evaluate([Gate(metric, loose), Gate(metric, tight)], runs)] == [True, False]


def test_the_worst_run_counts():
    (result,) = evaluate([Gate("max_abs", 1)], [comparison(y=0.5), comparison(y=2.0), comparison(y=0.25)])
    assert result.value == 2.0 and not result.passed


def test_patterns_choose_outputs():
    results = evaluate([Gate("max_abs", 1, "head*")], [comparison(head1=0.5, body=9, head2=3.0)])
    assert [(result.output, result.passed) for result in results] == [("head1", True), ("head2", False)]


@pytest.mark.parametrize("gate", [Gate("max_abs", 1, "z*"), Gate("max_abs", 1, "Y")])
def test_a_pattern_that_matches_nothing_is_a_usage_error(gate):
    with pytest.raises(UsageError, match=r"bad-gate.*matches no output[\s\S]*Outputs: y"):
        evaluate([gate], [comparison(y=0)])


def test_top1_passes_over_pictures_but_not_over_everything():
    picture = {"p": np.ones((1, 3, 4, 4))}
    scores = {"s": np.array([[1.0, 2.0]])}
    both = compare_outputs(picture | scores, picture | scores, TOLERANCE)
    assert [result.output for result in evaluate([Gate("top1", 1)], [both])] == ["s"]
    with pytest.raises(UsageError, match="looks like classes"):
        evaluate([Gate("top1", 1, "p")], [both])


@pytest.mark.parametrize("metric", ["max_abs", "sqnr", "top1"])
@pytest.mark.parametrize("got", [{}, {"y": np.ones((3, 2))}, {"y": np.full((1, 2), np.nan)}])
def test_what_cannot_be_measured_passes_no_gate(metric, got):
    run = compare_outputs(got, {"y": np.array([[1.0, 2.0]])}, TOLERANCE)
    bound = 1e9 if metric == "max_abs" else 0.5
    assert not evaluate([Gate(metric, bound)], [run])[0].passed


def test_the_table_shows_what_was_asked_and_found():
    results = evaluate([Gate("max_abs", 1), Gate("cosine", 0)], [comparison(y=0.5, longer=2.0)])
    assert failures_table(results) == ["longer  max_abs <= 1  2  missed by 1"]
    assert results[1].to_dict() == {
        "metric": "max_abs", "bound": 1, "pattern": "*", "data": "", "output": "longer", "value": 2.0,
        "passed": False,
    }  # fmt: skip
