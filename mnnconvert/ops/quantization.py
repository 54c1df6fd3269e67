"""Quantisation of activations as old files contain it: float to int8 and back, and the dynamic form."""

from __future__ import annotations

import numpy as np

from mnnconvert.ir.types import F32, I8, Spec, round_away, to_codes
from mnnconvert.ops.base import Emission, Fields, Form, Op, register
from mnnconvert.ops.samples import grid, integers

Numbers = tuple[float, ...]


def _along_channels(values: Numbers, rank: int) -> np.ndarray:
    """One number, or one for each channel of [N,C,...]."""
    array = np.asarray(values, F32)
    return array.reshape(()) if array.size == 1 else array.reshape(-1, *(1,) * max(0, rank - 2))


def _numbers(fields: Fields, name: str, default: Numbers) -> Numbers:
    found = fields.get(name)
    return default if found is None or not len(found) else tuple(float(v) for v in found)


class _Scaled(Op):
    """Attributes shared by both directions."""

    scale: Numbers
    zero: Numbers

    layout = "any"

    def emit(self, *inputs: Spec) -> Emission:
        """The runtime reads as many zero points as there are scales."""
        made = super().emit(*inputs)
        if len(self.zero) == 1:
            made.fields["floatzeros"] = list(self.zero) * len(self.scale)
        return made

    @classmethod
    def parse(cls, type: str, fields: Fields) -> Op:
        limits = {"low": fields.get("clampMin"), "high": fields.get("clampMax")}
        given = {k: int(v) for k, v in limits.items() if v is not None and hasattr(cls, k)}
        return cls(scale=_numbers(fields, "tensorScale", (1.0,)), zero=_numbers(fields, "floatzeros", (0.0,)), **given)


@register()
class FloatToInt8(_Scaled):
    """clamp(round(x * scale + zero), low, high) as int8; `scale` is the reciprocal step. See `to_codes`."""

    scale: Numbers = (1.0,)
    zero: Numbers = (0.0,)
    low: int = -128
    high: int = 127

    form = Form("FloatToInt8", "QuantizedFloatParam",
                {"scale": "tensorScale", "zero": "floatzeros", "low": "clampMin", "high": "clampMax"})  # fmt: skip

    def infer(self, x: Spec) -> Spec:
        return Spec(I8, x.shape)

    def ref(self, x: np.ndarray) -> np.ndarray:
        y = x * _along_channels(self.scale, x.ndim) + _along_channels(self.zero, x.ndim)
        return to_codes(y, self.low, self.high)

    samples = grid(x=[(2, 3, 4, 4)], scale=[(20.0,)], zero=[(0.0,), (3.0,)]) + grid(
        x=[(2, 3, 4, 4)], scale=[(10.0, 20.0, 30.0)], zero=[(0.0, 1.0, -2.0)]
    )


@register()
class Int8ToFloat(_Scaled):
    """(x - zero) * scale."""

    scale: Numbers = (1.0,)
    zero: Numbers = (0.0,)

    form = Form("Int8ToFloat", "QuantizedFloatParam", {"scale": "tensorScale", "zero": "floatzeros"})

    def infer(self, x: Spec) -> Spec:
        return Spec(F32, x.shape)

    def ref(self, x: np.ndarray) -> np.ndarray:
        return (x.astype(F32) - _along_channels(self.zero, x.ndim)) * _along_channels(self.scale, x.ndim)

    samples = grid(x=[integers(2, 3, 4, 4, dtype="int8")], scale=[(0.5,)], zero=[(0.0,), (3.0,)]) + grid(
        x=[integers(2, 3, 4, 4, dtype="int8")], scale=[(0.5, 1.0, 2.0)], zero=[(0.0, 1.0, -2.0)]
    )


@register()
class DynamicQuant(Op):
    """int8 codes over the range of the data, their scale [1] and zero point [1] (float32).

    scale = (max - min) / 255, zero = round(-min / scale) - 128; the range need not contain 0.
    """

    form = Form("DynamicQuant")

    def infer(self, x: Spec) -> tuple[Spec, Spec, Spec]:
        return Spec(I8, x.shape), Spec(F32, (1,)), Spec(F32, (1,))

    def ref(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        low, high = np.float32(x.min(initial=np.inf)), np.float32(x.max(initial=-np.inf))
        scale = (high - low) / np.float32(255) if high > low else np.float32(1)
        zero = round_away(-low / scale) - 128
        codes = np.clip(round_away(x / scale) + zero, -128, 127).astype(I8)
        return codes, np.array([scale], F32), np.array([zero], F32)

    samples = grid(x=[(2, 3, 4), (7,)])
