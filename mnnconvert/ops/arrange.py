"""Joining, repeating and turning around: concatenation, stacking, tiling, broadcasting, reversal, bands."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mnnconvert.ir.types import Dim, Spec, add, broadcast, mul, normal_axis
from mnnconvert.ops.base import Form, Op, register
from mnnconvert.ops.content import moved
from mnnconvert.ops.samples import exactly, grid, integers


def _same_dtype(inputs: Sequence[Spec]) -> np.dtype:
    kinds = {str(x.dtype) for x in inputs}
    if len(kinds) != 1:
        raise ValueError(f"the operands are {' and '.join(sorted(kinds))}")
    return inputs[0].dtype


def _common(dims: Sequence[Dim], axis: int) -> Dim:
    """The one size that all operands have on an axis; a number beats a symbol."""
    numbers = {d for d in dims if isinstance(d, int)}
    if len(numbers) > 1:
        raise ValueError(f"the sizes {sorted(numbers)} on axis {axis} differ")
    return numbers.pop() if numbers else next((d for d in dims if d is not None), None)


@register()
class Concat(Op):
    """The operands one after the other on `axis`; all other sizes agree."""

    axis: int = 0

    form = Form("Concat", "Axis", {"axis": "axis"})
    layout = "any"

    def infer(self, *inputs: Spec) -> Spec:
        dtype = _same_dtype(inputs)
        shapes = [x.shape for x in inputs if x.shape is not None]
        if not shapes:
            return Spec(dtype)
        rank = len(shapes[0])
        if any(len(s) != rank for s in shapes):
            raise ValueError("the operands differ in rank")
        axis = normal_axis(self.axis, rank)
        sizes = [None if i == axis else _common([s[i] for s in shapes], i) for i in range(rank)]
        if len(shapes) == len(inputs):
            sizes[axis] = 0
            for s in shapes:
                sizes[axis] = add(sizes[axis], s[axis])
        return Spec(dtype, tuple(sizes), moved(lambda *a: np.concatenate(a, axis), list(inputs)))

    def ref(self, *arrays: np.ndarray) -> np.ndarray:
        return np.concatenate(arrays, self.axis)

    samples = grid(axis=[1, -2], a=[(2, 3, 4), (2, 0, 4)], b=[(2, 5, 4)]) + grid(
        axis=[0], a=[integers(2)], b=[integers(3)], c=[integers(1)]
    )


@register()
class Pack(Op):
    """The operands, of one shape, stacked on a new axis."""

    axis: int = 0

    form = Form("Pack", "PackParam", {"axis": "axis"})

    def infer(self, *inputs: Spec) -> Spec:
        dtype = _same_dtype(inputs)
        shapes = [x.shape for x in inputs if x.shape is not None]
        if not shapes:
            return Spec(dtype)
        if any(len(s) != len(shapes[0]) for s in shapes):
            raise ValueError("the operands differ in rank")
        axis = normal_axis(self.axis, len(shapes[0]) + 1)
        sizes = [_common([s[i] for s in shapes], i) for i in range(len(shapes[0]))]
        shape = (*sizes[:axis], len(inputs), *sizes[axis:])
        return Spec(dtype, shape, moved(lambda *a: np.stack(a, axis), list(inputs)))

    def ref(self, *arrays: np.ndarray) -> np.ndarray:
        return np.stack(arrays, self.axis)

    samples = grid(axis=[0, 1, -1], a=[(2, 3)], b=[(2, 3)]) + grid(axis=[0], a=[integers()], b=[integers()])


@register()
class Unpack(Op):
    """x taken apart along `axis`, which is dropped: one result for each element."""

    axis: int = 0

    form = Form("Unpack", "Axis", {"axis": "axis"})

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        if x.shape is None:
            return (Spec(x.dtype),)
        axis = normal_axis(self.axis, len(x.shape))
        rest, count = (*x.shape[:axis], *x.shape[axis + 1 :]), x.shape[axis]
        places = range(count) if isinstance(count, int) else range(1)
        return tuple(Spec(x.dtype, rest, moved(lambda a, at=i: a.take(at, axis), [x])) for i in places)

    def ref(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(np.moveaxis(x, self.axis, 0))

    samples = grid(axis=[0, -1], x=[(2, 3), integers(2, 2)])


@register()
class Tile(Op):
    """x repeated along each axis as often as the operand multiples int32 says."""

    form = Form("Tile")

    def infer(self, x: Spec, multiples: Spec) -> Spec:
        times = multiples.sizes
        if x.shape is None or times is None:
            return Spec(x.dtype, None if x.shape is None else (None,) * len(x.shape))
        if len(times) != len(x.shape):
            raise ValueError(f"{len(times)} repeats for {len(x.shape)} axes")
        shape = tuple(mul(d, m) for d, m in zip(x.shape, times, strict=True))
        return Spec(x.dtype, shape, moved(np.tile, [x], multiples.content))

    def ref(self, x: np.ndarray, multiples: np.ndarray) -> np.ndarray:
        return np.tile(x, multiples)

    samples = grid(x=[(2, 3)], multiples=[exactly([1, 2]), exactly([3, 1]), exactly([2, 0])])


@register()
class BroadcastTo(Op):
    """x broadcast together with the operand shape int32: sizes of 1 on either side take the other's size."""

    form = Form("BroadcastTo")

    def infer(self, x: Spec, shape: Spec) -> Spec:
        target = shape.sizes
        if target is None:
            count = shape.shape[0] if shape.rank == 1 and shape.shape else None
            rank = max(count, x.rank) if isinstance(count, int) and x.rank is not None else None
            return Spec(x.dtype, None if rank is None else (None,) * rank)
        return Spec(x.dtype, broadcast(x.shape, tuple(target)), moved(self.ref, [x], shape.content))

    def ref(self, x: np.ndarray, shape: np.ndarray) -> np.ndarray:
        target = tuple(int(d) for d in shape)
        return np.broadcast_to(x, np.broadcast_shapes(x.shape, target)).copy()

    samples = grid(x=[(3, 1), (1,), integers(1, 1)], shape=[exactly([2, 3, 4]), exactly([1, 1])])


