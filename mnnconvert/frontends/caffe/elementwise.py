"""Import rules of activations, arithmetic, and layers that only pass on what they read."""

from __future__ import annotations

import math

import numpy as np

from mnnconvert.frontends.caffe.node import CaffeNode, Params
from mnnconvert.frontends.caffe.registry import caffe_op
from mnnconvert.frontends.common.compose import apply, calc, chain, channels, reshape
from mnnconvert.ir import Builder, Value
from mnnconvert.ops.activation import ELU, PReLU, ReLU, ReLU6, Threshold
from mnnconvert.ops.normalization import Scale

UNARY = {"AbsVal": "ABS", "BNLL": "BNLL", "Sigmoid": "SIGMOID", "TanH": "TANH"}


@caffe_op(*UNARY)
def unary(b: Builder, n: CaffeNode) -> Value:
    return apply(b, UNARY[n.op], n.input())


@caffe_op("ReLU")
def relu(b: Builder, n: CaffeNode) -> Value:
    return b.add(ReLU(n.params("relu_param").number("negative_slope", 0.0)), n.input())


@caffe_op("ReLU6")
def relu6(b: Builder, n: CaffeNode) -> Value:
    return b.add(ReLU6(0.0, 6.0), n.input())


@caffe_op("Clip")
def clipped(b: Builder, n: CaffeNode) -> Value:
    p = n.params("clip_param")
    if "min" not in p or "max" not in p:
        raise n.refuse("Clip needs min and max")
    return b.add(ReLU6(p.number("min", 0.0), p.number("max", 0.0)), n.input())


@caffe_op("PReLU")
def prelu(b: Builder, n: CaffeNode) -> Value:
    """x where x > 0, else slope * x, with one slope for each channel or one for all."""
    x = n.input()
    rank = n.rank(x, 2)
    count = 1 if n.params("prelu_param").flag("channel_shared", False) else n.sizes(x, 1, 2)[0]
    if rank == 4:
        return b.add(PReLU(), x, n.weight(b, 0, (count,), "slope"))
    slope = n.weight(b, 0, (count, *(1,) * (rank - 2)), "slope")
    return calc(b, "ADD", calc(b, "MAXIMUM", x, 0.0), calc(b, "MUL", calc(b, "MINIMUM", x, 0.0), slope))


@caffe_op("ELU")
def elu(b: Builder, n: CaffeNode) -> Value:
    return b.add(ELU(n.params("elu_param").number("alpha", 1.0)), n.input())


@caffe_op("Swish")
def swish(b: Builder, n: CaffeNode) -> Value:
    """x * sigmoid(beta * x)."""
    x = n.input()
    return calc(b, "MUL", x, apply(b, "SIGMOID", affine(b, x, n.params("swish_param").number("beta", 1.0), 0.0)))


@caffe_op("Threshold")
def threshold(b: Builder, n: CaffeNode) -> Value:
    return b.add(Threshold(n.params("threshold_param").number("threshold", 0.0)), n.input())


def affine(b: Builder, x: Value, scale: float, shift: float) -> Value:
    """x * scale + shift."""
    x = x if scale == 1 else calc(b, "MUL", x, scale)
    return x if shift == 0 else calc(b, "ADD", x, shift)


def _inner(b: Builder, n: CaffeNode, p: Params) -> Value:
    return affine(b, n.input(), p.number("scale", 1.0), p.number("shift", 0.0))


@caffe_op("Power")
def power(b: Builder, n: CaffeNode) -> Value:
    """(shift + scale * x)^power."""
    p = n.params("power_param")
    x, exponent = _inner(b, n, p), p.number("power", 1.0)
    if exponent == 1:
        return x
    return apply(b, "SQUARE", x) if exponent == 2 else calc(b, "POW", x, exponent)


def _base(n: CaffeNode, p: Params) -> float:
    """The logarithm of the base, which is e where it is -1."""
    base = p.number("base", -1.0)
    if base != -1 and (base <= 0 or (n.op == "Log" and base == 1)):
        raise n.refuse(f"the base of {n.op} is {base:g}")
    return 1.0 if base == -1 else math.log(base)


@caffe_op("Exp")
def exponential(b: Builder, n: CaffeNode) -> Value:
    """base^(shift + scale * x)."""
    p = n.params("exp_param")
    return apply(b, "EXP", affine(b, _inner(b, n, p), _base(n, p), 0.0))


@caffe_op("Log")
def logarithm(b: Builder, n: CaffeNode) -> Value:
    """The logarithm of shift + scale * x to the base."""
    p = n.params("log_param")
    return affine(b, apply(b, "LOG", _inner(b, n, p)), 1 / _base(n, p), 0.0)


