"""Activations with parameters. Those without are functions of `Unary`."""

from __future__ import annotations

import numpy as np

from mnnconvert.ir.types import Spec
from mnnconvert.ops.base import Emission, Form, Op, register
from mnnconvert.ops.samples import floats, grid


class _Activation(Op):
    """Element by element, on float32 of any shape."""

    layout = "any"

    def infer(self, x: Spec) -> Spec:
        return Spec(x.dtype, x.shape)


@register()
class ReLU(_Activation):
    """y = x where x >= 0, else slope * x."""

    slope: float = 0.0

    form = Form("ReLU", "Relu", {"slope": "slope"})

    def ref(self, x: np.ndarray) -> np.ndarray:
        if self.slope == 0:
            return np.maximum(x, 0)
        return np.where(x < 0, x * x.dtype.type(self.slope), x)

    samples = grid(slope=[0.0, 0.25, 1.5], x=[(), (2, 3, 4, 5)])


@register()
class ReLU6(_Activation):
    """y = min(max(x, minimum), maximum)."""

    minimum: float = 0.0
    maximum: float = 6.0

    form = Form("ReLU6", "Relu6", {"minimum": "minValue", "maximum": "maxValue"})

    def ref(self, x: np.ndarray) -> np.ndarray:
        return np.minimum(np.maximum(x, x.dtype.type(self.minimum)), x.dtype.type(self.maximum))

    samples = grid(minimum=[0.0, -1.5], maximum=[6.0, 0.5], x=[(), floats(2, 3, 4, low=-9, high=9)])


@register()
class PReLU(Op):
    """y = x where x >= 0, else slope[channel] * x. Operands x [N,C,...], slope [C], or [1] for all channels."""

    form = Form("PReLU", "PRelu")
    layout = "c4"
    embedded = ("slope",)

    def infer(self, x: Spec, slope: Spec) -> Spec:
        channels = slope.shape[0] if slope.shape else None
        if isinstance(channels, int) and channels != 1 and x.shape is not None and len(x.shape) > 1:
            have = x.shape[1]
            if isinstance(have, int) and have != channels:
                raise ValueError(f"x has {have} channels, there are {channels} slopes")
        return Spec(x.dtype, x.shape)

    def ref(self, x: np.ndarray, slope: np.ndarray) -> np.ndarray:
        return np.where(x < 0, x * slope.reshape(-1, *(1,) * max(0, x.ndim - 2)), x)

    def emit(self, x: Spec, slope: Spec) -> Emission:
        return Emission("PReLU", "PRelu", {"slopeCount": slope.shape[0] if slope.shape else 1})

    samples = grid(constant=("slope",), x=[(2, 3, 4, 5), (1, 3, 2, 2)], slope=[(3,), (1,)])


@register()
class ELU(_Activation):
    """y = x where x >= 0, else alpha * (exp(x) - 1)."""

    alpha: float = 1.0

    form = Form("ELU", "ELU", {"alpha": "alpha"})

    def ref(self, x: np.ndarray) -> np.ndarray:
        return np.where(x < 0, x.dtype.type(self.alpha) * np.expm1(np.minimum(x, 0)), x)

    samples = grid(alpha=[1.0, 0.5], x=[(), (2, 3, 4)])


@register()
class Selu(_Activation):
    """y = scale * x where x >= 0, else scale * alpha * (exp(x) - 1)."""

    scale: float = 1.0
    alpha: float = 1.0

    form = Form("Selu", "Selu", {"scale": "scale", "alpha": "alpha"})

    def ref(self, x: np.ndarray) -> np.ndarray:
        below = x.dtype.type(self.alpha) * np.expm1(np.minimum(x, 0))
        return x.dtype.type(self.scale) * np.where(x < 0, below, x)

    samples = grid(scale=[1.0, 1.25], alpha=[1.5], x=[(), (2, 3, 4)])


@register()
class Threshold(_Activation):
    """y = 1 where x > alpha, else 0."""

    alpha: float = 0.0

    form = Form("Threshold", "ELU", {"alpha": "alpha"})

    def ref(self, x: np.ndarray) -> np.ndarray:
        return (x > self.alpha).astype(x.dtype)

    samples = grid(alpha=[0.0, 0.5], x=[(), (2, 3, 4)])
