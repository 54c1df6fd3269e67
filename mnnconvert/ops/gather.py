"""Picking elements by index, and putting elements where indices say. Negative indices count from the end."""

from __future__ import annotations

import numpy as np

from mnnconvert.ir.types import Spec, normal_axis
from mnnconvert.ops.base import Emission, Fields, Form, Op, register
from mnnconvert.ops.content import moved, numbers
from mnnconvert.ops.samples import exactly, grid, integers


def _axis_of(fields: Fields) -> int:
    """The axis where the table has one: the op may be written with a table of types, or with none."""
    return int(fields["axis"]) if "axis" in tuple(fields) else 0


def _gather(x: np.ndarray, indices: np.ndarray, axis: int) -> np.ndarray:
    axis = normal_axis(axis, x.ndim)
    return np.take(x, indices.astype(np.intp), axis)


def _gathered(x: Spec, indices: Spec, axis: int | None) -> Spec:
    if x.shape is None or indices.shape is None or axis is None:
        rank = None if x.shape is None or indices.shape is None else len(x.shape) + len(indices.shape) - 1
        return Spec(x.dtype, None if rank is None else (None,) * rank)
    axis = normal_axis(axis, len(x.shape))
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    return Spec(x.dtype, shape, moved(lambda a, i: _gather(a, i, axis), [x], indices.content))


class _GatherBase(Op):
    """x.shape[:axis] + indices.shape + x.shape[axis+1:]; the axis is the third operand or `axis`."""

    axis: int = 0

    def infer(self, x: Spec, indices: Spec, axis: Spec | None = None) -> Spec:
        found = numbers(axis)
        return _gathered(x, indices, self.axis if axis is None else found[0] if found else None)

    def ref(self, x: np.ndarray, indices: np.ndarray, axis: np.ndarray | None = None) -> np.ndarray:
        return _gather(x, indices, self.axis if axis is None else int(axis.reshape(-1)[0]))

    @classmethod
    def parse(cls, type: str, fields: Fields) -> Op:
        return cls(_axis_of(fields))  # type: ignore[call-arg]


@register()
class GatherV2(_GatherBase):
    """Slices of x along an axis. Operands: x, indices int32[, axis int32]; without the third, `axis` is meant."""

    axis: int = 0

    form = Form("GatherV2", "Axis", {"axis": "axis"})

    def emit(self, *inputs: Spec) -> Emission:
        return Emission("GatherV2", None, {}) if len(inputs) > 2 else super().emit(*inputs)

    samples = (
        grid(x=[(4, 3, 2), integers(4, 3)], indices=[exactly([0, 3, -1]), exactly([[1, 2]]), exactly(2)],
             place=[exactly(0), exactly(1 - 2)][:1])
        + grid(x=[(2, 3, 4)], indices=[exactly([0, 1]), exactly(-2)], place=[exactly(1), exactly(-1)])
        + grid(x=[(2, 3, 4)], indices=[exactly([0, 1])], axis=[0, 1, -1])
    )  # fmt: skip


@register()
class Gather(_GatherBase):
    """As GatherV2, with the axis as an attribute."""

    axis: int = 0

    form = Form("Gather", "Gather", {"axis": "axis"})

    samples = grid(x=[(2, 3, 4)], indices=[exactly([0, 1]), exactly(-2)], axis=[0, 1, -1])
