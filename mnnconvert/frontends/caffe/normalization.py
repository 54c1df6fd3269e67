"""Import rules of normalisations and softmax."""

from __future__ import annotations

import numpy as np

from mnnconvert.frontends.caffe.elementwise import per_channel
from mnnconvert.frontends.caffe.node import CaffeNode
from mnnconvert.frontends.caffe.registry import caffe_op
from mnnconvert.frontends.common.compose import along, apply, calc
from mnnconvert.ir import Builder, Value
from mnnconvert.ops.normalization import Normalize, Softmax
from mnnconvert.ops.vision import LRN

EPSILON = 1e-5


@caffe_op("BatchNorm", "CuDNNBatchNorm")
def batch_norm(b: Builder, n: CaffeNode) -> Value:
    """(x - mean) / sqrt(variance + eps). The third blob divides both statistics; a 0 makes them 0.

    A fork keeps factor and addend in two more blobs. Without global statistics those of the batch are taken.
    """
    p, x = n.params("batch_norm_param"), n.input()
    epsilon, affine = p.number("eps", EPSILON), p.flag("scale_bias", False) or n.blob_count == 5
    if not p.flag("use_global_stats", True):
        return _by_batch(b, n, x, epsilon)
    count = n.sizes(x, 1, 2) if n.rank(x) > 1 else (1,)
    mean, variance = (n.array(b, i, count, what) for i, what in enumerate(("mean", "variance")))
    divisor = n.array(b, 2, (1,), "factor")[0]
    share = 0.0 if divisor == 0 else 1 / divisor
    factor = 1 / np.sqrt(variance * share + epsilon)
    addend = -mean * share * factor
    if affine:
        own = n.array(b, 3, count, "scale")
        factor, addend = factor * own, addend * own + n.array(b, 4, count, "bias")
    return per_channel(b, n, x, factor, addend)


def _by_batch(b: Builder, n: CaffeNode, x: Value, epsilon: float) -> Value:
    if n.blob_count == 5:
        raise n.refuse(f"{n.op} with a factor of its own and statistics of the batch")
    axes = [i for i in range(n.rank(x)) if i != 1]
    centred = calc(b, "SUB", x, along(b, "MEAN", x, axes))
    variance = along(b, "MEAN", apply(b, "SQUARE", centred), axes)
    return calc(b, "REALDIV", centred, apply(b, "SQRT", calc(b, "ADD", variance, epsilon)))


@caffe_op("BN")
def bn(b: Builder, n: CaffeNode) -> Value:
    """The layer of PSPNet and its kin: factor, addend, mean, variance; SegNet's has the first two only."""
    p, x = n.params("bn_param"), n.input()
    epsilon = p.number("eps", EPSILON)
    if p.text("bn_mode", "LEARN").upper() == "INFERENCE" or n.blob_count == 2:
        factor, addend = (n.array(b, i, n.sizes(x, 1, 2), w) for i, w in enumerate(("scale", "bias")))
        return per_channel(b, n, x, factor, addend)
    blobs = ("scale", "bias", "mean", "variance")
    factor, addend, mean, variance = (n.array(b, i, n.sizes(x, 1, 2), w) for i, w in enumerate(blobs))
    factor = factor / np.sqrt(variance + epsilon)
    return per_channel(b, n, x, factor, addend - mean * factor)


@caffe_op("LRN", "CuDNNLRNCrossChannel")
def lrn(b: Builder, n: CaffeNode) -> Value:
    """x / (k + alpha / count * sum of squares)^beta over channels, or over a square of pixels (there k is 1)."""
    p, x = n.params("lrn_param"), n.input()
    region = p.choice("norm_region", "ACROSS_CHANNELS", "WITHIN_CHANNEL") if n.op == "LRN" else "ACROSS_CHANNELS"
    size, k = p.integer("local_size", 5), p.number("k", 1.0)
    if size < 1 or size % 2 == 0 or n.rank(x) != 4:
        raise n.refuse(f"{n.op} with local_size {size} of an operand of rank {n.rank(x)}")
    alpha, beta = p.number("alpha", 1.0), p.number("beta", 0.75)
    within = region == "WITHIN_CHANNEL"
    return b.add(LRN(size, alpha, beta, 1.0 if within else k, int(within)), x)


@caffe_op("MVN")
def mvn(b: Builder, n: CaffeNode) -> Value:
    """(x - mean) / (sqrt(variance) + eps) over the pixels of a channel, or of all channels."""
    p, x = n.params("mvn_param"), n.input()
    rank, epsilon = n.rank(x, 2), p.number("eps", 1e-9)
    axes = list(range(1 if p.flag("across_channels", False) else 2, rank))
    y = calc(b, "SUB", x, along(b, "MEAN", x, axes)) if axes else calc(b, "SUB", x, x)
    if not p.flag("normalize_variance", True):
        return y
    squares = apply(b, "SQUARE", y)
    deviation = apply(b, "SQRT", along(b, "MEAN", squares, axes) if axes else squares)
    return calc(b, "REALDIV", y, calc(b, "ADD", deviation, epsilon))


@caffe_op("Normalize")
def normalize(b: Builder, n: CaffeNode) -> Value:
    """x / sqrt(sum of squares + eps) * scale: over the channels of a pixel, or over the whole image."""
    p, x = n.params("norm_param"), n.input()
    across, shared = p.flag("across_spatial", True), p.flag("channel_shared", True)
    epsilon, count = p.number("eps", 1e-10), n.sizes(x, 1, 2)
    if n.rank(x) == 4 and not across:
        scale = n.array(b, 0, (1,), "scale").repeat(count[0]) if shared else n.array(b, 0, count, "scale")
        return b.add(Normalize(0, 0, epsilon), x, b.floats(scale))
    axes = list(range(1, n.rank(x))) if across else [1]
    power = calc(b, "ADD", along(b, "SUM", apply(b, "SQUARE", x), axes), epsilon)
    y = calc(b, "REALDIV", x, apply(b, "SQRT", power))
    sizes = (1,) if shared else count
    return calc(b, "MUL", y, n.weight(b, 0, (*sizes, *(1,) * (n.rank(x) - 2)), "scale"))


@caffe_op("Softmax")
def softmax(b: Builder, n: CaffeNode) -> Value:
    x = n.input()
    return b.add(Softmax(n.axis(n.params("softmax_param").integer("axis", 1), n.rank(x))), x)
