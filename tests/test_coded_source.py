"""Integers that a source model stores reach the file unchanged, and both executors compute with them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_cases import assert_equal, model, onnxruntime_outputs

import mnnconvert
from mnnconvert.describe import describe
from mnnconvert.ir import CodedTensor
from mnnconvert.runtime_ref.session import load
from mnnconvert.verify.mnn_engine import MnnEngine

LINEAR = "(float[2,64] x) => (float[2,6] y)"
CONV = "(float[1,3,6,6] x) => (float[1,4,6,6] y)"
TRANSPOSED_BLOCKS = "w = DequantizeLinear <axis=1, block_size=32>(q, s) t = Transpose(w) y = MatMul(x, t)"
TRANSPOSED_TWICE = "w = DequantizeLinear <axis=1>(q, s) t = Transpose(w) u = Transpose(t) y = MatMul(x, u)"
SCALED = "w = DequantizeLinear <axis=0>(q, s, z) c = Conv <pads=[1,1,1,1]>(x, w) m = Mul(c, f) y = Add(m, g)"

CASES = {
    "blocks": (LINEAR, "w = DequantizeLinear <axis=0, block_size=32>(q, s) y = MatMul(x, w)", "int4", (64, 6), (2, 6)),
    "rows": (LINEAR, "w = DequantizeLinear <axis=0>(q, s, z) t = Transpose <perm=[1,0]>(w) y = MatMul(x, t)", "int8",
             (6, 64), (6,)),
    "transposed blocks": (LINEAR, TRANSPOSED_BLOCKS, "int4", (6, 64), (6, 2)),
    "transposed twice": (LINEAR, TRANSPOSED_TWICE, "uint8", (64, 6), (6,)),
    "gemm": (LINEAR, "w = DequantizeLinear <axis=0>(q, s, z) y = Gemm <transB=1, alpha=0.5>(x, w, f)", "uint8", (6, 64),
             (6,)),
    "reshaped": (LINEAR, "w = DequantizeLinear(q, s) r = Reshape(w, d) t = Transpose(r) y = MatMul(x, t)", "int8",
                 (6, 8, 8), ()),
    "conv": (CONV, "w = DequantizeLinear <axis=0>(q, s, z) y = Conv <pads=[1,1,1,1]>(x, w)", "uint8", (4, 3, 3, 3),
             (4,)),
    "scaled conv": (CONV, SCALED, "uint8", (4, 3, 3, 3), (4,)),
    "scaled symmetric conv": (CONV, SCALED.replace(", z", ""), "int8", (4, 3, 3, 3), (4,)),
    "nbits": (LINEAR, "y = com.microsoft.MatMulNBits <K=64, N=6, bits=4, block_size=32>(x, p, s)", "uint4", (6, 64),
              (12,)),
}  # fmt: skip


def build(name, rng):
    """The model of a case, its feeds, and the integers it stores as signed rows [outputs, inputs]."""
    signature, text, kind, shape, scales = CASES[name]
    bits, signed = int(kind[-1]), kind.startswith("int")
    low = -(1 << (bits - 1)) if signed else 0
    codes = rng.integers(low, low + (1 << bits), shape)
    channels = 4 if signature == CONV else 6
    factor = np.array([-0.5, 2.0, 0.25, 1.5, -1.25, 0.75], "float32")[:channels]
    arrays = {
        "x": rng.standard_normal((1, 3, 6, 6) if signature == CONV else (2, 64)).astype("float32"),
        "q": helper.make_tensor("q", getattr(TensorProto, kind.upper()), shape, codes.reshape(-1).tolist()),
        "p": (codes[..., ::2] | codes[..., 1::2] << 4).astype("uint8").reshape(6, 2, 16) if name == "nbits" else None,
        "s": rng.uniform(0.01, 0.1, scales).astype("float32"),
        "z": np.full(channels, 5, "int8" if signed else "uint8"),
        "d": np.array([6, 64]),
        "f": factor if name == "gemm" else factor.reshape(1, -1, 1, 1),
        "g": factor.reshape(1, -1, 1, 1),
    }
    used = text.replace("(", " ").replace(")", " ").replace(",", " ").split()
    given = {k: v for k, v in arrays.items() if k in used}
    proto, feeds = model(f"{signature} {{ {text} }}", given, 21, ("com.microsoft",))
    matrix = codes.reshape(channels, -1) if shape[0] == channels else codes.T
    return proto, feeds, matrix - (0 if signed else 1 << (bits - 1)), bits


@pytest.mark.parametrize("name", CASES)
def test_integers_of_the_source_are_those_of_the_file(name, tmp_path, rng):
    proto, feeds, codes, bits = build(name, rng)
    onnx.save(proto, tmp_path / "m.onnx")
    report = mnnconvert.convert(tmp_path / "m.onnx", tmp_path / "m.mnn")
    (layer,) = report.layers
    assert (layer.precision, layer.method) == (f"{bits} bit", "as in the source")
    session = load(tmp_path / "m.mnn")
    (tensor,) = [v.tensor for v in session.graph.constants() if isinstance(v.tensor, CodedTensor)]
    np.testing.assert_array_equal(tensor.coded.codes, codes)
    assert [w["bits"] for w in describe(tmp_path / "m.mnn").to_dict()["weights"]] == [bits]
    want = onnxruntime_outputs(proto, feeds)["y"]
    assert_equal(session.run(feeds)["y"], want, rtol=2e-6, atol=1e-6)
    if MnnEngine.available():
        with MnnEngine(tmp_path / "m.mnn") as engine:
            assert_equal(engine.run(feeds)["y"], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("group", "channels", "scales", "kept"),
    [(1, 6, (), True), (2, 3, (), True), (2, 2, (4,), True), (4, 1, (4,), True), (1, 6, (4,), False)],
)
def test_transposed_convolutions_keep_integers_where_scales_fit_their_outputs(
    group, channels, scales, kept, tmp_path, rng
):
    arrays = {
        "x": rng.standard_normal((1, 4, 5, 5)).astype("float32"),
        "q": rng.integers(-127, 128, (4, channels, 3, 3)).astype("int8"),
        "s": rng.uniform(0.01, 0.1, scales).astype("float32"),
    }
    text = f"""(float[1,4,5,5] x) => (float[1,{channels * group},9,9] y) {{
        w = DequantizeLinear <axis=0>(q, s)
        y = ConvTranspose <group={group}, strides=[2,2], pads=[1,1,1,1]>(x, w)
    }}"""
    proto, feeds = model(text, arrays)
    onnx.save(proto, tmp_path / "m.onnx")
    report = mnnconvert.convert(tmp_path / "m.onnx", tmp_path / "m.mnn")
    assert {layer.precision for layer in report.layers} == {"8 bit" if kept else "float32"}
    session, want = load(tmp_path / "m.mnn"), onnxruntime_outputs(proto, feeds)["y"]
    tensors = [v.tensor for v in session.graph.constants() if isinstance(v.tensor, CodedTensor)]
    if kept:
        codes = np.concatenate([t.coded.codes.reshape(-1) for t in tensors])
        np.testing.assert_array_equal(codes, arrays["q"].reshape(-1))
    assert bool(tensors) == kept
    assert_equal(session.run(feeds)["y"], want, rtol=2e-6, atol=1e-6)
    if MnnEngine.available():
        with MnnEngine(tmp_path / "m.mnn") as engine:
            assert_equal(engine.run(feeds)["y"], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("bits", "block", "kept"),
    [(4, 32, True), (4, 0, True), (8, 32, False), (3, 32, False), (4, 16, True), (4, 48, True)],
)
def test_plan_of_weights_that_are_coded_already(bits, block, kept, tmp_path, rng):
    onnx.save(build("blocks", rng)[0], tmp_path / "m.onnx")
    report = mnnconvert.convert(
        tmp_path / "m.onnx", tmp_path / "m.mnn", weight_quant_bits=bits, weight_quant_block=block
    )
    assert [layer.reason for layer in report.layers] == ["coded in the source already" if kept else ""]
    assert ("rounded-twice" in [d.reference for d in report.diagnostics]) != kept


def test_halves_leave_coded_weights_alone(tmp_path, rng):
    onnx.save(build("rows", rng)[0], tmp_path / "m.onnx")
    report = mnnconvert.convert(tmp_path / "m.onnx", tmp_path / "m.mnn", fp16=True)
    assert [(x.precision, x.reason) for x in report.layers] == [("8 bit", "coded in the source already")]


@pytest.mark.parametrize("shuffled", [False, True])
def test_groups_of_columns_are_blocks_or_become_floats(shuffled, tmp_path, rng):
    proto, feeds, codes, _ = build("nbits", rng)
    groups = np.arange(64) // 32
    if shuffled:
        groups = rng.permutation(groups)
    proto.graph.initializer.append(numpy_helper.from_array(groups.astype("int32"), "g"))
    (node,) = proto.graph.node
    node.input.extend(["", "g"])
    onnx.save(proto, tmp_path / "m.onnx")
    report = mnnconvert.convert(tmp_path / "m.onnx", tmp_path / "m.mnn")
    assert [layer.precision for layer in report.layers] == ["float32" if shuffled else "4 bit"]
    numbers = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    weight = codes * numbers["s"].reshape(6, 2)[:, groups]  # signed codes: the zero point of 8 is taken off
    assert_equal(load(tmp_path / "m.mnn").run(feeds)["y"], feeds["x"] @ weight.T, rtol=1e-5, atol=1e-5)
