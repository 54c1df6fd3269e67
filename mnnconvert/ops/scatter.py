"""Putting elements where indices say. Negative indices count from the end; of repeated ones the last wins."""

from __future__ import annotations

from typing import Any

import numpy as np

from mnnconvert.ir.types import Spec, normal_axis
from mnnconvert.ops.base import Emission, Fields, Form, Op, register
from mnnconvert.ops.samples import exactly, grid, integers

UFUNCS = {"ADD": np.add, "MUL": np.multiply, "MAXIMUM": np.maximum, "MINIMUM": np.minimum}


def _put(target: np.ndarray, places: np.ndarray, updates: np.ndarray, reduction: str) -> None:
    """target[places] = updates along the first axis, or combined with what is there, repeats included."""
    if reduction:
        with np.errstate(all="ignore"):
            UFUNCS[reduction].at(target, places, updates)
    else:
        target[places] = updates


def _wrapped(indices: np.ndarray, size: int) -> np.ndarray:
    wrapped = np.where(indices < 0, indices + size, indices).astype(np.intp)
    if wrapped.size and (wrapped.min() < 0 or wrapped.max() >= size):
        raise ValueError(f"an index is outside of the axis of {size}")
    return wrapped


class _Scatter(Op):
    """What both scatters share: `reduction` is "" (overwrite) or a key of `UFUNCS`, kept in a BinaryOp table."""

    reduction: str = ""

    def emit(self, *inputs: Spec) -> Emission:
        return Emission(self.form.type, "BinaryOp", {"opType": self.reduction or -1})

    @classmethod
    def parse(cls, type: str, fields: Fields) -> Op:
        contents: Any = fields
        operation = contents.table.opType if fields else -1  # -1 (overwrite) is no member of the enum
        if operation == -1:
            return cls()
        if fields["opType"] not in UFUNCS:
            raise ValueError(f"a scatter cannot combine with {fields['opType']}")
        return cls(fields["opType"])


@register()
class ScatterNd(_Scatter):
    """Slices put where the index vectors in the last axis of `indices` say.

    Operands: indices, updates, shape int32[, data]: the result starts as data, or as zeros of `shape`.
    """

    reduction: str = ""

    form = Form("ScatterNd")

    def infer(self, indices: Spec, updates: Spec, shape: Spec, data: Spec | None = None) -> Spec:
        if data is not None:
            if data.dtype != updates.dtype:
                raise ValueError(f"data is {data.dtype}, the updates are {updates.dtype}")
            return Spec(data.dtype, data.shape)
        sizes = shape.sizes
        count = shape.shape[0] if shape.rank == 1 and shape.shape else None
        rank = len(sizes) if sizes is not None else count
        return Spec(
            updates.dtype, tuple(sizes) if sizes is not None else (None,) * rank if isinstance(rank, int) else None
        )

    def ref(
        self, indices: np.ndarray, updates: np.ndarray, shape: np.ndarray, data: np.ndarray | None = None
    ) -> np.ndarray:
        sizes = tuple(int(d) for d in shape)
        y = np.zeros(sizes, updates.dtype) if data is None else np.array(data, order="C")
        depth = indices.shape[-1]
        rows = np.zeros(indices.shape[:-1], np.intp)
        for i in range(depth):
            rows = rows * y.shape[i] + _wrapped(indices[..., i], y.shape[i])
        width = int(np.prod(y.shape[depth:], dtype=np.int64))
        flat = y.reshape(int(np.prod(y.shape[:depth], dtype=np.int64)), width)
        _put(flat, rows.reshape(-1), updates.reshape(rows.size, width), self.reduction)
        return y

    def emit(self, *inputs: Spec) -> Emission:
        return super().emit(*inputs) if self.reduction else Emission("ScatterNd", None, {})

    samples = (
        grid(reduction=["", *UFUNCS], indices=[exactly([[0], [2], [0], [-1]])], updates=[(4, 3)],
             shape=[exactly([5, 3])], data=[(5, 3)])
        + grid(indices=[exactly([[0, 1], [2, 2]])], updates=[(2,)], shape=[exactly([3, 4])])
        + grid(indices=[exactly([[[1]], [[0]]])], updates=[integers(2, 1)], shape=[exactly([3])])
    )  # fmt: skip


@register()
class ScatterElements(_Scatter):
    """y = data; y[indices[i][j]][j] = updates[i][j] along the axis of the fourth operand (0 without one)."""

    reduction: str = ""

    form = Form("ScatterElements", "BinaryOp")

    def infer(self, data: Spec, indices: Spec, updates: Spec, axis: Spec | None = None) -> Spec:
        if data.dtype != updates.dtype:
            raise ValueError(f"data is {data.dtype}, the updates are {updates.dtype}")
        if data.rank is not None and axis is not None and axis.constant is not None:
            normal_axis(int(axis.constant.reshape(-1)[0]), data.rank)
        if None not in (data.rank, indices.rank) and data.rank != indices.rank:
            raise ValueError(f"data has {data.rank} axes, the indices have {indices.rank}")
        return Spec(data.dtype, data.shape)

    def ref(
        self, data: np.ndarray, indices: np.ndarray, updates: np.ndarray, axis: np.ndarray | None = None
    ) -> np.ndarray:
        along = normal_axis(0 if axis is None else int(axis.reshape(-1)[0]), data.ndim)
        y = np.array(data, order="C")
        places = np.zeros(indices.shape, np.intp)
        for i, size in enumerate(data.shape):
            own = np.arange(indices.shape[i]).reshape(-1, *(1,) * (data.ndim - 1 - i))
            places = places * size + (_wrapped(indices, size) if i == along else own)
        _put(y.reshape(-1), places.reshape(-1), updates.reshape(-1), self.reduction)
        return y

    samples = grid(
        reduction=["", *UFUNCS], data=[(3, 4)], indices=[exactly([[0, 2, -1], [1, 1, -3]])], updates=[(2, 3)],
        axis=[exactly(0), exactly(-1)],
    ) + grid(data=[integers(4)], indices=[exactly([3, 0, 3])], updates=[integers(3)])  # fmt: skip