@register()
class Reverse(Op):
    """x turned around along the first of the axes in the operand axis int32."""

    form = Form("Reverse")

    def infer(self, x: Spec, axis: Spec) -> Spec:
        return Spec(x.dtype, x.shape)

    def ref(self, x: np.ndarray, axis: np.ndarray) -> np.ndarray:
        return np.flip(x, int(axis.reshape(-1)[0]))

    samples = grid(x=[(2, 3, 4)], axis=[exactly([0]), exactly([-1]), exactly([1])])


@register()
class ReverseSequence(Op):
    """The first lengths[b] elements along `seq_dim` turned around, for each b along `batch_dim`."""

    batch_dim: int = 0
    seq_dim: int = 1

    form = Form("ReverseSequence", "ReverseSequenceParam", {"batch_dim": "batchDim", "seq_dim": "seqDim"})

    def infer(self, x: Spec, lengths: Spec) -> Spec:
        if x.shape is not None and normal_axis(self.batch_dim, len(x.shape)) == normal_axis(self.seq_dim, len(x.shape)):
            raise ValueError("batch and sequence are the same axis")
        return Spec(x.dtype, x.shape)

    def ref(self, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        axes = (self.batch_dim, self.seq_dim)
        sequences = np.moveaxis(x, axes, (0, 1))
        steps = np.arange(sequences.shape[1])
        places = np.where(steps < lengths[:, None], lengths[:, None] - 1 - steps, steps)
        turned = np.take_along_axis(sequences, places.reshape(*places.shape, *(1,) * (x.ndim - 2)), 1)
        return np.ascontiguousarray(np.moveaxis(turned, (0, 1), axes))

    samples = grid(batch_dim=[0], seq_dim=[1, 2], x=[(2, 5, 5)], lengths=[exactly([3, 5]), exactly([0, 1])]) + grid(
        batch_dim=[1], seq_dim=[0], x=[(5, 2)], lengths=[exactly([3, 5])]
    )


@register()
class MatrixBandPart(Op):
    """The matrices of x, zero outside of a band; operands lower and upper int32 count diagonals, negative is all."""

    form = Form("MatrixBandPart")

    def infer(self, x: Spec, lower: Spec, upper: Spec) -> Spec:
        if x.rank is not None and x.rank < 2:
            raise ValueError("a band needs matrices")
        return Spec(x.dtype, x.shape)

    def ref(self, x: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
        below, above = int(lower.reshape(-1)[0]), int(upper.reshape(-1)[0])
        offset = np.arange(x.shape[-1]) - np.arange(x.shape[-2])[:, None]
        inside = ((below < 0) | (-offset <= below)) & ((above < 0) | (offset <= above))
        return np.where(inside, x, x.dtype.type(0))

    samples = grid(x=[(2, 4, 5)], lower=[exactly(-1), exactly(1)], upper=[exactly(0), exactly(2), exactly(-1)])
