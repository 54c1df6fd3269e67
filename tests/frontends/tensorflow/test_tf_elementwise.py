"""Arithmetic, comparisons, logic, activations and casts of TensorFlow."""

from __future__ import annotations

import numpy as np
import pytest
from tf_cases import array, check, raw, refusal, tf

X = array((2, 3, 4))
POSITIVE = array((2, 3, 4), low=0.1, high=3.0)
UNIT = array((2, 3, 4), low=-0.9, high=0.9)

UNARY = {
    "Abs": X, "Neg": X, "Floor": X, "Ceil": X, "Square": X, "Sqrt": POSITIVE, "Rsqrt": POSITIVE, "Exp": X,
    "Log": POSITIVE, "Sin": X, "Cos": X, "Tan": UNIT, "Asin": UNIT, "Acos": UNIT, "Atan": X, "Reciprocal": POSITIVE,
    "Inv": POSITIVE, "Log1p": POSITIVE, "Acosh": POSITIVE + 1, "Sinh": X, "Asinh": X, "Atanh": UNIT, "Sign": X,
    "Cosh": X, "Erf": X, "Erfc": X, "Erfinv": UNIT, "Expm1": X, "Sigmoid": X, "Tanh": X, "Ndtri": POSITIVE / 4,
}  # fmt: skip
FEATURES = ("Softplus", "Softsign", "Relu", "Relu6", "LeakyRelu", "Elu", "Selu")


@pytest.mark.parametrize("name", sorted(UNARY))
def test_unary(name):
    check(lambda x: getattr(raw, name)(x=x), UNARY[name])


@pytest.mark.parametrize("name", FEATURES)
def test_features(name):
    check(lambda x: getattr(raw, name)(features=x), 4 * X)


@pytest.mark.parametrize("name", ["Abs", "Neg", "Square", "Sign"])
@pytest.mark.parametrize("dtype", ["int32", "int64", "int8"])
def test_unary_of_integers(name, dtype):
    check(lambda x: getattr(raw, name)(x=x), array((3, 5), dtype))


@pytest.mark.parametrize("name", ["Rint", "Round"])
def test_round_halves_to_even(name):
    check(lambda x: getattr(raw, name)(x=x), np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.4, 2.6], np.float32))


def test_leaky_relu_alpha():
    check(lambda x: raw.LeakyRelu(features=x, alpha=0.37), X)


@pytest.mark.parametrize("name", ["Relu", "Relu6"])
def test_relu_of_integers(name):
    check(lambda x: getattr(raw, name)(features=x), 3 * array((4, 5), "int32"))


@pytest.mark.parametrize(
    "name",
    ["Add", "AddV2", "Sub", "Mul", "SquaredDifference", "Maximum", "Minimum"],
)
@pytest.mark.parametrize("dtype", ["float32", "int32", "int64"])
@pytest.mark.parametrize("shapes", [((2, 3, 4), (2, 3, 4)), ((2, 1, 4), (3, 1)), ((), (5,)), ((0, 3), (1, 3))])
def test_arithmetic(name, dtype, shapes):
    x, y = array(shapes[0], dtype), array(shapes[1], dtype, seed=1)
    check(lambda x, y: getattr(raw, name)(x=x, y=y), x, y)


@pytest.mark.parametrize("name", ["Div", "RealDiv", "Atan2", "Xdivy"])
def test_division(name):
    check(lambda x, y: getattr(raw, name)(x=x, y=y), X, POSITIVE)


@pytest.mark.parametrize("name", ["Div", "TruncateDiv", "FloorDiv", "FloorMod", "TruncateMod", "Mod"])
def test_division_of_integers(name):
    x = np.array([-7, -6, -1, 0, 5, 7, 9], np.int32)
    y = np.array([2, -4, 3, 5, -3, 2, -9], np.int32)
    check(lambda x, y: getattr(raw, name)(x=x, y=y), x, y)


