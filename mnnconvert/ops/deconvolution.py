"""Two-dimensional transposed convolution, and the sum of overlapping windows (Col2Im)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from mnnconvert.ir.types import F32, Dim, Shape, Spec, add, mul
from mnnconvert.ops.base import Emission, Fields, Form, Op, register
from mnnconvert.ops.convolution import (
    Pads,
    Pair,
    activate,
    activation_fields,
    add_bias,
    number,
    parse_activation,
    parse_window,
    window_fields,
)
from mnnconvert.ops.samples import exactly, grid
from mnnconvert.ops.windows import correlate_transposed, pad_spatial, window_out, windows


def transposed_out(size: Dim, kernel: Dim, stride: int, dilation: int, pads: int) -> Dim:
    """(size - 1) * stride + (kernel-1)*dilation + 1 - pads; `pads` less what enlarges the end."""
    if not isinstance(kernel, int):
        return None
    return add(mul(size, stride), (kernel - 1) * dilation + 1 - stride - pads)


@register("DeconvolutionDepthwise")
class Deconvolution(Op):
    """Each x[n,i] spread by w[i, O/group, kH, kW] at steps of `strides`; cropped by `pads`; then + b, activation.

    `out_pads` (y, x) enlarge the result at the bottom and right. `pad_mode` SAME gives in * stride. With `sized` a last
    operand, int32 [N, H, W, C], gives H and W of the result.
    """

    strides: Pair = (1, 1)
    dilations: Pair = (1, 1)
    pads: Pads = (0, 0, 0, 0)
    out_pads: Pair = (0, 0)
    group: int = 1
    activation: str = ""
    pad_mode: str = "CAFFE"
    sized: bool = False

    form = Form("Deconvolution", "Convolution2D")
    layout = "c4"
    embedded = ("weight", "bias")

    def infer(self, x: Spec, w: Spec, *rest: Spec) -> Spec:
        if x.shape is None or w.shape is None:
            return Spec(F32, None if x.shape is None else (x.shape[0], None, None, None))
        if len(x.shape) != 4 or len(w.shape) != 4:
            raise ValueError("a 2-D transposed convolution needs x and weight of rank 4")
        n, c, *sizes = x.shape
        inputs, per_group, *kernel = w.shape
        if isinstance(c, int) and isinstance(inputs, int) and c != inputs:
            raise ValueError(f"x has {c} channels, the weight is for {inputs}")
        given = rest[-1].sizes if self.sized and rest else None
        out = (
            given[1:3] if given is not None and len(given) == 4 else [self._out(i, sizes[i], kernel[i]) for i in (0, 1)]
        )
        return Spec(F32, (n, mul(per_group, self.group), *out))

    def _out(self, axis: int, size: Dim, kernel: Dim) -> Dim:
        if self.sized:
            return None
        if self.pad_mode == "SAME":
            return mul(size, self.strides[axis])
        pads = self.pads[axis] + self.pads[axis + 2] - self.out_pads[axis]
        out = transposed_out(size, kernel, self.strides[axis], self.dilations[axis], pads)
        if isinstance(out, int) and out < 1:
            raise ValueError(f"the pads of axis {axis + 2} leave nothing of the result")
        return out

    def ref(self, x: np.ndarray, w: np.ndarray, *rest: np.ndarray) -> np.ndarray:
        bias = rest[0] if len(rest) > self.sized else None
        y = correlate_transposed(x, w, self.strides, self.dilations, self.group)
        out: Any = rest[-1][1:3] if self.sized else [self._out(i, x.shape[i + 2], w.shape[i + 2]) for i in (0, 1)]
        begin: Any = self.pads[:2]
        if self.pad_mode == "SAME":
            begin = tuple(max(0, full - size) // 2 for full, size in zip(y.shape[2:], out, strict=True))
        end = [int(size) + b - full for size, b, full in zip(out, begin, y.shape[2:], strict=True)]
        y = np.array(pad_spatial(y, [-b for b in begin], end))
        return activate(add_bias(y, bias), self.activation)

    def emit(self, x: Spec, w: Spec, *rest: Spec) -> Emission:
        inputs, per_group, ky, kx = w.shape or (None,) * 4
        outputs = mul(per_group, self.group)
        common: dict[str, Any] = {
            **window_fields((number(ky, 1), number(kx, 1)), self.strides, self.dilations, self.pads),
            "padMode": self.pad_mode,
            "group": self.group,
            "outputCount": number(outputs, 0),
            "inputCount": number(inputs, 0),
            "hasOutputShape": self.sized,
            **activation_fields(self.activation),
        }
        if any(self.out_pads):
            common["outPads"] = list(self.out_pads)
        if self.pad_mode == "SAME":
            del common["pads"]
        depthwise = self.group > 1 and per_group == 1 and inputs == self.group
        return Emission("DeconvolutionDepthwise" if depthwise else "Deconvolution", "Convolution2D", {"common": common})

    @classmethod
    def parse(cls, type: str, fields: Fields) -> Deconvolution:
        common = fields["common"]
        _, strides, dilations, pads = parse_window(common)
        mode, enlarge = common["padMode"], common.get("outPads")
        return cls(
            strides=strides,
            dilations=dilations,
            pads=(0, 0, 0, 0) if mode == "SAME" else pads,
            out_pads=(0, 0) if enlarge is None or len(enlarge) < 2 else (int(enlarge[0]), int(enlarge[1])),
            group=common["outputCount"] if type == "DeconvolutionDepthwise" else common["group"],
            activation=parse_activation(common),
            pad_mode="SAME" if mode == "SAME" else "CAFFE",
            sized=bool(common["hasOutputShape"]),
        )

    def embedded_shapes(self, fields: Fields, counts: Mapping[str, int]) -> tuple[Shape, ...]:
        common = fields["common"]
        outputs, ky, kx = common["outputCount"], common["kernelY"], common["kernelX"]
        per_group = outputs // max(1, self.group)
        return (counts["weight"] // max(1, per_group * ky * kx), per_group, ky, kx), (outputs,)

    samples = (
        grid(
            ("w", "b"),
            x=[(2, 4, 3, 5)],
            w=[(4, 3, 3, 2)],
            b=[(3,)],
            strides=[(1, 1), (2, 3)],
            pads=[(0, 0, 0, 0), (1, 0, 0, 1)],
            out_pads=[(0, 0), (1, 0)],
            activation=["", "relu"],
        )
        + grid(
            ("w", "b"),
            x=[(1, 4, 3, 5)],
            w=[(4, 2, 3, 3)],
            b=[(4,)],
            strides=[(2, 2)],
            group=[2],
            dilations=[(1, 1), (2, 1)],
        )
        + grid(
            ("w", "b"),
            x=[(1, 4, 3, 5)],
            w=[(4, 1, 3, 3)],
            b=[(4,)],
            strides=[(2, 1)],
            group=[4],
            pad_mode=["CAFFE", "SAME"],
        )
        + grid(
            ("w", "b"),
            x=[(1, 4, 3, 5)],
            w=[(4, 3, 3, 3)],
            b=[(3,)],
            size=[exactly([1, 6, 11, 3])],
            strides=[(2, 2)],
            sized=[True],
        )
        + grid(x=[(1, 4, 3, 5)], w=[(4, 3, 2, 2)], b=[(3,)], strides=[(2, 2)])
    )


@register()
class Col2Im(Op):
    """The inverse of Im2Col as a sum: x [N, C*kH*kW, L] and size int32 [2] -> [N, C, H, W] (x of rank 2: N is 1)."""

    kernel: Pair
    strides: Pair = (1, 1)
    dilations: Pair = (1, 1)
    pads: Pads = (0, 0, 0, 0)

    form = Form("Col2Im", "Convolution2D")

    def infer(self, x: Spec, size: Spec) -> Spec:
        sizes = size.sizes
        n, rows, _ = (1, *(x.shape or (None, None)))[-3:]
        channels = rows // math.prod(self.kernel) if isinstance(rows, int) else None
        return Spec(x.dtype, (n, channels, *(sizes if sizes is not None and len(sizes) == 2 else (None, None))))

    def ref(self, x: np.ndarray, size: np.ndarray) -> np.ndarray:
        x = x.reshape(-1, *x.shape[-2:])
        height, width = (int(s) for s in size)
        top, left, bottom, right = self.pads
        padded = (height + top + bottom, width + left + right)
        out: Any = tuple(
            window_out(s, k, st, d, 0)
            for s, k, st, d in zip(padded, self.kernel, self.strides, self.dilations, strict=True)
        )
        y = np.zeros((x.shape[0], x.shape[1] // math.prod(self.kernel), *padded), x.dtype)
        targets = windows(
            np.arange(math.prod(padded)).reshape(1, 1, *padded), self.kernel, self.strides, self.dilations, out
        )
        parts = x.reshape(*y.shape[:2], -1)
        flat: Any = y.reshape(*y.shape[:2], -1)
        where: Any = np.s_[:, :, targets.reshape(-1)]
        np.add.at(flat, where, parts)
        return y[:, :, top : top + height, left : left + width]

    def emit(self, x: Spec, size: Spec) -> Emission:
        return Emission(
            "Col2Im", "Convolution2D", {"common": window_fields(self.kernel, self.strides, self.dilations, self.pads)}
        )

    @classmethod
    def parse(cls, type: str, fields: Fields) -> Col2Im:
        return cls(*parse_window(fields["common"]))

    samples = grid(("size",), x=[(2, 12, 9)], size=[exactly([7, 7])], kernel=[(2, 2)], strides=[(2, 2)]) + grid(
        ("size",), x=[(1, 12, 16)], size=[exactly([4, 5])], kernel=[(3, 2)], pads=[(1, 0, 1, 0)]
    )
