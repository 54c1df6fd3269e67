"""Import rules of normalisations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mnnconvert.frontends.common.compose import along, apply, calc, channels, choose, reshape, single
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.ir import Builder, Value
from mnnconvert.ir.types import normal_axis
from mnnconvert.ops.normalization import LayerNorm, Scale

EPSILON = 1e-5


def known_rank(n: OnnxNode, x: Value, least: int = 1) -> int:
    """The rank of `x`; refused where it is not known or too small for the op."""
    if x.rank is None:
        raise n.refuse(f"the rank of the operand of {n.op_type} is not known", reference="open-size")
    if x.rank < least:
        raise n.refuse(f"{n.op_type} of an operand of rank {x.rank}")
    return x.rank


def per_channel(b: Builder, vector: Value, rank: int) -> Value:
    """A vector over the channels, shaped to broadcast against [N,C,...]."""
    if vector.constant is not None:
        return b.constant(channels(vector.constant, rank))
    return reshape(b, vector, (-1, *(1,) * max(0, rank - 2)))


def affine(b: Builder, x: Value, scale: Value | None, bias: Value | None) -> Value:
    """x * scale + bias, where either may be missing."""
    if scale is not None:
        x = calc(b, "MUL", x, scale)
    return x if bias is None else calc(b, "ADD", x, bias)


# ---------------------------------------------------------------------- over the channels


@onnx_op("BatchNormalization", since=1, limits="only at inference")
def batch_normalization_with_statistics(b: Builder, n: OnnxNode) -> Value:
    """Before opset 14 further outputs are what training is recognised by."""
    if any(n.wants(i) for i in range(1, n.output_count)):
        raise n.refuse("BatchNormalization with more than one output is in training mode")
    return batch_norm(b, n)


@onnx_op("BatchNormalization", since=14)
def batch_normalization(b: Builder, n: OnnxNode) -> Value | tuple[Value, ...]:
    return _batch_statistics(b, n) if n.attr("training_mode", 0) else batch_norm(b, n)


def _batch_statistics(b: Builder, n: OnnxNode) -> tuple[Value, ...]:
    """In training mode: normalized by the statistics of the batch, which the running ones then move towards."""
    x, keep = n.input(0), n.attr("momentum", 0.9)
    rank = known_rank(n, x, 2)
    axes = [i for i in range(rank) if i != 1]
    mean = along(b, "MEAN", x, axes)
    centred = calc(b, "SUB", x, mean)
    variance = along(b, "MEAN", apply(b, "SQUARE", centred), axes)
    inverse = apply(b, "RSQRT", calc(b, "ADD", variance, n.attr("epsilon", EPSILON)))
    factor = calc(b, "MUL", inverse, per_channel(b, n.input(1), rank))
    moved = [
        calc(b, "ADD", calc(b, "MUL", n.input(i), keep), calc(b, "MUL", reshape(b, batch, (-1,)), 1 - keep))
        for i, batch in ((3, mean), (4, variance))
    ]
    return affine(b, centred, factor, per_channel(b, n.input(2), rank)), *moved


def batch_norm(b: Builder, n: OnnxNode) -> Value:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, as one factor and one addend per channel."""
    x, epsilon = n.input(0), n.attr("epsilon", EPSILON)
    parameters = [n.input(i) for i in (1, 2, 3, 4)]
    known = [p.constant for p in parameters]
    if all(p is not None for p in known):
        scale, bias, mean, variance = (np.asarray(p, np.float64) for p in known)
        scale = scale / np.sqrt(variance + epsilon)
        bias = bias - mean * scale
        if n.attr("spatial", 1) and x.rank in (None, 4):
            return b.add(Scale(), x, b.floats(scale), b.floats(bias))
        factor, addend = b.floats(scale), b.floats(bias)
    else:
        inverse = apply(b, "RSQRT", calc(b, "ADD", parameters[3], epsilon))
        factor = calc(b, "MUL", parameters[0], inverse)
        addend = calc(b, "SUB", parameters[1], calc(b, "MUL", parameters[2], factor))
    if n.attr("spatial", 1):
        rank = known_rank(n, x)
        factor, addend = per_channel(b, factor, rank), per_channel(b, addend, rank)
    return affine(b, x, factor, addend)


