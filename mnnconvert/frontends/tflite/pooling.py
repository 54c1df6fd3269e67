"""Import rules of pooling."""

from __future__ import annotations

from mnnconvert.frontends.common.channels_last import channels_first, channels_last
from mnnconvert.frontends.common.compose import apply
from mnnconvert.frontends.tflite.compose import activated, pads_of
from mnnconvert.frontends.tflite.node import TfliteNode
from mnnconvert.frontends.tflite.registry import tflite_op
from mnnconvert.ir import Builder, Value
from mnnconvert.ops.pooling import Pooling


def _pool(b: Builder, n: TfliteNode, x: Value, function: str) -> Value:
    """Windows over planes; a mean divides by what a window covers of the image."""
    x = channels_first(b, n, x)
    kernel = int(n.option("FilterHeight", 1)), int(n.option("FilterWidth", 1))
    strides = int(n.option("StrideH", 1)), int(n.option("StrideW", 1))
    pads = pads_of(n, (x.shape or ())[2:], kernel, strides, (1, 1))
    (t, l), (d, r) = pads or ((0, 0), (0, 0))
    op = Pooling(function, kernel, strides, (t, l, d, r), "SAME" if pads is None else "CAFFE")
    return channels_last(b, b.add(op, x))


@tflite_op("MAX_POOL_2D", moves=True)
def max_pool_2d(b: Builder, n: TfliteNode) -> Value:
    return activated(b, n, _pool(b, n, n.input(0), "MAXPOOL"))


@tflite_op("AVERAGE_POOL_2D")
def average_pool_2d(b: Builder, n: TfliteNode) -> Value:
    return activated(b, n, _pool(b, n, n.input(0), "AVEPOOL"))


@tflite_op("L2_POOL_2D")
def l2_pool_2d(b: Builder, n: TfliteNode) -> Value:
    """The root of the mean square."""
    return activated(b, n, apply(b, "SQRT", _pool(b, n, apply(b, "SQUARE", n.input(0)), "AVEPOOL")))
