"""Arithmetic, comparisons, logic and activations against LiteRT, on floats, integers and codes."""

import numpy as np
import pytest
from tflite_cases import T, check, const, feeds_for, one, refusal

F, I = T((2, 3, 4, 5)), T((2, 3, 4), "int32")
UNARY = {
    "ABS": "AbsOptions", "CEIL": "", "COS": "CosOptions", "EXP": "ExpOptions", "FLOOR": "", "NEG": "NegOptions",
    "SIN": "", "SQUARE": "SquareOptions", "LOGISTIC": "", "TANH": "", "SIGN": "SignOptions",
    "HARD_SWISH": "HardSwishOptions", "ROUND": "", "RELU": "", "RELU6": "", "RELU_N1_TO_1": "", "RELU_0_TO_1": "",
    "ELU": "", "ZEROS_LIKE": "ZerosLikeOptions",
}  # fmt: skip
POSITIVE = {"LOG": "", "SQRT": "", "RSQRT": ""}
OPTIONS = {
    "ADD": "AddOptions", "SUB": "SubOptions", "MUL": "MulOptions", "DIV": "DivOptions", "POW": "PowOptions",
    "MAXIMUM": "MaximumMinimumOptions", "MINIMUM": "MaximumMinimumOptions",
    "SQUARED_DIFFERENCE": "SquaredDifferenceOptions", "FLOOR_DIV": "FloorDivOptions", "FLOOR_MOD": "FloorModOptions",
    "EQUAL": "EqualOptions", "NOT_EQUAL": "NotEqualOptions", "GREATER": "GreaterOptions",
    "GREATER_EQUAL": "GreaterEqualOptions", "LESS": "LessOptions", "LESS_EQUAL": "LessEqualOptions",
}  # fmt: skip
FUSED = {"NONE": 0, "RELU": 1, "RELU_N1_TO_1": 2, "RELU6": 3}


@pytest.mark.parametrize("name", UNARY)
def test_unary(name, tmp_path):
    check(one(name, [F], [T()], UNARY[name]), tmp_path)


@pytest.mark.parametrize("name", POSITIVE)
def test_unary_of_positive_numbers(name, tmp_path):
    content = one(name, [F], [T()])
    check(content, tmp_path, feeds_for(content, low=0.5, high=4.0))


@pytest.mark.parametrize("name", ["ABS", "NEG", "SIGN", "ZEROS_LIKE"])
def test_unary_of_integers(name, tmp_path):
    check(one(name, [I], [T((), "int32")], UNARY[name]), tmp_path)


def test_round_takes_halves_to_even(tmp_path):
    content = one("ROUND", [T((7,))], [T()])
    check(content, tmp_path, {"t0": np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.4], np.float32)})


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 1, 4, 5), (5,), (), (2, 1, 1, 5)])
@pytest.mark.parametrize("name", ["ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE"])
def test_arithmetic_broadcasts(name, shape, tmp_path):
    check(one(name, [F, T(shape)], [T()], OPTIONS[name]), tmp_path, rtol=1e-5)


@pytest.mark.parametrize("activation", FUSED)
@pytest.mark.parametrize("name", ["ADD", "SUB", "MUL", "DIV"])
def test_fused_activations(name, activation, tmp_path):
    fields = {"fusedActivationFunction": FUSED[activation]}
    check(one(name, [F, const(np.linspace(-2, 3, 5))], [T()], OPTIONS[name], **fields), tmp_path)


@pytest.mark.parametrize("name", ["ADD", "SUB", "MUL", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "POW"])
def test_arithmetic_of_integers(name, tmp_path):
    other = const([0, 1, 2, 3]) if name == "POW" else const([3, -1, 2, 4])
    check(one(name, [I, other], [T((), "int32")], OPTIONS[name]), tmp_path)


