"""Import rules of onnxruntime's own ops on 8-bit codes.

Most compute in float32 between a dequantisation and a quantisation; products of matrices sum whole numbers exactly.
"""

from __future__ import annotations

from mnnconvert.frontends.common.compose import apply, calc, cast, choose, single
from mnnconvert.frontends.common.moves import permuted
from mnnconvert.frontends.onnx.contrib_attention import attended
from mnnconvert.frontends.onnx.integer_products import matrix_product, requantized, whole_numbers, zero_point
from mnnconvert.frontends.onnx.matmul import transposed
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.pooling import averaged
from mnnconvert.frontends.onnx.quantization import dequantized, quantized
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.frontends.onnx.softmax import softmax
from mnnconvert.ir import F32, Builder, Value
from mnnconvert.ir.types import normal_axis
from mnnconvert.ops.activation import ReLU
from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.reduction import Reduction

MICROSOFT = "com.microsoft"


def _number(b: Builder, n: OnnxNode, index: int) -> Value:
    """A scale or zero point that is one number, as a float32 scalar."""
    return zero_point(b, n, index, 0, -1)


def _real(b: Builder, n: OnnxNode, index: int) -> Value:
    """The operand `index` as the float32 numbers it stands for; its scale and zero point follow it."""
    zero = _number(b, n, index + 2) if n.has(index + 2) else None
    return dequantized(b, n.input(index), _number(b, n, index + 1), zero)


def _codes(b: Builder, n: OnnxNode, y: Value, scale: int) -> Value:
    """Float32 numbers as codes; the zero point stands behind operand `scale`."""
    return quantized(b, n, y, scale, scale + 1)


@onnx_op("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def qlinear_binary(b: Builder, n: OnnxNode) -> Value:
    """Operands: two with their scales and zero points, those of the result."""
    function = "ADD" if n.op_type == "QLinearAdd" else "MUL"
    return _codes(b, n, calc(b, function, _real(b, n, 0), _real(b, n, 3)), 6)


@onnx_op("QLinearSigmoid", domain=MICROSOFT)
def qlinear_sigmoid(b: Builder, n: OnnxNode) -> Value:
    return _codes(b, n, apply(b, "SIGMOID", _real(b, n, 0)), 3)


@onnx_op("QLinearLeakyRelu", domain=MICROSOFT)
def qlinear_leaky_relu(b: Builder, n: OnnxNode) -> Value:
    return _codes(b, n, b.add(ReLU(single(n.attr("alpha", 0.01))), _real(b, n, 0)), 3)


@onnx_op("QLinearSoftmax", domain=MICROSOFT)
def qlinear_softmax(b: Builder, n: OnnxNode) -> Value:
    """Over one axis, or before opset 13 (an attribute here) over everything from it on."""
    x, axis = _real(b, n, 0), n.attr("axis", -1)
    if n.required("opset", int) >= 13:
        return _codes(b, n, softmax(b, n, x, [axis]), 3)
    rank = _rank(n, x)
    return _codes(b, n, softmax(b, n, x, range(normal_axis(axis, rank), rank)), 3)


def _rank(n: OnnxNode, x: Value) -> int:
    if x.rank is None:
        raise n.refuse(f"the rank of the operand of {n.op_type} is not known", reference="open-size")
    return x.rank


@onnx_op("QLinearAveragePool", domain=MICROSOFT, limits="count_include_pad and ceil_mode may need known sizes")
def qlinear_average_pool(b: Builder, n: OnnxNode) -> Value:
    x = _real(b, n, 0)
    if not n.attr("channels_last", 0):
        return _codes(b, n, averaged(b, n, x), 3)
    last = _rank(n, x) - 1
    y = averaged(b, n, permuted(b, x, [0, last, *range(1, last)]))
    return _codes(b, n, permuted(b, y, [0, *range(2, last + 1), 1]), 3)


@onnx_op("QLinearGlobalAveragePool", domain=MICROSOFT)
def qlinear_global_average_pool(b: Builder, n: OnnxNode) -> Value:
    x = _real(b, n, 0)
    first = 1 if n.attr("channels_last", 0) else 2
    return _codes(b, n, b.add(Reduction("MEAN", tuple(range(first, first + _rank(n, x) - 2)), True), x), 3)


@onnx_op("QLinearReduceMean", domain=MICROSOFT)
def qlinear_reduce_mean(b: Builder, n: OnnxNode) -> Value:
    """Over the axes given, or over all."""
    axes = tuple(n.attr("axes", ())) or None
    return _codes(b, n, b.add(Reduction("MEAN", axes, bool(n.attr("keepdims", 1))), _real(b, n, 0)), 3)


@onnx_op("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(b: Builder, n: OnnxNode) -> Value:
    """Scale and zero point of the result come first, then each operand with its own."""
    op = Concat(n.required("axis", int))
    parts = [_real(b, n, i) for i in range(2, len(n.proto.input), 3)]
    return _codes(b, n, parts[0] if len(parts) == 1 else b.add(op, *parts), 0)


@onnx_op("QLinearWhere", domain=MICROSOFT)
def qlinear_where(b: Builder, n: OnnxNode) -> Value:
    x = _real(b, n, 1)
    return _codes(b, n, choose(b, n.input(0), x, _real(b, n, 4), x), 7)


@onnx_op("QGemm", domain=MICROSOFT, limits="the weights of one result add up to at most 2^22")
def qgemm(b: Builder, n: OnnxNode) -> Value:
    """Operands: A, B with their scales and zero points, int32 C, those of the result, which is float without them.

    alpha * (A' B' + C), C in units of both scales.
    """
    x = transposed(b, whole_numbers(b, n, 0, 2, -1), bool(n.attr("transA", 0)))
    total = matrix_product(b, n, x, 3, 5, bool(n.attr("transB", 0)))
    total = calc(b, "ADD", total, n.input(6)) if n.has(6) else total
    scale = calc(b, "MUL", calc(b, "MUL", _number(b, n, 4), _number(b, n, 1)), n.attr("alpha", 1.0))
    if not n.has(7):
        return calc(b, "MUL", cast(b, total, F32), scale)
    return requantized(b, n, total, calc(b, "REALDIV", scale, _number(b, n, 7)), 8)


@onnx_op("QAttention", domain=MICROSOFT, limits="no past, no rotary embedding, masks of rank 1 (lengths) and 2")
def qattention(b: Builder, n: OnnxNode) -> Value:
    """Operands: x, weight [hidden, 3 * size], bias, two scales, mask, two zero points; what is projected is float."""
    if n.has(8) or n.wants(1) or n.attr("do_rotary", 0):
        raise n.refuse("QAttention with a past, a present or a rotary embedding")
    total = matrix_product(b, n, whole_numbers(b, n, 0, 6, -1), 1, 7)
    product = calc(b, "MUL", cast(b, total, F32), calc(b, "MUL", _number(b, n, 4), _number(b, n, 3)))
    width = n.input(1).shape[1] if n.input(1).rank == 2 else None  # type: ignore[index]
    if not isinstance(width, int):
        raise n.refuse("QAttention needs to know the shape of its weight", reference="open-size")
    return attended(b, n, calc(b, "ADD", product, n.input(2)), (width // 3,) * 3, 5, [])
