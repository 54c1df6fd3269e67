"""8-bit products in onnxruntime are exact whatever the processor: checked against integer arithmetic."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from mnnconvert.verify.engines import OnnxRuntimeEngine
from mnnconvert.verify.onnx_saturation import may_saturate, with_unsigned_factors
from mnnconvert.verify.verification import Tolerance, verify_engines

pytest.importorskip("onnxruntime")

U8_S8, S8_U8 = ("uint8", "int8"), ("int8", "uint8")


def extremes(kind: str, *shape: int, seed: int = 0) -> np.ndarray:
    """Mostly the largest and smallest values: neighbouring products then leave int16."""
    random, limits = np.random.default_rng(seed), np.iinfo(kind)
    return random.choice([limits.min, limits.max, limits.max, 3], shape).astype(kind)


def product(a: np.ndarray, b: np.ndarray, a_zero: int = 0, b_zero: int = 0) -> np.ndarray:
    return (a.astype(np.int64) - a_zero) @ (b.astype(np.int64) - b_zero)


def convolution(x: np.ndarray, w: np.ndarray, x_zero: int = 0, w_zero: int = 0) -> np.ndarray:
    """3x3 without padding, by definition."""
    x, w = x.astype(np.int64) - x_zero, w.astype(np.int64) - w_zero
    high, wide = x.shape[2] - 2, x.shape[3] - 2
    taps = [(i, j) for i in range(3) for j in range(3)]
    return sum(np.einsum("nchw,oc->nohw", x[:, :, i : i + high, j : j + wide], w[:, :, i, j]) for i, j in taps)


def run(path, **feeds) -> tuple[np.ndarray, OnnxRuntimeEngine]:
    engine = OnnxRuntimeEngine(path)
    return engine.run(feeds)["y"], engine


def with_microsoft(path):
    model = onnx.load(path)
    model.opset_import.add(domain="com.microsoft", version=1)
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("kinds", [U8_S8, S8_U8])
@pytest.mark.parametrize("zeros", ["", ", a0, b0"])
def test_matmul_integer(onnx_file, kinds, zeros):
    a, b = extremes(kinds[0], 5, 64), extremes(kinds[1], 64, 7, seed=1)
    a0, b0 = (np.array(9, kinds[0]), np.array(5, kinds[1])) if zeros else (np.array(0), np.array(0))
    text = f"({kinds[0]}[5,64] a, {kinds[1]}[64,7] b) => (int32[5,7] y) {{ y = MatMulInteger(a, b{zeros}) }}"
    got, _ = run(onnx_file(text, **({"a0": a0, "b0": b0} if zeros else {})), a=a, b=b)
    np.testing.assert_array_equal(got, product(a, b, int(a0), int(b0)))


@pytest.mark.parametrize("kinds", [U8_S8, S8_U8])
def test_conv_integer_with_a_constant_weight(onnx_file, kinds):
    x, w = extremes(kinds[0], 1, 8, 6, 6), extremes(kinds[1], 4, 8, 3, 3, seed=1)
    text = f"({kinds[0]}[1,8,6,6] x) => (int32[1,4,4,4] y) {{ y = ConvInteger(x, w, x0) }}"
    got, _ = run(onnx_file(text, w=w, x0=np.array(7, kinds[0])), x=x)
    np.testing.assert_array_equal(got, convolution(x, w, 7))


@pytest.mark.parametrize("zero", [np.int8(0), np.array([3, 3, 3, 3], np.int8)])
def test_qlinear_conv(onnx_file, zero):
    x, w = extremes("uint8", 1, 8, 6, 6), extremes("int8", 4, 8, 3, 3, seed=1)
    one, step = np.float32(1), np.float32(4000)
    text = "(uint8[1,8,6,6] x) => (uint8[1,4,4,4] y) { y = QLinearConv(x, one, x0, w, ws, w0, step, y0) }"
    scale = np.full(zero.shape, one, np.float32)
    path = onnx_file(text, one=one, x0=np.uint8(100), w=w, ws=scale, w0=zero, step=step, y0=np.uint8(128))
    got, engine = run(path, x=x)
    want = np.clip(np.rint(convolution(x, w, 100, int(zero.flat[0])) / step) + 128, 0, 255)
    np.testing.assert_array_equal(got, want)
    assert "QLinearConv" in engine.notes[0]


def test_qlinear_matmul(onnx_file):
    a, b = extremes("uint8", 5, 64), extremes("int8", 64, 7, seed=1)
    text = "(uint8[5,64] a, int8[64,7] b) => (uint8[5,7] y) { y = QLinearMatMul(a, one, a0, b, one, b0, step, a0) }"
    path = onnx_file(text, one=np.float32(1), a0=np.uint8(100), b0=np.int8(-5), step=np.float32(4000))
    got, _ = run(path, a=a, b=b)
    np.testing.assert_array_equal(got, np.clip(np.rint(product(a, b, 100, -5) / 4000) + 100, 0, 255))


def test_dynamically_quantized_products(onnx_file):
    """The integers of DynamicQuantizeMatMul are uint8, whatever its weight is."""
    b = extremes("int8", 64, 7, seed=1)
    a = np.random.default_rng(0).choice(np.float32([0, 255, 254, 1]), (5, 64))  # scale 1, zero point 0
    text = "(float[5,64] a) => (float[5,7] y) { y = com.microsoft.DynamicQuantizeMatMul(a, b, one) }"
    path = onnx_file(text, b=b, one=np.float32(1))
    got, _ = run(with_microsoft(path), a=a)
    np.testing.assert_array_equal(got, product(a, b))


def test_qgemm(onnx_file):
    a, b = extremes("uint8", 5, 64), extremes("int8", 64, 7, seed=1)
    text = "(uint8[5,64] a) => (float[5,7] y) { y = com.microsoft.QGemm(a, one, a0, b, one, b0) }"
    path = onnx_file(text, b=b, one=np.float32(1), a0=np.uint8(100), b0=np.int8(-5))
    got, _ = run(with_microsoft(path), a=a)
    np.testing.assert_array_equal(got, product(a, b, 100, -5))


def test_quantized_attention_to_one_word(onnx_file):
    """A word that sees itself only gives its value, the last third of the product."""
    a, b = extremes("uint8", 5, 1, 64), extremes("int8", 64, 192, seed=1)
    text = """(uint8[5,1,64] a) => (float[5,1,64] y) {
        y = com.microsoft.QAttention <num_heads = 4> (a, b, bias, one, one, "", a0, b0) }"""
    path = onnx_file(text, b=b, bias=np.zeros(192, "f"), one=np.float32(1), a0=np.uint8(100), b0=np.int8(-5))
    got, _ = run(with_microsoft(path), a=a)
    np.testing.assert_array_equal(got, product(a, b, 100, -5)[..., 128:])


def test_products_inside_a_branch(onnx_file):
    text = """(bool c, uint8[2,64] a) => (int32[2,1] y) {
        y = If (c) <then_branch = t () => (int32[2,1] u) { u = MatMulInteger(a, b) },
                    else_branch = e () => (int32[2,1] v) { v = MatMulInteger(a, b) }> }"""
    a, b = np.full((2, 64), 255, np.uint8), np.full((64, 1), 127, np.int8)
    got, _ = run(onnx_file(text, b=b), a=a, c=np.array(True))
    np.testing.assert_array_equal(got, product(a, b))


def test_several_products_and_a_branch_behind_them(onnx_file):
    text = """(bool c, uint8[2,64] a) => (int32[2,1] x, int32[2,1] y, int32[2,1] z) {
        x = MatMulInteger(a, b)
        y = If (c) <then_branch = t () => (int32[2,1] u) { u = MatMulInteger(a, b) },
                    else_branch = e () => (int32[2,1] v) { v = MatMulInteger(a, b) }>
        z = MatMulInteger(a, b) }"""
    a, b = np.full((2, 64), 255, np.uint8), np.full((64, 1), 127, np.int8)
    outputs = OnnxRuntimeEngine(onnx_file(text, b=b)).run({"a": a, "c": np.array(True)})
    for name in "xyz":
        np.testing.assert_array_equal(outputs[name], product(a, b), err_msg=name)


def test_operands_of_one_kind_stay(onnx_file):
    path = onnx_file("(int8[2,3] a, int8[3,2] b) => (int32[2,2] y) { y = MatMulInteger(a, b) }")
    before = onnx.load(path)
    assert may_saturate(path) and not OnnxRuntimeEngine(path).notes
    after = onnx.load(path)
    assert with_unsigned_factors(after) == [] and after == before


def test_the_notes_of_a_reference_reach_the_runs(onnx_file):
    path = onnx_file("(uint8[2,3] a, int8[3,2] b) => (int32[2,2] y) { y = MatMulInteger(a, b) }")
    feeds = {"a": np.ones((2, 3), np.uint8), "b": np.ones((3, 2), np.int8)}
    engine = OnnxRuntimeEngine(path)
    result = verify_engines(engine, engine, [feeds], Tolerance())
    assert "MatMulInteger" in result.runs[0].notes[0]


def test_a_broken_file_is_a_diagnostic(tmp_path):
    from mnnconvert.errors import ConversionError

    (tmp_path / "m.onnx").write_bytes(b"\x08\xffMatMulInteger\xff\xff")
    with pytest.raises(ConversionError, match=r"source-engine-failed.*m\.onnx"):
        OnnxRuntimeEngine(tmp_path / "m.onnx")
