"""Another shape for the same elements, another order of the axes, and the shape itself as a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mnnconvert.ir import tensor as tensors
from mnnconvert.ir.tensor import Tensor
from mnnconvert.ir.types import (
    I32,
    Dim,
    Shape,
    Spec,
    element_count,
    floordiv,
    format_shape,
    known,
    normal_axis,
    product,
    size_content,
)
from mnnconvert.ops.base import Emission, Fields, Form, Op, register
from mnnconvert.ops.content import moved, numbers
from mnnconvert.ops.samples import exactly, grid, integers

MOST_AXES = 256  # a shape with more sizes is not known


def inferred_size(shape: Sequence[Dim], others: Sequence[Dim]) -> Dim:
    """The size that makes the product of `others` times it the product of `shape`; common sizes cancel first."""
    left, right = list(shape), []
    for size in others:
        if size is not None and size in left:
            left.remove(size)
        else:
            right.append(size)
    a = math.prod(d for d in left if isinstance(d, int))
    b = math.prod(d for d in right if isinstance(d, int))
    common = math.gcd(a, b) or 1
    top = product([a // common, *(d for d in left if not isinstance(d, int))])
    return floordiv(top, product([b // common, *(d for d in right if not isinstance(d, int))]))


def reshaped(shape: Shape | None, target: Sequence[Dim], copies: bool = True) -> Shape:
    """The shape that a reshape to `target` gives: -1 is inferred, 0 copies a size if `copies`."""
    result = [_copied(shape, i) if d == 0 and copies else d for i, d in enumerate(target)]
    if any(isinstance(d, int) and d < -1 for d in result) or result.count(-1) > 1:
        raise ValueError(f"{list(target)} is no shape")
    open_places = [i for i, d in enumerate(result) if d is None or d == -1]
    if len(open_places) == 1 and shape is not None:
        at = open_places[0]
        result[at] = inferred_size(shape, result[:at] + result[at + 1 :])
    result = [None if d == -1 else d for d in result]
    made, given = element_count(tuple(result)), element_count(shape)
    if isinstance(made, int) and isinstance(given, int) and made != given:
        raise ValueError(f"{given} elements do not fit into {format_shape(tuple(target))}")
    return tuple(result)


def _copied(shape: Shape | None, index: int) -> Dim:
    if shape is None:
        return None
    if index >= len(shape):
        raise ValueError(f"the size {index} to copy does not exist in {format_shape(shape)}")
    return shape[index]


class _View(Op):
    """An op whose result holds the elements of its first operand in the same order."""

    def view(self, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
        return tensors.reshaped(tensor, shape)


@register()
class Reshape(_View):
    """The elements of x in row order in another shape. Operands: x[, shape int32]; without shape, `dims` is it.

    -1 (at most one) is inferred. 0 copies the size at that place; with `dim_type` NHWC it is a literal 0.
    """

    dims: tuple[int, ...] | None = None
    dim_type: str = "NCHW"

    form = Form("Reshape", "Reshape", {"dims": "dims", "dim_type": "dimType"})

    @property
    def copies(self) -> bool:
        return self.dim_type != "NHWC"

    def infer(self, x: Spec, shape: Spec | None = None) -> Spec:
        target: Sequence[Dim] | None = self.dims if shape is None else shape.sizes
        if target is None:
            count = shape.shape[0] if shape is not None and shape.rank == 1 and shape.shape else None
            return Spec(x.dtype, (None,) * count if isinstance(count, int) and count <= MOST_AXES else None)
        spec = Spec(x.dtype, reshaped(x.shape, target, self.copies))
        if known(spec.shape):
            spec.content = moved(lambda a: a.reshape(spec.shape), [x])
        return spec

    def ref(self, x: np.ndarray, shape: np.ndarray | None = None) -> np.ndarray:
        target = self.dims if shape is None else [int(d) for d in shape.reshape(-1)]
        if target is None:
            raise ValueError("a reshape needs a shape")
        return x.reshape(self._sizes(x.shape, target))

    def _sizes(self, shape: tuple[int, ...], target: Sequence[int]) -> tuple[int, ...]:
        sizes = reshaped(shape, target, self.copies)
        return tuple(0 if d is None else int(d) for d in sizes)

    samples = (
        grid(x=[(2, 3, 4), (6, 4, 1)], shape=[exactly(s) for s in ([4, 6], [-1], [2, -1, 2], [24, 1, 1])])
        + grid(x=[(2, 3, 4)], shape=[exactly(s) for s in ([0, -1], [0, 0, 4])])
        + grid(x=[(2, 3, 4), integers(2, 3, 4)], dims=[(6, 4), (0, -1), (3, -1, 2)], dim_type=["NCHW"])
        + grid(x=[(0, 3)], shape=[exactly([0, 5, 3])], dim_type=["NHWC"])
        + grid(x=[()], shape=[exactly([]), exactly([1, 1])])
    )


def _axes(axes: Sequence[int], rank: int) -> list[int]:
    result = [normal_axis(a, rank) for a in axes]
    if len(set(result)) != len(result):
        raise ValueError(f"an axis is named twice in {list(axes)}")
    return result


def squeezed(shape: Shape, axes: Sequence[int]) -> Shape | None:
    """`shape` without `axes`, or without all sizes 1 when `axes` is empty (None where that is not known)."""
    if not axes:
        return tuple(d for d in shape if d != 1) if known(shape) else None
    gone = _axes(axes, len(shape))
    for axis in gone:
        if isinstance(shape[axis], int) and shape[axis] != 1:
            raise ValueError(f"the axis {axis} to drop has size {shape[axis]}")
    return tuple(d for i, d in enumerate(shape) if i not in gone)


def unsqueezed(shape: Shape, axes: Sequence[int]) -> Shape:
    """`shape` with a 1 at each of `axes`, which count in the result."""
    rank = len(shape) + len(axes)
    places, rest = _axes(axes, rank), iter(shape)
    return tuple(1 if i in places else next(rest) for i in range(rank))


@register()
class Squeeze(_View):
    """x without axes of size 1: `axes`, or the operand axes int32, or all of size 1 when neither names any."""

    axes: tuple[int, ...] = ()

    form = Form("Squeeze", "SqueezeParam", {"axes": "squeezeDims"})

    def infer(self, x: Spec, axes: Spec | None = None) -> Spec:
        wanted = list(self.axes) if axes is None else numbers(axes)
        if x.shape is None or wanted is None:
            return Spec(x.dtype)
        shape = squeezed(x.shape, wanted)
        return Spec(x.dtype, shape, None if shape is None else moved(lambda a: a.reshape(shape), [x]))

    def ref(self, x: np.ndarray, axes: np.ndarray | None = None) -> np.ndarray:
        wanted = self.axes if axes is None else [int(a) for a in axes.reshape(-1)]
        return x.reshape(squeezed(x.shape, wanted))  # type: ignore[arg-type]

    def emit(self, *inputs: Spec) -> Emission:
        return Emission(self.kind, "SqueezeParam", {} if len(inputs) > 1 else {"squeezeDims": list(self.axes)})

    samples = (
        grid(axes=[(), (0,), (-2, 0)], x=[(1, 3, 1, 2)])
        + grid(x=[(1, 3, 1, 2)], dims=[exactly([2]), exactly([-4, 2])])
        + grid(axes=[(0,)], x=[(1,), integers(1, 2)])
    )


@register()
class Unsqueeze(_View):
    """x with axes of size 1 put in: `axes`, or the operand axes int32; they count in the result."""

    axes: tuple[int, ...] = ()

    form = Form("Unsqueeze", "SqueezeParam", {"axes": "squeezeDims"})

    def infer(self, x: Spec, axes: Spec | None = None) -> Spec:
        wanted = list(self.axes) if axes is None else numbers(axes)
        if x.shape is None or wanted is None:
            return Spec(x.dtype)
        shape = unsqueezed(x.shape, wanted)
        return Spec(x.dtype, shape, moved(lambda a: a.reshape(shape), [x]))

    def ref(self, x: np.ndarray, axes: np.ndarray | None = None) -> np.ndarray:
        wanted = self.axes if axes is None else [int(a) for a in axes.reshape(-1)]
        return x.reshape(unsqueezed(x.shape, wanted))  # type: ignore[arg-type]

    def emit(self, *inputs: Spec) -> Emission:
        return Emission(self.kind, "SqueezeParam", {} if len(inputs) > 1 else {"squeezeDims": list(self.axes)})

    samples = (
        grid(axes=[(0,), (1, 3), (-1,), (2, -4)], x=[(2, 3)])
        + grid(x=[(2, 3)], dims=[exactly([0, 1])])
        + grid(axes=[(0,)], x=[(), integers(2)])
    )


@register()
class ExpandDims(_View):
    """x with one axis of size 1 put in at `axis`, or where the operand axis int32 says."""

    axis: int = 0

    form = Form("ExpandDims", "ExpandDims", {"axis": "axis"})

    def infer(self, x: Spec, axis: Spec | None = None) -> Spec:
        wanted = [self.axis] if axis is None else numbers(axis)
        if x.shape is None or wanted is None:
            return Spec(x.dtype, None if x.shape is None else (None,) * (len(x.shape) + 1))
        shape = unsqueezed(x.shape, wanted[:1])
        return Spec(x.dtype, shape, moved(lambda a: a.reshape(shape), [x]))

    def ref(self, x: np.ndarray, axis: np.ndarray | None = None) -> np.ndarray:
        return np.expand_dims(x, self.axis if axis is None else int(axis.reshape(-1)[0]))

    samples = grid(axis=[0, 2, -1], x=[(2, 3), integers(2, 1)]) + grid(x=[(2, 3)], place=[exactly(1), exactly([-3])])


@register()
class Flatten(_View):
    """Two dimensions, split before `axis`; with `end_axis` not 0 the axes `axis`..`end_axis` merged into one."""

    axis: int = 1
    end_axis: int = 0

    form = Form("Flatten", "Flatten", {"axis": "axis", "end_axis": "endAxis"})

    def _shape(self, shape: Shape) -> Shape:
        rank = len(shape)
        if self.end_axis == 0:
            cut = rank if self.axis == rank else normal_axis(self.axis, rank) if rank else 0
            return product(shape[:cut]), product(shape[cut:])
        first, last = normal_axis(self.axis, rank), normal_axis(self.end_axis, rank)
        return (*shape[:first], product(shape[first : last + 1]), *shape[last + 1 :])

    def infer(self, x: Spec) -> Spec:
        if x.shape is None:
            return Spec(x.dtype, (None, None) if self.end_axis == 0 else None)
        return Spec(x.dtype, self._shape(x.shape))

    def ref(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(self._shape(x.shape))  # type: ignore[arg-type]

    samples = grid(axis=[0, 1, 2, 3, -1], x=[(2, 3, 4)]) + grid(axis=[1, -3], end_axis=[2, -2], x=[(2, 3, 4, 5)])


def _order(perm: Sequence[int], rank: int) -> list[int]:
    """A permutation of the axes; none given reverses them."""
    order = [normal_axis(p, rank) for p in perm] if perm else list(range(rank))[::-1]
    if sorted(order) != list(range(rank)):
        raise ValueError(f"{list(perm)} is no order of {rank} axes")
    return order


@register()
class Permute(Op):
    """The axes of x in the order `dims`; reversed when it is empty."""

    dims: tuple[int, ...] = ()

    form = Form("Permute", "Permute", {"dims": "dims"})
    layout = "any"

    def infer(self, x: Spec) -> Spec:
        if x.shape is None:
            return Spec(x.dtype, (None,) * len(self.dims) if self.dims else None)
        order = _order(self.dims, len(x.shape))
        return Spec(x.dtype, tuple(x.shape[i] for i in order), moved(lambda a: a.transpose(order), [x]))

    def ref(self, x: np.ndarray) -> np.ndarray:
        return np.transpose(x, _order(self.dims, x.ndim))

    def view(self, tensor: Tensor, shape: tuple[int, ...]) -> Tensor | None:
        return tensors.transposed(tensor) if _order(self.dims, len(tensor.shape)) == [1, 0] else None

    def emit(self, *inputs: Spec) -> Emission:
        """The order is written out where it can be: the runtime does not stand an empty one."""
        rank = inputs[0].rank
        return Emission("Permute", "Permute", {"dims": list(self.dims) if rank is None else _order(self.dims, rank)})

    samples = grid(dims=[(2, 1, 0), (0, 2, 1), (2, 0, 1)], x=[(2, 3, 4), integers(1, 2, 3)]) + grid(
        dims=[(0, 2, 3, 1), (0, 3, 1, 2)], x=[(2, 3, 4, 5)]
    )


@register()
class Transpose(Op):
    """The axes of x in the order of the operand perm int32."""

    form = Form("Transpose")

    def infer(self, x: Spec, perm: Spec) -> Spec:
        wanted = numbers(perm)
        if x.shape is None or wanted is None:
            rank = x.rank if x.rank is not None else len(wanted) if wanted is not None else None
            return Spec(x.dtype, None if rank is None else (None,) * rank)
        return Spec(x.dtype, tuple(x.shape[i] for i in _order(wanted, len(x.shape))))

    def ref(self, x: np.ndarray, perm: np.ndarray) -> np.ndarray:
        return np.transpose(x, _order([int(p) for p in perm], x.ndim))

    samples = grid(x=[(2, 3, 4)], perm=[exactly([0, 2, 1]), exactly([2, 0, 1])])


@register()
class ShapeOf(Op):
    """The shape of x as int32, or its part [start, end) in the way of a Python slice. OpType Shape."""

    start: int | None = None
    end: int | None = None

    form = Form("Shape", layout_format="NCHW")

    def infer(self, x: Spec) -> Spec:
        if x.shape is None:
            return Spec(I32, (None,))
        sizes = x.shape[self.start : self.end]
        return Spec(I32, (len(sizes),), size_content(sizes))

    def ref(self, x: np.ndarray) -> np.ndarray:
        return np.array(x.shape[self.start : self.end], I32)

    def emit(self, *inputs: Spec) -> Emission:
        fields: dict[str, Any] = {}
        if self.start is not None:
            fields |= {"hasStart": True, "start": self.start}
        if self.end is not None:
            fields |= {"hasEnd": True, "end": self.end}
        return Emission("Shape", "ShapeParam" if fields else None, fields, "NCHW")

    @classmethod
    def parse(cls, type: str, fields: Fields) -> ShapeOf:
        if not fields:
            return cls()
        return cls(fields["start"] if fields["hasStart"] else None, fields["end"] if fields["hasEnd"] else None)

    samples = grid(x=[(2, 3, 4), ()]) + grid(x=[(2, 3, 4)], start=[0, 1, -2, 3], end=[None, -1, 2, 9])


@register()
class Size(Op):
    """The number of elements of x, an int32 scalar."""

    form = Form("Size")

    def infer(self, x: Spec) -> Spec:
        count = element_count(x.shape)
        return Spec(I32, (), None if count is None else size_content([count], scalar=True))

    def ref(self, x: np.ndarray) -> np.ndarray:
        return np.array(x.size, I32)

    samples = grid(x=[(2, 3), (), (0, 4)])


@register()
class Rank(Op):
    """The number of axes of x, an int32 scalar."""

    form = Form("Rank")

    def infer(self, x: Spec) -> Spec:
        return Spec(I32, (), None if x.rank is None else np.array(x.rank, I32))

    def ref(self, x: np.ndarray) -> np.ndarray:
        return np.array(x.ndim, I32)

    samples = grid(x=[(2, 3), ()])


VIEWS = (Reshape, Squeeze, Unsqueeze, ExpandDims, Flatten)
"""Ops whose result is their first operand in row-major order, under another shape."""
