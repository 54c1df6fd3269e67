"""What the rules of several families share: fused activations, layouts, windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mnnconvert.frontends.common.channels_last import Ints, window_pads
from mnnconvert.frontends.common.compose import apply, calc, cast
from mnnconvert.frontends.common.moves import clip
from mnnconvert.frontends.tflite.model import BAD
from mnnconvert.frontends.tflite.node import TfliteNode
from mnnconvert.frontends.tflite.steps import decoded
from mnnconvert.ir import F32, Builder, Dim, Value
from mnnconvert.ops.activation import ReLU, ReLU6

ACTIVATIONS: dict[str, Callable[[Builder, Value], Value]] = {
    "NONE": lambda b, y: y,
    "RELU": lambda b, y: b.add(ReLU(), y) if y.dtype == F32 else calc(b, "MAXIMUM", y, 0),
    "RELU6": lambda b, y: _limited(b, y, 0, 6),
    "RELU_N1_TO_1": lambda b, y: _limited(b, y, -1, 1),
    "TANH": lambda b, y: apply(b, "TANH", y),
    "SIGN_BIT": lambda b, y: cast(b, calc(b, "LESS", y, 0), y.dtype),
}


def _limited(b: Builder, y: Value, low: int, high: int) -> Value:
    return b.add(ReLU6(float(low), float(high)), y) if y.dtype == F32 else clip(b, y, low, high)


def activated(b: Builder, n: TfliteNode, y: Value) -> Value:
    """The result with the activation that is fused into the operator."""
    return ACTIVATIONS[n.choice("FusedActivationFunction", "ActivationFunctionType", "NONE")](b, y)


def pads_of(
    n: TfliteNode, sizes: Sequence[Dim], kernel: Ints, strides: Ints, dilations: Ints
) -> tuple[Ints, Ints] | None:
    """Pads before and after of the option Padding; None where SAME padding depends on sizes that are not known."""
    same = n.choice("Padding", "Padding", "VALID") == "SAME"
    return window_pads(n, same, sizes, kernel, strides, dilations)


def bias_of(b: Builder, n: TfliteNode, index: int, outputs: Dim) -> Value:
    """The bias, or zeros: the runtime needs one. Integers count in the steps of a sum of products."""
    if n.has(index):
        source = n.source(index)
        if source.data is not None and source.scale.size and source.type in ("int32", "int64"):
            return b.constant(decoded(source), source.name)
        bias = n.input(index)
        if bias.dtype != F32:
            raise n.refuse(f"{n.op} adds a bias of {source.type} without a scale", reference=BAD)
        return bias if bias.tensor is not None or bias.constant is None else b.constant(bias.constant)
    if not isinstance(outputs, int):
        raise n.refuse(f"the number of output channels of {n.op} is not known")
    return b.constant(np.zeros(outputs, np.float32))
