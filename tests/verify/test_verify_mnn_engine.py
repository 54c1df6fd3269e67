"""MNN's own runtime behind a process boundary: right answers, and what becomes of crashes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mnnconvert.errors import ConversionError
from mnnconvert.verify.compare import Tolerance
from mnnconvert.verify.engines import OnnxRuntimeEngine
from mnnconvert.verify.inputs import generate
from mnnconvert.verify.mnn_engine import MnnEngine
from mnnconvert.verify.verification import verify_engines

pytestmark = [
    pytest.mark.mnn,
    pytest.mark.skipif(not MnnEngine.available(), reason="the MNN package is not installed"),
]


@pytest.fixture
def relu(onnx_file, mnn_file):
    return mnn_file(onnx_file("(float[n,3] x) => (float[n,3] y) { y = Relu(x) }"))


def test_agrees_with_onnxruntime_on_a_convolution(onnx_file, mnn_file):
    text = """(float[n,3,h,w] x, int64[n,4] ids, bool[n] flag) => (float[n,4,h,w] y, int64[n,4] j, bool[n] k)
              { c = Conv<pads=[1,1,1,1]>(x, weight) y = Relu(c) j = Add(ids, ids) k = Not(flag) }"""
    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    path = onnx_file(text, weight=weight)
    source = OnnxRuntimeEngine(path)
    feeds = [generate(source.inputs, 0, variant=variant) for variant in (0, 1)]
    tolerance = Tolerance(relative=1e-5, absolute=1e-5)  # both compute in float32, in another order
    with MnnEngine(mnn_file(path)) as engine:
        result = verify_engines(source, engine, feeds, tolerance)
    assert result.passed, result.lines()


def test_describes_the_file(onnx_file, mnn_file):
    path = mnn_file(onnx_file("(float[a,b,8] x, int64[2] i) => (float[a,b,8] y, int64[2] j) { y = Abs(x) j = Neg(i) }"))
    with MnnEngine(path) as engine:
        assert [(i.name, str(i.dtype), i.shape) for i in engine.inputs][1] == ("i", "int32", (2,))
        assert engine.inputs[0].shape[1:] == (None, 8)
        assert [o.name for o in engine.outputs] == ["y", "j"]


def test_one_process_serves_many_runs(relu):
    with MnnEngine(relu) as engine:
        for rows in (1, 3, 2):
            x = np.linspace(-1, 1, rows * 3, dtype=np.float64).reshape(rows, 3)
            np.testing.assert_array_equal(engine.run({"x": x})["y"], np.maximum(x, 0).astype(np.float32))


def test_empty_results_have_their_shape(onnx_file, mnn_file):
    with MnnEngine(mnn_file(onnx_file("(float[n,3] x) => (int64[2,k] y) { y = NonZero(x) }"))) as engine:
        assert engine.run({"x": np.zeros((2, 3))})["y"].shape == (2, 0)
        np.testing.assert_array_equal(engine.run({"x": np.eye(3)})["y"], [[0, 1, 2], [0, 1, 2]])


def test_an_operator_that_cannot_be_created_is_a_diagnostic(onnx_file, mnn_file):
    path = mnn_file(onnx_file("(uint8[n] u) => (int8[n] q) { q = Cast<to=3>(u) }"))
    with MnnEngine(path) as engine, pytest.raises(ConversionError, match=r"peer-runtime-failed.*empty list"):
        engine.run({"u": np.ones(3, np.uint8)})


def test_a_crash_is_a_diagnostic(relu, tmp_path, peer_convert):
    text, broken = tmp_path / "m.json", tmp_path / "broken.mnn"
    peer_convert("-f", "MNN", "--modelFile", relu, "--JsonFile", text)
    net = json.loads(text.read_text())
    next(op for op in net["oplists"] if op["type"] == "ReLU")["inputIndexes"] = [12345678]
    text.write_text(json.dumps(net))
    peer_convert("-f", "JSON", "--modelFile", text, "--MNNModel", broken)
    with pytest.raises(ConversionError, match=r"peer-runtime-failed.*ended by SIG"):
        MnnEngine(broken).run({"x": np.zeros((1, 3))})


def test_a_hang_is_a_diagnostic(relu):
    with pytest.raises(ConversionError, match=r"no answer within 0\.001 s"):
        MnnEngine(relu, timeout=0.001)


def test_the_engine_lives_on_after_its_process_died(relu):
    with MnnEngine(relu) as engine:
        engine.close()
        np.testing.assert_array_equal(engine.run({"x": -np.ones((1, 3))})["y"], np.zeros((1, 3)))


@pytest.mark.parametrize("content", [None, b"", b"not a model at all"])
def test_unreadable_files_are_diagnostics(tmp_path, content):
    path = tmp_path / "bad.mnn"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConversionError, match=r"peer-runtime-failed.*bad\.mnn"):
        MnnEngine(path)


def test_wrong_names_are_named(relu):
    with MnnEngine(relu) as engine, pytest.raises(ConversionError, match="takes the inputs x; given were z"):
        engine.run({"z": np.zeros((1, 3))})


def test_integers_that_do_not_fit_are_refused(onnx_file, mnn_file):
    path = mnn_file(onnx_file("(int64[n] x) => (int64[n] y) { y = Neg(x) }"))
    with MnnEngine(path) as engine, pytest.raises(ConversionError, match="bad-input: Input 'x'"):
        engine.run({"x": np.array([2**31])})
