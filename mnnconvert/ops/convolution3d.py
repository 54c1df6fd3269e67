"""Convolution of volumes and its transpose."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from mnnconvert.ir.types import F32, Dim, Shape, Spec, ceildiv, mul
from mnnconvert.ops.base import Emission, Fields, Form, Op, register
from mnnconvert.ops.convolution import activate, activation_fields, add_bias, number, parse_activation
from mnnconvert.ops.deconvolution import transposed_out
from mnnconvert.ops.samples import grid
from mnnconvert.ops.windows import Ints, correlate, correlate_transposed, pad_spatial, positive, same_pads, window_out

ONES, ZEROS = (1, 1, 1), (0, 0, 0)


def _vector(values: Any, default: Ints) -> Ints:
    return default if values is None or not len(values) else tuple(int(v) for v in values)


def _both_ends(pads: Ints) -> Ints:
    """Six pads from three symmetric ones."""
    return pads if len(pads) == 6 else (*pads[:3], *pads[:3])


class _Volume(Op):
    """What the two ops share: attributes, table, operand shapes. All triples are (depth, height, width)."""

    strides: Ints = ONES
    dilations: Ints = ONES
    pads: Ints = ZEROS * 2
    group: int = 1
    activation: str = ""
    pad_mode: str = "CAFFE"

    layout = "c4"
    embedded = ("weight", "bias")

    def _check(self, x: Spec, w: Spec, inputs: Dim) -> None:
        if (x.shape is not None and len(x.shape) != 5) or len(w.shape or ()) != 5:
            raise ValueError("a 3-D convolution needs x and weight of rank 5")
        channels = x.shape[1] if x.shape else None
        if isinstance(channels, int) and isinstance(inputs, int) and channels != inputs:
            raise ValueError(f"x has {channels} channels, the weight is for {inputs}")

    def _common(self, w: Spec, inputs: Dim, outputs: Dim) -> dict[str, Any]:
        kernel = (w.shape or (None,) * 5)[2:]
        return {
            "kernels": [number(k, 1) for k in kernel],
            "strides": list(self.strides),
            "dilates": list(self.dilations),
            "pads": list(self.pads),
            "padMode": self.pad_mode,
            "group": self.group,
            "inputCount": number(inputs, 0),
            "outputCount": number(outputs, 0),
            **activation_fields(self.activation),
        }

    @classmethod
    def _parse_common(cls, common: Fields) -> dict[str, Any]:
        mode = common["padMode"]
        strides, dilations = _vector(common.get("strides"), ONES), _vector(common.get("dilates"), ONES)
        positive(*strides, *dilations)
        return {
            "strides": strides,
            "dilations": dilations,
            "pads": ZEROS * 2 if mode == "VALID" else _both_ends(_vector(common.get("pads"), ZEROS)),
            "group": common["group"],
            "activation": parse_activation(common),
            "pad_mode": "SAME" if mode == "SAME" else "CAFFE",
        }


@register()
class Convolution3D(_Volume):
    """Cross-correlation of x [N,C,D,H,W] with weight [O, C/group, kD, kH, kW], plus bias, then activation."""

    strides: Ints = ONES
    dilations: Ints = ONES
    pads: Ints = ZEROS * 2
    group: int = 1
    activation: str = ""
    pad_mode: str = "CAFFE"

    form = Form("Convolution3D", "Convolution3D")

    def infer(self, x: Spec, w: Spec, b: Spec | None = None) -> Spec:
        if w.shape is None:
            return Spec(F32)
        self._check(x, w, mul(w.shape[1], self.group))
        n, _, *sizes = x.shape or (None,) * 5
        return Spec(F32, (n, w.shape[0], *(self._out(i, size, w.shape[i + 2]) for i, size in enumerate(sizes))))

    def _out(self, axis: int, size: Dim, kernel: Dim) -> Dim:
        if self.pad_mode == "SAME":
            return ceildiv(size, self.strides[axis])
        if not isinstance(kernel, int):
            return None
        return window_out(size, kernel, self.strides[axis], self.dilations[axis], self.pads[axis] + self.pads[axis + 3])

    def ref(self, x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None) -> np.ndarray:
        begin, end = self.pads[:3], self.pads[3:]
        if self.pad_mode == "SAME":
            parts = zip(x.shape[2:], w.shape[2:], self.strides, self.dilations, strict=True)
            begin, end = zip(*(same_pads(*p) for p in parts), strict=True)
        y = correlate(pad_spatial(x, begin, end), w, self.strides, self.dilations, self.group)
        return activate(add_bias(y, b), self.activation)

    def emit(self, x: Spec, w: Spec, b: Spec | None = None) -> Emission:
        outputs, per_group = (w.shape or (None, None))[:2]
        return Emission(
            "Convolution3D", "Convolution3D", {"common": self._common(w, mul(per_group, self.group), outputs)}
        )

    @classmethod
    def parse(cls, type: str, fields: Fields) -> Convolution3D:
        return cls(**cls._parse_common(fields["common"]))

    def embedded_shapes(self, fields: Fields, counts: Mapping[str, int]) -> tuple[Shape, ...]:
        outputs, kernel = fields["common"]["outputCount"], _vector(fields["common"].get("kernels"), ONES)
        return (outputs, counts["weight"] // max(1, outputs * math.prod(kernel)), *kernel), (outputs,)

    samples = grid(
        ("w", "b"),
        x=[(1, 4, 5, 6, 7)],
        w=[(3, 4, 2, 3, 3)],
        b=[(3,)],
        strides=[ONES, (1, 2, 1)],
        pads=[ZEROS * 2, (0, 1, 1, 1, 1, 1)],
        activation=["", "relu"],
        pad_mode=["CAFFE", "SAME"],
    ) + grid(("w", "b"), x=[(2, 4, 5, 6, 7)], w=[(6, 2, 2, 1, 3)], b=[(6,)], group=[2], dilations=[ONES, (2, 1, 2)])


@register()
class ConvTranspose3D(_Volume):
    """Each x[n,i] of [N,I,D,H,W] spread by w[i, O/group, kernel], cropped by `pads`, grown by `out_pads`, plus bias."""

    strides: Ints = ONES
    dilations: Ints = ONES
    pads: Ints = ZEROS * 2
    group: int = 1
    activation: str = ""
    pad_mode: str = "CAFFE"
    out_pads: Ints = ZEROS

    form = Form("ConvTranspose3D", "Convolution3D")

    def infer(self, x: Spec, w: Spec, b: Spec | None = None) -> Spec:
        if w.shape is None:
            return Spec(F32)
        self._check(x, w, w.shape[0])
        n, _, *sizes = x.shape or (None,) * 5
        return Spec(
            F32, (n, mul(w.shape[1], self.group), *(self._out(i, s, w.shape[i + 2]) for i, s in enumerate(sizes)))
        )

    def _out(self, axis: int, size: Dim, kernel: Dim) -> Dim:
        if self.pad_mode == "SAME":
            return mul(size, self.strides[axis])
        pads = self.pads[axis] + self.pads[axis + 3] - self.out_pads[axis]
        return transposed_out(size, kernel, self.strides[axis], self.dilations[axis], pads)

    def ref(self, x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None) -> np.ndarray:
        y = correlate_transposed(x, w, self.strides, self.dilations, self.group)
        out: Any = [self._out(i, x.shape[i + 2], w.shape[i + 2]) for i in range(3)]
        begin = self.pads[:3]
        if self.pad_mode == "SAME":
            begin = tuple(max(0, full - size) // 2 for full, size in zip(y.shape[2:], out, strict=True))
        end = [size + b - full for size, b, full in zip(out, begin, y.shape[2:], strict=True)]
        y = np.array(pad_spatial(y, [-p for p in begin], end))
        return activate(add_bias(y, b), self.activation)

    def emit(self, x: Spec, w: Spec, b: Spec | None = None) -> Emission:
        inputs, per_group = (w.shape or (None, None))[:2]
        common = self._common(w, inputs, mul(per_group, self.group))
        return Emission("ConvTranspose3D", "Convolution3D", {"common": common | {"outPads": list(self.out_pads)}})

    @classmethod
    def parse(cls, type: str, fields: Fields) -> ConvTranspose3D:
        common = fields["common"]
        return cls(**cls._parse_common(common), out_pads=_vector(common.get("outPads"), ZEROS))

    def embedded_shapes(self, fields: Fields, counts: Mapping[str, int]) -> tuple[Shape, ...]:
        outputs, kernel = fields["common"]["outputCount"], _vector(fields["common"].get("kernels"), ONES)
        per_group = outputs // max(1, self.group)
        return (counts["weight"] // max(1, per_group * math.prod(kernel)), per_group, *kernel), (outputs,)

    samples = grid(
        ("w", "b"),
        x=[(1, 4, 3, 2, 4)],
        w=[(4, 3, 2, 3, 3)],
        b=[(3,)],
        strides=[ONES, (1, 2, 3)],
        pads=[ZEROS * 2, (0, 1, 1, 1, 0, 1)],
        out_pads=[ZEROS, (0, 1, 0)],
    ) + grid(("w", "b"), x=[(1, 4, 3, 2, 4)], w=[(4, 3, 2, 2, 2)], b=[(6,)], group=[2], strides=[(2, 2, 2)])
