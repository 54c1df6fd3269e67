"""What the rules of several families share: fused activations, layouts, windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mnnconvert.frontends.common.compose import apply, calc, cast
from mnnconvert.frontends.common.moves import clip, permuted
from mnnconvert.frontends.tflite.model import BAD
from mnnconvert.frontends.tflite.node import TfliteNode
from mnnconvert.frontends.tflite.steps import decoded
from mnnconvert.ir import F32, Builder, Dim, Value
from mnnconvert.ops.activation import ReLU, ReLU6
from mnnconvert.ops.windows import same_pads

Ints = tuple[int, ...]
FIX_SIZES = "give the sizes of the input with --inputShape"

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


def channels_first(b: Builder, n: TfliteNode, x: Value) -> Value:
    """[N, spatial.., C] as [N, C, spatial..]."""
    rank = known_rank(n, x)
    return permuted(b, x, (0, rank - 1, *range(1, rank - 1)))


def channels_last(b: Builder, y: Value) -> Value:
    """[N, C, spatial..] as [N, spatial.., C]."""
    rank = y.rank or 4
    return permuted(b, y, (0, *range(2, rank), 1))


def known_rank(n: TfliteNode, x: Value) -> int:
    """The rank of an operand; refused where it is not known."""
    if x.rank is None:
        raise n.refuse(f"the rank of an operand of {n.op} is not known", hint=FIX_SIZES, reference="open-size")
    return x.rank


def axis_of(n: TfliteNode, axis: int, rank: int) -> int:
    """An axis counted from the start; refused outside of the rank."""
    if not -rank <= axis < rank:
        raise n.refuse(f"{n.op} names the axis {axis} of {rank}", reference=BAD)
    return axis % rank


def pads_of(
    n: TfliteNode, sizes: Sequence[Dim], kernel: Ints, strides: Ints, dilations: Ints
) -> tuple[Ints, Ints] | None:
    """Pads before and after of the option Padding; None where SAME padding depends on sizes that are not known."""
    if min((*strides, *dilations, *kernel)) < 1:
        raise n.refuse(f"{n.op} has the kernel {list(kernel)}, strides {list(strides)}, dilations {list(dilations)}")
    if n.choice("Padding", "Padding", "VALID") == "VALID":
        return (0,) * len(kernel), (0,) * len(kernel)
    rows = list(zip(sizes, kernel, strides, dilations, strict=True))
    if any(not isinstance(size, int) and stride > 1 for size, _, stride, _ in rows):
        return None
    pads = [same_pads(s if isinstance(s, int) else 1 << 20, k, stride, d) for s, k, stride, d in rows]
    return tuple(p[0] for p in pads), tuple(p[1] for p in pads)


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
