"""Import rules of activations."""

from __future__ import annotations

import numpy as np

from mnnconvert.frontends.common.compose import apply, calc, cast, choose, single, widened
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.ir import F32, Builder, Value
from mnnconvert.ops.activation import ELU, PReLU, ReLU, ReLU6, Selu
from mnnconvert.ops.shape import Unsqueeze

QUICK_GELU = 1.702


@onnx_op("Relu")
def relu(b: Builder, n: OnnxNode) -> Value:
    x = n.input(0)
    return b.add(ReLU(), x) if x.dtype == F32 else cast(b, calc(b, "MAXIMUM", widened(b, x), 0), x.dtype)


@onnx_op("LeakyRelu")
def leaky_relu(b: Builder, n: OnnxNode) -> Value:
    return b.add(ReLU(single(n.attr("alpha", 0.01))), n.input(0))


@onnx_op("PRelu", since=1)
def prelu_of_channels(b: Builder, n: OnnxNode) -> Value:
    """Before opset 7: one slope, or one per channel."""
    x, slope = n.input(0), n.input(1)
    if slope.shape in ((), (1,)) or x.rank == 1:
        return _prelu(b, x, slope)
    if x.rank is None or slope.rank != 1:
        raise n.refuse("PRelu of opset 6 needs an operand of known rank and one slope per channel")
    return _prelu(b, x, b.add(Unsqueeze(tuple(range(1, x.rank - 1))), slope))


@onnx_op("PRelu", since=7)
def prelu(b: Builder, n: OnnxNode) -> Value:
    return _prelu(b, n.input(0), n.input(1))


def _prelu(b: Builder, x: Value, slope: Value) -> Value:
    """One slope is a leaky ReLU, one per channel of an image a PReLU; any other shape is composed."""
    values = slope.constant if x.dtype == F32 else None
    if values is not None and values.size == 1 and values.ndim <= (x.rank or 0):
        return b.add(ReLU(single(values.item())), x)
    if values is not None and x.shape is not None and _per_channel(x.shape, values.shape):
        return b.add(PReLU(), x, b.constant(values.reshape(-1)))
    wide = widened(b, x)
    return cast(b, choose(b, calc(b, "GREATER", wide, 0), wide, calc(b, "MUL", wide, widened(b, slope)), wide), x.dtype)


def _per_channel(x: tuple[object, ...], slope: tuple[int, ...]) -> bool:
    """Whether a slope of this shape is [C,1,1] against x [N,C,H,W]."""
    return len(x) == 4 and len(slope) >= 3 and slope[-3:] == (x[1], 1, 1) and set(slope[:-3]) <= {1}


@onnx_op("Elu")
def elu(b: Builder, n: OnnxNode) -> Value:
    return b.add(ELU(single(n.attr("alpha", 1.0))), n.input(0))


@onnx_op("Selu", since=1)
def selu_of_opset_1(b: Builder, n: OnnxNode) -> Value:
    return b.add(Selu(single(n.attr("gamma", 1.0507)), single(n.attr("alpha", 1.6732))), n.input(0))


@onnx_op("Selu", since=6)
def selu(b: Builder, n: OnnxNode) -> Value:
    gamma, alpha = n.attr("gamma", 1.05070102214813232421875), n.attr("alpha", 1.67326319217681884765625)
    return b.add(Selu(single(gamma), single(alpha)), n.input(0))


@onnx_op("Celu")
def celu(b: Builder, n: OnnxNode) -> Value:
    """alpha * elu(x / alpha)."""
    x, alpha = n.input(0), n.attr("alpha", 1.0)
    if alpha == 1:
        return b.add(ELU(), x)
    return calc(b, "MUL", b.add(ELU(), calc(b, "REALDIV", x, alpha)), alpha)


@onnx_op("HardSigmoid")
def hard_sigmoid(b: Builder, n: OnnxNode) -> Value:
    """alpha * x + beta, between 0 and 1."""
    line = calc(b, "ADD", calc(b, "MUL", n.input(0), n.attr("alpha", 0.2)), n.attr("beta", 0.5))
    return b.add(ReLU6(0.0, 1.0), line)


@onnx_op("HardSwish")
def hard_swish(b: Builder, n: OnnxNode) -> Value:
    return apply(b, "HARDSWISH", n.input(0))


