"""Any legal attributes: random one-node models compute in both executors what onnxruntime computes, or are refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from attribute_dice import Case
from attribute_runs import BATCH, difference, expected, in_mnn, ours, written
from attribute_strategies import FAMILIES
from hypothesis import HealthCheck, Phase, assume, given, settings

from mnnconvert.ir import Graph

FEW, MANY = 25, 2000
DISCARDED = 0.3  # share of the examples that onnxruntime may refuse
# The share of what is left that an import may refuse, and why it does.
REFUSED = {
    "broadcasting": 0.01,  # nothing is
    "slicing": 0.01,  # nothing is
    "padding": 0.04,  # mode wrap by amounts, or along axes, of unknown size
    "pooling": 0.08,  # open sizes with ceil_mode, SAME_LOWER, indices or weights; SAME with strides beyond the kernel
    "resize": 0.04,  # open sizes on other axes than the last two, or by other rules than Interp has
    "gather": 0.01,  # nothing is
}
# The share of files for the released runtime that may be refused: one in ten element types is int8, which it biases.
REFUSED_FOR_MNN = {
    "broadcasting": 0.12, "slicing": 0.2,  # steps that are computed
    "padding": 0.2, "pooling": 0.12,  # volumes with computed weights or of open batch and channels
    "resize": 0.2, "gather": 0.2,  # scattered sums and products of integers, no or open index vectors
}  # fmt: skip


def _examples(family: str, count: int, judge: Callable[[Case], None], phases=tuple(Phase)) -> None:
    """`judge` sees so many cases of a family; the same ones each time."""

    @settings(
        max_examples=count, derandomize=True, database=None, deadline=None, phases=phases,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(FAMILIES[family])
    def seen(case: Case) -> None:
        judge(case)

    seen()


def _judged(case: Case, counts: Counter) -> None:
    """The file for the released runtime, or where that one is wrong for any other, is right in our executor."""
    counts["drawn"] += 1
    counts["discarded"] += 1  # until it is known that it is not
    known = expected(case)
    assume(known is not None)
    counts["discarded"] -= 1
    model, want = known
    graph, refusal = written(model, "mnn-3.6.1")
    if refusal.startswith("runtime-defect"):
        graph, refusal = written(model, "none")
    counts["refused" if graph is None else "right"] += 1
    if graph is not None:
        assert not difference(case, ours(graph, case.feeds), want)


@pytest.mark.parametrize("family", FAMILIES)
def test_attributes(family):
    counts = Counter()
    _examples(family, FEW, lambda case: _judged(case, counts))
    assert counts["right"] > counts["drawn"] / 2


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_many_attributes(family):
    counts = Counter()
    _examples(family, MANY, lambda case: _judged(case, counts))
    assert counts["discarded"] <= DISCARDED * counts["drawn"], counts
    assert counts["refused"] <= REFUSED[family] * (counts["right"] + counts["refused"]), counts


@pytest.mark.slow
@pytest.mark.mnn
@pytest.mark.parametrize("family", FAMILIES)
def test_many_attributes_in_the_released_runtime(family):
    """The same cases, many in one file."""
    legal: list[tuple[Case, Graph, dict]] = []
    counts = Counter()

    def collect(case: Case) -> None:
        known = expected(case)
        assume(known is not None)
        graph, _ = written(known[0], "mnn-3.6.1")
        counts["refused" if graph is None else "legal"] += 1
        if graph is not None:
            legal.append((case, graph, known[1]))

    _examples(family, MANY, collect, phases=(Phase.generate,))
    wrong = [f"{case}: {text}" for case, text in _wrong_in_mnn(legal) if text]
    assert not wrong, "\n".join(wrong[:20])
    assert counts["refused"] <= REFUSED_FOR_MNN[family] * (counts["legal"] + counts["refused"]), counts


def _wrong_in_mnn(legal: list[tuple[Case, Graph, dict]]):
    """Each case with what is wrong of it."""
    for start in range(0, len(legal), BATCH):
        cases, graphs, wanted = zip(*legal[start : start + BATCH], strict=True)
        results = in_mnn(list(graphs), [case.feeds for case in cases])
        for case, got, want in zip(cases, results, wanted, strict=True):
            yield case, got if isinstance(got, str) else difference(case, got, want)
