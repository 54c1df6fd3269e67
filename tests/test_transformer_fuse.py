"""--transformerFuse from end to end: what the report and --dumpPass say, and files that are converted again."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx_cases import model

import mnnconvert
from mnnconvert.cli.main import main
from mnnconvert.errors import UsageError
from mnnconvert.schema.reader import read_model

HEADS = "float[1,4,s,8] q, float[1,4,s,8] k, float[1,4,s,8] v"
PLAIN = f"""({HEADS}) => (float[1,4,s,8] y) {{
    kt = Transpose<perm=[0,1,3,2]>(k)
    a = MatMul(q, kt)
    p = Softmax<axis=-1>(a)
    y = MatMul(p, v)
}}"""
CAPPED = PLAIN.replace("Softmax<axis=-1>(a)", "Softmax<axis=-1>(c)").replace(
    "a = MatMul(q, kt)", "a = MatMul(q, kt)\n t = Tanh(a)\n c = Mul(t, cap)"
)
DECODER = """(float[1,2,s,8] q, float[1,2,s,8] k, float[1,2,s,8] v, float[1,1,s,m] mask, float[1,2,past,8] pk,
             float[1,2,past,8] pv) => (float[1,2,s,8] y, float[1,2,t,8] nk, float[1,2,t,8] nv) {
    nk = Concat<axis=2>(pk, k)
    nv = Concat<axis=2>(pv, v)
    kt = Transpose<perm=[0,1,3,2]>(nk)
    a = MatMul(q, kt)
    b = Add(a, mask)
    p = Softmax<axis=-1>(b)
    y = MatMul(p, nv)
}"""


@pytest.fixture
def saved(tmp_path):
    def save(text, **arrays):
        proto, _ = model(text, arrays)
        for value in proto.graph.input:
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param == "m":
                    dim.dim_param = "past + s"
        path = tmp_path / "m.onnx"
        onnx.save(proto, path)
        return path

    return save


def kinds(path):
    return [node.op.kind for node in read_model(path).nodes]


def noted(report, reference):
    return [d.message for d in report.diagnostics if d.reference == reference]


def test_what_is_fused_needs_no_word(saved, tmp_path):
    report = mnnconvert.convert(saved(PLAIN), tmp_path / "m.mnn", transformer_fuse=True)
    assert report.verification is not None and report.verification.passed
    assert kinds(tmp_path / "m.mnn").count("Attention") == 1
    assert not noted(report, "attention-not-fused")


def test_what_stays_in_pieces_says_why(saved, tmp_path, capsys):
    source = saved(CAPPED, cap=np.array(3.0, np.float32))
    report = mnnconvert.convert(source, tmp_path / "m.mnn", transformer_fuse=True)
    assert noted(report, "attention-not-fused") == [
        "attention stays in separate operators: scores are capped softly at 3"
    ]
    assert "Attention" not in kinds(tmp_path / "m.mnn")
    words = ["--modelFile", str(source), "--MNNModel", str(tmp_path / "m.mnn"), "--transformerFuse", "--dumpPass"]
    assert main(words) == 0
    printed = capsys.readouterr().err
    assert "attention at 'a': scores are capped softly at 3" in printed


def test_a_model_without_attention_is_told(saved, tmp_path):
    report = mnnconvert.convert(
        saved("(float[n,4] x) => (float[n,4] y) { y = Relu(x) }"), tmp_path / "m.mnn", transformer_fuse=True
    )
    assert noted(report, "attention-not-fused") == ["the model has no attention that --transformerFuse could fuse"]


def test_without_the_option_nothing_is_fused_or_said(saved, tmp_path):
    report = mnnconvert.convert(saved(PLAIN), tmp_path / "m.mnn")
    assert "Attention" not in kinds(tmp_path / "m.mnn")
    assert not report.diagnostics


def test_a_file_that_was_written_before_can_be_fused(saved, tmp_path):
    mnnconvert.convert(saved(PLAIN), tmp_path / "pieces.mnn")
    report = mnnconvert.convert(tmp_path / "pieces.mnn", tmp_path / "m.mnn", transformer_fuse=True)
    assert kinds(tmp_path / "m.mnn").count("Attention") == 1
    assert not noted(report, "attention-not-fused")


def test_a_decoder_loses_its_past_and_says_so(saved, tmp_path):
    report = mnnconvert.convert(saved(DECODER), tmp_path / "m.mnn", transformer_fuse=True)
    assert noted(report, "keys-kept") == ["2 inputs with the keys and values of earlier calls are kept inside"]
    assert report.verification is not None and report.verification.passed
    layers = mnnconvert.verify(tmp_path / "m.onnx", tmp_path / "m.mnn", per_layer=True).layers
    assert layers is not None and layers.first_bad is None
    session = mnnconvert.load(tmp_path / "m.mnn", kv_cache=True)
    assert [i.name for i in session.inputs] == ["q", "k", "v", "mask"]
    assert [o.name for o in session.outputs] == ["y"]


def test_a_pass_can_be_switched_off(saved, tmp_path):
    mnnconvert.convert(saved(PLAIN), tmp_path / "m.mnn", transformer_fuse=True, disable_pass=["fuse-attention"])
    assert "Attention" not in kinds(tmp_path / "m.mnn")


def test_the_packed_layout_is_refused(saved, tmp_path):
    with pytest.raises(UsageError, match="plain layout"):
        mnnconvert.convert(saved(PLAIN), tmp_path / "m.mnn", transformer_fuse_c4=True)
