"""Import rules of norms and of softmax."""

from __future__ import annotations

import numpy as np

from mnnconvert.frontends.common.channels_last import channels_first, channels_last
from mnnconvert.frontends.common.compose import along, apply, calc, channels, reshape
from mnnconvert.frontends.common.nodes import known_rank
from mnnconvert.frontends.common.reduction import log_softmax
from mnnconvert.frontends.tensorflow.compose import from_planes, to_planes
from mnnconvert.frontends.tensorflow.node import TfNode
from mnnconvert.frontends.tensorflow.registry import tf_op
from mnnconvert.ir import Builder, Value
from mnnconvert.ops.normalization import Scale, Softmax
from mnnconvert.ops.vision import LRN

BATCH_NORM = ("y", "batch_mean", "batch_variance", "reserve_space_1", "reserve_space_2", "reserve_space_3")


@tf_op("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3", results=BATCH_NORM)
def fused_batch_norm(b: Builder, n: TfNode) -> tuple[Value, ...]:
    """Operands: x, scale, offset, mean, variance. While training the statistics are those of the batch."""
    x, epsilon = to_planes(b, n, n.input(0)), n.float_attr("epsilon", 1e-4)
    scale, offset, mean, variance = (n.input(i) for i in range(1, 5))
    rank = known_rank(n, x)
    if n.flag("is_training", True):
        return _trained(b, n, x, scale, offset, epsilon)
    known = [v.constant for v in (scale, offset, mean, variance)]
    if all(v is not None for v in known) and rank == 4:
        factor, addend, m, v = (np.asarray(array, np.float64) for array in known)
        factor = factor / np.sqrt(v + epsilon)
        y = b.add(Scale(), x, b.floats(factor), b.floats(addend - m * factor))
    else:
        inverse = calc(b, "MUL", scale, apply(b, "RSQRT", calc(b, "ADD", variance, epsilon)))
        moved = calc(b, "SUB", offset, calc(b, "MUL", mean, inverse))
        y = calc(b, "ADD", calc(b, "MUL", x, _per_channel(b, inverse, rank)), _per_channel(b, moved, rank))
    return from_planes(b, n, y), mean, variance, mean, variance, mean


def _per_channel(b: Builder, v: Value, rank: int) -> Value:
    known = v.constant
    return b.floats(channels(known, rank)) if known is not None else reshape(b, v, (-1, *(1,) * (rank - 2)))


def _trained(b: Builder, n: TfNode, x: Value, scale: Value, offset: Value, epsilon: float) -> tuple[Value, ...]:
    """By the statistics of the batch: a mean and a biased variance per channel."""
    if n.float_attr("exponential_avg_factor", 1.0) != 1.0:
        raise n.refuse(f"{n.op} that moves averages while training is not supported")
    rank = known_rank(n, x)
    axes = [i for i in range(rank) if i != 1]
    mean = along(b, "MEAN", x, axes)
    centred = calc(b, "SUB", x, mean)
    variance = along(b, "MEAN", apply(b, "SQUARE", centred), axes)
    factor = calc(b, "MUL", apply(b, "RSQRT", calc(b, "ADD", variance, epsilon)), _per_channel(b, scale, rank))
    y = calc(b, "ADD", calc(b, "MUL", centred, factor), _per_channel(b, offset, rank))
    found = [reshape(b, v, (-1,)) for v in (mean, variance)]
    return (from_planes(b, n, y), *found, *found, found[0])


@tf_op("BatchNormWithGlobalNormalization")
def batch_norm_with_global_normalization(b: Builder, n: TfNode) -> Value:
    """Operands: x [N,H,W,C], mean, variance, beta, gamma."""
    x, mean, variance, beta, gamma = n.inputs
    factor = apply(b, "RSQRT", calc(b, "ADD", variance, n.float_attr("variance_epsilon")))
    factor = calc(b, "MUL", factor, gamma) if n.flag("scale_after_normalization") else factor
    return calc(b, "ADD", calc(b, "MUL", calc(b, "SUB", x, mean), factor), beta)


@tf_op("Softmax")
def softmax(b: Builder, n: TfNode) -> Value:
    return b.add(Softmax(-1), n.input(0))


@tf_op("LogSoftmax")
def log_of_softmax(b: Builder, n: TfNode) -> Value:
    return log_softmax(b, n.input(0))


@tf_op("LRN")
def local_response_normalization(b: Builder, n: TfNode) -> Value:
    """x / (bias + alpha * sum of x^2 over 2 * radius + 1 channels)^beta; MNN's alpha is for the mean."""
    size = 2 * n.int_attr("depth_radius", 5) + 1
    alpha, beta, bias = n.float_attr("alpha", 1.0), n.float_attr("beta", 0.5), n.float_attr("bias", 1.0)
    x = channels_first(b, n, n.input(0))
    return channels_last(b, b.add(LRN(size, alpha * size, beta, bias), x))


@tf_op("AdjustContrastv2")
def adjust_contrast(b: Builder, n: TfNode) -> Value:
    """The distance of each pixel of [..., H, W, C] from the mean of its channel, scaled."""
    x = n.input(0)
    rank = known_rank(n, x)
    mean = along(b, "MEAN", x, (rank - 3, rank - 2))
    return calc(b, "ADD", calc(b, "MUL", calc(b, "SUB", x, mean), n.input(1)), mean)