@pytest.mark.parametrize("name", ["DIV", "FLOOR_DIV", "FLOOR_MOD"])
@pytest.mark.parametrize("kind", ["float32", "int32"])
def test_division(name, kind, tmp_path):
    x, y = const(np.array([7, -7, 7, -7, 6, -5.0]), kind), T((6,), kind)
    feeds = {"t1": np.array([2, 2, -2, -2, 3, 7]).astype(kind)}
    check(one(name, [x, y], [T((), kind)], OPTIONS[name]), tmp_path, feeds)


def test_powers(tmp_path):
    content = one("POW", [F, T((5,))], [T()], "PowOptions")
    check(content, tmp_path, feeds_for(content, low=0.5, high=3.0))


def test_atan2(tmp_path):
    check(one("ATAN2", [F, F], [T()], "ATan2Options"), tmp_path)


@pytest.mark.parametrize("kind", ["float32", "int32", "int64"])
@pytest.mark.parametrize("name", ["EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"])
def test_comparisons(name, kind, tmp_path):
    content = one(name, [T((4, 5), kind), T((5,), kind)], [T((), "bool")], OPTIONS[name])
    feeds = {n: np.round(v).astype(kind) for n, v in feeds_for(content).items()}
    check(content, tmp_path, feeds)


@pytest.mark.parametrize("name", ["LOGICAL_AND", "LOGICAL_OR"])
def test_logic(name, tmp_path):
    options = {"LOGICAL_AND": "LogicalAndOptions", "LOGICAL_OR": "LogicalOrOptions"}[name]
    check(one(name, [T((4, 6), "bool"), T((6,), "bool")], [T((), "bool")], options), tmp_path)


def test_logical_not(tmp_path):
    check(one("LOGICAL_NOT", [T((9,), "bool")], [T((), "bool")], "LogicalNotOptions"), tmp_path)


def test_bits(tmp_path):
    check(one("BITWISE_XOR", [I, const([5, -1, 3, 8])], [T((), "int32")], "BitwiseXorOptions"), tmp_path)
    check(one("RIGHT_SHIFT", [I, const([0, 1, 2, 40])], [T((), "int32")], "RightShiftOptions"), tmp_path)


def test_add_n(tmp_path):
    check(one("ADD_N", [F, F, F], [T()], "AddNOptions"), tmp_path)


@pytest.mark.parametrize("alpha", [0.0, 0.2, 1.5])
def test_leaky_relu(alpha, tmp_path):
    check(one("LEAKY_RELU", [F], [T()], "LeakyReluOptions", alpha=alpha), tmp_path)


@pytest.mark.parametrize("approximate", [False, True])
def test_gelu(approximate, tmp_path):
    check(one("GELU", [F], [T()], "GeluOptions", approximate=approximate), tmp_path, atol=2e-4 if approximate else 1e-5)


@pytest.mark.parametrize("shape", [(), (5,), (1, 1, 5), (1, 1, 1), (3, 4, 5), (3, 1, 5)])
def test_prelu(shape, tmp_path):
    slope = const(np.linspace(-0.5, 0.9, int(np.prod(shape))).reshape(shape))
    check(one("PRELU", [F, slope], [T()]), tmp_path)


@pytest.mark.parametrize("to", ["float32", "int32", "int64", "bool", "uint8", "int8", "int16"])
@pytest.mark.parametrize("source", ["float32", "int32", "bool", "uint8", "int8"])
def test_casts(source, to, tmp_path):
    content = one("CAST", [T((3, 4), source)], [T((), to)], "CastOptions")
    feeds = feeds_for(content, low=0.0, high=9.0)
    if to == "uint8" and source in ("int32", "int8"):
        feeds = {name: np.abs(value) for name, value in feeds.items()}
    check(content, tmp_path, feeds)


def test_codes_are_cast_as_codes(tmp_path):
    check(one("CAST", [T((3, 4), "int8", 0.1, 5)], [T((), "float32")], "CastOptions"), tmp_path)
    (problem,) = refusal(one("CAST", [T((3, 4))], [T((), "int8", 0.1, 5)], "CastOptions"))
    assert problem.reference == "unsupported-type"


