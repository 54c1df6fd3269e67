"""Import rules of element-wise ops."""

from __future__ import annotations

from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.ir import I32, U8, Builder, Value
from mnnconvert.ir.types import F32
from mnnconvert.ops.elementwise import TYPE_NAMES, Binary, Cast, Unary

UNARY = {
    "Abs": "ABS", "Neg": "NEG", "Floor": "FLOOR", "Ceil": "CEIL", "Sqrt": "SQRT", "Exp": "EXP", "Log": "LOG", "Sin": "SIN",
    "Cos": "COS", "Tan": "TAN", "Asin": "ASIN", "Acos": "ACOS", "Atan": "ATAN", "Reciprocal": "RECIPROCAL", "Acosh": "ACOSH",
    "Sinh": "SINH", "Asinh": "ASINH", "Atanh": "ATANH", "Sign": "SIGN", "Cosh": "COSH", "Erf": "ERF", "Sigmoid": "SIGMOID",
    "Tanh": "TANH",
}  # fmt: skip
BINARY = {"Add": "ADD", "Sub": "SUB", "Mul": "MUL", "Div": "REALDIV", "Greater": "GREATER", "Less": "LESS",
          "GreaterOrEqual": "GREATER_EQUAL", "LessOrEqual": "LESS_EQUAL", "Equal": "EQUAL"}  # fmt: skip


def cast(b: Builder, x: Value, dtype: object) -> Value:
    """`x` in another element type of the graph; itself when it has it already."""
    return x if x.dtype == dtype else b.add(Cast(TYPE_NAMES[dtype]), x)  # type: ignore[index]


def widened(b: Builder, x: Value) -> Value:
    """`x` in a type that arithmetic is defined on: 8-bit integers become int32."""
    return x if x.dtype in (F32, I32) else cast(b, x, I32)


@onnx_op(*UNARY)
def unary(b: Builder, n: OnnxNode) -> Value:
    """Functions that MNN has under a name of its own; on 8-bit integers they are computed in int32."""
    x = n.input(0)
    return cast(b, b.add(Unary(UNARY[n.op_type]), widened(b, x)), x.dtype)


@onnx_op(*BINARY, since=7)
def binary(b: Builder, n: OnnxNode) -> Value:
    """Broadcasting arithmetic and comparisons; 8-bit integers are computed in int32 and wrap like the source does."""
    x, y = n.input(0), n.input(1)
    result = b.add(Binary(BINARY[n.op_type]), widened(b, x), widened(b, y))
    return cast(b, result, x.dtype) if x.dtype in (U8, "int8") and result.dtype == I32 and n.op_type in ("Add", "Sub", "Mul", "Div") else result
