"""Sizes of convolutions in two dimensions, as kernels of every backend take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mnnconvert.ops.convolution import Convolution
from mnnconvert.ops.deconvolution import Deconvolution
from mnnconvert.runtime_ref.lower import Sizes


@dataclass(frozen=True)
class Window:
    """Sizes of a two-dimensional convolution, by the names that its kernels give them."""

    h: int
    width: int
    out_h: int
    out_w: int
    kernel_h: int
    kernel_w: int
    stride_h: int
    stride_w: int
    dilation_h: int
    dilation_w: int
    top: int
    left: int

    @property
    def params(self) -> dict[str, Any]:
        return dict(self.__dict__)


def window_of(op: Convolution, x: Sizes, w: Sizes, y: Sizes) -> Window:
    """The sizes; a map of one column without padding at its sides becomes one of one row, which kernels cut better."""
    sizes, out = ((*shape[2:], 1)[:2] for shape in (x, y))
    top, left, _, right = op.padding((sizes[0], sizes[1]), (w[2], w[3]))
    rows = (sizes[0], out[0], w[2], op.strides[0], op.dilations[0], top)
    columns = (sizes[1], out[1], w[3], op.strides[1], op.dilations[1], left)
    if sizes[1] == w[3] == out[1] == 1 and left == right == 0:
        rows, columns = (1, 1, 1, 1, 1, 0), rows
    return Window(*(number for pair in zip(rows, columns, strict=True) for number in pair))


def is_depthwise(op: Convolution, channels: int, outputs: int) -> bool:
    """Whether each channel is convolved by itself."""
    return op.group == channels == outputs and op.group > 1


def cut(op: Deconvolution, sizes: Sequence[int], kernel: Sequence[int], out: Sequence[int]) -> tuple[int, int]:
    """How many rows and columns of the full result are cut off at the top and left."""
    if op.pad_mode != "SAME":
        return op.pads[0], op.pads[1]
    full = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(sizes, op.strides, kernel, op.dilations, strict=True)]
    top, left = (max(0, f - o) // 2 for f, o in zip(full, out, strict=True))
    return top, left
