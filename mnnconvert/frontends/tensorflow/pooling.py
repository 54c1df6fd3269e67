"""Import rules of pooling."""

from __future__ import annotations

import numpy as np

from mnnconvert.frontends.common.channels_last import Ints
from mnnconvert.frontends.common.compose import calc, channels
from mnnconvert.frontends.common.nodes import FIX_SIZES
from mnnconvert.frontends.tensorflow.compose import from_planes, pads_of, spatial, to_planes
from mnnconvert.frontends.tensorflow.node import TfNode
from mnnconvert.frontends.tensorflow.registry import tf_op
from mnnconvert.ir import Builder, Value
from mnnconvert.ops.padding import Padding
from mnnconvert.ops.pooling import Pooling, Pooling3D

FUNCTIONS = {"A": "AVEPOOL", "M": "MAXPOOL"}
LOWEST = float(np.finfo(np.float32).min)


def _window(n: TfNode, rank: int) -> tuple[Ints, Ints]:
    """Kernel and strides, which stand in attributes or, in the later form, in operands."""
    if n.has(1):
        return spatial(n, n.ints(1, "the window"), "ksize", rank), spatial(n, n.ints(2, "the strides"), "strides", rank)
    return spatial(n, n.ints_attr("ksize"), "ksize", rank), spatial(n, n.ints_attr("strides"), "strides", rank)


def _pooling(n: TfNode, x: Value, indices: bool = False) -> Pooling:
    kernel, strides = _window(n, 4)
    pads = pads_of(n, (x.shape or ())[2:], kernel, strides, (1, 1))
    (t, l), (d, r) = pads or ((0, 0), (0, 0))
    mode = "SAME" if pads is None else "CAFFE"
    function = FUNCTIONS[n.op[0]]
    return Pooling(function, (kernel[0], kernel[1]), (strides[0], strides[1]), (t, l, d, r), mode, indices=indices)


@tf_op("AvgPool", "MaxPool", "MaxPoolV2")
def pool(b: Builder, n: TfNode) -> Value:
    """Windows over planes; a mean divides by what a window covers of the image, a maximum ignores the padding."""
    x = to_planes(b, n, n.input(0), 4)
    return from_planes(b, n, b.add(_pooling(n, x), x))


@tf_op("MaxPoolWithArgmax", results=("output", "argmax"), gives="T Targmax",
       limits="the number of channels must be known; positions without the batch")  # fmt: skip
def max_pool_with_argmax(b: Builder, n: TfNode) -> tuple[Value, Value]:
    """Maxima, and where they are: (row * W + column) * C + channel."""
    if n.flag("include_batch_in_index"):
        raise n.refuse(f"{n.op} with include_batch_in_index is not supported")
    x = to_planes(b, n, n.input(0), 4)
    count = (x.shape or (None, None))[1]
    if not isinstance(count, int):
        raise n.refuse(f"{n.op} needs the number of channels", hint=FIX_SIZES)
    y, places = b.add(_pooling(n, x, True), x, names=["", ""])
    flat = calc(b, "ADD", calc(b, "MUL", places, count), channels(np.arange(count), 4))
    return from_planes(b, n, y), from_planes(b, n, flat)


@tf_op("AvgPool3D", "MaxPool3D", limits="SAME padding needs known sizes; of a mean it must be symmetric")
def pool_3d(b: Builder, n: TfNode) -> Value:
    """Unequal pads of a maximum are put on before."""
    x = to_planes(b, n, n.input(0), 5)
    kernel, strides = _window(n, 5)
    pads = pads_of(n, (x.shape or ())[2:], kernel, strides, (1, 1, 1))
    if pads is None:
        raise n.refuse(f"SAME padding of {n.op} needs the sizes of the operand", hint=FIX_SIZES)
    first, last = pads
    if first != last:
        if n.op == "AvgPool3D":
            raise n.refuse(f"{n.op} with the unequal pads {list(first)} and {list(last)} is not supported")
        amounts = [0, 0, 0, 0, *(p for pair in zip(first, last, strict=True) for p in pair)]
        x, first = b.add(Padding(), x, b.ints(amounts), b.floats(LOWEST)), (0, 0, 0)
    return from_planes(b, n, b.add(Pooling3D(FUNCTIONS[n.op[0]], kernel, strides, first), x))
