"""A tenth of the backend cases of the onnx package in our executor: right, or one that docs/conformance.md names."""

from __future__ import annotations

import re

import pytest
from backend_cases import Case, all_cases
from conformance import PAGE
from conformance_columns import run_case, with_stored_parameters

SLOW = {"averagepool", "lppool", "maxpool"}  # modules that compute what they expect with loops in Python


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return [case for case in all_cases(without=SLOW) if not case.apart]


@pytest.mark.filterwarnings("ignore")
def test_every_tenth_case_is_right_or_said_not_to_be(cases):
    section = PAGE.read_text(encoding="utf-8").split("## Not right in our executor")[1].split("\n## ")[0]
    named = set(re.findall(r"`(test_\w+)`", section))
    results = {case.name: run_case(case)[0] for case in cases[::10] if case.group != "light"}
    assert len(results) > 150
    failed = {name: r.reason for name, r in results.items() if r.outcome in ("wrong", "crash")}
    refused = {name: r.reason for name, r in results.items() if r.outcome == "refused" and name not in named}
    assert failed == refused == {}


def test_small_inputs_are_stored_and_the_others_stay(cases):
    (case,) = (c for c in cases if c.name == "test_cumsum_2d_axis_0")
    stored = with_stored_parameters(case)
    assert [t.name for t in stored.model.graph.initializer] == ["axis"]
    assert [i.name for i in stored.model.graph.input] == list(stored.runs[0][0]) == ["x"]
    assert stored.runs[0][1] is case.runs[0][1]
