"""Per-channel factors and summands that follow a convolution go into its weight and bias."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mnnconvert.ir import ArrayTensor, Node, Value
from mnnconvert.passes.pattern import Constant, Pattern, Tracer
from mnnconvert.passes.rewrite import Maker, RewritePass, Rule
from mnnconvert.passes.weights import channel_factor, keeps_codes, scaled


def convolved(op: Tracer, x: Pattern, w: Pattern, b: Pattern, size: Pattern) -> Pattern:
    """Any convolution or transposed convolution; `size` is the result size that the latter may be given."""
    return op.either(
        op.Convolution(x, w, b, bind="conv"),
        op.Convolution(x, w, bind="conv"),
        op.Deconvolution(x, w, b, bind="conv", sized=False),
        op.Deconvolution(x, w, bind="conv", sized=False),
        op.Deconvolution(x, w, b, size, bind="conv", sized=True),
    )


def _channels(conv: Node) -> int | None:
    """The number of output channels, when the weight is known."""
    shape = conv.inputs[1].shape or (None,) * 4
    outputs, per_group = shape[0], shape[1]
    if conv.op.kind == "Convolution":
        return outputs if isinstance(outputs, int) else None
    return per_group * conv.op.group if isinstance(per_group, int) else None  # type: ignore[attr-defined]


def per_channel(value: Value, channels: int | None, rank: int | None) -> np.ndarray | None:
    """A constant that broadcasts along axis 1 of a result of `rank` only, as a vector [channels]."""
    shape = value.shape
    if shape is None or channels is None or rank is None or len(shape) > rank or value.dtype != np.float32:
        return None
    full = (1,) * (rank - len(shape)) + shape
    if any(d != 1 and (axis != 1 or d != channels) for axis, d in enumerate(full)) or value.constant is None:
        return None
    return np.broadcast_to(value.constant.reshape(-1), (channels,)).astype(np.float32)


class _IntoWeights(Rule):
    """conv(x) * factor + summand with per-channel constants -> conv(x) with another weight and bias."""

    def check(self, root: Node, conv: Node, scale: Value | None, shift: Value | None) -> str | None:
        if conv.op.activation:  # type: ignore[attr-defined]
            return f"'{conv.name}' has an activation in between"
        for value in (scale, shift):
            if value is not None and per_channel(value, _channels(conv), _rank(value, root)) is None:
                return f"'{value.name}' is not one number per channel"
        weight = conv.inputs[1].tensor
        if scale is not None and weight is not None and not keeps_codes(weight, _shaped(scale, conv, root)):
            return f"the codes of '{conv.inputs[1].name}' have no scale per channel"
        return None

    def affine(self, op: Maker, root: Node, conv: Node, scale: Value | None, shift: Value | None, sign: int = 1) -> Any:
        """The convolution with `scale` and `sign * shift` worked into it."""
        channels = _channels(conv) or 0
        weight, bias = conv.inputs[1], _bias(conv, channels)
        if scale is not None:
            tensor = weight.tensor if weight.tensor is not None else ArrayTensor(np.asarray(weight.constant))
            weight = op.constant(scaled(tensor, _shaped(scale, conv, root)), weight.name)
            bias = bias * _vector(scale, channels, root)
        if shift is not None:
            bias = bias + np.float32(sign) * _vector(shift, channels, root)
        name = conv.inputs[2].name if len(conv.inputs) > 2 and not conv.inputs[2].name.endswith("/const") else ""
        rest = conv.inputs[3:]
        return op.add(replace(conv.op), conv.inputs[0], weight, op.constant(bias.astype(np.float32), name), *rest)  # type: ignore[type-var]


def _rank(value: Value, root: Node) -> int | None:
    """The rank in which a parameter broadcasts; a Scale gives one number per channel by itself."""
    return 2 if root.op.kind == "Scale" else root.output.rank


def _vector(value: Value, channels: int, root: Node) -> np.ndarray:
    vector = per_channel(value, channels, _rank(value, root))
    assert vector is not None  # `check` has seen it
    return vector


def _shaped(scale: Value, conv: Node, root: Node) -> np.ndarray:
    """A factor per channel shaped to multiply the weight."""
    op: Any = conv.op
    factor = _vector(scale, _channels(conv) or 0, root)
    if np.all(factor == factor[:1]):
        return factor[:1].reshape(1, 1, 1, 1)
    shape = tuple(d for d in conv.inputs[1].shape or () if isinstance(d, int))
    return channel_factor(factor, shape, op.group, op.kind == "Deconvolution")


def _bias(conv: Node, channels: int) -> np.ndarray:
    given = conv.inputs[2].constant if len(conv.inputs) > 2 else None
    return np.broadcast_to(np.zeros(1, np.float32) if given is None else given, (channels,))


class ScaleIntoConvolution(_IntoWeights):
    """scale(conv(x)), as batch normalisation is imported."""

    def pattern(
        self, op: Tracer, x: Pattern, w: Constant, b: Constant, size: Pattern, scale: Constant, shift: Constant
    ) -> Pattern:
        return op.Scale(convolved(op, x, w, b, size), scale, shift)

    def replace(self, op: Maker, root: Node, conv: Node, scale: Value, shift: Value) -> Any:
        return self.affine(op, root, conv, scale, shift)


class FactorIntoConvolution(_IntoWeights):
    """conv(x) * c."""

    def pattern(self, op: Tracer, x: Pattern, w: Constant, b: Constant, size: Pattern, scale: Constant) -> Pattern:
        return convolved(op, x, w, b, size) * scale

    def replace(self, op: Maker, root: Node, conv: Node, scale: Value) -> Any:
        return self.affine(op, root, conv, scale, None)


class SummandIntoBias(_IntoWeights):
    """conv(x) + c."""

    def pattern(self, op: Tracer, x: Pattern, w: Constant, b: Constant, size: Pattern, shift: Constant) -> Pattern:
        return convolved(op, x, w, b, size) + shift

    def replace(self, op: Maker, root: Node, conv: Node, shift: Value) -> Any:
        return self.affine(op, root, conv, None, shift)


class SubtrahendIntoBias(_IntoWeights):
    """conv(x) - c."""

    def pattern(self, op: Tracer, x: Pattern, w: Constant, b: Constant, size: Pattern, shift: Constant) -> Pattern:
        return convolved(op, x, w, b, size) - shift

    def replace(self, op: Maker, root: Node, conv: Node, shift: Value) -> Any:
        return self.affine(op, root, conv, None, shift, sign=-1)


@dataclass(frozen=True)
class FuseAffine(RewritePass):
    """Batch normalisation, scales and biases after a convolution go into its weight and bias."""

    name = "fuse-affine"
    after = ("fold-constants",)
    rules = (ScaleIntoConvolution, FactorIntoConvolution, SummandIntoBias, SubtrahendIntoBias)