@pytest.mark.parametrize("name", ["FloorDiv", "FloorMod", "Mod", "TruncateMod"])
def test_division_to_whole_numbers(name):
    x = np.array([-7.5, -6.25, -1, 0, 5.5, 7], np.float32)
    y = np.array([2, -4, 3, 5, -3, 2], np.float32)
    check(lambda x, y: getattr(raw, name)(x=x, y=y), x, y)


def test_pow():
    check(lambda x, y: raw.Pow(x=x, y=y), POSITIVE, X)
    check(lambda x, y: raw.Pow(x=x, y=y), array((3, 3), "int32"), np.abs(array((3,), "int32")))


@pytest.mark.parametrize("name", ["DivNoNan", "MulNoNan", "Xdivy", "Xlogy", "Xlog1py"])
def test_zero_is_special(name):
    x = np.array([0, 1, 2, 0, -3], np.float32)
    y = np.array([0, 0, 4, 2, 0.5], np.float32)
    check(lambda x, y: getattr(raw, name)(x=x, y=y), x, y)


def test_mul_no_nan_of_infinity():
    check(
        lambda x, y: raw.MulNoNan(x=x, y=y), np.array([np.inf, np.nan, 1], np.float32), np.array([0, 0, 2], np.float32)
    )


def test_uint8_wraps():
    x = np.array([250, 3, 128], np.uint8)
    check(lambda x, y: raw.AddV2(x=x, y=y), x, x)
    check(lambda x, y: raw.Sub(x=x, y=y), x[::-1].copy(), x)


@pytest.mark.parametrize("name", ["AddN", "AccumulateNV2"])
def test_add_n(name):
    more = {"shape": [2, 3, 4]} if name == "AccumulateNV2" else {}
    check(lambda x, y, z: getattr(raw, name)(inputs=[x, y, z], **more), X, POSITIVE, UNIT)


@pytest.mark.parametrize("format_", ["NHWC", "NCHW"])
@pytest.mark.parametrize("rank", [2, 3, 4, 5])
@pytest.mark.parametrize("known", [True, False])
def test_bias_add(format_, rank, known):
    sizes = [2, 3, 4, 5, 6][:rank]
    bias = array((sizes[1 if format_ == "NCHW" else -1],))
    if format_ == "NCHW" and rank in (2, 5):
        pytest.skip("not on a CPU")
    if known:
        check(lambda x: raw.BiasAdd(value=x, bias=bias, data_format=format_), array(sizes))
    else:
        check(lambda x, b: raw.BiasAdd(value=x, bias=b, data_format=format_), array(sizes), bias)


def test_bias_add_v1():
    check(lambda x, b: raw.BiasAddV1(value=x, bias=b), X, array((4,)))


@pytest.mark.parametrize("name", ["Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual"])
@pytest.mark.parametrize("dtype", ["float32", "int32", "int64", "uint8"])
def test_comparison(name, dtype):
    check(lambda x, y: getattr(raw, name)(x=x, y=y), array((3, 4), dtype), array((4,), dtype, seed=1))


def test_approximate_equal():
    check(lambda x, y: raw.ApproximateEqual(x=x, y=y, tolerance=0.5), X, X + array(X.shape, low=-1, high=1))


@pytest.mark.parametrize("name", ["LogicalAnd", "LogicalOr"])
def test_logic(name):
    check(lambda x, y: getattr(raw, name)(x=x, y=y), array((3, 4), "bool"), array((4,), "bool", seed=3))


def test_not():
    check(lambda x: raw.LogicalNot(x=x), array((3, 4), "bool"))


@pytest.mark.parametrize("name", ["BitwiseAnd", "BitwiseOr", "BitwiseXor", "LeftShift", "RightShift"])
@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_bits(name, dtype):
    x, y = array((3, 5), dtype, seed=5), np.abs(array((5,), dtype, seed=7))
    check(lambda x, y: getattr(raw, name)(x=x, y=y), x, y)


