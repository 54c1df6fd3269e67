"""Import rules of comparisons, logic, bits and selection. A bool is an int32 that is 0 or 1."""

from __future__ import annotations

import numpy as np

from mnnconvert.frontends.common.compose import apply, calc, cast, choose, narrowed, widened
from mnnconvert.frontends.onnx.elementwise import aligned
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.ir import Builder, Value

COMPARISONS = {
    "Greater": "GREATER", "Less": "LESS", "GreaterOrEqual": "GREATER_EQUAL", "LessOrEqual": "LESS_EQUAL",
    "Equal": "EQUAL",
}  # fmt: skip
LOGIC = {"And": "MUL", "Or": "LOGICALOR", "Xor": "LOGICALXOR"}
BITWISE = {"BitwiseAnd": "BITWISE_AND", "BitwiseOr": "BITWISE_OR", "BitwiseXor": "BITWISE_XOR"}
ALL_ONES = {"uint8": 0xFF, "uint16": 0xFFFF}  # other integer types are signed in the graph: -1


@onnx_op("Greater", "Less", "Equal", since=1)
def aligned_comparison(b: Builder, n: OnnxNode) -> Value:
    x, y = aligned(b, n)
    return calc(b, COMPARISONS[n.op_type], widened(b, x), widened(b, y))


@onnx_op(*COMPARISONS, since=7)
def comparison(b: Builder, n: OnnxNode) -> Value:
    return calc(b, COMPARISONS[n.op_type], widened(b, n.input(0)), widened(b, n.input(1)))


@onnx_op(*LOGIC, since=1)
def aligned_logic(b: Builder, n: OnnxNode) -> Value:
    return calc(b, LOGIC[n.op_type], *aligned(b, n))


@onnx_op(*LOGIC, since=7)
def logic(b: Builder, n: OnnxNode) -> Value:
    return calc(b, LOGIC[n.op_type], n.input(0), n.input(1))


@onnx_op("Not")
def negation(b: Builder, n: OnnxNode) -> Value:
    return calc(b, "EQUAL", n.input(0), 0)


@onnx_op(*BITWISE)
def bitwise(b: Builder, n: OnnxNode) -> Value:
    x, y = n.input(0), n.input(1)
    return cast(b, calc(b, BITWISE[n.op_type], widened(b, x), widened(b, y)), x.dtype)


@onnx_op("BitwiseNot", limits="not on unsigned integers of 32 or 64 bits")
def bitwise_not(b: Builder, n: OnnxNode) -> Value:
    x, kind = n.input(0), n.source_type(0)
    if kind in ("uint32", "uint64"):
        raise n.refuse(f"BitwiseNot of {kind} gives numbers beyond the 32-bit integers of MNN", reference="int64-range")
    return cast(b, calc(b, "BITWISE_XOR", widened(b, x), ALL_ONES.get(kind, -1)), x.dtype)


@onnx_op("BitShift", limits="64-bit integers only by less than 32 to the left")
def bit_shift(b: Builder, n: OnnxNode) -> Value:
    """A shift by the width or more leaves no bits, or the sign; bits that leave a narrow type are lost."""
    x, y, amount = widened(b, n.input(0)), widened(b, n.input(1)), n.constant(1)
    left, kind = n.attr("direction") == "LEFT", n.source_type(0)
    if left and kind in ("int64", "uint64") and amount is not None and amount.size and int(amount.max()) > 31:
        raise n.refuse(f"BitShift by {int(amount.max())} bits, MNN has 32-bit integers", reference="int64-range")
    outside = calc(b, "GREATER", y, 31)
    if not kind.startswith("u"):
        outside = calc(b, "LOGICALOR", outside, calc(b, "LESS", y, 0))
    result = calc(b, "LEFTSHIFT" if left else "RIGHTSHIFT", x, choose(b, outside, 31, y, y))
    if left:
        result = choose(b, outside, 0, result, result)
    return narrowed(b, result, n.input(0).dtype, kind)


@onnx_op("Where")
def where(b: Builder, n: OnnxNode) -> Value:
    return choose(b, n.input(0), n.input(1), n.input(2), n.input(1))


@onnx_op("IsNaN")
def is_nan(b: Builder, n: OnnxNode) -> Value:
    """Only NaN is different from itself."""
    return calc(b, "NOTEQUAL", n.input(0), n.input(0))


@onnx_op("IsInf")
def is_inf(b: Builder, n: OnnxNode) -> Value:
    x = n.input(0)
    negative, positive = n.attr("detect_negative", 1), n.attr("detect_positive", 1)
    if negative and positive:
        return calc(b, "EQUAL", apply(b, "ABS", x), np.inf)
    if not negative and not positive:
        return calc(b, "NOTEQUAL", calc(b, "MUL", cast(b, x, np.dtype("int32")), 0), 0)
    return calc(b, "EQUAL", x, -np.inf if negative else np.inf)
