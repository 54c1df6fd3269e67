"""Inputs that mean sizes, scales, counts or indices get values that the source engine takes, whatever their names."""

from __future__ import annotations

import numpy as np
import pytest

import mnnconvert
from mnnconvert.verify.engines import OnnxRuntimeEngine

MODELS = {
    "sizes of a resize": ('(float[1,3,8,8] x, int64[4] s) => (float[a,b,c,d] y) '
                          '{ y = Resize<mode="nearest">(x, , , s) }', {"s": "sizes"}),
    "scales of a resize": ('(float[1,3,8,8] x, float[4] q) => (float[a,b,c,d] y) '
                           '{ y = Resize<mode="nearest">(x, , q) }', {"q": "scales"}),
    "a condition": ("(bool c, float[2] x) => (float[2] y) { y = If (c) <then_branch = g1 () => (float[2] t) "
                    "{ t = Exp(x) }, else_branch = g2 () => (float[2] e) { e = Abs(x) }> }", {}),
    "indices": ("(float[3,3] table, int64[n] which) => (float[n,3] y) { y = Gather(table, which) }",
                {"which": "index"}),
    "indices behind a cast": ("(float[3,3] table, int32[n] which) => (float[n,3] y) "
                              "{ w = Cast<to=7>(which)\n y = Gather(table, w) }", {"which": "index"}),
    "a shape": ("(float[2,6] x, int64[2] d) => (float[a,b] y) { y = Reshape(x, d) }", {"d": "shape"}),
    "repeats": ("(float[2,3] x, int64[2] r) => (float[a,b] y) { y = Tile(x, r) }", {"r": "count"}),
    "how many": ("(float[2,6] x, int64[1] n) => (float[2,a] v, int64[2,a] i) { v, i = TopK(x, n) }", {"n": "count"}),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_made_up_inputs_suit_what_they_are_for(name, onnx_file, tmp_path):
    text, roles = MODELS[name]
    source = onnx_file(text)
    engine = OnnxRuntimeEngine(source)
    assert {info.name: info.role for info in engine.inputs if info.role} == roles
    mnn = tmp_path / "m.mnn"
    mnnconvert.convert(source, mnn, verify="never")
    result = mnnconvert.verify(source, mnn)
    assert result.passed, result.lines()
    assert not any(run.notes for run in result.runs), "the first inputs are accepted"


def test_indices_fill_the_table(onnx_file):
    source = onnx_file("(int64[n] w) => (float[n,3] y) { y = Gather(t, w) }", t=np.zeros((50, 3), np.float32))
    engine = OnnxRuntimeEngine(source)
    from mnnconvert.verify.inputs import generate

    (info,) = engine.inputs
    assert info.limit == 50
    values = generate([info], 0, {"n": 400})["w"]
    assert values.min() == 0 and values.max() == 49


def test_pictures_alone_are_not_parsed_for_roles(onnx_file, monkeypatch):
    source = onnx_file("(float[1,3,8,8] x) => (float[1,3,8,8] y) { y = Neg(x) }")
    monkeypatch.setattr(OnnxRuntimeEngine, "_model", lambda self: pytest.fail("the model was parsed"))
    assert OnnxRuntimeEngine(source).inputs[0].role == ""
