"""Normalisations, softmax, per-channel scale, and the n-ary element-wise op of channel-blocked graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce

import numpy as np

from mnnconvert.ir.types import Shape, Spec, merge, normal_axis
from mnnconvert.ops.base import Emission, Fields, Form, Op, register
from mnnconvert.ops.samples import grid


@register()
class Softmax(Op):
    """exp(x) divided by its sum along `axis`."""

    axis: int = -1

    form = Form("Softmax", "Axis", {"axis": "axis"})

    def infer(self, x: Spec) -> Spec:
        if x.shape is not None:
            normal_axis(self.axis, len(x.shape))
        return Spec(x.dtype, x.shape)

    def ref(self, x: np.ndarray) -> np.ndarray:
        if x.size == 0:
            return x
        with np.errstate(all="ignore"):
            y = np.exp(x - x.max(axis=self.axis, keepdims=True))
            y /= y.sum(axis=self.axis, keepdims=True)
        return y

    samples = grid(axis=[-1, 0], x=[(7,), (2, 3, 4)]) + grid(axis=[1], x=[(2, 3), (0, 3), (1, 3, 2, 2)])


@register()
class LayerNorm(Op):
    """(x - mean) / sqrt(variance + epsilon), then times gamma plus beta, over `axes`.

    With `rms` x / sqrt(mean(x^2) + epsilon). With `group` > 1 the axes are those behind the batch, and x [N,C,...] is
    normalised over each group of C / group channels. Operands x[, gamma, beta]; the two have as many elements as are
    normalised together. A further operand is added to x first, and the sum is a result as well, before the norm.
    """

    axes: tuple[int, ...] = (-1,)
    epsilon: float = 0.0
    rms: bool = False
    group: int = 1

    form = Form("LayerNorm", "LayerNorm", {"axes": "axis", "epsilon": "epsilon", "rms": "useRMSNorm", "group": "group"})
    embedded = ("gamma", "beta")

    def infer(self, x: Spec, *rest: Spec) -> Spec | tuple[Spec, ...]:
        if x.shape is not None:
            axes = {normal_axis(a, len(x.shape)) for a in self.axes}
            channels = x.shape[1] if len(x.shape) > 1 else 1
            if not axes or (self.group > 1 and isinstance(channels, int) and channels % self.group):
                raise ValueError(f"axes {sorted(axes)} in {self.group} groups")
        result = Spec(x.dtype, merge(x.shape, rest[-1].shape) if len(rest) % 2 else x.shape)
        return (result, Spec(result.dtype, result.shape)) if len(rest) % 2 else result

    def ref(self, x: np.ndarray, *rest: np.ndarray) -> np.ndarray | tuple[np.ndarray, ...]:
        if len(rest) % 2:
            total = x + rest[-1]
            return total, self._norm(total, *rest[:-1])
        return self._norm(x, *rest)

    def _norm(self, x: np.ndarray, *parameters: np.ndarray) -> np.ndarray:
        if self.group > 1:
            grouped = x.reshape(x.shape[0], self.group, -1)
            return self._standardized(grouped, (2,)).reshape(x.shape)
        axes = tuple(sorted(normal_axis(a, x.ndim) for a in self.axes))
        y = self._standardized(x, axes)
        if parameters:
            sizes = [x.shape[i] if i in axes else 1 for i in range(x.ndim)]
            y *= parameters[0].reshape(sizes)
            y += parameters[1].reshape(sizes)
        return y

    def _standardized(self, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        if x.size == 0:
            return x.copy()
        centred = x if self.rms else x - x.mean(axis=axes, keepdims=True, dtype=np.float64).astype(x.dtype)
        power = np.square(centred).mean(axis=axes, keepdims=True, dtype=np.float64)
        with np.errstate(all="ignore"):
            return centred * (1 / np.sqrt(power + self.epsilon)).astype(x.dtype)

    samples = (
        grid(axes=[(-1,), (1, 2), (0,)], epsilon=[0.125], rms=[False, True], x=[(2, 3, 4)])
        + grid(constant=("gamma", "beta"), axes=[(-1,), (2,)], epsilon=[0.125], rms=[False, True],
               x=[(2, 3, 4)], gamma=[(4,)], beta=[(4,)])
        + grid(constant=("gamma", "beta"), axes=[(1, 2)], epsilon=[0.125], x=[(2, 3, 4)], gamma=[(12,)], beta=[(12,)])
        + grid(axes=[(1, 2, 3)], epsilon=[0.125], group=[2], x=[(2, 4, 3, 3)])
        + grid(axes=[(-1,)], epsilon=[0.125], x=[(2, 3, 4)], addend=[(2, 3, 4)])
    )  # fmt: skip


@register()
class Scale(Op):
    """y = x * scale[channel] + bias[channel]. Operands x [N,C,...], scale [C], bias [C]."""

    form = Form("Scale", "Scale")
    layout = "c4"
    embedded = ("scaleData", "biasData")

    def infer(self, x: Spec, scale: Spec, bias: Spec) -> Spec:
        channels = scale.shape[0] if scale.shape else None
        if (
            x.shape is not None
            and len(x.shape) > 1
            and isinstance(x.shape[1], int)
            and channels not in (None, x.shape[1])
        ):
            raise ValueError(f"x has {x.shape[1]} channels, there are {channels} factors")
        return Spec(x.dtype, x.shape)

    def ref(self, x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
        sizes = (-1, *(1,) * max(0, x.ndim - 2))
        return x * scale.reshape(sizes) + bias.reshape(sizes)

    def emit(self, x: Spec, scale: Spec, bias: Spec) -> Emission:
        return Emission("Scale", "Scale", {"channels": scale.shape[0] if scale.shape else 0})

    def embedded_shapes(self, fields: Fields, counts: Mapping[str, int]) -> tuple[Shape, ...]:
        return (counts["scaleData"],), (counts["scaleData"],)

    samples = grid(constant=("scale", "bias"), x=[(2, 3, 4, 5)], scale=[(3,)], bias=[(3,)])


@register()
class Normalize(Op):
    """x / sqrt(sum of squares + eps) * scale[channel]; the sum is over the channels, or over all but the batch.

    Operands x [N,C,...], scale [C] (or [1]).
    """

    across_spatial: int = 0
    channel_shared: int = 0
    epsilon: float = 0.0

    form = Form(
        "Normalize", "Normalize",
        {"across_spatial": "acrossSpatial", "channel_shared": "channelShared", "epsilon": "eps"},
    )  # fmt: skip
    layout = "c4"
    embedded = ("scale",)

    def infer(self, x: Spec, scale: Spec) -> Spec:
        return Spec(x.dtype, x.shape)

    def ref(self, x: np.ndarray, scale: np.ndarray) -> np.ndarray:
        axes = tuple(range(1, x.ndim)) if self.across_spatial else (1,)
        power = np.square(x).sum(axis=axes, keepdims=True) + np.float32(self.epsilon)
        return x / np.sqrt(power) * scale.reshape(-1, *(1,) * max(0, x.ndim - 2))

    samples = grid(constant=("scale",), across_spatial=[0, 1], epsilon=[0.5], x=[(2, 3, 4, 5)], scale=[(3,)])


ELTWISE: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "PROD": np.multiply, "SUM": np.add, "MAXIMUM": np.maximum, "SUB": np.subtract,
}  # fmt: skip


@register()
class Eltwise(Op):
    """Two or more operands of equal shape, combined from left to right."""

    operation: str = "PROD"

    form = Form("Eltwise", "Eltwise", {"operation": "type"})

    def infer(self, *inputs: Spec) -> Spec:
        shape = inputs[0].shape
        for other in inputs[1:]:
            sizes = zip(shape or (), other.shape or (), strict=False)
            if any(isinstance(p, int) and isinstance(q, int) and p != q for p, q in sizes):
                raise ValueError("the operands of Eltwise must have the same shape")
            shape = merge(shape, other.shape)
        return Spec(inputs[0].dtype, shape)

    def ref(self, *arrays: np.ndarray) -> np.ndarray:
        return reduce(ELTWISE[self.operation], arrays)

    @classmethod
    def parse(cls, type: str, fields: Fields) -> Eltwise:
        coefficients = fields.get("coeff")
        if coefficients is not None and any(c != 1 for c in coefficients):
            raise ValueError("an Eltwise with coefficients")
        return cls(fields.get("type") or "PROD")

    samples = grid(operation=sorted(ELTWISE), a=[(2, 3, 4, 5)], b=[(2, 3, 4, 5)]) + grid(
        operation=["SUM"], a=[(2, 3)], b=[(2, 3)], c=[(2, 3)]
    )
