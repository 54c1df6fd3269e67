"""Tests that every op gets from its samples: shape rule and reference agree, and the file form is lossless."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import through_file

import mnnconvert.ops  # noqa: F401  (registers the ops)
from mnnconvert.ir import Builder, Graph, Spec
from mnnconvert.ops.base import attribute_names, sorted_ops


def _cases():
    for cls in sorted_ops():
        for i, sample in enumerate(cls.samples.for_op(attribute_names(cls)) if cls.samples else ()):
            yield pytest.param(cls, sample, id=f"{cls.__name__}-{i}")


CASES = list(_cases())


def test_every_op_has_samples_unless_it_runs_graphs():
    missing = [c.__name__ for c in sorted_ops() if not c.samples and c.subgraphs.__qualname__.startswith("Op.")]
    assert not missing


@pytest.mark.parametrize(("cls", "sample"), CASES)
def test_shape_rule_agrees_with_reference(cls, sample):
    op = cls(**sample.attributes)
    arrays = sample.arrays()
    result = op.ref(*arrays)
    results = result if isinstance(result, tuple) else (result,)
    contents = [
        a if a.dtype == np.int32 or n in sample.constant else None for n, a in zip(sample.operands, arrays, strict=True)
    ]
    specs = op.infer(*(Spec(a.dtype, a.shape, c) for a, c in zip(arrays, contents, strict=True)))
    for spec, array in zip(specs if isinstance(specs, tuple) else (specs,), results, strict=True):
        array = np.asarray(array)
        assert spec.dtype == array.dtype
        assert spec.shape is None or len(spec.shape) == array.ndim
        assert all(not isinstance(d, int) or d == n for d, n in zip(spec.shape or (), array.shape, strict=False))


@pytest.mark.parametrize(("cls", "sample"), CASES)
def test_shape_rule_stands_unknown_operands(cls, sample):
    """Nothing known, or only the rank: the rule answers with what it can say."""
    op = cls(**sample.attributes)
    arrays = sample.arrays()
    known = [a if n in sample.constant else None for n, a in zip(sample.operands, arrays, strict=True)]
    for shapes in ([None] * len(arrays), [tuple(f"s{i}" for i in range(a.ndim)) for a in arrays]):
        op.infer(
            *(Spec(a.dtype, a.shape if c is not None else s, c) for a, s, c in zip(arrays, shapes, known, strict=True))
        )


@pytest.mark.parametrize(("cls", "sample"), CASES)
def test_file_form_is_lossless(cls, sample):
    op = cls(**sample.attributes)
    builder = Builder(Graph())
    values = []
    for i, (name, array) in enumerate(zip(sample.operands, sample.arrays(), strict=True)):
        if name in sample.constant:
            values.append(builder.constant(array, f"in{i}"))
        else:
            values.append(builder.input(f"in{i}", array.dtype, array.shape))
    made = builder.add(op, *values, names=[f"out{i}" for i in range(_results(op, values))])
    for value in made:
        builder.output(value)
    node = through_file(builder.graph).nodes[-1]
    assert node.op == op
    assert len(node.inputs) == len(values)


def _results(op, values) -> int:
    result = op.infer(*(v.spec for v in values))
    return 1 if isinstance(result, Spec) else len(result)
