"""Arithmetic, comparisons, logic, bits, selection and casts against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto
from onnx_cases import check, refusal

from mnnconvert.ops.elementwise import erf, erfc

ROW = np.array([-3.5, -1.5, -0.5, -1e-4, 0.0, 1e-4, 0.5, 2.5, 3.0, 100.0], np.float32)


def noise(*shape: int, low: float = -2.0, high: float = 2.0, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


def stored(array: np.ndarray) -> np.ndarray:
    """The array in the type in which a result comes back: 16-bit integers as int32."""
    return array.astype(np.int32) if array.dtype.itemsize == 2 else array


def whole(*shape: int, dtype: str = "int32", low: int = -9, high: int = 10, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).integers(low, high, shape)
    return np.where(values == 0, 3, values).astype(dtype)


FUNCTIONS = (
    "Abs Neg Floor Ceil Exp Sin Cos Atan Sinh Cosh Asinh Sign Erf Sigmoid Tanh Round Softplus Softsign Reciprocal"
)


@pytest.mark.parametrize("op", FUNCTIONS.split())
def test_functions_of_one_number(op):
    x = np.where(np.abs(ROW) > 80, 20, ROW) if op in ("Exp", "Sinh", "Cosh") else ROW
    x = np.where(x == 0, 1, x) if op == "Reciprocal" else x
    check(f"(float[10] x) => (float[10] y) {{ y = {op}(x) }}", {"x": x}, rtol=1e-6)


@pytest.mark.parametrize("op", ["Sqrt", "Log", "Asin", "Acos", "Atanh", "Tan"])
def test_functions_on_a_part_of_the_line(op):
    check(f"(float[2,3] x) => (float[2,3] y) {{ y = {op}(x) }}", {"x": noise(2, 3, low=0.05, high=0.95)}, rtol=1e-6)


def test_acosh_of_a_scalar():
    check("(float x) => (float y) { y = Acosh(x) }", {"x": np.float32(1.5)}, rtol=1e-6)


def test_error_function_to_the_last_places():
    x = np.linspace(-6, 6, 2001)
    from math import erf as exact
    from math import erfc as exact_complement

    np.testing.assert_allclose(erf(x), [exact(v) for v in x], rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(erf(x.astype(np.float32)), [exact(v) for v in x], rtol=0, atol=2.5e-7)
    np.testing.assert_allclose(erfc(x), [exact_complement(v) for v in x], rtol=1e-8)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "Pow", "PRelu"])
@pytest.mark.parametrize("shapes", [((2, 3, 4), (3, 1)), ((2, 1, 4), (4,)), ((3,), ()), ((0, 3), (3,))])
def test_two_floats_broadcast(op, shapes):
    a, b = (f"float[{','.join(map(str, s))}]" if s else "float" for s in shapes)
    x = noise(*shapes[0], low=0.5) if op == "Pow" else noise(*shapes[0])
    result = np.broadcast_shapes(*shapes)
    check(f"({a} a, {b} b) => (float[{','.join(map(str, result))}] y) {{ y = {op}(a, b) }}",
          {"a": x, "b": noise(*shapes[1], seed=1)}, rtol=1e-6)  # fmt: skip


@pytest.mark.parametrize("op", ["Max", "Min", "Sum", "Mean"])
def test_three_operands(op):
    check(f"(float[2,3] a, float[3] b, float[2,1] c) => (float[2,3] y) {{ y = {op}(a, b, c) }}",
          {"a": noise(2, 3), "b": noise(3, seed=1), "c": noise(2, 1, seed=2)}, rtol=1e-6)  # fmt: skip


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Mod", "Mod <fmod=1>", "Pow"])
def test_two_integers(op, dtype):
    """Division truncates; Mod takes the sign of the divisor, with fmod that of the dividend."""
    low = 0 if op == "Pow" else -9
    check(f"({dtype}[3,5] a, {dtype}[5] b) => ({dtype}[3,5] y) {{ y = {op}(a, b) }}",
          {"a": whole(3, 5, dtype=dtype), "b": whole(5, dtype=dtype, low=low, high=6, seed=1)}, rtol=0)  # fmt: skip


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul"])
def test_narrow_integers_wrap(op, dtype):
    info = np.iinfo(dtype)
    a = np.array([info.min, info.min + 1, 3, info.max - 1, info.max], dtype)
    function = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}[op]
    check(f"({dtype}[5] a, {dtype}[5] b) => ({dtype}[5] y) {{ y = {op}(a, b) }}", {"a": a, "b": a[::-1].copy()},
          opset=14, rtol=0, want={"y": stored(function(a, a[::-1]))})  # fmt: skip


def test_remainder_of_floats():
    check("(float[4] a, float[4] b) => (float[4] y) { y = Mod <fmod=1> (a, b) }",
          {"a": np.float32([-7.5, 7.5, -7.5, 7.5]), "b": np.float32([2, -2, -2, 2])}, rtol=1e-6)  # fmt: skip


MIXED = [("float", "int64"), ("int32", "float"), ("float", "int32"), ("int64", "int32")]


@pytest.mark.parametrize(("base", "exponent"), MIXED)
def test_power_of_mixed_types(base, exponent):
    names = {"float": "float32"}
    a = np.array([1, 2, 3, 4], names.get(base, base))
    check(f"({base}[4] a, {exponent}[4] b) => ({base}[4] y) {{ y = Pow(a, b) }}",
          {"a": a, "b": np.array([0, 3, 2, 1], names.get(exponent, exponent))}, rtol=1e-6)  # fmt: skip


@pytest.mark.parametrize("exponent", [2.0, 0.5, 3.0, -1.0])
def test_power_with_a_constant(exponent):
    check("(float[2,3] x) => (float[2,3] y) { y = Pow(x, e) }",
          {"x": noise(2, 3, low=0.5), "e": np.float32(exponent)}, rtol=1e-6)  # fmt: skip


@pytest.mark.parametrize("op", ["Greater", "Less", "Equal", "GreaterOrEqual", "LessOrEqual"])
@pytest.mark.parametrize("dtype", ["float", "int32", "int64", "uint8"])
def test_comparisons_are_boolean(op, dtype):
    numpy_type = {"float": "float32"}.get(dtype, dtype)
    a = np.array([[3, 1, 2], [0, 5, 2]], numpy_type) - (0 if dtype == "uint8" else 4)
    check(f"({dtype}[2,3] a, {dtype}[3] b) => (bool[2,3] y) {{ y = {op}(a, b) }}",
          {"a": a.astype(numpy_type), "b": a[1].astype(numpy_type)}, opset=19, rtol=0)  # fmt: skip


@pytest.mark.parametrize("op", ["And", "Or", "Xor"])
def test_logic_and_selection(op):
    check(f"(bool[2,2] a, bool[2] b, float[2,1] x) => (bool[2,2] y, float[2,2] z, bool[2,2] n) "
          f"{{ y = {op}(a, b) n = Not(y) z = Where(n, x, k) }}",
          {"a": np.array([[True, False], [False, True]]), "b": np.array([True, False]), "x": noise(2, 1),
           "k": noise(2, seed=3)}, rtol=0)  # fmt: skip


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "uint16", "int32"])
def test_bits(dtype):
    a = np.array([1, 100, 77], dtype)
    results = {"p": a & a[::-1], "q": a | a[::-1], "r": a ^ a[::-1], "s": ~a}
    want = {name: stored(array) for name, array in results.items()}
    check(f"({dtype}[3] a, {dtype}[3] b) => ({dtype}[3] p, {dtype}[3] q, {dtype}[3] r, {dtype}[3] s) "
          "{ p = BitwiseAnd(a, b) q = BitwiseOr(a, b) r = BitwiseXor(a, b) s = BitwiseNot(a) }",
          {"a": a, "b": a[::-1].copy()}, opset=18, rtol=0, want=want)  # fmt: skip


@pytest.mark.parametrize(("direction", "want"), [("LEFT", [2, 144, 0, 0]), ("RIGHT", [0, 50, 0, 0])])
def test_shifts_of_bytes_lose_bits(direction, want):
    check(f'(uint8[4] a, uint8[4] b) => (uint8[4] y) {{ y = BitShift <direction="{direction}"> (a, b) }}',
          {"a": np.uint8([1, 200, 3, 255]), "b": np.uint8([1, 1 if direction == "LEFT" else 2, 8, 40])}, rtol=0,
          want={"y": np.uint8(want)})  # fmt: skip


def test_not_a_number_and_infinity():
    check("(float[5] x) => (bool[5] a, bool[5] b, bool[5] c, bool[5] d) { a = IsNaN(x) b = IsInf(x) "
          "c = IsInf <detect_negative=0> (x) d = IsInf <detect_positive=0> (x) }",
          {"x": np.float32([np.nan, np.inf, -np.inf, 0, 3e38])}, rtol=0)  # fmt: skip


@pytest.mark.parametrize("source", ["float", "int32", "int64", "uint8", "int8", "bool", "float16", "double"])
@pytest.mark.parametrize("target", ["float", "int32", "int64", "uint8", "int8", "int16"])
def test_casts(source, target):
    """Truncation, wrapping and truth; -2.7 becomes -2."""
    numbers = {"float": 1, "int32": 6, "int64": 7, "uint8": 2, "int8": 3, "int16": 5}
    numpy_type = {"float": "float32", "double": "float64"}.get(source, source)
    values = [0, 1, 2.75, 100] if source in ("uint8", "bool") or target == "uint8" else [-2.75, 0, 0.5, 100]
    check(f"({source}[4] x) => ({target}[4] z) {{ y = Cast <to={numbers[target]}> (x) z = Abs(y) }}",
          {"x": np.array(values).astype(numpy_type)}, rtol=0)  # fmt: skip


@pytest.mark.parametrize("source", ["float32", "int32", "uint8", "int8", "int64"])
def test_cast_to_bool_asks_for_anything_but_zero(source):
    name = {"float32": "float"}.get(source, source)
    check(f"({name}[4] x) => (bool[4] y) {{ y = Cast <to=9> (x) }}",
          {"x": np.array([0, 0.25, 1, 100]).astype(source)}, rtol=0)  # fmt: skip


def test_cast_like_takes_the_type_of_its_second_operand():
    check("(float[3] x, int32[1] k) => (int32[3] y) { y = CastLike(x, k) }",
          {"x": np.float32([-1.9, 0.2, 7.5]), "k": np.int32([0])}, opset=19, rtol=0)  # fmt: skip


@pytest.mark.parametrize("bounds", ["x", 'x, "", top', "x, low", "x, low, top", "x, top, low"])
def test_clip_with_optional_bounds(bounds):
    bounded = f"y = Clip({bounds}) z = Neg(y)"
    check(f"(float[3,4] x) => (float[3,4] z) <float low = {{-0.25}}, float top = {{0.5}}> {{ {bounded} }}",
          {"x": noise(3, 4)}, rtol=1e-6)  # fmt: skip


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "int8"])
def test_clip_of_integers(dtype):
    check(f"({dtype}[6] x) => ({dtype}[6] y) <{dtype} low = {{2}}, {dtype} top = {{5}}> {{ y = Clip(x, low, top) }}",
          {"x": np.arange(6).astype(dtype)}, rtol=0)  # fmt: skip


def test_clip_with_bounds_known_at_run_time():
    check("(float[4] x, float low) => (float[4] y) { y = Clip(x, low) }",
          {"x": noise(4), "low": np.float32(0.1)}, rtol=1e-6)  # fmt: skip


def test_clip_of_old_opsets_has_attributes():
    check("(float[4] x) => (float[4] y) { y = Clip <min=-0.5, max=0.5> (x) }", {"x": noise(4)}, opset=10, rtol=1e-6)


def test_broadcast_of_opset_6_aligns_an_axis():
    want = np.arange(24, dtype=np.float32).reshape(2, 3, 4) + np.float32([1, 2, 3])[:, None]
    check("(float[2,3,4] a, float[3] b) => (float[2,3,4] y) { y = Add <broadcast=1, axis=1> (a, b) }",
          {"a": np.arange(24, dtype=np.float32).reshape(2, 3, 4), "b": np.float32([1, 2, 3])}, opset=6, rtol=0,
          want={"y": want})  # fmt: skip


def test_sizes_known_at_run_time():
    for size in (2, 5):
        check("(float[n,3] a, float[n,1] b) => (float[n,3] y, bool[n,3] c) { y = Mul(a, b) c = Less(a, b) }",
              {"a": noise(size, 3), "b": noise(size, 1, seed=1)}, rtol=1e-6)  # fmt: skip


def test_int64_product_of_unknown_range_is_refused():
    (diagnostic,) = refusal("(int64[3] x) => (int64[3] y) <int64[1] k = {1000003}> { y = Mul(x, k) }")
    assert diagnostic.reference == "int64-range"
    assert "(int64[3] x) * 1000003" in diagnostic.message


def test_int64_product_of_a_size_is_not_refused():
    check("(float[2,n] x) => (int64[1] z) <int64[1] k = {100000}> "
          "{ s = Shape <start=1> (x) y = Mul(s, k) z = Add(y, y) }", {"x": noise(2, 3)}, rtol=0)  # fmt: skip


@pytest.mark.parametrize("to", [TensorProto.STRING, TensorProto.COMPLEX64])
def test_casts_that_mnn_cannot_hold_are_refused(to):
    (diagnostic,) = refusal(f"(float[3] x) => (float[3] y) {{ y = Cast <to={to}> (x) }}", opset=21)
    assert diagnostic.reference == "unsupported-type"


def test_a_constant_beyond_32_bits_is_refused():
    (diagnostic,) = refusal("(int64[1] x) => (int64[1] y) <float[1] k = {5e9}> { c = Cast <to=7> (k) y = Add(x, c) }")
    assert diagnostic.reference == "int64-range"


@pytest.mark.parametrize(("source", "to", "number"), [
    ("uint8", "int8", 3), ("int8", "uint8", 2), ("uint16", "int16", 5), ("bool", "uint8", 2),
])  # fmt: skip
def test_bits_of_one_integer_type_as_another(source, to, number, rng):
    high = {"bool": 2, "int8": 128, "uint8": 256, "uint16": 65536}.get(source, 1000)
    x = rng.integers(-128 if source == "int8" else 0, high, 20).astype(source)
    text = f"({source}[20] x) => ({to}[20] y) {{ y = BitCast <to={number}> (x) }}"
    check(text, {"x": x}, opset=26, rtol=0, want={"y": x.view(to)})


def test_bits_of_doubles_are_refused():
    (problem,) = refusal("(double[2] x) => (int64[2] y) { y = BitCast <to=7> (x) }", opset=26)
    assert problem.reference == "unsupported-type"