@onnx_op("Softplus")
def softplus(b: Builder, n: OnnxNode) -> Value:
    return apply(b, "BNLL", n.input(0))


@onnx_op("Softsign")
def softsign(b: Builder, n: OnnxNode) -> Value:
    """x / (1 + |x|)."""
    x = n.input(0)
    return calc(b, "REALDIV", x, calc(b, "ADD", apply(b, "ABS", x), 1.0))


@onnx_op("ThresholdedRelu")
def thresholded_relu(b: Builder, n: OnnxNode) -> Value:
    x = n.input(0)
    return choose(b, calc(b, "GREATER", x, n.attr("alpha", 1.0)), x, 0.0, x)


@onnx_op("Shrink")
def shrink(b: Builder, n: OnnxNode) -> Value:
    """x + bias below -lambd, x - bias above lambd, else 0."""
    x, bias, limit = n.input(0), n.attr("bias", 0.0), n.attr("lambd", 0.5)
    wide = cast(b, x, F32)
    above = choose(b, calc(b, "GREATER", wide, limit), calc(b, "SUB", wide, bias), 0.0, wide)
    is_below = calc(b, "GREATER", calc(b, "MUL", wide, -1.0), limit)
    return cast(b, choose(b, is_below, calc(b, "ADD", wide, bias), above, wide), x.dtype)


@onnx_op("Mish")
def mish(b: Builder, n: OnnxNode) -> Value:
    """x * tanh(log(1 + exp(x)))."""
    x = n.input(0)
    return calc(b, "MUL", x, apply(b, "TANH", apply(b, "BNLL", x)))


@onnx_op("Gelu")
@onnx_op("Gelu", domain="com.microsoft")
def gelu(b: Builder, n: OnnxNode) -> Value:
    return apply(b, "GELU" if n.attr("approximate", "none") == "tanh" else "GELU_STANDARD", n.input(0))


@onnx_op("Swish")
def swish(b: Builder, n: OnnxNode) -> Value:
    return scaled_swish(b, n.input(0), n.attr("alpha", 1.0))


@onnx_op("QuickGelu", domain="com.microsoft")
def quick_gelu(b: Builder, n: OnnxNode) -> Value:
    return scaled_swish(b, n.input(0), n.attr("alpha", QUICK_GELU))


def scaled_swish(b: Builder, x: Value, alpha: float) -> Value:
    """x * sigmoid(alpha * x)."""
    if alpha == 1:
        return apply(b, "SILU", x)
    return calc(b, "MUL", x, apply(b, "SIGMOID", calc(b, "MUL", x, alpha)))


@onnx_op("BiasGelu", domain="com.microsoft")
def bias_gelu(b: Builder, n: OnnxNode) -> Value:
    return apply(b, "GELU_STANDARD", calc(b, "ADD", n.input(0), n.input(1)))


@onnx_op("FastGelu", domain="com.microsoft")
def fast_gelu(b: Builder, n: OnnxNode) -> Value:
    """The tanh form, of x plus an optional bias."""
    x, bias = n.input(0), n.optional(1)
    return apply(b, "GELU", x if bias is None else calc(b, "ADD", x, bias))


@onnx_op("Dropout", since=1)
def dropout_with_attributes(b: Builder, n: OnnxNode) -> tuple[Value, Value | None]:
    """Before opset 12: nothing is dropped at inference, and the mask keeps everything."""
    x = n.input(0)
    return x, _ones(b, x) if n.wants(1) else None


@onnx_op("Dropout", since=12, limits="only at inference")
def dropout(b: Builder, n: OnnxNode) -> tuple[Value, Value | None]:
    x = n.input(0)
    if n.has(2) and n.required_constant(2, "the training mode").any():
        ratio = n.constant(1) if n.has(1) else np.float32(0.5)
        if ratio is None or ratio.any():
            raise n.refuse("Dropout in training mode draws random numbers", hint="export the model for inference")
    return x, _ones(b, x) if n.wants(1) else None


def _ones(b: Builder, x: Value) -> Value:
    """int32 ones in the shape of x."""
    return calc(b, "ADD", calc(b, "MUL", cast(b, x, np.dtype(np.int32)), 0), 1)
