"""Reductions, positions of extremes, and running sums and products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mnnconvert.ir.types import I32, Dim, Shape, Spec, normal_axis, product, size_content
from mnnconvert.ir.types import add as add_dims
from mnnconvert.ops.base import Emission, Fields, Form, Op, register
from mnnconvert.ops.samples import exactly, grid, integers

Axes = tuple[int, ...]


def _lowest(dtype: np.dtype) -> Any:
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def _highest(dtype: np.dtype) -> Any:
    return np.inf if dtype.kind == "f" else np.iinfo(dtype).max


def _mean(x: np.ndarray, axes: Axes, keep: bool) -> np.ndarray:
    """The mean; on integers the quotient is truncated towards zero."""
    count = int(np.prod([x.shape[a] for a in axes], dtype=np.int64))
    total = np.sum(x, axes, dtype=x.dtype, keepdims=keep)
    if x.dtype.kind == "f":
        return np.asarray(total / np.float32(count))
    return np.asarray(np.trunc(total / max(count, 1)))


REDUCTIONS: dict[str, Callable[[np.ndarray, Axes, bool], Any]] = {
    "SUM": lambda x, a, k: np.sum(x, a, dtype=x.dtype, keepdims=k),
    "MEAN": _mean,
    "MAXIMUM": lambda x, a, k: np.max(x, a, keepdims=k, initial=_lowest(x.dtype)),
    "MINIMUM": lambda x, a, k: np.min(x, a, keepdims=k, initial=_highest(x.dtype)),
    "PROD": lambda x, a, k: np.prod(x, a, dtype=x.dtype, keepdims=k),
    "ASUM": lambda x, a, k: np.sum(np.abs(x), a, dtype=x.dtype, keepdims=k),
    "SUMSQ": lambda x, a, k: np.sum(np.square(x), a, dtype=x.dtype, keepdims=k),
    "ANY": lambda x, a, k: np.any(x, a, keepdims=k),
    "ALL": lambda x, a, k: np.all(x, a, keepdims=k),
}


@register()
class Reduction(Op):
    """Reduce over `dims` (None: all axes, or those that a second int32 operand lists); a reduced axis stays as size 1
    with `keep_dims`. `operation` is a key of `REDUCTIONS`. Over nothing: sum 0, product 1, maximum -inf, minimum +inf.
    """

    operation: str = "SUM"
    dims: Axes | None = None
    keep_dims: bool = False

    form = Form("Reduction", "ReductionParam", {"operation": "operation", "dims": "dim", "keep_dims": "keepDims"})

    def infer(self, x: Spec, axes: Spec | None = None) -> Spec:
        if self.operation not in REDUCTIONS:
            raise ValueError(f"there is no reduction {self.operation}")
        if x.shape is None:
            return Spec(x.dtype, () if self.dims is None and axes is None and not self.keep_dims else None)
        if axes is not None and axes.constant is None:
            return Spec(x.dtype, (None,) * len(x.shape) if self.keep_dims else None)
        gone = self._axes(len(x.shape), None if axes is None else axes.constant)
        shape = tuple(1 if i in gone else d for i, d in enumerate(x.shape) if self.keep_dims or i not in gone)
        return Spec(x.dtype, shape, self._of_sizes(x, shape))

    def _axes(self, rank: int, given: np.ndarray | None) -> Axes:
        dims = self.dims if given is None else tuple(int(a) for a in np.ravel(given))
        return tuple(range(rank)) if dims is None else tuple(sorted({normal_axis(a, rank) for a in dims}))

    def _of_sizes(self, x: Spec, shape: Shape) -> np.ndarray | None:
        """The sum or product of a vector of sizes that are only partly known."""
        sizes = x.sizes
        if x.dtype != I32 or sizes is None or x.constant is not None or len(x.shape or ()) != 1:
            return None
        if self.operation == "PROD":
            return size_content([product(sizes)], scalar=not shape)
        if self.operation == "SUM":
            total: Dim = 0
            for size in sizes:
                total = add_dims(total, size)
            return size_content([total], scalar=not shape)
        return None

    def ref(self, x: np.ndarray, axes: np.ndarray | None = None) -> np.ndarray:
        with np.errstate(all="ignore"):
            y = REDUCTIONS[self.operation](x, self._axes(x.ndim, axes), self.keep_dims)
        return np.asarray(y).astype(x.dtype, copy=False)

    def emit(self, x: Spec, axes: Spec | None = None) -> Emission:
        made = super().emit(x)
        made.fields["dType"] = "DT_INT32" if x.dtype == I32 else "DT_FLOAT"
        return made

    @classmethod
    def parse(cls, type: str, fields: Fields) -> Reduction:
        dims = fields.get("dim")
        dims = None if dims is None or not len(dims) else tuple(int(d) for d in dims)
        return cls(fields["operation"], dims, bool(fields.get("keepDims")))

    samples = (
        grid(operation=["SUM", "MEAN", "MAXIMUM", "MINIMUM", "PROD", "ASUM", "SUMSQ"], dims=[None, (1,), (0, -1)],
             keep_dims=[False, True], x=[(2, 3, 4)])
        + grid(operation=["SUM", "MEAN", "MAXIMUM", "ANY", "ALL"], dims=[(0,)], x=[integers(3, 5), integers(5)])
        + grid(operation=["SUM", "MAXIMUM"], dims=[(0,)], x=[(0, 3)])
        + grid(operation=["SUM"], keep_dims=[True, False], x=[(2, 3, 4)], axes=[exactly([1, -1])])
    )  # fmt: skip


class _Position(Op):
    """Shape rule shared by ArgMax and ArgMin."""

    axis: int

    def infer(self, x: Spec) -> Spec:
        if x.shape is None:
            return Spec(I32)
        axis = normal_axis(self.axis, len(x.shape))
        if x.shape[axis] == 0:
            raise ValueError(f"there is no extreme among the 0 elements of axis {axis}")
        return Spec(I32, x.shape[:axis] + x.shape[axis + 1 :])


@register()
class ArgMax(_Position):
    """int32 index of the largest element on `axis`, the first of equals; the axis is dropped."""

    axis: int = 0

    form = Form("ArgMax", "ArgMax", {"axis": "axis"})

    def ref(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(np.argmax(x, self.axis)).astype(I32)

    samples = grid(x=[(2, 3, 4), np.zeros((3, 3), np.float32)], axis=[0, -1]) + grid(x=[(7,)], axis=[0])


@register()
class ArgMin(_Position):
    """int32 index of the smallest element on `axis`, the first of equals; the axis is dropped."""

    axis: int = 0

    form = Form("ArgMin", "ArgMax", {"axis": "axis"})

    def ref(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(np.argmin(x, self.axis)).astype(I32)

    samples = grid(x=[(2, 3, 4), np.zeros((3, 3), np.float32)], axis=[0, -1]) + grid(x=[(7,)], axis=[0])


@register()
class CumSum(Op):
    """Running sum of x on the axis that the int32 operand `axis` holds; `reverse` runs from the end.

    `exclusive` leaves the element itself out, so that the first is 0.
    """

    exclusive: bool = False
    reverse: bool = False

    form = Form("CumSum", "CumSum", {"exclusive": "exclusive", "reverse": "reverse"})

    def infer(self, x: Spec, axis: Spec) -> Spec:
        if x.shape is not None and axis.constant is not None:
            normal_axis(int(axis.constant.reshape(())), len(x.shape))
        return Spec(x.dtype, x.shape)

    def ref(self, x: np.ndarray, axis: np.ndarray) -> np.ndarray:
        a = normal_axis(int(np.asarray(axis).reshape(())), x.ndim)
        moved = np.moveaxis(x, a, 0)
        moved = moved[::-1] if self.reverse else moved
        y = np.cumsum(moved, 0, dtype=x.dtype)
        if self.exclusive:
            y = np.concatenate([np.zeros_like(y[:1]), y[:-1]])
        return np.moveaxis(y[::-1] if self.reverse else y, 0, a)

    samples = grid(exclusive=[False, True], reverse=[False, True], x=[(2, 3, 4), integers(5, 1)],
                   axis=[exactly(0), exactly(-1)])  # fmt: skip


@register()
class CumProd(Op):
    """Running product on `axis`."""

    axis: int = 0

    form = Form("CumProd", "Axis", {"axis": "axis"})

    def infer(self, x: Spec) -> Spec:
        if x.shape is not None:
            normal_axis(self.axis, len(x.shape))
        return Spec(x.dtype, x.shape)

    def ref(self, x: np.ndarray) -> np.ndarray:
        return np.cumprod(x, self.axis, dtype=x.dtype)

    samples = grid(x=[(2, 3, 4)], axis=[0, 1, -1])
