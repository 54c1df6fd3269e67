"""Every op, as it is written for MNN 3.6.1, computes in that runtime what its reference says, or is refused by name.

Many samples go side by side into one file, because a process of the runtime takes a tenth of a second to start. Where a
file cannot be run its samples are halved until the culprit stands alone.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import mnnconvert.ops  # noqa: F401  (registers the ops)
from mnnconvert.errors import ConversionError, MnnConvertError
from mnnconvert.ir import Builder, Graph, Spec, verify
from mnnconvert.ops.base import attribute_names, sorted_ops
from mnnconvert.ops.quantization import FloatToInt8, Int8ToFloat
from mnnconvert.passes.layout import PlaceLayout
from mnnconvert.passes.legalize import Legalize
from mnnconvert.passes.names import NameOutputs
from mnnconvert.schema.writer import write_model
from mnnconvert.verify.mnn_engine import MnnEngine

BATCH = 150  # samples in one file
RTOL = 1e-4  # of the largest magnitude of a result
LOOSER = {
    "Unary": 2e-3,  # the runtime approximates exp, erf and their kin with polynomials, in high precision too
}


@dataclass
class Case:
    """One sample as a graph for the runtime; `prefix` keeps its names apart from those of others in the same file."""

    prefix: str
    kind: str
    graph: Graph
    feeds: dict[str, np.ndarray]
    wanted: dict[str, np.ndarray]
    exact: bool  # False where the results are random


def _results(op, values) -> int:
    result = op.infer(*(v.spec for v in values))
    return 1 if isinstance(result, Spec) else len(result)


def _case(cls, index, sample, feed_all) -> Case:
    """The one-op graph. With `feed_all` operands after the first are inputs too, unless they are always constant.

    int8 goes in and out as float32, because the runtime adds 128 to what it stores.
    """
    op, builder, feeds, values = cls(**sample.attributes), Builder(), {}, []
    prefix = f"{cls.__name__}-{index}-{'fed' if feed_all else 'fixed'}/"
    arrays = sample.arrays()
    for i, (name, array) in enumerate(zip(sample.operands, arrays, strict=True)):
        if name in sample.constant or (i and not feed_all):
            values.append(builder.constant(array, f"{prefix}in{i}"))
        else:
            fed = array.astype(np.float32) if array.dtype == np.int8 else array
            value = builder.input(f"{prefix}in{i}", fed.dtype, fed.shape)
            feeds[value.name] = fed
            values.append(builder.add(FloatToInt8(), value) if array.dtype == np.int8 else value)
    result = op.ref(*arrays)
    results = [np.asarray(r) for r in (result if isinstance(result, tuple) else (result,))]
    names = [f"{prefix}out{i}" for i in range(_results(op, values))]
    for i, value in enumerate(builder.add(op, *values, names=names)):
        builder.output(builder.add(Int8ToFloat(), value) if value.dtype == np.int8 else value, names[i])
    results = [r.astype(np.float32) if r.dtype == np.int8 else r for r in results]
    return Case(prefix, cls.__name__, builder.graph, feeds, dict(zip(names, results, strict=True)), op.pure)


def _legal(case: Case) -> str:
    """Run the passes that write for the runtime; the reason if they refuse the op."""
    try:
        for each in (Legalize(), PlaceLayout(), NameOutputs()):
            each.run(case.graph)
            verify(case.graph, each.name)
    except ConversionError as error:
        assert all(d.reference == "runtime-defect" for d in error.diagnostics), error.diagnostics
        return error.diagnostics[0].message
    for value in case.graph.values():
        value.name = value.name if value.name.startswith(case.prefix) else case.prefix + value.name
    return ""


def _side_by_side(cases) -> Graph:
    graph = Graph()
    for case in cases:
        graph.inputs += case.graph.inputs
        graph.nodes += case.graph.nodes
        graph.outputs += case.graph.outputs
    return graph


def _run(cases) -> dict[str, np.ndarray | str]:
    """Results by output name; the failure by prefix where a case cannot be run."""
    feeds = {name: array for case in cases for name, array in case.feeds.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.mnn"
        write_model(_side_by_side(cases), path)
        try:
            with MnnEngine(path, timeout=20) as engine:
                return engine.run(feeds)
        except MnnConvertError as error:
            if len(cases) == 1:
                return {cases[0].prefix: error.diagnostics[0].message}
    half = len(cases) // 2
    return _run(cases[:half]) | _run(cases[half:])


def _difference(got: np.ndarray, want: np.ndarray, rtol: float) -> str:
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    if got.dtype.kind != "f":
        return "" if np.array_equal(got, want) else f"{got.tolist()} instead of {want.tolist()}"[:300]
    finite = np.isfinite(want)
    same = np.array_equal(got[~finite], want[~finite], equal_nan=True)
    error = np.abs(got[finite] - want[finite]).max(initial=0)
    largest = np.abs(want[finite]).max(initial=0)
    return (
        ""
        if same and error <= rtol * largest
        else f"off by {error:g} of {largest:g}: {got.tolist()} {want.tolist()}"[:300]
    )


def _other_kind(got: np.ndarray, want: np.ndarray, rtol: float) -> str:
    """What is wrong with random numbers: only their kind can be told."""
    same = got.shape == want.shape and got.dtype == want.dtype and np.isfinite(got).all()
    return "" if same else f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"


def problems(case: Case, results) -> list[str]:
    if case.prefix in results:
        return [f"{case.prefix}: {results[case.prefix]}"]
    compare = _difference if case.exact else _other_kind
    found = [(n, compare(results[n], w, LOOSER.get(case.kind, RTOL))) for n, w in case.wanted.items()]
    return [f"{name}: {text}" for name, text in found if text]


def all_cases():
    for cls in sorted_ops():
        for i, sample in enumerate(cls.samples.for_op(attribute_names(cls)) if cls.samples else ()):
            yield _case(cls, i, sample, feed_all=True)
            if len(sample.operands) - len(sample.constant) > 1:
                yield _case(cls, i, sample, feed_all=False)


@pytest.fixture(scope="module")
def outcome():
    """Problems by op, and refusals by op."""
    wrong, refused, legal = {}, {}, []
    for case in all_cases():
        reason = _legal(case)
        if reason:
            refused.setdefault(case.kind, []).append(f"{case.prefix}: {reason}")
        else:
            legal.append(case)
    for start in range(0, len(legal), BATCH):
        batch = legal[start : start + BATCH]
        results = _run(batch)
        for case in batch:
            wrong.setdefault(case.kind, []).extend(problems(case, results))
    return wrong, refused


@pytest.mark.mnn
@pytest.mark.parametrize("kind", [c.__name__ for c in sorted_ops() if c.samples])
def test_released_runtime_computes_the_op(kind, outcome):
    wrong, _ = outcome
    assert not wrong.get(kind)
