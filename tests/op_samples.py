"""The samples of all ops as graphs, for tests of backends."""

from __future__ import annotations

import numpy as np
import pytest

import mnnconvert.ops  # noqa: F401  (registers the ops)
from mnnconvert.ir import Builder, Graph
from mnnconvert.ops.base import attribute_names, sorted_ops

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


def close(got, want, bound):
    """Whether arrays agree: integers and what is not finite exactly, other floats within `bound` of the largest."""
    if want.dtype.kind != "f":
        return np.array_equal(got, want)
    finite = np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite], equal_nan=True):
        return False
    largest = np.abs(want[finite]).max(initial=0)
    return bool((np.abs(got[finite].astype(np.float64) - want[finite]) <= bound * largest).all())