@onnx_op("InstanceNormalization")
def instance_normalization(b: Builder, n: OnnxNode) -> Value:
    x = n.input(0)
    rank = known_rank(n, x, 3)
    y = b.add(LayerNorm(tuple(range(2, rank)), single(n.attr("epsilon", EPSILON))), x)
    return affine(b, y, per_channel(b, n.input(1), rank), per_channel(b, n.input(2), rank))


@onnx_op("GroupNormalization", since=18)
def group_normalization_per_group(b: Builder, n: OnnxNode) -> Value:
    """Scale and bias [groups]: repeated for every channel of a group."""
    x, groups = n.input(0), n.attr("num_groups")
    rank = known_rank(n, x, 2)
    count = x.shape[1] if x.shape is not None else None
    if not isinstance(count, int):
        raise n.refuse("GroupNormalization needs to know the number of channels", reference="open-size")
    n.limited(count, max(1, groups) if groups > count else 1)
    ones = np.ones((groups, count // max(1, groups)), np.float32)
    scale, bias = (calc(b, "MUL", reshape(b, n.input(i), (-1, 1)), ones) for i in (1, 2))
    return group_norm(b, n, reshape(b, scale, (-1, *(1,) * (rank - 2))), reshape(b, bias, (-1, *(1,) * (rank - 2))))


@onnx_op("GroupNormalization", since=21)
def group_normalization(b: Builder, n: OnnxNode) -> Value:
    """Scale and bias [channels]."""
    rank = known_rank(n, n.input(0), 2)
    return group_norm(b, n, per_channel(b, n.input(1), rank), per_channel(b, n.input(2), rank))


def group_norm(b: Builder, n: OnnxNode, scale: Value, bias: Value) -> Value:
    x = n.input(0)
    axes = tuple(range(1, known_rank(n, x)))
    y = b.add(LayerNorm(axes, single(n.attr("epsilon", EPSILON)), False, n.attr("num_groups")), x)
    return affine(b, y, scale, bias)


# ---------------------------------------------------------------------- over the last axes


def trailing_axes(n: OnnxNode, x: Value, axis: int) -> tuple[int, ...]:
    """The axes from `axis` to the last one, counted from the end."""
    if axis >= 0:
        axis -= known_rank(n, x)
    elif x.rank is not None:
        normal_axis(axis, x.rank)
    return tuple(range(axis, 0))


def layer_norm(b: Builder, x: Value, axes: tuple[int, ...], epsilon: float, gamma: Value | None, beta: Value | None,
               rms: bool = False) -> Value:  # fmt: skip
    """A LayerNorm that holds gamma and beta where they are constants of the normalised shape, else followed by them."""
    op = LayerNorm(axes, single(epsilon), rms)
    given = [p for p in (gamma, beta) if p is not None]
    if not given:
        return b.add(op, x)
    if not all(p.constant is not None and _fills(x, axes, p.constant.shape) for p in given):
        return affine(b, b.add(op, x), gamma, beta)
    shape = given[0].constant.shape  # type: ignore[union-attr]  # all are constants here
    scale = np.ones(shape, np.float32) if gamma is None else gamma.constant
    shift = np.zeros(shape, np.float32) if beta is None else beta.constant
    return b.add(op, x, b.constant(np.ravel(scale)), b.constant(np.ravel(shift)))  # type: ignore[arg-type]


def _fills(x: Value, axes: Sequence[int], shape: tuple[int, ...]) -> bool:
    """Whether a parameter of this shape has an element for each place that is normalised together."""
    if len(shape) != len(axes):
        return False
    sizes = [None] * len(axes) if x.shape is None else [x.shape[a] for a in axes]
    return all(
        size == have or (not isinstance(size, int) and have != 1) for size, have in zip(sizes, shape, strict=True)
    )


def statistics(b: Builder, x: Value, axes: Sequence[int], epsilon: float) -> tuple[Value, Value, Value]:
    """x - mean, the mean, and 1 / sqrt(variance + epsilon)."""
    mean = along(b, "MEAN", x, axes)
    centred = calc(b, "SUB", x, mean)
    variance = along(b, "MEAN", apply(b, "SQUARE", centred), axes)
    return centred, mean, apply(b, "RSQRT", calc(b, "ADD", variance, epsilon))


def layer_norm_outputs(b: Builder, n: OnnxNode, x: Value, axes: tuple[int, ...], gamma: Value | None,
                       beta: Value | None) -> tuple[Value, Value | None, Value | None]:  # fmt: skip
    """The norm; mean and inverse deviation as well when the node is asked for them (outputs 1 and 2)."""
    epsilon = n.attr("epsilon", EPSILON)
    if not n.wants(1) and not n.wants(2):
        return layer_norm(b, x, axes, epsilon, gamma, beta), None, None
    centred, mean, inverse = statistics(b, x, axes, epsilon)
    return affine(b, calc(b, "MUL", centred, inverse), gamma, beta), mean, inverse


@onnx_op("LayerNormalization")
def layer_normalization(b: Builder, n: OnnxNode) -> tuple[Value, Value | None, Value | None]:
    x = n.input(0)
    return layer_norm_outputs(b, n, x, trailing_axes(n, x, n.attr("axis", -1)), n.input(1), n.optional(2))


@onnx_op("RMSNormalization")
def rms_normalization(b: Builder, n: OnnxNode) -> Value:
    x = n.input(0)
    axes = trailing_axes(n, x, n.attr("axis", -1))
    return layer_norm(b, x, axes, n.attr("epsilon", EPSILON), n.input(1), None, rms=True)


@onnx_op("SimplifiedLayerNormalization")
@onnx_op("SimplifiedLayerNormalization", domain="com.microsoft")
def simplified_layer_normalization(b: Builder, n: OnnxNode) -> tuple[Value, Value | None]:
    """RMS norm by another name; the second output is 1 / sqrt(mean(x^2) + epsilon)."""
    x = n.input(0)
    axes = trailing_axes(n, x, n.attr("axis", -1))
    return rms_norm_outputs(b, x, axes, n.attr("epsilon", EPSILON), n.input(1), n.wants(1))


def rms_norm_outputs(b: Builder, x: Value, axes: tuple[int, ...], epsilon: float, gamma: Value | None,
                     inverse_wanted: bool) -> tuple[Value, Value | None]:  # fmt: skip
    if not inverse_wanted:
        return layer_norm(b, x, axes, epsilon, gamma, None, rms=True), None
    inverse = apply(b, "RSQRT", calc(b, "ADD", along(b, "MEAN", apply(b, "SQUARE", x), axes), epsilon))
    return affine(b, calc(b, "MUL", x, inverse), gamma, None), inverse


@onnx_op("SkipLayerNormalization", domain="com.microsoft")
def skip_layer_normalization(b: Builder, n: OnnxNode) -> tuple[Value | None, ...]:
    """The layer norm of x + skip (+ bias); the sum is output 3."""
    total = affine(b, calc(b, "ADD", n.input(0), n.input(1)), None, n.optional(4))
    return *layer_norm_outputs(b, n, total, (-1,), n.input(2), n.optional(3)), total


@onnx_op("SkipSimplifiedLayerNormalization", domain="com.microsoft")
def skip_simplified_layer_normalization(b: Builder, n: OnnxNode) -> tuple[Value | None, ...]:
    """The RMS norm of x + skip (+ bias); the inverse is output 2, the sum output 3."""
    total = affine(b, calc(b, "ADD", n.input(0), n.input(1)), None, n.optional(3))
    y, inverse = rms_norm_outputs(b, total, (-1,), n.attr("epsilon", EPSILON), n.input(2), n.wants(2))
    return y, None, inverse, total


# ---------------------------------------------------------------------- over any axes


@onnx_op("LpNormalization")
def lp_normalization(b: Builder, n: OnnxNode) -> Value:
    """x / norm, and 0 where the norm is 0."""
    x, axes, p = n.input(0), [n.attr("axis", -1)], n.attr("p", 2)
    if p not in (1, 2):
        raise n.refuse(f"LpNormalization has p={p}")
    powers = along(b, "SUM", apply(b, "ABS" if p == 1 else "SQUARE", x), axes)
    norm = powers if p == 1 else apply(b, "SQRT", powers)
    return calc(b, "REALDIV", x, choose(b, calc(b, "EQUAL", norm, 0.0), 1.0, norm, norm))


@onnx_op("MeanVarianceNormalization")
def mean_variance_normalization(b: Builder, n: OnnxNode) -> Value:
    """(x - mean) / (deviation + 1e-9)."""
    x, axes = n.input(0), n.attr("axes", (0, 2, 3))
    centred = calc(b, "SUB", x, along(b, "MEAN", x, axes))
    deviation = apply(b, "SQRT", along(b, "MEAN", apply(b, "SQUARE", centred), axes))
    return calc(b, "REALDIV", centred, calc(b, "ADD", deviation, 1e-9))
