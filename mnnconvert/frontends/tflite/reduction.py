"""Import rules of reductions, softmax, norms over the last axis, positions of extremes, running sums."""

from __future__ import annotations

from mnnconvert.frontends.common.channels_last import channels_first, channels_last
from mnnconvert.frontends.common.compose import along, apply, calc, cast
from mnnconvert.frontends.common.nodes import axis_of, known_rank
from mnnconvert.frontends.common.reduction import log_softmax, reduction
from mnnconvert.frontends.tflite.compose import ACTIVATIONS
from mnnconvert.frontends.tflite.means import mean_of_codes
from mnnconvert.frontends.tflite.node import TfliteNode
from mnnconvert.frontends.tflite.registry import tflite_op
from mnnconvert.ir import F32, I32, Builder, Value
from mnnconvert.ops.normalization import Softmax
from mnnconvert.ops.reduction import ArgMax, ArgMin, CumSum
from mnnconvert.ops.search import TopKV2
from mnnconvert.ops.vision import LRN

REDUCTIONS = {
    "SUM": "SUM", "MEAN": "MEAN", "REDUCE_PROD": "PROD", "REDUCE_MAX": "MAXIMUM", "REDUCE_MIN": "MINIMUM",
    "REDUCE_ANY": "ANY", "REDUCE_ALL": "ALL",
}  # fmt: skip
LEAST_NORM = 1e-6  # a shorter vector is divided by this


@tflite_op(*REDUCTIONS)
def reduce(b: Builder, n: TfliteNode) -> Value:
    x, operation, keep = n.input(0), REDUCTIONS[n.op], bool(n.option("KeepDims", False))
    if n.op == "MEAN" and n.source(0).quantized and n.constant(1) is not None:
        mean = mean_of_codes(b, n, n.ints(1, "the axes"), keep)
        if mean is not None:
            return mean
    dtype, x = x.dtype, x if x.dtype in (F32, I32) else cast(b, x, I32)
    axes = n.input(1) if n.constant(1) is None else n.ints(1, "the axes")
    return cast(b, reduction(b, n, x, operation, axes, keep), dtype)


@tflite_op("SOFTMAX")
def softmax(b: Builder, n: TfliteNode) -> Value:
    x, beta = n.input(0), float(n.option("Beta", 1.0))
    return b.add(Softmax(-1), x if beta == 1 else calc(b, "MUL", x, beta))


@tflite_op("LOG_SOFTMAX")
def log_of_softmax(b: Builder, n: TfliteNode) -> Value:
    return log_softmax(b, n.input(0))


@tflite_op("L2_NORMALIZATION")
def l2_normalization(b: Builder, n: TfliteNode) -> Value:
    x = n.input(0)
    length = apply(b, "SQRT", along(b, "SUM", apply(b, "SQUARE", x), (-1,)))
    y = calc(b, "REALDIV", x, calc(b, "MAXIMUM", length, LEAST_NORM))
    return ACTIVATIONS[n.choice("FusedActivationFunction", "ActivationFunctionType", "NONE")](b, y)


@tflite_op("LOCAL_RESPONSE_NORMALIZATION")
def local_response_normalization(b: Builder, n: TfliteNode) -> Value:
    """x / (bias + alpha * sum of x^2 over 2 * radius + 1 channels)^beta; MNN's alpha is for the mean."""
    size = 2 * int(n.option("Radius", 5)) + 1
    alpha, beta, bias = (float(n.option(name, 1.0)) for name in ("Alpha", "Beta", "Bias"))
    x = channels_first(b, n, n.input(0))
    return channels_last(b, b.add(LRN(size, alpha * size, beta, bias), x))


@tflite_op("ARG_MAX", "ARG_MIN", limits="the axis must be known")
def position(b: Builder, n: TfliteNode) -> Value:
    x = n.input(0)
    axis = axis_of(n, n.ints(1, "the axis")[0], known_rank(n, x))
    return b.add(ArgMax(axis) if n.op == "ARG_MAX" else ArgMin(axis), x)


@tflite_op("TOPK_V2", moves=True)
def top_k(b: Builder, n: TfliteNode) -> tuple[Value, Value]:
    x = n.input(0)
    wide = x if x.dtype in (F32, I32) else cast(b, x, I32)
    values, places = b.add(TopKV2(), wide, n.input(1), names=["", ""])
    return cast(b, values, x.dtype), places


@tflite_op("CUMSUM", limits="the axis must be known")
def cumsum(b: Builder, n: TfliteNode) -> Value:
    op = CumSum(bool(n.option("Exclusive", False)), bool(n.option("Reverse", False)))
    return b.add(op, n.input(0), b.ints(n.ints(1, "the axis")[0]))
