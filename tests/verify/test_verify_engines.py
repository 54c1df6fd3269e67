"""onnxruntime as the source of truth, with the models that it needs help with, and the wrapper of our own session."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from mnnconvert.errors import ConversionError
from mnnconvert.verify.engines import OnnxRuntimeEngine, SessionEngine, TensorInfo
from mnnconvert.verify.onnx_repair import with_unique_node_names

pytest.importorskip("onnxruntime")


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def ramp(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_describes_and_runs(onnx_file):
    engine = OnnxRuntimeEngine(onnx_file("(float[n,3] x, int64[2] i, bool b) => (float[n,3] y) { y = Neg(x) }"))
    assert engine.inputs == [
        TensorInfo("x", np.dtype("float32"), ("n", 3)),
        TensorInfo("i", np.dtype("int64"), (2,)),
        TensorInfo("b", np.dtype("bool"), ()),
    ]
    outputs = engine.run({"x": ones(2, 3), "i": np.arange(2), "b": np.array(True)})
    np.testing.assert_array_equal(outputs["y"], -ones(2, 3))


@pytest.mark.parametrize(
    "element, dtype",
    [("float16", "float16"), ("double", "float64"), ("uint8", "uint8"), ("bfloat16", "bfloat16"), ("string", "object")],
)
def test_element_types(onnx_file, element, dtype):
    engine = OnnxRuntimeEngine(onnx_file(f"({element}[2] x) => ({element}[2] y) {{ y = Identity(x) }}"))
    assert engine.inputs[0].dtype == np.dtype(dtype)


def test_initializers_among_the_inputs_need_no_feed(onnx_file):
    engine = OnnxRuntimeEngine(onnx_file("(float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }", w=ones(2)))
    assert [info.name for info in engine.inputs] == ["x"]
    np.testing.assert_array_equal(engine.run({"x": ones(2)})["y"], 2 * ones(2))


def test_outputs_may_be_inputs_and_initializers(onnx_file):
    text = "(float[2] x) => (float[2] x, float[2] w, float[2] y) { y = Neg(x) }"
    outputs = OnnxRuntimeEngine(onnx_file(text, w=ones(2))).run({"x": ramp(2)})
    assert list(outputs) == ["x", "w", "y"]
    np.testing.assert_array_equal(outputs["w"], ones(2))


def rename_all(path, name: str) -> None:
    model = onnx.load(path)
    for node in model.graph.node:
        node.name = name
    onnx.save(model, path)


def test_duplicate_node_names(onnx_file):
    path = onnx_file("(float[2] x) => (float[2] y) { a = Neg(x) b = Neg(a) y = Neg(b) }")
    rename_all(path, "same")
    np.testing.assert_array_equal(OnnxRuntimeEngine(path).run({"x": ramp(2)})["y"], -ramp(2))


def test_unique_names_avoid_those_in_use(onnx_file):
    model = onnx.load(onnx_file("(float[2] x) => (float[2] y) { a = Neg(x) b = Neg(a) y = Neg(b) }"))
    for node, name in zip(model.graph.node, ["n", "n__2", "n"], strict=True):
        node.name = name
    names = [node.name for node in with_unique_node_names(model).graph.node]
    assert names[:2] == ["n", "n__2"] and len(set(names)) == 3


def test_duplicate_names_with_external_data(onnx_file, tmp_path):
    path = onnx_file("(float[2] x) => (float[2] y) { a = Add(x, w) y = Neg(a) }", w=ramp(2))
    rename_all(path, "same")
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert (tmp_path / "weights.bin").exists()
    np.testing.assert_array_equal(OnnxRuntimeEngine(path).run({"x": ones(2)})["y"], [-1, -2])


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("size, stride", [("h", 1), ("h", 2), (9, 2)])
def test_same_padding_with_dilation(onnx_file, mode, size, stride):
    conv = f'Conv<auto_pad="{mode}", dilations=[2,3], strides=[{stride},1]>(a, w)'
    path = onnx_file(f"(float[1,1,{size},8] x) => (float[1,1,p,q] y) {{ a = Neg(x) y = {conv} }}", w=ramp(1, 1, 3, 2))
    got = OnnxRuntimeEngine(path).run({"x": ramp(1, 1, 9, 8)})["y"]
    want = _dilated_same(-ramp(9, 8), ramp(3, 2), (stride, 1), (2, 3), mode == "SAME_UPPER")
    np.testing.assert_allclose(got[0, 0], want, rtol=1e-6)  # sums of six small integers


def _dilated_same(x, w, strides, dilations, upper) -> np.ndarray:
    """The definition: output ceil(size / stride), the odd element of the padding at the end for SAME_UPPER."""
    sizes = [-(-n // s) for n, s in zip(x.shape, strides, strict=True)]
    pads = []
    for n, out, k, s, d in zip(x.shape, sizes, w.shape, strides, dilations, strict=True):
        total = max((out - 1) * s + (k - 1) * d + 1 - n, 0)
        pads.append((total // 2, total - total // 2) if upper else (total - total // 2, total // 2))
    x = np.pad(x, pads)
    y = np.zeros(sizes)
    for r, c in np.ndindex(*sizes):
        for i, j in np.ndindex(*w.shape):
            y[r, c] += w[i, j] * x[r * strides[0] + i * dilations[0], c * strides[1] + j * dilations[1]]
    return y


def test_agrees_with_the_reference_evaluator(onnx_file):
    path = onnx_file("(float[2,3] x) => (float[2,3] y) { a = Softmax<axis=1>(x) y = Erf(a) }")
    want = ReferenceEvaluator(onnx.load(path)).run(None, {"x": ramp(2, 3)})[0]
    np.testing.assert_allclose(OnnxRuntimeEngine(path).run({"x": ramp(2, 3)})["y"], want, rtol=1e-5)  # float32 exp, erf


@pytest.mark.parametrize("feeds", [{}, {"x": np.ones((2, 2))}, {"x": ones(5, 2)}, {"y": ones(2, 2)}])
def test_wrong_feeds_are_diagnostics(onnx_file, feeds):
    engine = OnnxRuntimeEngine(onnx_file("(float[2,2] x) => (float[2,2] y) { y = Neg(x) }"))
    with pytest.raises(ConversionError, match=r"source-engine-failed: onnxruntime could not run the model"):
        engine.run(feeds)


@pytest.mark.parametrize("content", [b"", b"\x00\xffnot a model"])
def test_unreadable_files_are_diagnostics(tmp_path, content):
    (tmp_path / "bad.onnx").write_bytes(content)
    with pytest.raises(ConversionError, match=r"source-engine-failed.*bad\.onnx"):
        OnnxRuntimeEngine(tmp_path / "bad.onnx")


def test_a_missing_file_is_a_diagnostic(tmp_path):
    with pytest.raises(ConversionError, match="could not open"):
        OnnxRuntimeEngine(tmp_path / "none.onnx")


def test_sequences_are_refused_by_name(onnx_file):
    path = onnx_file("(float[2] x) => (seq(float[2]) s) { s = SequenceConstruct(x) }")
    with pytest.raises(ConversionError, match=r"'s' is a seq\(tensor\(float\)\)"):
        OnnxRuntimeEngine(path)


def test_session_engine_wraps_what_looks_like_a_session():
    value = SimpleNamespace(name="x", dtype="float32", shape=["n", None])
    session = SimpleNamespace(inputs=[value], outputs=[value], run=lambda feeds: {"x": (feeds["x"] * 2).tolist()})
    engine = SessionEngine(session)
    assert engine.inputs == [TensorInfo("x", np.dtype("float32"), ("n", None))]
    np.testing.assert_array_equal(engine.run({"x": ones(1, 2)})["x"], [[2, 2]])
