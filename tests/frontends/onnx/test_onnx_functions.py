"""Ops without a rule are expanded through the function bodies of the ONNX standard, with their attributes and types."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import import_proto, run_graph
from onnx import parser
from onnx.reference import ReferenceEvaluator
from onnx_cases import assert_equal, check, model, refusal

from mnnconvert import api
from mnnconvert.frontends.onnx.functions import is_function

LABELS = np.array([[0, 2, 1], [2, -1, 0]])


def reference(text, arrays, opset):
    proto, feeds = model(text, arrays, opset)
    return dict(zip([o.name for o in proto.graph.output], ReferenceEvaluator(proto).run(None, feeds), strict=True))


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("ignore", ["", ", ignore_index=-1"])
def test_losses(reduction, ignore, rng):
    """The body of one loss calls the other, with attributes that it hands on."""
    scores = rng.standard_normal((2, 4, 3)).astype("f")
    labels = LABELS if ignore else np.abs(LABELS)
    result = "[2,3] y" if reduction == "none" else " y"
    for op in ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"):
        text = f"""(float[2,4,3] x, int64[2,3] t, float[4] w) => (float{result})
                   {{ y = {op} <reduction="{reduction}"{ignore}> (x, t, w) }}"""
        arrays = {"x": scores, "t": labels, "w": rng.uniform(0.5, 1, 4).astype("f")}
        check(text, arrays, opset=13, rtol=1e-5, want=reference(text, arrays, 13))


def test_an_attribute_that_is_left_out_has_the_default_of_the_standard(rng):
    text = "(float[2,2,3] t) => (float[2,4,5,2] y) <int64[4] s = {2, 3, 4, 5}> { y = AffineGrid (t, s) }"
    arrays = {"t": rng.standard_normal((2, 2, 3)).astype("f")}
    check(text, arrays, opset=20, rtol=1e-5, want=reference(text, arrays, 20))


def test_operands_that_a_call_leaves_out_are_left_out_inside():
    """Of a function of the model, whose own nodes may take them as optional."""
    proto = parser.parse_model("""<ir_version: 8, opset_import: ["": 17, "f": 1]>
        g (float[4] x) => (float[4] y, float[4] z) <float low = {0.0}>
        { y = f.limit <top = 1.0> (x)  z = f.limit <top = 0.5> (x, low) }
        <domain: "f", opset_import: ["": 17]> limit <top> (x, low) => (y)
        { high = Constant <value_float: float = @top> ()  y = Clip (x, low, high) }""")
    x = np.array([-3, 0.25, 0.75, 4], np.float32)
    got = run_graph(import_proto(proto), {"x": x})
    assert_equal(got["y"], np.minimum(x, 1), rtol=0, atol=0)
    assert_equal(got["z"], np.clip(x, 0, 0.5), rtol=0, atol=0)


def test_what_is_a_function_depends_on_the_opset():
    assert is_function("", "SoftmaxCrossEntropyLoss", 12)
    assert not is_function("", "SoftmaxCrossEntropyLoss", 11)
    assert not is_function("", "AffineGrid", 19)
    assert not is_function("", "Relu", 13)
    assert not is_function("com.example", "AffineGrid", 20)


def test_ops_that_work_through_their_body_are_listed():
    listed = {op["name"]: op for op in api.supported_ops() if op["limits"] == "through its function body"}
    assert listed["SoftmaxCrossEntropyLoss"]["since"] == 12
    assert listed["AffineGrid"]["since"] == 20
    assert "Celu" not in listed  # it has a rule


def test_an_op_that_is_no_function_is_refused_by_name():
    (problem,) = refusal("(uint8[9] x) => (uint8[h,w,3] y) { y = ImageDecoder (x) }", opset=20)
    assert problem.reference == "unsupported-op"
    assert "ImageDecoder" in problem.message