@pytest.mark.parametrize("name", ["SELECT", "SELECT_V2"])
def test_select(name, tmp_path):
    options = {"SELECT": "SelectOptions", "SELECT_V2": "SelectV2Options"}[name]
    check(one(name, [T((3, 4), "bool"), T((3, 4)), T((3, 4))], [T()], options), tmp_path)
    if name == "SELECT":
        check(one(name, [T((3,), "bool"), T((3, 4)), T((3, 4))], [T()], options), tmp_path)
    else:
        check(one(name, [T((4,), "bool"), T((3, 1)), const(1.5)], [T()], options), tmp_path)


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (0.0, 6.0), (-0.7, 2.1)])
@pytest.mark.parametrize("bits", [8, 4])
def test_fake_quant(low, high, bits, tmp_path):
    fields = {"min": low, "max": high, "numBits": bits}
    check(one("FAKE_QUANT", [F], [T()], "FakeQuantOptions", **fields), tmp_path, atol=1e-5)


def test_bitcast(tmp_path):
    check(one("BITCAST", [T((5,))], [T((), "int32")], "BitcastOptions"), tmp_path)
    (problem,) = refusal(one("BITCAST", [T((4, 4), "uint8")], [T((), "int32")], "BitcastOptions"))
    assert problem.reference == "unsupported-type" and "uint8" in problem.message


QUANTIZED = {"int8": (0.05, 3), "uint8": (0.04, 120)}


@pytest.mark.mnn
@pytest.mark.parametrize("kind", QUANTIZED)
@pytest.mark.parametrize("name", ["ADD", "SUB", "MUL", "MAXIMUM", "MINIMUM"])
def test_quantized_arithmetic(name, kind, tmp_path):
    scale, zero = QUANTIZED[kind]
    if name in ("MAXIMUM", "MINIMUM"):
        x = y = r = T((2, 3, 4, 5), kind, scale, zero)
    else:
        x, y, r = T((2, 3, 4, 5), kind, scale, zero), T((1, 1, 4, 5), kind, 0.03, zero - 9), T((), kind, 0.09, zero + 5)
    check(one(name, [x, y], [T((), r.type, r.scale, r.zero)], OPTIONS[name]), tmp_path, peer=True)


@pytest.mark.parametrize("kind", QUANTIZED)
@pytest.mark.parametrize("name", ["LOGISTIC", "TANH", "RELU", "RELU6", "HARD_SWISH", "LEAKY_RELU"])
def test_quantized_functions(name, kind, tmp_path):
    scale, zero = QUANTIZED[kind]
    low = -128 if kind == "int8" else 0
    result = {"LOGISTIC": (1 / 256, low), "TANH": (1 / 128, low + 128)}.get(name, (0.06, zero))
    options = {"LEAKY_RELU": "LeakyReluOptions", "HARD_SWISH": "HardSwishOptions"}.get(name, "")
    content = one(name, [T((2, 3, 4, 5), kind, scale, zero)], [T((), kind, *result)], options)
    check(content, tmp_path, steps=2 if name == "HARD_SWISH" else 1)


@pytest.mark.parametrize("kind", [*QUANTIZED, "int16"])
def test_quantize_and_dequantize(kind, tmp_path):
    scale, zero = {**QUANTIZED, "int16": (0.002, 0)}[kind]
    coded = T((), kind, scale, zero)
    check(one("QUANTIZE", [F], [coded], "QuantizeOptions"), tmp_path)
    check(one("DEQUANTIZE", [T((2, 3), kind, scale, zero)], [T()], "DequantizeOptions"), tmp_path)


def test_wide_integers_are_decoded_where_the_model_says_so(tmp_path):
    """LiteRT has no kernel for it."""
    content = one("DEQUANTIZE", [T((3,), "int32", 0.25, 2)], [T()], "DequantizeOptions")
    check(content, tmp_path, {"t0": np.array([6, -2, 2], np.int32)}, want={"t1": np.array([1, -1, 0], np.float32)})


def test_requantize(tmp_path):
    check(one("QUANTIZE", [T((2, 30), "int8", 0.05, 3)], [T((), "uint8", 0.11, 100)], "QuantizeOptions"), tmp_path)
