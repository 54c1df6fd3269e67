"""What a layer sees: second moments of its inputs, summed piece by piece while data stream by.

Only the sums are kept, never the rows: one matrix of the layer's columns, two where the float model is looked at too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mnnconvert.errors import ConversionError
from mnnconvert.ir import Node
from mnnconvert.ops.convolution import Convolution
from mnnconvert.quantizers.windows import layer_windows

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

ROWS_AT_ONCE = 512  # products of so many rows are taken in float32; sums over all are kept in float64
ELEMENTS_AT_ONCE = 1 << 21


@dataclass(frozen=True)
class Statistics:
    """Second moments of the `samples` rows that a layer multiplies by its weight.

    `importance` [columns] is the mean of x^_j^2; `gram` [columns, columns] is H = X^^T X^ / n of the inputs x^ that the
    compressed model feeds the layer; `correction` is C = X^T X^ / n, with x the inputs that the float model feeds it.
    All float64; `gram` and `correction` are None where they were not asked for.
    """

    samples: int
    importance: Doubles
    gram: Doubles | None = None
    correction: Doubles | None = None


class Moments:
    """Sums that become `Statistics`. The order of the rows matters to the last bits only."""

    def __init__(self, columns: int, gram: bool = True, cross: bool = False):
        self._samples = 0
        self._power: Doubles = np.zeros(columns)
        self._gram: Doubles | None = np.zeros((columns, columns)) if gram else None
        self._cross: Doubles | None = np.zeros((columns, columns)) if cross else None

    def add(self, rows: Floats, original: Floats | None = None) -> None:
        """Take in rows [n, columns] of the compressed model and, for `cross`, the same rows of the float model."""
        self._samples += len(rows)
        self._power += np.square(rows, dtype=np.float64).sum(axis=0)
        for start in range(0, len(rows), ROWS_AT_ONCE):
            part = rows[start : start + ROWS_AT_ONCE]
            with np.errstate(over="ignore", invalid="ignore"):  # `statistics` looks at the sums
                if self._gram is not None:
                    self._gram += part.T @ part
                if self._cross is not None:
                    assert original is not None
                    self._cross += original[start : start + ROWS_AT_ONCE].T @ part

    def statistics(self) -> Statistics:
        """The means so far; the sums are used up. Raises `non-finite-activation`."""
        for total in (self._power, self._gram, self._cross):
            if total is not None:
                if not np.isfinite(total).all():
                    raise ConversionError.of(
                        "non-finite-activation",
                        "the samples lead to NaN, infinity or numbers too large for float32 at the input of a layer",
                        hint="look for the sample that does it: the float model cannot bear it either",
                    )
                total /= max(1, self._samples)
        return Statistics(self._samples, self._power, self._gram, self._cross)


def is_measurable(node: Node) -> bool:
    """Whether one matrix of inputs belongs to all rows of the node's weight: a convolution without groups."""
    return isinstance(node.op, Convolution) and node.op.group == 1


def window_key(node: Node) -> tuple[object, ...]:
    """Layers with equal keys that read one value see the same rows."""
    op = node.op
    assert isinstance(op, Convolution)
    kernel = (node.inputs[1].shape or ())[2:]
    return (kernel, op.strides, op.dilations, op.pads, op.pad_mode)


def layer_rows(node: Node, x: Floats) -> Iterator[Floats]:
    """What a convolution multiplies by its weight matrix [O, C*kH*kW]: rows [n, C*kH*kW] of its input [N,C,H,W]."""
    op = node.op
    assert isinstance(op, Convolution)
    kernel = tuple(int(d) for d in (node.inputs[1].shape or ())[2:] if isinstance(d, int))
    view = layer_windows(op, kernel, x)
    columns = view.shape[1] * math.prod(kernel)
    for images, lines in _pieces(len(x), view.shape[4:], columns):
        part = view[images, ..., lines, :].transpose(0, 4, 5, 1, 2, 3)
        yield np.ascontiguousarray(part, np.float32).reshape(-1, columns)


def _pieces(images: int, out: tuple[int, ...], columns: int) -> Iterator[tuple[slice, slice]]:
    """Images and lines of the output whose rows fit into `ELEMENTS_AT_ONCE`."""
    if out[0] * out[1] * columns <= ELEMENTS_AT_ONCE:
        step = max(1, ELEMENTS_AT_ONCE // max(1, out[0] * out[1] * columns))
        for start in range(0, images, step):
            yield slice(start, start + step), slice(None)
        return
    step = max(1, ELEMENTS_AT_ONCE // max(1, out[1] * columns))
    for image in range(images):
        for start in range(0, out[0], step):
            yield slice(image, image + 1), slice(start, start + step)
