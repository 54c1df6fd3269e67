"""Exact products of 8-bit integers in float32: MatMulInteger, ConvInteger and what is built on them.

A float32 sum of whole numbers is exact below 2^24. Where the products of a row may add up to more, the activation is
cut into digits to a smaller base, each digit is multiplied by itself, and the results are put together in int32.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from mnnconvert.frontends.common.coded_weights import BITS, weight
from mnnconvert.frontends.common.compose import apply, calc, cast
from mnnconvert.frontends.common.moves import reshaped
from mnnconvert.frontends.onnx.matmul import transposed
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.quantization import dynamic_scheme, integer_kind, leaving, saturated
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.frontends.onnx.spatial import spatial_sizes, window, with_axis, without_axis
from mnnconvert.ir import F32, I32, Builder, Value
from mnnconvert.ops.convolution import Convolution
from mnnconvert.ops.matmul import MatMul

EXACT = 1 << 23  # half of what float32 counts exactly, so that a runtime may add in blocks
WIDEST = 255  # of an 8-bit integer minus a zero point


def exact_product(b: Builder, n: OnnxNode, product: Callable[[Value], Value], x: Value, row: int) -> Value:
    """product(x) in int32 for whole numbers |x| <= 255, when the weights of one result add up to at most `row`."""
    digits = _digits(row)
    if digits is None:
        raise n.refuse(f"a result of {n.op_type} sums products up to {row} times 255, beyond exact arithmetic")
    base = 1 << math.ceil(8 / digits)
    total, factor, rest = None, 1, x
    for i in range(digits):
        digit, rest = (rest, rest) if i == digits - 1 else _digit(b, rest, base)
        part = cast(b, apply(b, "ROUND", product(digit)), I32)
        part = part if factor == 1 else calc(b, "MUL", part, factor)
        total = part if total is None else calc(b, "ADD", total, part)
        factor *= base
    assert total is not None
    return total


def _digits(row: int) -> int | None:
    """How many digits |x| <= 255 has to have for exact sums; None when even bits are too much."""
    for digits in (1, 2, 3, 4, 8):
        largest = WIDEST if digits == 1 else 1 << math.ceil(8 / digits)  # the highest digit of -255 is -base
        if largest * row <= EXACT:
            return digits
    return None


def _digit(b: Builder, x: Value, base: int) -> tuple[Value, Value]:
    """The lowest digit of x, 0 .. base - 1, and the rest divided by the base."""
    rest = apply(b, "FLOOR", calc(b, "MUL", x, 1 / base))
    return calc(b, "SUB", x, calc(b, "MUL", rest, float(base))), rest


def known_factor(b: Builder, codes: np.ndarray, kind: str, zero: np.ndarray, axis: int) -> tuple[Value, int]:
    """The constant codes - zero, as coded integers where they can be, and the largest sum of a result's weights.

    A zero point is one number, or per column of a matrix product (axis -1), per first axis of a convolution (0).
    """
    aligned = zero.astype(np.int64)
    if zero.size == 1:
        aligned = aligned.reshape(())
    elif not axis:
        aligned = aligned.reshape(-1, *(1,) * (codes.ndim - 1))
    whole = codes.astype(np.int64) - aligned
    row = int(np.abs(whole).sum(axis=-2 if axis else tuple(range(1, whole.ndim))).max(initial=0))
    steps = zero.astype(F32)
    coded = zero.ndim < 2 and kind in BITS
    tensor = weight(codes, kind, np.ones_like(steps), steps, 1 if axis else 0, bool(axis)) if coded else None
    return b.constant(whole.astype(F32) if tensor is None else tensor), row


class Factor:
    """A weight of whole numbers: operand minus zero point, as coded integers when constant. `row` bounds its sums.

    A matrix may be stored `turned`: [outputs, inputs].
    """

    def __init__(self, b: Builder, n: OnnxNode, index: int, zero: int, axis: int, turned: bool = False):
        self.codes, self.zero = n.constant(index), n.constant(zero) if n.has(zero) else np.zeros(())
        value = n.input(index)
        if self.codes is not None and self.zero is not None:
            codes = self.codes.T if turned else self.codes
            self.value, self.row = known_factor(b, codes, n.source_type(index), self.zero, axis)
        else:
            value = transposed(b, value, turned)
            self.value = cast(b, value, F32)
            if n.has(zero):
                self.value = calc(b, "SUB", self.value, zero_point(b, n, zero, value.rank or 0, axis))
            self.row = WIDEST * self._count(n, value, axis)

    def _count(self, n: OnnxNode, value: Value, axis: int) -> int:
        sizes = (value.shape or (None,) * 2)[-2:-1] if axis else (value.shape or (None,))[1:]
        numbers = [s for s in sizes if isinstance(s, int)]
        if len(numbers) != len(sizes) or not sizes:
            raise n.refuse(f"{n.op_type} needs a weight of known size")
        return math.prod(numbers)


def zero_point(b: Builder, n: OnnxNode, index: int, rank: int, axis: int) -> Value:
    """A zero point as float32; a vector belongs to the columns (axis -1), the rows (-2) or the first axis (0)."""
    value = cast(b, n.input(index), F32)
    if value.shape == (1,) or value.rank == 0:
        return reshaped(b, value, [])
    if value.rank != 1 or axis == -1:
        return value
    return reshaped(b, value, [-1, *(1,) * (1 if axis == -2 else rank - 1)])


def whole_numbers(b: Builder, n: OnnxNode, index: int, zero: int, axis: int) -> Value:
    """An activation minus its zero point, in float32."""
    x = n.input(index)
    whole = cast(b, x, F32)
    return calc(b, "SUB", whole, zero_point(b, n, zero, x.rank or 0, axis)) if n.has(zero) else whole


def matrix_product(b: Builder, n: OnnxNode, x: Value, index: int, zero: int, turned: bool = False) -> Value:
    """x (whole numbers) times the operand `index` (or that `turned`) minus its zero point, int32."""
    factor = Factor(b, n, index, zero, -1, turned)
    return exact_product(b, n, lambda v: b.add(MatMul(), v, factor.value), x, factor.row)


@onnx_op("MatMulInteger", limits="the weights of one result add up to at most 2^22")
def matmul_integer(b: Builder, n: OnnxNode) -> Value:
    return matrix_product(b, n, whole_numbers(b, n, 0, 2, -2), 1, 3)


def convolved(b: Builder, n: OnnxNode, x: Value, index: int, zero: int) -> Value:
    """The convolution of x (whole numbers) with the operand `index` minus its zero point, int32."""
    sizes = spatial_sizes(n, x)
    factor = Factor(b, n, index, zero, 0)
    w, flat = factor.value, len(sizes) == 1
    if len(sizes) > 2 or w.shape is None or not all(isinstance(d, int) for d in w.shape):
        raise n.refuse(f"{n.op_type} with {len(sizes)} spatial axes, or a weight of unknown sizes, is not supported")
    win = window(n, [int(d) for d in w.shape[2:] if isinstance(d, int)], sizes)
    win = win.flat() if flat else win
    (sy, sx), (dy, dx), (t, l), (d, r) = win.strides, win.dilations, win.begin, win.end
    op = Convolution((sy, sx), (dy, dx), (t, l, d, r), int(n.attr("group", 1)), "", "SAME" if win.same else "CAFFE")
    bias = b.constant(np.zeros(w.shape[0] or 0, np.float32))  # type: ignore[arg-type]
    w = with_axis(b, w) if flat else w
    result = exact_product(b, n, lambda v: b.add(op, v, w, bias), with_axis(b, x) if flat else x, factor.row)
    return without_axis(b, result) if flat else result


@onnx_op("ConvInteger", limits="one and two spatial axes")
def conv_integer(b: Builder, n: OnnxNode) -> Value:
    return convolved(b, n, whole_numbers(b, n, 0, 2, 0), 1, 3)


def _per_channel(b: Builder, value: Value, rank: int) -> Value:
    """A vector over output channels against [N,C,...]; a single number as a scalar."""
    if value.rank == 0 or value.shape == (1,):
        return reshaped(b, value, [])
    return reshaped(b, value, [1, -1, *(1,) * (rank - 2)])


def requantized(b: Builder, n: OnnxNode, total: Value, scale: Value, zero: int) -> Value:
    """An int32 result times `scale`, as codes with the zero point of operand `zero`."""
    y = calc(b, "MUL", cast(b, total, F32), scale)
    kind = integer_kind(n, zero)
    return leaving(b, n, saturated(b, y, zero_point(b, n, zero, 0, -1) if n.has(zero) else None, kind), kind)


@onnx_op("QLinearConv", limits="one and two spatial axes")
def qlinear_conv(b: Builder, n: OnnxNode) -> Value:
    """Operands: x, its scale and zero point, w, its two, those of y[, int32 bias in units of both scales]."""
    total = convolved(b, n, whole_numbers(b, n, 0, 2, 0), 3, 5)
    rank = total.rank or 4
    if n.has(8):
        total = calc(b, "ADD", total, _per_channel(b, n.input(8), rank))
    scale = calc(b, "MUL", n.input(1), _per_channel(b, n.input(4), rank))
    return requantized(b, n, total, calc(b, "REALDIV", scale, n.input(6)), 7)


def _row_scale(b: Builder, n: OnnxNode, index: int) -> Value:
    """The scale of a left factor: a number, or one per row."""
    return zero_point(b, n, index, 0, -2)


@onnx_op("QLinearMatMul")
@onnx_op("QLinearMatMul", domain="com.microsoft")
def qlinear_matmul(b: Builder, n: OnnxNode) -> Value:
    """Operands: a, its scale and zero point, b, its two, those of y."""
    total = matrix_product(b, n, whole_numbers(b, n, 0, 2, -2), 3, 5)
    scale = calc(b, "MUL", _row_scale(b, n, 1), zero_point(b, n, 4, 0, -1))
    return requantized(b, n, total, calc(b, "REALDIV", scale, n.input(6)), 7)


@onnx_op("MatMulIntegerToFloat", domain="com.microsoft")
def matmul_integer_to_float(b: Builder, n: OnnxNode) -> Value:
    """Operands: a, b, their scales, their zero points[, bias]."""
    total = matrix_product(b, n, whole_numbers(b, n, 0, 4, -2), 1, 5)
    scale = calc(b, "MUL", _row_scale(b, n, 2), zero_point(b, n, 3, 0, -1))
    y = calc(b, "MUL", cast(b, total, F32), scale)
    return calc(b, "ADD", y, n.input(6)) if n.has(6) else y


@onnx_op("DynamicQuantizeMatMul", domain="com.microsoft")
def dynamic_quantize_matmul(b: Builder, n: OnnxNode) -> Value:
    """a (float, quantised by its own range) times b[, scale of b[, zero point of b[, bias]]]."""
    x = n.input(0)
    scale, zero = dynamic_scheme(b, x)
    codes = saturated(b, calc(b, "REALDIV", x, scale), zero, "uint8")
    total = matrix_product(b, n, calc(b, "SUB", codes, zero), 1, 3)
    y = calc(b, "MUL", cast(b, total, F32), calc(b, "MUL", scale, zero_point(b, n, 2, 0, -1)))
    return calc(b, "ADD", y, n.input(4)) if n.has(4) else y
