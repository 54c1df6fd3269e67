"""Every sample of every op: compiled kernels agree with the numpy definition, at each level and for any threads."""

from __future__ import annotations

import numpy as np
import pytest

import mnnconvert.ops  # noqa: F401  (registers the ops)
from mnnconvert.ir import Builder, Graph
from mnnconvert.ops.base import attribute_names, sorted_ops
from mnnconvert.runtime_ref.cpu import library
from mnnconvert.runtime_ref.session import Session

BOUND = 4e-6
"""Of the largest value: sums in another order, and functions of 2 ulp after one another."""

CASES = [
    pytest.param(cls, sample, id=f"{cls.__name__}-{i}")
    for cls in sorted_ops()
    for i, sample in enumerate(cls.samples.for_op(attribute_names(cls)) if cls.samples else ())
    if cls.pure
]


def graph_of(cls, sample, fixed):
    """The op on inputs; the operands of `fixed` are constants. None where all is folded."""
    builder, feeds = Builder(Graph()), {}
    values = []
    for i, (name, array) in enumerate(zip(sample.operands, sample.arrays(), strict=True)):
        if name in fixed:
            values.append(builder.constant(array, f"in{i}"))
        else:
            values.append(builder.input(f"in{i}", array.dtype, tuple(f"s{i}_{d}" for d in range(array.ndim))))
            feeds[f"in{i}"] = array
    results = cls(**sample.attributes).infer(*(v.spec for v in values))
    count = len(results) if isinstance(results, tuple) else 1
    for value in builder.add(cls(**sample.attributes), *values, names=[f"out{i}" for i in range(count)]):
        builder.output(value)
    return builder.graph, feeds


def choices(sample):
    """Which operands are constants: those of the sample, or all but the first."""
    yield sample.constant
    if len(sample.operands) > 1:
        yield tuple(sample.operands)[1:]


@pytest.mark.parametrize("level", library.runnable_levels())
@pytest.mark.parametrize(("cls", "sample"), CASES)
def test_agrees_with_reference(cls, sample, level, monkeypatch):
    monkeypatch.setenv("MNNCONVERT_ISA", level)
    for fixed in choices(sample):
        graph, feeds = graph_of(cls, sample, fixed)
        expected = Session(graph, "reference").run(feeds)
        one, two = (Session(graph, "cpu", threads).run(feeds) for threads in (1, 2))
        for name, want in expected.items():
            assert one[name].dtype == want.dtype and one[name].shape == want.shape
            assert one[name].tobytes() == two[name].tobytes()
            assert close(one[name], want), (name, fixed)


def close(got, want):
    if want.dtype.kind != "f":
        return np.array_equal(got, want)
    finite = np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite], equal_nan=True):
        return False
    largest = np.abs(want[finite]).max(initial=0)
    return bool((np.abs(got[finite].astype(np.float64) - want[finite]) <= BOUND * largest).all())
