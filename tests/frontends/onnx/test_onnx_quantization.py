"""Quantised models: integers that stay integers, activations on the exact grid, exact integer products."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_cases import check, import_proto, model

from mnnconvert.ir import CodedTensor, TransposedMatrix

MS = ("com.microsoft",)


def coded(graph):
    """The coded weights of a graph."""
    tensors = [v.tensor.source if isinstance(v.tensor, TransposedMatrix) else v.tensor for v in graph.constants()]
    return [t for t in tensors if isinstance(t, CodedTensor)]


def packed(kind, codes):
    return helper.make_tensor("q", getattr(TensorProto, kind), codes.shape, codes.reshape(-1).tolist())


@pytest.mark.parametrize("kind", ["uint8", "int8", "uint16", "int16"])
def test_quantise_rounds_halves_to_even_and_saturates(kind):
    x = np.concatenate([np.arange(-6, 7) * 0.5, [1e6, -1e6, 0.49999997]]).astype("float32")
    zero = {"uint8": 128, "int8": -3, "uint16": 7, "int16": -9}[kind]
    info = np.iinfo(kind)
    want = np.clip(np.rint(x) + zero, info.min, info.max).astype(kind)
    text = f"(float[16] x) => ({kind}[16] y) <float s = {{1.0}}> {{ y = QuantizeLinear(x, s, z) }}"
    want = want if kind in ("uint8", "int8") else want.astype("int32")
    check(text, {"x": x, "z": np.array(zero, kind)}, opset=21, rtol=0, want={"y": want})


@pytest.mark.parametrize(("axis", "shape"), [(0, (3, 4, 2)), (-2, (3, 4, 2)), (1, (3, 4))])
def test_quantise_and_back_along_an_axis(axis, shape, rng):
    n = shape[axis]
    names = ",".join("abc"[: len(shape)])
    arrays = {
        "x": rng.standard_normal(shape).astype("float32"),
        "s": rng.uniform(0.01, 0.1, n).astype("float32"),
        "z": rng.integers(0, 255, n).astype("uint8"),
    }
    text = f"""(float[{names}] x) => (float[{names}] y, uint8[{names}] q) {{
        q = QuantizeLinear <axis={axis}>(x, s, z)
        y = DequantizeLinear <axis={axis}>(q, s, z)
    }}"""
    check(text, arrays, rtol=1e-6)


def test_quantise_in_blocks(rng):
    arrays = {"x": rng.standard_normal((3, 6)).astype("float32"), "s": rng.uniform(0.1, 1, (3, 2)).astype("float32")}
    text = "(float[3,6] x) => (uint8[3,6] y) { y = QuantizeLinear <axis=1, block_size=3>(x, s, z) }"
    check(text, arrays | {"z": np.zeros((3, 2), "uint8")}, opset=21, rtol=0)


@pytest.mark.parametrize(("kind", "zero", "bits"), [("int8", 0, 8), ("int8", 5, 8), ("uint8", 128, 8), ("uint8", 7, 8)])
@pytest.mark.parametrize("use", ["MatMul", "Gemm", "Conv"])
def test_weights_keep_their_integers(use, kind, zero, bits, rng):
    info = np.iinfo(kind)
    shape = {"MatMul": (8, 5), "Gemm": (5, 8), "Conv": (5, 2, 2, 2)}[use]
    axis = 1 if use == "MatMul" else 0
    arrays = {
        "q": rng.integers(info.min, info.max + 1, shape).astype(kind),
        "s": rng.uniform(0.01, 0.1, 5).astype("float32"),
    }
    arrays |= {
        "z": np.full(5, zero, kind),
        "x": rng.standard_normal((1, 2, 2, 2) if use == "Conv" else (3, 8)).astype("float32"),
    }
    given, result = ("1,2,2,2", "1,5,1,1") if use == "Conv" else ("3,8", "3,5")
    text = f"""(float[{given}] x) => (float[{result}] y) {{
        w = DequantizeLinear <axis={axis}>(q, s, z)
        y = {use}{" <transB=1>" if use == "Gemm" else ""}(x, w)
    }}"""
    check(text, arrays, rtol=1e-5)
    (weight,) = coded(import_proto(model(text, arrays)[0]))
    rows = arrays["q"].T if axis else arrays["q"].reshape(5, -1)
    np.testing.assert_array_equal(weight.coded.codes, rows.astype(int) - (128 if kind == "uint8" else 0))
    assert weight.coded.bits == bits and (weight.coded.minimum is None) == (zero in (0, 128))


@pytest.mark.parametrize(("kind", "low", "high"), [("INT4", -8, 8), ("UINT4", 0, 16)])
@pytest.mark.parametrize("scale", [(), (6,), (2, 6)])
def test_four_bits(kind, low, high, scale, rng):
    q = rng.integers(low, high, (64, 6))
    arrays = {
        "q": packed(kind, q),
        "s": rng.uniform(0.01, 0.1, scale).astype("float32"),
        "x": rng.standard_normal((2, 64)).astype("float32"),
    }
    block = ", block_size=32" if len(scale) == 2 else ""
    text = f"""(float[2,64] x) => (float[2,6] y) {{
        w = DequantizeLinear <axis={0 if block else 1}{block}>(q, s)
        y = MatMul(x, w)
    }}"""
    check(text, arrays, opset=21, rtol=1e-5)
    (weight,) = coded(import_proto(model(text, arrays, 21)[0]))
    np.testing.assert_array_equal(weight.coded.codes, q.T - (8 if low == 0 else 0))
    assert weight.coded.bits == 4 and weight.coded.blocks == (2 if block else 1)


def test_other_constants_become_floats(rng):
    w8 = helper.make_tensor("w8", TensorProto.FLOAT8E5M2, [4, 3], rng.standard_normal(12).tolist())
    text = """(float[2,4] x) => (float[2,3] y) {
        w = DequantizeLinear <axis=1>(w8, s)
        b = DequantizeLinear(b32, s0)
        t = MatMul(x, w)
        y = Add(t, b)
    }"""
    arrays = {"w8": w8, "s": rng.uniform(0.5, 2, 3).astype("float32"), "b32": np.array([7, -8, 9], "int32")}
    check(
        text, arrays | {"s0": np.float32(0.5), "x": rng.standard_normal((2, 4)).astype("float32")}, opset=19, rtol=1e-6
    )


@pytest.mark.parametrize(
    ("bits", "zero"), [(2, None), (4, None), (4, "packed"), (4, "float"), (8, None), (8, "packed")]
)
@pytest.mark.parametrize("size", [64, 80])
def test_matmul_nbits(bits, zero, size, rng):
    blocks = -(-size // 32)
    arrays = {
        "x": rng.standard_normal((2, size)).astype("float32"),
        "w": rng.integers(0, 256, (6, blocks, 4 * bits)).astype("uint8"),
    }
    arrays["s"] = rng.uniform(0.01, 0.1, 6 * blocks).astype("float32")
    if zero == "packed":
        arrays["z"] = rng.integers(0, 256, 6 * -(-blocks * bits // 8)).astype("uint8")
    elif zero == "float":
        arrays["z"] = rng.uniform(3, 9, 6 * blocks).astype("float32")
    attributes = f"K={size}, N=6, bits={bits}, block_size=32"
    operands = "x, w, s, z" if zero else "x, w, s"
    text = f"(float[2,{size}] x) => (float[2,6] y) {{ y = com.microsoft.MatMulNBits <{attributes}>({operands}) }}"
    check(text, arrays, domains=MS, rtol=1e-5)
    assert len(coded(import_proto(model(text, arrays, domains=MS)[0]))) == (size == 64)


@pytest.mark.parametrize("depth", [5, 400, 5000])
def test_integer_products_are_exact(depth, rng):
    """Sums beyond 2^24, against int64; onnxruntime saturates pairs of products on some processors."""
    a, b = rng.integers(0, 256, (3, depth)).astype("uint8"), rng.integers(-128, 128, (depth, 2)).astype("int8")
    a[0], b[:, 0] = 255, -128
    want = {"y": ((a.astype(int) - 3) @ b.astype(int)).astype("int32")}
    text = f"(uint8[3,{depth}] a) => (int32[3,2] y) <uint8 z = {{3}}> {{ y = MatMulInteger(a, b, z) }}"
    check(text, {"a": a, "b": b}, rtol=0, want=want)
    fed = (
        f"(uint8[3,{depth}] a, int8[{depth},2] b) => (int32[3,2] y) <uint8 z = {{3}}> {{ y = MatMulInteger(a, b, z) }}"
    )
    check(fed, {"a": a, "b": b}, rtol=0, want=want)


def test_convolutions_of_integers(rng):
    x, w = rng.integers(0, 127, (1, 4, 5, 6)).astype("uint8"), rng.integers(0, 256, (4, 2, 3, 3)).astype("uint8")
    text = """(uint8[1,4,5,6] x) => (int32[1,4,3,3] y) <uint8 xz = {7}, uint8 wz = {121}> {
        y = ConvInteger <pads=[1,1,1,1], strides=[2,2], group=2>(x, w, xz, wz)
    }"""
    check(text, {"x": x, "w": w}, rtol=0)
    arrays = {
        "x": x[:, :3],
        "w": rng.integers(-128, 128, (4, 3, 3, 3)).astype("int8"),
        "b": rng.integers(-500, 500, 4).astype("int32"),
    }
    arrays |= {"ws": rng.uniform(0.001, 0.01, 4).astype("float32"), "wz": np.zeros(4, "int8")}
    text = """(uint8[1,3,5,6] x) => (uint8[1,4,5,6] y)
        <float xs = {0.01}, uint8 xz = {120}, float ys = {0.03}, uint8 yz = {128}> {
        y = QLinearConv <pads=[1,1,1,1]>(x, xs, xz, w, ws, wz, ys, yz, b)
    }"""
    check(text, arrays, rtol=0)


def test_products_that_come_out_quantised_or_float(rng):
    a, b = rng.integers(0, 127, (2, 8)).astype("uint8"), rng.integers(-128, 128, (8, 3)).astype("int8")
    scale = rng.uniform(0.001, 0.01, 3).astype("float32")
    text = """(uint8[2,8] a) => (uint8[2,3] y)
        <float s = {0.01}, uint8 z = {120}, float ys = {0.05}, uint8 yz = {100}> {
        y = QLinearMatMul(a, s, z, b, bs, bz, ys, yz)
    }"""
    check(text, {"a": a, "b": b, "bs": scale, "bz": np.zeros(3, "int8")}, rtol=0)
    arrays = {"a": a, "b": b, "bs": scale, "bz": np.zeros(3, "int8"), "c": np.ones(3, "float32")}
    text = """(uint8[2,8] a) => (float[2,3] y) <float s = {0.01}, uint8 z = {120}> {
        y = com.microsoft.MatMulIntegerToFloat(a, b, s, bs, z, bz, c)
    }"""
    check(text, arrays, domains=MS, rtol=1e-6)


def test_dynamic_quantisation(rng):
    text = "(float[n] x) => (uint8[n] y, float s, uint8 z) { y, s, z = DynamicQuantizeLinear(x) }"
    for x in (rng.standard_normal(50), rng.uniform(1, 3, 20), -rng.uniform(1, 3, 20), np.zeros(4)):
        check(text, {"x": x.astype("float32")}, rtol=1e-6)
    arrays = {"x": rng.standard_normal((3, 8)).astype("float32"), "b": rng.integers(-60, 60, (8, 4)).astype("int8")}
    arrays |= {"s": np.float32(0.02), "c": rng.standard_normal(4).astype("float32")}
    text = '(float[3,8] x) => (float[3,4] y) { y = com.microsoft.DynamicQuantizeMatMul(x, b, s, "", c) }'
    check(text, arrays, domains=MS, rtol=1e-5)


@pytest.mark.parametrize("name", ["QLinearAdd", "QLinearMul", "QLinearSigmoid"])
def test_quantised_arithmetic_is_within_one_step(name, rng):
    a, c = (rng.integers(0, 256, (3, 4)).astype("uint8") for _ in range(2))
    operands = "a, s, z, ys, yz" if name == "QLinearSigmoid" else "a, s, z, c, s, z, ys, yz"
    text = f"""(uint8[3,4] a, uint8[3,4] c) => (float[3,4] y)
        <float s = {{0.02}}, uint8 z = {{100}}, float ys = {{0.04}}, uint8 yz = {{9}}> {{
        q = com.microsoft.{name}({operands})
        y = DequantizeLinear(q, ys, yz)
    }}"""
    check(text, {"a": a, "c": c}, domains=MS, rtol=0, atol=0.0401)


@pytest.mark.parametrize("block", [2, 3])
def test_blocks_of_computed_scales(block, rng):
    x, scale = rng.standard_normal((2, 5)).astype("f"), rng.uniform(0.01, 0.1, (2, -(-5 // block))).astype("f")
    zero = rng.integers(100, 150, scale.shape).astype("uint8")
    kinds = f"float[{scale.shape[0]},{scale.shape[1]}] s, uint8[{scale.shape[0]},{scale.shape[1]}] z"
    wide, offset = (np.repeat(v, block, 1)[:, :5] for v in (scale, zero.astype("f")))
    codes = np.clip(np.round(x / wide) + offset, 0, 255).astype("uint8")
    text = f"""(float[2,5] x, {kinds}) => (uint8[2,5] q, float[2,5] y) {{
        q = QuantizeLinear <axis=1, block_size={block}> (x, s, z)
        y = DequantizeLinear <axis=1, block_size={block}> (q, s, z) }}"""
    want = {"q": codes, "y": (codes.astype("f") - offset) * wide}
    check(text, {"x": x, "s": scale, "z": zero}, opset=21, rtol=1e-5, want=want)
