"""Convolution of integer codes, as old files contain it and as executors run convolutions between values with steps."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mnnconvert.ir.types import F32, I8, Shape, Spec, to_codes
from mnnconvert.ops.base import Emission, Fields, Form, Op, register
from mnnconvert.ops.convolution import Convolution, Pads, Pair, parse_activation
from mnnconvert.ops.samples import Operand, exactly, floats, grid, integers
from mnnconvert.ops.windows import correlate, pad_spatial


def _codes(*shape: int) -> Operand:
    return integers(*shape, low=-128, high=128, dtype="int8")


@register("DepthwiseConvInt8")
class ConvInt8(Op):
    """q = clamp(round((sum of w * x + bias) * scale + shift), low, high) with exact sums; halves away from zero.

    x int8 [N,C,H,W] (or [N,C,L]), weight int8 [O, I/group, kH, kW], bias int32 [O], scale float32 [O]; the padding
    holds `zero`. What the zero points of x and of the result add is part of the bias. A fifth operand `shift`, float32
    [O], is for executors alone: files have no place for it.
    """

    strides: Pair = (1, 1)
    dilations: Pair = (1, 1)
    pads: Pads = (0, 0, 0, 0)
    group: int = 1
    pad_mode: str = "CAFFE"
    zero: int = 0
    low: int = -128
    high: int = 127

    form = Form("ConvInt8", "Convolution2D")
    layout = "c4"
    embedded = ("symmetricQuan.weight", "symmetricQuan.bias", "symmetricQuan.scale")

    @property
    def window(self) -> Convolution:
        """The convolution of floats that sees the same windows."""
        return Convolution(self.strides, self.dilations, self.pads, self.group, pad_mode=self.pad_mode)

    def infer(self, x: Spec, w: Spec, bias: Spec, scale: Spec, shift: Spec | None = None) -> Spec:
        return Spec(I8, self.window.infer(x, w).shape)

    def ref(
        self, x: np.ndarray, w: np.ndarray, bias: np.ndarray, scale: np.ndarray, shift: np.ndarray | None = None
    ) -> np.ndarray:
        if x.ndim == 3:
            return self.ref(x[..., None], w, bias, scale, shift)[..., 0]
        top, left, bottom, right = self.window.padding(x.shape[2:], (w.shape[2], w.shape[3]))
        x = pad_spatial(x, (top, left), (bottom, right), self.zero)
        sums = correlate(x.astype(np.float64), w.astype(np.float64), self.strides, self.dilations, self.group)
        sums += bias.reshape(-1, 1, 1)
        y = sums.astype(F32) * scale.reshape(-1, 1, 1)
        if shift is not None:
            y += shift.reshape(-1, 1, 1)
        return to_codes(y, self.low, self.high)

    def emit(self, x: Spec, w: Spec, *rest: Spec) -> Emission:
        made = self.window.emit(x, w)
        kind = "DepthwiseConvInt8" if made.type == "ConvolutionDepthwise" else "ConvInt8"
        quan = {"zeroPoint": self.zero, "clampMin": self.low, "clampMax": self.high}
        return Emission(kind, "Convolution2D", {**made.fields, "symmetricQuan": quan})

    @classmethod
    def reads(cls, fields: Fields) -> bool:
        """Whether the scales stand beside integer weights and biases, and the result is int8 again."""
        quan = fields.get("symmetricQuan")
        return quan is not None and quan.get("weight") is not None and quan["outputDataType"] == "DT_INT8"

    @classmethod
    def parse(cls, type: str, fields: Fields) -> ConvInt8:
        of = Convolution.parse("ConvolutionDepthwise" if type == "DepthwiseConvInt8" else "Convolution", fields)
        quan, activation = fields["symmetricQuan"], parse_activation(fields["common"])
        low = max(quan["clampMin"], quan["outputZeroPoint"]) if activation else quan["clampMin"]
        return cls(of.strides, of.dilations, of.pads, of.group, of.pad_mode, quan["zeroPoint"], low, quan["clampMax"])

    def embedded_shapes(self, fields: Fields, counts: Mapping[str, int]) -> tuple[Shape, ...]:
        weight, bias = self.window.embedded_shapes(fields, {"weight": counts["symmetricQuan.weight"]})
        return weight, bias, bias

    samples = (
        grid(("w", "bias", "scale"), x=[_codes(1, 4, 7, 6), _codes(2, 4, 5, 9)],
             w=[_codes(6, 4, 3, 3), _codes(6, 4, 1, 1)],
             bias=[integers(6, low=-3000, high=3000)], scale=[floats(6, low=0.002, high=0.004)],
             strides=[(1, 1), (2, 1)], pads=[(0, 0, 0, 0), (1, 0, 1, 2)], zero=[0, 3], low=[-20, -128])
        + grid(("w", "bias", "scale"), x=[_codes(1, 4, 7, 6)], w=[_codes(4, 1, 3, 3)], group=[4],
               bias=[exactly([300, -7, 0, 5])], scale=[exactly([0.01, 0.02, 0.005, 0.5], "float32")],
               pads=[(1, 1, 1, 1)], zero=[0, -5])
    )  # fmt: skip
