"""Picking elements by index. Negative indices count from the end."""

from __future__ import annotations

import numpy as np

from mnnconvert.ir.types import I32, Spec, normal_axis
from mnnconvert.ops.base import Emission, Fields, Form, Op, register
from mnnconvert.ops.content import moved, numbers
from mnnconvert.ops.samples import exactly, floats, grid, integers


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
        return cls(_axis_of(fields))


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

    form = Form("Gather", "Axis", {"axis": "axis"})

    samples = grid(x=[(2, 3, 4)], indices=[exactly([0, 1]), exactly(-2)], axis=[0, 1, -1])


@register()
class GatherND(Op):
    """Slices of x picked by the index vectors in the last axis of indices; the first `batch_dims` axes pair up."""

    batch_dims: int = 0

    form = Form("GatherND", "Axis", {"batch_dims": "axis"})

    def infer(self, x: Spec, indices: Spec) -> Spec:
        if x.shape is None or indices.shape is None or not indices.shape or not isinstance(indices.shape[-1], int):
            return Spec(x.dtype)
        depth = self.batch_dims + indices.shape[-1]
        if depth > len(x.shape):
            raise ValueError(f"index vectors of {indices.shape[-1]} after {self.batch_dims} batch axes")
        shape = (*indices.shape[:-1], *x.shape[depth:])
        return Spec(x.dtype, shape, None if self.batch_dims else moved(self.ref, [x], indices.content))

    def ref(self, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
        batch, count = x.shape[: self.batch_dims], indices.shape[-1]
        rows = [np.arange(n).reshape(-1, *(1,) * (indices.ndim - 2 - i)) for i, n in enumerate(batch)]
        return np.array(x[(*rows, *(indices[..., i] for i in range(count)))])

    @classmethod
    def parse(cls, type: str, fields: Fields) -> GatherND:
        return cls(_axis_of(fields))

    samples = (
        grid(x=[(2, 3, 4)], indices=[exactly([[0, 2], [1, -1]]), exactly([[1]]), exactly([[[0, 0, 3]]])])
        + grid(x=[(2, 3, 4)], indices=[exactly([[2], [0]]), exactly([[[1, 1]], [[2, 0]]])], batch_dims=[1])
        + grid(x=[integers(5)], indices=[exactly([[4], [1]])])
    )  # fmt: skip


@register()
class GatherElements(Op):
    """y[i][j] = x[indices[i][j]][j] along the axis of the third operand (0 without one)."""

    form = Form("GatherElements")

    def infer(self, x: Spec, indices: Spec, axis: Spec | None = None) -> Spec:
        return Spec(x.dtype, indices.shape)

    def ref(self, x: np.ndarray, indices: np.ndarray, axis: np.ndarray | None = None) -> np.ndarray:
        along = 0 if axis is None else int(axis.reshape(-1)[0])
        part = tuple(slice(None) if i == along % x.ndim else slice(n) for i, n in enumerate(indices.shape))
        return np.take_along_axis(x[part], indices.astype(np.intp), along)

    samples = (
        grid(x=[(3, 4)], indices=[exactly([[0, 2, -1], [1, 1, -3]])], axis=[exactly(0), exactly(-1)])
        + grid(x=[integers(3, 4)], indices=[exactly([[0, 2, -1, 0]])])
    )  # fmt: skip


@register()
class OneHot(Op):
    """`on` where the new axis holds the index, else `off`. Operands: indices int32, depth int32, on, off.

    Indices outside of 0..depth-1 give only `off`: nothing counts from the end here.
    """

    axis: int = -1

    form = Form("OneHot", "OneHotParam", {"axis": "axis"})

    def infer(self, indices: Spec, depth: Spec, on: Spec, off: Spec) -> Spec:
        if on.dtype != off.dtype:
            raise ValueError(f"the values are {on.dtype} and {off.dtype}")
        if indices.shape is None:
            return Spec(on.dtype)
        axis = normal_axis(self.axis, len(indices.shape) + 1)
        size = depth.sizes[0] if depth.sizes else None
        return Spec(on.dtype, (*indices.shape[:axis], size, *indices.shape[axis:]))

    def ref(self, indices: np.ndarray, depth: np.ndarray, on: np.ndarray, off: np.ndarray) -> np.ndarray:
        axis = normal_axis(self.axis, indices.ndim + 1)
        places = np.arange(int(depth.reshape(-1)[0])).reshape(-1, *(1,) * (indices.ndim - axis))
        hit = np.expand_dims(indices, axis) == places
        return np.where(hit, on.reshape(()), off.reshape(()))

    def emit(self, *inputs: Spec) -> Emission:
        kind = "DT_INT32" if inputs[2].dtype == I32 else "DT_FLOAT"
        return Emission("OneHot", "OneHotParam", {"axis": self.axis, "dType": kind})

    samples = grid(
        axis=[-1, 0, 1], indices=[exactly([[0, 3], [-1, 9]])], depth=[exactly(4)], on=[floats()], off=[floats()]
    ) + grid(axis=[-1], indices=[exactly(2)], depth=[exactly([3])], on=[exactly(1)], off=[exactly(0)])
