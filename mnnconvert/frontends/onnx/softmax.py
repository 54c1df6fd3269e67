"""Import rules of softmax and its relatives. Before opset 13 they take everything from `axis` on together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from mnnconvert.frontends.common.compose import along, apply, calc, cast, choose
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.ir import Builder, Value
from mnnconvert.ir.types import known, normal_axis
from mnnconvert.ops.normalization import Softmax

Axes = Sequence[int]
FAR = 2**24  # above every position along an axis, and exact as a float


@onnx_op("Softmax", "LogSoftmax", "Hardmax", since=1, limits="Hardmax needs known sizes")
def over_the_rest(b: Builder, n: OnnxNode) -> Value:
    """From `axis` (default 1) to the end; trailing sizes of 1 change nothing."""
    x = n.input(0)
    if x.shape is None:
        raise n.refuse(f"the rank of the operand of {n.op_type} is not known", reference="open-size")
    axes = list(range(normal_axis(n.attr("axis", 1), max(1, len(x.shape))), len(x.shape)))
    while len(axes) > 1 and x.shape[axes[-1]] == 1:
        axes.pop()
    return RULES[n.op_type](b, n, x, axes)


@onnx_op("Softmax", "LogSoftmax", "Hardmax", since=13, limits="Hardmax needs known sizes")
def over_one_axis(b: Builder, n: OnnxNode) -> Value:
    return RULES[n.op_type](b, n, n.input(0), [n.attr("axis", -1)])


def softmax(b: Builder, n: OnnxNode, x: Value, axes: Axes) -> Value:
    if len(axes) == 1:
        return b.add(Softmax(axes[0]), x)
    powers = apply(b, "EXP", calc(b, "SUB", x, along(b, "MAXIMUM", x, axes)))
    return calc(b, "REALDIV", powers, along(b, "SUM", powers, axes))


def log_softmax(b: Builder, n: OnnxNode, x: Value, axes: Axes) -> Value:
    """x - max - log(sum(exp(x - max))): the logarithm of a softmax that may be 0 is never taken."""
    below = calc(b, "SUB", x, along(b, "MAXIMUM", x, axes))
    return calc(b, "SUB", below, apply(b, "LOG", along(b, "SUM", apply(b, "EXP", below), axes)))


def hardmax(b: Builder, n: OnnxNode, x: Value, axes: Axes) -> Value:
    """1 at the first maximum along the axes, else 0: the smallest position among those of the maximum."""
    if x.shape is None or not known(tuple(x.shape[a] for a in axes)):
        raise n.refuse("Hardmax needs to know the size of its axis", reference="open-size")
    along_axes = {normal_axis(a, len(x.shape)) for a in axes}
    places = tuple(size if isinstance(size, int) and i in along_axes else 1 for i, size in enumerate(x.shape))
    n.limited(*places)
    index = b.constant(np.arange(math.prod(places), dtype=np.int32).reshape(places))
    is_largest = calc(b, "EQUAL", x, along(b, "MAXIMUM", x, axes))
    first = along(b, "MINIMUM", choose(b, is_largest, index, FAR, index), axes)
    return cast(b, calc(b, "EQUAL", index, first), x.dtype)


RULES: dict[str, Callable[[Builder, OnnxNode, Value, Axes], Value]] = {
    "Softmax": softmax, "LogSoftmax": log_softmax, "Hardmax": hardmax,
}  # fmt: skip
