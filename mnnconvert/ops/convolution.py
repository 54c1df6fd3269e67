"""Two-dimensional convolution and its transpose. Operands: x [N,C,H,W], weight, bias [O] (or a scalar zero-size none).

The weight and the bias are operands; while both are constant they are stored inside the op's table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mnnconvert.ir.types import F32, Dim, Shape, Spec, add, ceildiv, floordiv, mul
from mnnconvert.ops.base import Emission, Fields, Form, Op, register
from mnnconvert.ops.samples import grid

Pair = tuple[int, int]
Pads = tuple[int, int, int, int]  # top, left, bottom, right


def activate(y: np.ndarray, activation: str) -> np.ndarray:
    """Apply a fused activation ("", "relu" or "relu6") in place."""
    if activation:
        np.maximum(y, 0, out=y)
    if activation == "relu6":
        np.minimum(y, 6, out=y)
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
    y, x = common.get("padY"), common.get("padX")
    return (y, x, y, x)


def same_pads(size: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """Pads (begin, end) of the SAME rule: out = ceil(in/s), the smaller half first."""
    total = max(0, (-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1 - size)
    return total // 2, total - total // 2


def window_out(size: Dim, kernel: int, stride: int, dilation: int, pads: int) -> Dim:
    """floor((size + pads - ((kernel-1)*dilation+1)) / stride) + 1."""
    return add(floordiv(add(size, pads - (kernel - 1) * dilation - 1), stride), 1)


def im2col(x: np.ndarray, kernel: Pair, strides: Pair, dilations: Pair, out: Pair) -> np.ndarray:
    """Windows of a padded image [N,C,H,W] as a view [N,C,kH,kW,oH,oW]."""
    n, c, _, _ = x.shape
    sn, sc, sh, sw = x.strides
    shape = (n, c, *kernel, *out)
    steps = (sn, sc, sh * dilations[0], sw * dilations[1], sh * strides[0], sw * strides[1])
    return np.lib.stride_tricks.as_strided(x, shape, steps, writeable=False)


@register("ConvolutionDepthwise")
class Convolution(Op):
    """Cross-correlation: y[n,o] = sum over i,ky,kx of x[n,i,y*s+ky*d-p, ...] * w[o,i,ky,kx] + b[o], then activation.

    Weight [O, I/group, kH, kW]. `pad_mode` SAME ignores `pads` and pads as `same_pads` says.
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

    def infer(self, x: Spec, w: Spec, b: Spec) -> Spec:
        if w.shape is None:
            return Spec(F32, None if x.shape is None else (x.shape[0], None, None, None))
        if (x.shape is not None and len(x.shape) != 4) or len(w.shape) != 4:
            raise ValueError("a 2-D convolution needs x and weight of rank 4")
        n, c, h, width = x.shape or (None,) * 4
        outputs, per_group, ky, kx = w.shape
        if isinstance(c, int) and isinstance(per_group, int) and c != per_group * self.group:
            raise ValueError(f"x has {c} channels, the weight is for {per_group} times {self.group} groups")
        if not isinstance(ky, int) or not isinstance(kx, int):
            return Spec(F32, (n, outputs, None, None))
        return Spec(F32, (n, outputs, self._out(0, h, ky), self._out(1, width, kx)))

    def _out(self, axis: int, size: Dim, kernel: int) -> Dim:
        stride, dilation = self.strides[axis], self.dilations[axis]
        if self.pad_mode == "SAME":
            return ceildiv(size, stride)
        out = window_out(size, kernel, stride, dilation, self.pads[axis] + self.pads[axis + 2])
        if isinstance(out, int) and out < 0:
            raise ValueError(f"the window of {kernel} is larger than the padded input of {size}")
        return out

    def ref(self, x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
        kernel = (w.shape[2], w.shape[3])
        top, left, bottom, right = self._pads(x.shape[2:], kernel)
        if any((top, left, bottom, right)):
            x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
        out = tuple(
            (s - (k - 1) * d - 1) // st + 1
            for s, k, d, st in zip(x.shape[2:], kernel, self.dilations, self.strides, strict=True)
        )
        y = self._depthwise(x, w, out) if w.shape[1] == 1 and self.group == w.shape[0] else self._grouped(x, w, out)
        y += b.reshape(1, -1, 1, 1)
        return activate(y, self.activation)

    def _pads(self, sizes: tuple[int, ...], kernel: Pair) -> Pads:
        if self.pad_mode != "SAME":
            return self.pads
        (t, b), (l, r) = (same_pads(sizes[i], kernel[i], self.strides[i], self.dilations[i]) for i in (0, 1))
        return (t, l, b, r)

    def _depthwise(self, x: np.ndarray, w: np.ndarray, out: tuple[int, ...]) -> np.ndarray:
        """One tap of the kernel at a time: no window is ever copied."""
        y = np.zeros((x.shape[0], w.shape[0], *out), np.float32)
        (sy, sx), (dy, dx) = self.strides, self.dilations
        for ky in range(w.shape[2]):
            rows = x[:, :, ky * dy : ky * dy + (out[0] - 1) * sy + 1 : sy]
            for kx in range(w.shape[3]):
                y += rows[..., kx * dx : kx * dx + (out[1] - 1) * sx + 1 : sx] * w[:, 0, ky, kx, None, None]
        return y

    def _grouped(self, x: np.ndarray, w: np.ndarray, out: tuple[int, ...]) -> np.ndarray:
        """Windows as columns, then one matrix product per image and group (BLAS)."""
        n, g = x.shape[0], self.group
        kernel = (w.shape[2], w.shape[3])
        columns = im2col(x, kernel, self.strides, self.dilations, (out[0], out[1]))
        columns = columns.reshape(n, g, -1, out[0] * out[1])
        y = np.matmul(w.reshape(g, w.shape[0] // g, -1)[None], columns)
        return y.reshape(n, w.shape[0], *out).astype(np.float32, copy=False)

    def emit(self, x: Spec, w: Spec, b: Spec) -> Emission:  # type: ignore[override]
        outputs, per_group, ky, kx = w.shape or (0, 0, 1, 1)
        depthwise = self.group > 1 and per_group == 1 and outputs == self.group
        channels = mul(per_group, self.group)
        common = {
            "kernelX": kx, "kernelY": ky, "strideX": self.strides[1], "strideY": self.strides[0],
            "dilateX": self.dilations[1], "dilateY": self.dilations[0], "padMode": self.pad_mode,
            "pads": list(self.pads), "padX": self.pads[1], "padY": self.pads[0], "group": self.group,
            "outputCount": outputs, "inputCount": channels, **activation_fields(self.activation),
        }  # fmt: skip
        if self.pad_mode == "SAME":
            del common["pads"]
        return Emission("ConvolutionDepthwise" if depthwise else "Convolution", "Convolution2D", {"common": common})

    @classmethod
    def parse(cls, type: str, fields: Fields) -> Convolution:
        common = fields["common"]
        mode = common["padMode"]
        return cls(
            strides=(common["strideY"], common["strideX"]),
            dilations=(common["dilateY"], common["dilateX"]),
            pads=(0, 0, 0, 0) if mode in ("SAME", "VALID") and common.get("pads") is None else parse_pads(common),
            group=common["outputCount"] if type == "ConvolutionDepthwise" else common["group"],
            activation=parse_activation(common),
            pad_mode="SAME" if mode == "SAME" else "CAFFE",
        )

    def embedded_shapes(self, fields: Fields, counts: Mapping[str, int]) -> tuple[Shape, ...]:
        common = fields["common"]
        outputs, ky, kx = common["outputCount"], common["kernelY"], common["kernelX"]
        per_group = counts["weight"] // max(1, outputs * ky * kx)
        return (outputs, per_group, ky, kx), (outputs,)

    samples = grid(
        x=[(1, 4, 7, 6), (2, 4, 5, 9)], w=[(6, 4, 3, 3), (5, 4, 1, 1), (3, 4, 2, 3)], b=[np.zeros(1, np.float32)],
        strides=[(1, 1), (2, 1)], pads=[(0, 0, 0, 0), (1, 0, 2, 1)], activation=["", "relu6"],
    )  # fmt: skip


def bias_or_zero(bias: Any, outputs: int) -> np.ndarray:
    """The bias, or zeros: the runtime needs one."""
    return np.zeros(outputs, np.float32) if bias is None else np.asarray(bias, np.float32)