@caffe_op("Eltwise", limits="coefficients only of sums")
def eltwise(b: Builder, n: CaffeNode) -> Value:
    """Products, sums with coefficients, and maxima of operands of one shape."""
    p = n.params("eltwise_param")
    operation, coefficients = p.choice("operation", "PROD", "SUM", "MAX"), p.numbers("coeff")
    operation = operation if "operation" in p else "SUM"
    values = n.inputs
    if any(v.shape is not None and v.shape != values[0].shape for v in values):
        raise n.refuse(f"the operands of {n.op} differ in their sizes", reference="shape-mismatch")
    if coefficients and (operation != "SUM" or len(coefficients) != len(values)):
        raise n.refuse(f"{n.op} {operation} of {len(values)} blobs with {len(coefficients)} coefficients")
    if coefficients:
        values = [affine(b, v, c, 0.0) for v, c in zip(values, coefficients, strict=True)]
    return chain(b, {"PROD": "MUL", "SUM": "ADD", "MAX": "MAXIMUM"}[operation], values)


def spread(n: CaffeNode, x: Value, p: Params, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes that lie along `axis` and the axes behind it, as a shape that broadcasts against x."""
    rank = n.rank(x)
    axis = n.axis(p.integer("axis", 1), rank)
    if axis + len(sizes) > rank:
        raise n.refuse(f"{n.op} has {len(sizes)} axes from axis {axis} on, of {rank}")
    return (*(1,) * axis, *sizes, *(1,) * (rank - axis - len(sizes)))


def _trained_sizes(n: CaffeNode, x: Value, p: Params) -> tuple[int, ...]:
    """The sizes that a trained factor or addend covers: `num_axes` of them from `axis` on, all for -1."""
    axis, count = n.axis(p.integer("axis", 1), n.rank(x)), p.integer("num_axes", 1)
    return n.sizes(x, axis, None if count < 0 else axis + count)


@caffe_op("Scale")
def scale(b: Builder, n: CaffeNode) -> Value:
    """x * factor (+ bias), which lie along some axes; the factor is trained or the second operand."""
    n.takes(1, 2)
    p, x = n.params("scale_param"), n.input()
    with_bias = p.flag("bias_term", False)
    if n.input_count == 2:
        p.ignore("num_axes")
        factor = n.input(1)
        sizes = n.sizes(factor)
        y = calc(b, "MUL", x, reshape(b, factor, spread(n, x, p, sizes)) if sizes else factor)
    else:
        sizes = _trained_sizes(n, x, p)
        if n.rank(x) == 4 and p.integer("axis", 1) == 1 and len(sizes) == 1:
            bias = n.weight(b, 1, sizes, "bias") if with_bias else b.constant(np.zeros(sizes, np.float32))
            return b.add(Scale(), x, n.weight(b, 0, sizes, "scale"), bias)
        y = calc(b, "MUL", x, n.weight(b, 0, spread(n, x, p, sizes), "scale"))
    if not with_bias:
        return y
    return calc(b, "ADD", y, n.weight(b, n.blob_count - 1, spread(n, x, p, sizes), "bias"))


@caffe_op("Bias")
def bias(b: Builder, n: CaffeNode) -> Value:
    """x + bias, which lies along some axes; it is trained or the second operand."""
    n.takes(1, 2)
    p, x = n.params("bias_param"), n.input()
    if n.input_count == 2:
        p.ignore("num_axes")
        sizes = n.sizes(n.input(1))
        return calc(b, "ADD", x, reshape(b, n.input(1), spread(n, x, p, sizes)) if sizes else n.input(1))
    return calc(b, "ADD", x, n.weight(b, 0, spread(n, x, p, _trained_sizes(n, x, p)), "bias"))


@caffe_op("Axpy")
def axpy(b: Builder, n: CaffeNode) -> Value:
    """a * x + y, with one a [N, C] (or [N, C, 1, 1]) for each channel of x and y."""
    n.takes(3)
    a, x, y = n.inputs
    a = reshape(b, a, (*n.sizes(a, 0, 2), *(1,) * (n.rank(x, 2) - 2)))
    return calc(b, "ADD", calc(b, "MUL", a, x), y)


@caffe_op("SpatialProduct")
def spatial_product(b: Builder, n: CaffeNode) -> Value:
    """x [N,C,H,W] times a map [N,1,H,W] for all channels."""
    n.takes(2)
    if n.sizes(n.input(1), 1, 2) != (1,):
        raise n.refuse("the second operand of SpatialProduct has more than one channel")
    return calc(b, "MUL", *n.inputs)


@caffe_op("Dropout")
def dropout(b: Builder, n: CaffeNode) -> Value:
    """Nothing, when the net is put to use; where training did not scale what was left, that is done now."""
    p = n.params("dropout_param")
    ratio = p.number("dropout_ratio", 0.5)
    scaled = n.params("dropout_param").flag("scale_train", True)
    return n.input() if scaled else calc(b, "MUL", n.input(), 1 - ratio)


@caffe_op("Split")
def split(b: Builder, n: CaffeNode) -> tuple[Value, ...]:
    return (n.input(),) * n.output_count


@caffe_op("Silence")
def silence(b: Builder, n: CaffeNode) -> tuple[Value, ...]:
    return ()


def per_channel(b: Builder, n: CaffeNode, x: Value, factor: np.ndarray, addend: np.ndarray) -> Value:
    """x * factor + addend, one of each for every channel."""
    if n.rank(x) == 4:
        return b.add(Scale(), x, b.floats(factor), b.floats(addend))
    y = calc(b, "MUL", x, channels(factor, n.rank(x)))
    return calc(b, "ADD", y, channels(addend, n.rank(x)))