@pytest.mark.parametrize("dtype", ["int32", "int8", "uint8"])
def test_invert(dtype):
    check(lambda x: raw.Invert(x=x), array((3, 5), dtype))


@pytest.mark.parametrize("name", ["IsNan", "IsInf", "IsFinite"])
def test_kinds_of_numbers(name):
    check(lambda x: getattr(raw, name)(x=x), np.array([1, np.nan, np.inf, -np.inf, 0], np.float32))


def test_clip():
    check(lambda x: raw.ClipByValue(t=x, clip_value_min=-0.5, clip_value_max=1.25), X)
    check(lambda x, a: raw.ClipByValue(t=x, clip_value_min=a, clip_value_max=1.25), X, np.float32(-1))


def test_select():
    check(lambda c, x, y: raw.Select(condition=c, x=x, y=y), array((2,), "bool", seed=1), X, POSITIVE)
    check(lambda c, x, y: raw.Select(condition=c, x=x, y=y), array((2, 3, 4), "bool"), X, POSITIVE)
    check(lambda c, x, y: raw.SelectV2(condition=c, t=x, e=y), array((3, 1), "bool"), X, np.float32(7))


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "bool"])
@pytest.mark.parametrize("name", ["ZerosLike", "OnesLike"])
def test_filled_like(name, dtype):
    check(lambda x: getattr(raw, name)(x=x), array((2, 3), dtype))


KINDS = ("float32", "float64", "float16", "int32", "int64", "int16", "uint8", "int8", "bool")


@pytest.mark.parametrize("to", KINDS)
@pytest.mark.parametrize("of", KINDS)
def test_cast(of, to):
    x = array((4, 5), of, low=0 if to.startswith("u") else -3, high=3)
    rtol = 1e-3 if "float16" in (of, to) else 1e-6  # half precision is computed in full
    x = np.abs(x) if to.startswith("u") and of != "bool" else x
    check(lambda x: raw.Cast(x=x, DstT=getattr(tf, to)), x, rtol=rtol)


def test_casts_that_wrap():
    x = np.array([300, -1, 70000, -40000], np.int32)
    for to in ("uint8", "int8", "int16", "uint16"):
        check(lambda x, to=to: raw.Cast(x=x, DstT=getattr(tf, to)), x)


def test_bitcast():
    check(lambda x: raw.Bitcast(input=x, type=tf.int32), X)
    check(lambda x: raw.Bitcast(input=x, type=tf.float32), X.view(np.int32))
    check(lambda x: raw.Bitcast(input=x, type=tf.int8), array((4,), "uint8"))
    assert refusal(lambda x: raw.Bitcast(input=x, type=tf.uint8), X)[0].reference == "unsupported-type"


def test_what_passes_values_on():
    def through(x):
        x = raw.StopGradient(input=raw.Identity(input=x))
        x = raw.CheckNumerics(tensor=raw.PreventGradient(input=x), message="m")
        x = raw.EnsureShape(input=raw.Snapshot(input=x), shape=[2, None, 4])
        y, z = raw.IdentityN(input=[x, x * 2.0])
        return y, z

    check(through, X)
    check(through, X, open_=[0])


def test_assertions_and_texts_are_left_out():
    def function(x):
        with tf.control_dependencies([tf.debugging.assert_less(x, 100.0, message="too large"), tf.no_op()]):
            return x + 1.0

    check(function, X)


def test_ops_without_a_rule_are_refused_all_at_once():
    problems = refusal(lambda x: (raw.Lgamma(x=x), raw.Digamma(x=x), raw.AsString(input=x)), X)
    assert {p.context["op"] for p in problems} == {"Lgamma", "Digamma", "AsString"}
    assert {p.reference for p in problems} == {"unsupported-op"}


def test_doubles_are_floats():
    check(lambda x: x * 2 + 1, array((3,), "float64"))
