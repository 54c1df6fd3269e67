"""Import rules of arithmetic, element by element."""

from __future__ import annotations

from mnnconvert.frontends.common.compose import (
    apply,
    calc,
    cast,
    chain,
    choose,
    like,
    narrowed,
    reshape,
    single,
    widened,
)
from mnnconvert.frontends.onnx.integers import refuse_overflow
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.ir import F32, I32, Builder, Value
from mnnconvert.ops.activation import ReLU, ReLU6

UNARY = {
    "Abs": "ABS", "Neg": "NEG", "Floor": "FLOOR", "Ceil": "CEIL", "Sqrt": "SQRT", "Exp": "EXP", "Log": "LOG",
    "Sin": "SIN", "Cos": "COS", "Tan": "TAN", "Asin": "ASIN", "Acos": "ACOS", "Atan": "ATAN", "Acosh": "ACOSH",
    "Sinh": "SINH", "Asinh": "ASINH", "Atanh": "ATANH", "Sign": "SIGN", "Cosh": "COSH", "Erf": "ERF",
    "Sigmoid": "SIGMOID", "Tanh": "TANH", "Reciprocal": "RECIPROCAL",
}  # fmt: skip
ARITHMETIC = {"Add": "ADD", "Sub": "SUB", "Mul": "MUL", "Div": "REALDIV"}


@onnx_op(*UNARY)
def unary(b: Builder, n: OnnxNode) -> Value:
    """Functions that MNN has under a name of its own; on narrow integers they are computed in int32 and wrap."""
    x = n.input(0)
    return narrowed(b, apply(b, UNARY[n.op_type], widened(b, x)), x.dtype, n.source_type(0))


def aligned(b: Builder, n: OnnxNode) -> tuple[Value, Value]:
    """The two operands of a node before opset 7: `axis` says where the second one's sizes stand in the first."""
    x, y = n.input(0), n.input(1)
    if not n.attr("broadcast", 0) or not n.has_attr("axis") or x.rank is None or y.rank is None:
        return x, y
    behind = x.rank - n.attr("axis") % max(1, x.rank) - y.rank
    return x, reshape(b, y, (0,) * y.rank + (1,) * behind) if behind > 0 else y


@onnx_op(*ARITHMETIC, since=1)
def aligned_arithmetic(b: Builder, n: OnnxNode) -> Value:
    return _arithmetic(b, n, *aligned(b, n))


@onnx_op(*ARITHMETIC, since=7, limits="64-bit integers times or plus a large constant are refused")
def arithmetic(b: Builder, n: OnnxNode) -> Value:
    return _arithmetic(b, n, n.input(0), n.input(1))


def _arithmetic(b: Builder, n: OnnxNode, x: Value, y: Value) -> Value:
    """Broadcasting arithmetic. Integer division truncates; narrow integers are computed in int32 and wrap."""
    refuse_overflow(n)
    result = calc(b, ARITHMETIC[n.op_type], widened(b, x), widened(b, y))
    return narrowed(b, result, x.dtype, n.source_type(0))


@onnx_op("Max", "Min")
def extreme(b: Builder, n: OnnxNode) -> Value:
    """The largest or smallest of any number of broadcasting operands."""
    dtype = n.input(0).dtype
    name = "MAXIMUM" if n.op_type == "Max" else "MINIMUM"
    return cast(b, chain(b, name, [widened(b, x) for x in n.inputs]), dtype)


@onnx_op("Sum", "Mean")
def total(b: Builder, n: OnnxNode) -> Value:
    """The sum of any number of broadcasting operands, or their mean."""
    values = n.inputs
    result = chain(b, "ADD", values)
    return calc(b, "REALDIV", result, len(values)) if n.op_type == "Mean" and len(values) > 1 else result


@onnx_op("Pow", since=1)
def aligned_power(b: Builder, n: OnnxNode) -> Value:
    return power(b, *aligned(b, n))


@onnx_op("Pow", since=7)
def broadcast_power(b: Builder, n: OnnxNode) -> Value:
    return power(b, n.input(0), n.input(1))


def power(b: Builder, x: Value, y: Value) -> Value:
    """x ** y in the type of x; where the exponent is a float and x is not, it is computed in float and truncated."""
    exponent = y.constant
    if exponent is not None and exponent.size == 1 and exponent.ndim <= (x.rank or 0) and float(exponent.item()) == 2:
        return cast(b, apply(b, "SQUARE", widened(b, x)), x.dtype)
    dtype = F32 if F32 in (x.dtype, y.dtype) else I32
    return cast(b, calc(b, "POW", cast(b, x, dtype), cast(b, y, dtype)), x.dtype)


@onnx_op("Mod")
def modulo(b: Builder, n: OnnxNode) -> Value:
    """The remainder with the sign of the divisor, or with `fmod` of the dividend.

    The two functions of MNN exchange their names between integers and floats.
    """
    x, y = n.input(0), n.input(1)
    truncated = bool(n.attr("fmod", 0))
    name = "MOD" if truncated == (x.dtype == F32) else "FLOORMOD"
    return cast(b, calc(b, name, widened(b, x), widened(b, y)), x.dtype)


@onnx_op("Round")
def round_to_even(b: Builder, n: OnnxNode) -> Value:
    """MNN rounds halves away from zero; a half is rounded to even as twice the rounded half of it."""
    x = n.input(0)
    away = apply(b, "ROUND", x)
    is_half = calc(b, "EQUAL", apply(b, "ABS", calc(b, "SUB", away, x)), 0.5)
    even = calc(b, "MUL", apply(b, "ROUND", calc(b, "MUL", x, 0.5)), 2.0)
    return choose(b, is_half, even, away, x)


@onnx_op("Clip", since=1)
def clip_attributes(b: Builder, n: OnnxNode) -> Value:
    return clip(b, n.input(0), n.attr("min"), n.attr("max"))


@onnx_op("Clip", since=11)
def clip_operands(b: Builder, n: OnnxNode) -> Value:
    bounds = [n.optional(i) for i in (1, 2)]
    low, high = (None if v is None else v if v.constant is None else v.constant.item() for v in bounds)
    return clip(b, n.input(0), low, high)


def clip(b: Builder, x: Value, low: Value | float | None, high: Value | float | None) -> Value:
    """min(max(x, low), high), where either bound may be missing, a number or a value."""
    if x.dtype == F32 and low == 0 and high is None:
        return b.add(ReLU(), x)
    if x.dtype == F32 and isinstance(low, int | float) and isinstance(high, int | float) and low <= high:
        return b.add(ReLU6(single(low), single(high)), x)
    y = widened(b, x)
    for function, bound in (("MAXIMUM", low), ("MINIMUM", high)):
        if bound is not None:
            y = calc(b, function, y, widened(b, like(b, bound, x)))
    return cast(b, y, x.dtype)
