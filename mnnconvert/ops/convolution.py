"""Two-dimensional convolution, and the windows that it multiplies as an op of their own (Im2Col).

The weight and the bias are operands; while both are constant they are stored inside the op's table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from mnnconvert.ir.types import F32, Dim, Shape, Spec, ceildiv, mul, product
from mnnconvert.ops.base import Emission, Fields, Form, Op, register
from mnnconvert.ops.samples import grid
from mnnconvert.ops.windows import correlate, pad_spatial, positive, same_pads, window_out, windows

Pair = tuple[int, int]
Pads = tuple[int, int, int, int]  # top, left, bottom, right


def activate(y: np.ndarray, activation: str) -> np.ndarray:
    """Apply a fused activation ("", "relu" or "relu6") in place."""
    if activation:
        np.maximum(y, 0, out=y)
    if activation == "relu6":
        np.minimum(y, 6, out=y)
    return y


def add_bias(y: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """Add a bias per channel in place."""
    if bias is not None and bias.any():
        y += bias.reshape(1, -1, *(1,) * (y.ndim - 2))
    return y


def activation_fields(activation: str) -> dict[str, bool]:
    return {"relu": activation == "relu", "relu6": activation == "relu6"}


def parse_activation(common: Fields) -> str:
    """The fused activation of a `Convolution2DCommon`; relu6 wins when both are set."""
    return "relu6" if common.get("relu6") else "relu" if common.get("relu") else ""


def parse_pads(common: Fields) -> Pads:
    """[top, left, bottom, right]; `padX`, `padY` where `pads` is absent."""
    pads = common.get("pads")
    if pads is not None and len(pads) >= 4:
        return (int(pads[0]), int(pads[1]), int(pads[2]), int(pads[3]))
    y, x = common["padY"], common["padX"]
    return (y, x, y, x)


def number(dim: Dim, default: int) -> int:
    """A size for a field of a table; `default` while it is not known."""
    return dim if isinstance(dim, int) else default


@register("ConvolutionDepthwise")
class Convolution(Op):
    """Cross-correlation: y[n,o] = sum over i,ky,kx of x[n,i,y*s+ky*d-p, ...] * w[o,i,ky,kx] + b[o], then activation.

    x [N,C,H,W] (or [N,C,L], with a kernel of width 1), weight [O, I/group, kH, kW]. `pad_mode` SAME ignores `pads` and
    pads as `same_pads` says.
    """

    strides: Pair = (1, 1)
    dilations: Pair = (1, 1)
    pads: Pads = (0, 0, 0, 0)
    group: int = 1
    activation: str = ""
    pad_mode: str = "CAFFE"

    form = Form("Convolution", "Convolution2D")
    layout = "c4"
    embedded = ("weight", "bias")

    def infer(self, x: Spec, w: Spec, b: Spec | None = None) -> Spec:
        if w.shape is None:
            return Spec(F32, None if x.shape is None else (x.shape[0], *(None,) * (len(x.shape) - 1)))
        if (x.shape is not None and len(x.shape) not in (3, 4)) or len(w.shape) != 4:
            raise ValueError("a 2-D convolution needs x and weight of rank 4")
        sizes: Shape = (*(x.shape or ()), *(1,) * (4 - len(x.shape or (None,) * 4)))
        n, c, h, width = sizes or (None,) * 4
        outputs, per_group, ky, kx = w.shape
        if isinstance(c, int) and isinstance(per_group, int) and c != per_group * self.group:
            raise ValueError(f"x has {c} channels, the weight is for {per_group} times {self.group} groups")
        result = (n, outputs, self._out(0, h, ky), self._out(1, width, kx))
        return Spec(F32, result[: len(x.shape)] if x.shape is not None else result)

    def _out(self, axis: int, size: Dim, kernel: Dim) -> Dim:
        stride, dilation = self.strides[axis], self.dilations[axis]
        if self.pad_mode == "SAME":
            return ceildiv(size, stride)
        if not isinstance(kernel, int):
            return None
        return window_out(size, kernel, stride, dilation, self.pads[axis] + self.pads[axis + 2])

    def ref(self, x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None) -> np.ndarray:
        if x.ndim == 3:
            return self.ref(x[..., None], w, b)[..., 0]
        top, left, bottom, right = self.padding(x.shape[2:], (w.shape[2], w.shape[3]))
        x = pad_spatial(x, (top, left), (bottom, right))
        y = correlate(x, w, self.strides, self.dilations, self.group)
        return activate(add_bias(y, b), self.activation)

    def padding(self, sizes: tuple[int, ...], kernel: Pair) -> Pads:
        """Zeros around an image of these sizes: top, left, bottom, right."""
        if self.pad_mode != "SAME":
            return self.pads
        (t, b), (l, r) = (same_pads(sizes[i], kernel[i], self.strides[i], self.dilations[i]) for i in (0, 1))
        return (t, l, b, r)

    def emit(self, x: Spec, w: Spec, b: Spec | None = None) -> Emission:
        outputs, per_group, ky, kx = w.shape or (None,) * 4
        depthwise = self.group > 1 and per_group == 1 and outputs == self.group
        common = {
            "kernelX": number(kx, 1), "kernelY": number(ky, 1), "strideX": self.strides[1], "strideY": self.strides[0],
            "dilateX": self.dilations[1], "dilateY": self.dilations[0], "padMode": self.pad_mode,
            "pads": list(self.pads), "group": self.group,
            "outputCount": number(outputs, 0), "inputCount": number(mul(per_group, self.group), 0),
            **activation_fields(self.activation),
        }  # fmt: skip
        if self.pad_mode == "SAME" or not any(self.pads):
            del common["pads"]
        return Emission("ConvolutionDepthwise" if depthwise else "Convolution", "Convolution2D", {"common": common})

    @classmethod
    def parse(cls, type: str, fields: Fields) -> Convolution:
        common = fields["common"]
        mode = common["padMode"]
        _, strides, dilations, pads = parse_window(common)
        return cls(
            strides=strides,
            dilations=dilations,
            pads=(0, 0, 0, 0) if mode in ("SAME", "VALID") else pads,
            group=common["outputCount"] if type == "ConvolutionDepthwise" else common["group"],
            activation=parse_activation(common),
            pad_mode="SAME" if mode == "SAME" else "CAFFE",
        )

    def embedded_shapes(self, fields: Fields, counts: Mapping[str, int]) -> tuple[Shape, ...]:
        common = fields["common"]
        outputs, ky, kx = common["outputCount"], common["kernelY"], common["kernelX"]
        per_group = counts["weight"] // max(1, outputs * ky * kx)
        return (outputs, per_group, ky, kx), (outputs,)

    samples = (
        grid(x=[(1, 4, 7, 6), (2, 4, 5, 9)], w=[(6, 4, 3, 3), (5, 4, 1, 1), (3, 4, 2, 3)],
             strides=[(1, 1), (2, 1)], pads=[(0, 0, 0, 0), (1, 0, 2, 1)], activation=["", "relu6"])
        + grid(("w", "b"), x=[(1, 4, 7, 6)], w=[(4, 1, 3, 3)], b=[(4,)], group=[4], dilations=[(1, 1), (2, 1)])
        + grid(("w", "b"), x=[(2, 4, 7, 6)], w=[(8, 1, 3, 3)], b=[(8,)], group=[4], strides=[(2, 3)], pad_mode=["SAME"])
        + grid(("w", "b"), x=[(2, 4, 7)], w=[(6, 2, 3, 1)], b=[(6,)], group=[2], activation=["relu"])
    )  # fmt: skip


@register()
class Im2Col(Op):
    """The windows of x [N,C,H,W] as columns: [C*kH*kW, N*oH*oW]."""

    kernel: Pair
    strides: Pair = (1, 1)
    dilations: Pair = (1, 1)
    pads: Pads = (0, 0, 0, 0)

    form = Form("Im2Col", "Convolution2D")

    def infer(self, x: Spec) -> Spec:
        if x.shape is None:
            return Spec(x.dtype, (None, None))
        n, c, *sizes = x.shape
        return Spec(x.dtype, (mul(c, math.prod(self.kernel)), mul(n, product(self._out(sizes)))))

    def _out(self, sizes: Any) -> list[Dim]:
        parts = zip(sizes, self.kernel, self.strides, self.dilations, self.pads[:2], self.pads[2:], strict=True)
        return [window_out(size, k, s, d, b + e) for size, k, s, d, b, e in parts]

    def ref(self, x: np.ndarray) -> np.ndarray:
        n, c = x.shape[:2]
        out: Any = tuple(self._out(x.shape[2:]))
        view = windows(pad_spatial(x, self.pads[:2], self.pads[2:]), self.kernel, self.strides, self.dilations, out)
        return np.moveaxis(view, 0, 3).reshape(c * math.prod(self.kernel), n * math.prod(out))

    def emit(self, x: Spec) -> Emission:
        return Emission(
            "Im2Col", "Convolution2D", {"common": window_fields(self.kernel, self.strides, self.dilations, self.pads)}
        )

    @classmethod
    def parse(cls, type: str, fields: Fields) -> Im2Col:
        return cls(*parse_window(fields["common"]))

    samples = grid(x=[(2, 3, 6, 7)], kernel=[(2, 3)], strides=[(1, 1), (2, 1)], pads=[(0, 0, 0, 0), (1, 0, 1, 2)])


def window_fields(kernel: Pair, strides: Pair, dilations: Pair, pads: Pads) -> dict[str, Any]:
    """A `Convolution2DCommon` that only describes windows."""
    return {
        "kernelX": kernel[1], "kernelY": kernel[0], "strideX": strides[1], "strideY": strides[0],
        "dilateX": dilations[1], "dilateY": dilations[0], "pads": list(pads),
    }  # fmt: skip


def parse_window(common: Fields) -> tuple[Pair, Pair, Pair, Pads]:
    """Kernel, strides, dilations, pads of a `Convolution2DCommon`; ValueError where there are no such windows."""
    kernel, strides = (common["kernelY"], common["kernelX"]), (common["strideY"], common["strideX"])
    dilations = common["dilateY"], common["dilateX"]
    positive(*kernel, *strides, *dilations)
    return kernel, strides, dilations, parse_pads(common)
