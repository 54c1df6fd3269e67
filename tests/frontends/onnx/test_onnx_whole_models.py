"""Whole conversions, proof included, of models with odd names, types, outputs, and parts that are shared or folded."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from onnx_cases import assert_equal, model, onnxruntime_outputs

import mnnconvert
from mnnconvert.verify.mnn_engine import MnnEngine

LOWEST = float(np.finfo("float32").min)


def rand(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def norm(channels: int) -> dict[str, np.ndarray]:
    names = ("g", "b", "m", "v")
    return {name: rand(channels, seed=i + 5) for i, name in enumerate(names)} | {"v": 1 + rand(channels, seed=9) ** 2}


def renamed(proto: onnx.ModelProto, names: dict[str, str]) -> onnx.ModelProto:
    """Other names for values, where the text form allows only identifiers."""
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.initializer):
        value.name = names.get(value.name, value.name)
    for node in proto.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    return proto


def odd_names():
    text = "(float[2,3] a) => (float[2,3] c, float[2,3] d) { b = Neg(a) c = Exp(b) d = Abs(b) }"
    names = {"a": "scope::in:0", "b": "a b,c", "c": "out/1:0", "d": "ü?*[0]"}
    return renamed(model(text)[0], names), {"scope::in:0": rand(2, 3)}


def node_names_that_repeat():
    proto, feeds = model("(float[3] x) => (float[3] y) { a = Neg(x) b = Exp(a) y = Sub(b, a) }", {"x": rand(3)})
    for node, name in zip(proto.graph.node, ["same", "same", "x"], strict=True):
        node.name = name
    return proto, feeds


def function_of_the_model():
    proto = parser.parse_model("""<ir_version: 10, opset_import: ["" : 17, "own" : 1]>
        g (float[2,3] x) => (float[2,3] y) { t = own.scaled<by = 3.0>(x) y = own.scaled<by = 0.5>(t) }
        <domain: "own", opset_import: ["" : 17]>
        scaled <by> (v) => (w) { k = Constant<value_float: float = @by>() p = Mul(v, k) w = Tanh(p) }""")
    return proto, {"x": rand(2, 3)}


def numbers_outside_of_raw_data():
    text = "(float[2,3] x) => (float[3,2] y) { a = Add(x, f) b = Cast<to=1>(i) c = Mul(a, b) y = Reshape(c, s) }"
    proto, feeds = model(text, {"x": rand(2, 3)})
    for name, kind, values in (("f", TensorProto.FLOAT, [0.5, -1.5, 2.5]), ("i", TensorProto.INT32, [1, -2, 3])):
        proto.graph.initializer.append(helper.make_tensor(name, kind, [3], values))
    proto.graph.initializer.append(helper.make_tensor("s", TensorProto.INT64, [2], [3, -1]))
    assert not any(tensor.raw_data for tensor in proto.graph.initializer)
    return proto, feeds


def float8_weight():
    import ml_dtypes

    proto, feeds = model("(float[2,8] x) => (float[2,4] y) { w = DequantizeLinear<axis=1>(q, s) y = MatMul(x, w) }",
                         {"x": rand(2, 8), "s": 0.1 + rand(4, seed=1) ** 2}, opset=19)  # fmt: skip
    codes = rand(8, 4, seed=2).astype(ml_dtypes.float8_e5m2)
    proto.graph.initializer.append(numpy_helper.from_array(codes, "q"))
    return proto, feeds


TEXTS = {
    "half precision": ("(float16[2,8] x) => (float16[2,4] y) { a = MatMul(x, w) y = Relu(a) }",
                       {"x": rand(2, 8).astype("float16"), "w": rand(8, 4, seed=1).astype("float16")}),
    "half-precision weight": ("(float[2,8] x) => (float[2,4] y) { f = Cast<to=1>(w) y = MatMul(x, f) }",
                              {"x": rand(2, 8), "w": rand(8, 4, seed=1).astype("float16")}),
    "double precision": ("(double[2,8] x) => (double[2,4] y) { a = MatMul(x, w) y = Softmax(a) }",
                         {"x": rand(2, 8).astype("float64"), "w": rand(8, 4, seed=1).astype("float64")}),
    "bytes": ("(uint8[1,2,3,3] x) => (uint8[1,2,3,3] y) { f = Cast<to=1>(x) h = Mul(f, k) y = Cast<to=2>(h) }",
              {"x": np.arange(100, 118, dtype=np.uint8).reshape(1, 2, 3, 3), "k": np.float32(0.7)}),
    "no rows by slicing": ("""(float[4,3] x, int64[1] end) => (float[n,3] y) <int64[1] zero = {0}> {
        s = Slice(x, zero, end) y = Neg(s) }""",
                           {"x": rand(4, 3), "end": np.array([0])}),
    "no rows to join": ("(float[n,3] a, float[m,3] b) => (float[k,3] y) { y = Concat<axis=0>(a, b) }",
                        {"a": np.zeros((0, 3), np.float32), "b": rand(2, 3)}),
    "outputs that nothing computes": ("(float[3] x) => (float[3] x, float[2] w, float[3] y) { y = Neg(x) }",
                                      {"x": rand(3), "w": rand(2)}),
    "rank zero": ("""(float[4,3] x) => (float[3] row, float sum) <int64 at = {-2}> {
        row = Gather(x, at) sum = ReduceSum<keepdims=0>(x) }""",
                  {"x": rand(4, 3)}),
    "boolean output": ("""(float[3,1] x, float[1,4] z) => (bool[3,4] less, float[3,4] y) {
        less = Less(x, z) y = Where(less, x, z) }""",
                       {"x": rand(3, 1), "z": rand(1, 4, seed=1)}),
    "a row that is masked out": ("(float[3,4] x) => (float[3,4] y) { a = Add(x, m) y = Softmax<axis=-1>(a) }",
                                 {"x": rand(3, 4), "m": np.float32([[0, LOWEST, 0, 0], [0, 0, 0, 0], [LOWEST] * 4])}),
    "far ends": ("""(float[5] x) => (float[5] a, float[5] b, float[5] c, float[5] d) {
        a = Erf(x) b = Softplus(x) c = Tanh(x) d = Sigmoid(x) }""",
                 {"x": np.float32([-1e4, -100, 0, 100, 1e4])}),
    "norm behind a grouped deconvolution": ("""(float[1,4,5,5] x) => (float[1,6,p,q] y) {
        c = ConvTranspose<group=2, strides=[2,2]>(x, w, e) y = BatchNormalization(c, g, b, m, v) }""",
        {"x": rand(1, 4, 5, 5), "w": rand(4, 3, 3, 3, seed=1), "e": rand(6, seed=2), **norm(6)}),
    "norm behind an activation": ("""(float[1,3,5,5] x) => (float[1,4,3,3] y) {
        c = Conv(x, w) r = Relu(c) y = BatchNormalization(r, g, b, m, v) }""",
        {"x": rand(1, 3, 5, 5), "w": rand(4, 3, 3, 3, seed=1), **norm(4)}),
    "norm on one of two readers": ("""(float[1,3,5,5] x) => (float[1,4,3,3] y, float[1,4,3,3] z) {
        c = Conv(x, w) y = BatchNormalization(c, g, b, m, v) z = Tanh(c) }""",
        {"x": rand(1, 3, 5, 5), "w": rand(4, 3, 3, 3, seed=1), **norm(4)}),
    "norm in front of padding": ("""(float[1,3,5,5] x) => (float[1,4,5,5] y) {
        n = BatchNormalization(x, g, b, m, v) y = Conv<pads=[1,1,1,1]>(n, w) }""",
        {"x": rand(1, 3, 5, 5), "w": rand(4, 3, 3, 3, seed=1), **norm(3)}),
    "attention with an odd scale": ("""
        (float[2,3,4] q, float[2,5,4] k, float[2,5,4] v) => (float[2,3,4] y) <float scale = {0.3}> {
        t = Transpose<perm=[0,2,1]>(k) s = MatMul(q, t) c = Mul(s, scale) p = Softmax<axis=-1>(c) y = MatMul(p, v) }""",
        {"q": rand(2, 3, 4), "k": rand(2, 5, 4, seed=1), "v": rand(2, 5, 4, seed=2)}),
    "a weight with three readers": ("""(float[2,64] x) => (float[2,64] y) {
        a = MatMul(x, w) b = MatMul(a, w) y = MatMul(b, w) }""",
                                    {"x": rand(2, 64), "w": 0.1 * rand(64, 64, seed=1)}),
    "a shape without a name": ("""
        (float[n,6] x) => (float[p,q] y) <int64 zero = {0}, int64[1] two = {2}, int64[1] all = {-1}> {
        s = Shape(x) d = Gather(s, zero) u = Unsqueeze(d, axes) t = Concat<axis=0>(two, all) r = Reshape(x, t)
        e = Concat<axis=0>(u, all) o = Reshape(r, e) y = Exp(o) }""", {"x": rand(4, 6), "axes": np.array([0])}),
}  # fmt: skip

MODELS = {
    **{name: lambda case=case: model(*case) for name, case in TEXTS.items()},
    **{f.__name__.replace("_", " "): f for f in (odd_names, node_names_that_repeat, function_of_the_model,
                                                 numbers_outside_of_raw_data, float8_weight)},
}  # fmt: skip
ORT_REFUSES = "node names that repeat"  # the same model with other node names has the same outputs


def expected(name: str, proto: onnx.ModelProto, feeds) -> dict[str, np.ndarray]:
    if name == ORT_REFUSES:
        proto = onnx.ModelProto.FromString(proto.SerializeToString())
        for node in proto.graph.node:
            node.name = ""
    return onnxruntime_outputs(proto, feeds)


@pytest.fixture(params=MODELS)
def case(request, tmp_path):
    """The file of a model, its feeds and outputs, and the tolerance of its type."""
    proto, feeds = MODELS[request.param]()
    onnx.save(proto, tmp_path / "model.onnx")
    want = expected(request.param, proto, feeds)
    half = any(array.dtype == np.float16 for array in want.values())
    return tmp_path / "model.onnx", feeds, want, 2e-3 if half else 1e-5


@pytest.mark.parametrize("level", [0, 1, 2])
def test_conversion_with_proof(case, level):
    source, feeds, want, rtol = case
    target = source.with_suffix(".mnn")
    report = mnnconvert.convert(source, target, optimize_level=level)
    assert report.verification is not None and report.verification.passed
    got = mnnconvert.load(target).run(feeds)
    assert got.keys() == want.keys()
    for name, array in want.items():
        assert_equal(got[name].astype(array.dtype) if array.dtype.kind == "f" else got[name], array, rtol, 1e-6, name)


@pytest.mark.mnn
@pytest.mark.skipif(not MnnEngine.available(), reason="MNN is not installed")
def test_the_released_runtime_agrees(case):
    source, feeds, want, rtol = case
    target = source.with_suffix(".mnn")
    mnnconvert.convert(source, target)
    with MnnEngine(target) as engine:
        got = engine.run(feeds)
    for name, array in want.items():  # its integers have 32 bits, its booleans are integers
        kind = array.dtype if array.dtype.kind in "fb" else np.int64
        assert_equal(got[name].astype(kind), array.astype(kind), 10 * rtol, 1e-6, name)


def test_a_shared_weight_is_stored_once(tmp_path):
    onnx.save(MODELS["a weight with three readers"]()[0], tmp_path / "m.onnx")
    report = mnnconvert.convert(tmp_path / "m.onnx", tmp_path / "m.mnn", verify="never")
    assert report.target_bytes < 64 * 64 * 4 + 4000
