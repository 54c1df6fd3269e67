"""Graphs and pages that are kept as text are what the code makes; after a change on purpose, `make golden`."""

from __future__ import annotations

import difflib

import golden_zoo
import numpy as np
import pytest
from onnx_cases import assert_equal, onnxruntime_outputs

from mnnconvert.ir import to_text
from mnnconvert.runtime_ref.session import Session


def difference(kept: str, made: str) -> str:
    return "\n".join(difflib.unified_diff(kept.splitlines(), made.splitlines(), "kept", "made", lineterm=""))


@pytest.mark.parametrize("name", golden_zoo.ZOO)
def test_graph_is_the_one_that_is_kept(name):
    kept = (golden_zoo.FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    made = to_text(golden_zoo.optimized(name))
    assert kept == made, f"run `make golden` if this is meant:\n{difference(kept, made)}"


@pytest.mark.parametrize(
    ("page", "make"),
    [
        (golden_zoo.OPERATORS, golden_zoo.operators),
        (golden_zoo.TFLITE_OPERATORS, golden_zoo.tflite_operators),
        (golden_zoo.TENSORFLOW_OPERATORS, golden_zoo.tensorflow_operators),
        (golden_zoo.CAFFE_LAYERS, golden_zoo.caffe_layers),
    ],
    ids=["onnx", "tflite", "tensorflow", "caffe"],
)
def test_operator_page_is_the_one_that_is_kept(page, make):
    kept = page.read_text(encoding="utf-8")
    made = make()
    assert kept == made, f"run `make golden` if this is meant:\n{difference(kept, made)}"


def test_no_kept_graph_is_orphaned():
    assert {path.stem for path in golden_zoo.FOLDER.glob("*.txt")} == set(golden_zoo.ZOO)


@pytest.mark.parametrize("name", golden_zoo.ZOO)
def test_kept_graph_computes_what_the_model_computes(name, rng):
    """A dump that is wrong must not become the norm."""
    proto = golden_zoo.model(golden_zoo.ZOO[name])
    sizes = {"n": 2, "s": 5, "c": 3, "h": 6, "w": 8}
    feeds = {}
    for info in proto.graph.input:
        shape = [sizes[d.dim_param] if d.dim_param else d.dim_value for d in info.type.tensor_type.shape.dim]
        feeds[info.name] = rng.standard_normal(shape).astype(np.float32)
    got = Session(golden_zoo.optimized(name)).run(feeds)
    for output, want in onnxruntime_outputs(proto, feeds).items():
        assert_equal(got[output], want, rtol=1e-5, atol=1e-6, name=output)  # sums of up to 32 float32 products
