"""Cutting out: splits into parts, and slices with begin, end and step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mnnconvert.ir.types import Dim, Shape, Spec, add, ceildiv, floordiv, normal_axis
from mnnconvert.ops.base import Emission, Fields, Form, Op, register
from mnnconvert.ops.content import moved, numbers
from mnnconvert.ops.samples import exactly, grid, integers

FAR = 1 << 30  # an end beyond this means "to the end" whatever the size is


@register()
class Slice(Op):
    """x split along `axis` into several results.

    `sizes` are the sizes of the parts (one may be -1: the rest; a single one is repeated), else there are `parts`
    equal parts. The operand sizes int32 overrides both.
    """

    axis: int = 0
    sizes: tuple[int, ...] = ()
    parts: int = 0

    form = Form("Slice", "Slice")
    layout = "any"

    def infer(self, x: Spec, sizes: Spec | None = None) -> tuple[Spec, ...]:
        given = self.sizes if sizes is None else tuple(numbers(sizes) or ())
        if x.shape is None:
            return (Spec(x.dtype),) * max(1, self.parts, len(given))
        axis = normal_axis(self.axis, len(x.shape))
        unknown = sizes is not None and not given
        parts = [None] * max(1, self.parts) if unknown else self._part_sizes(x.shape[axis], given)
        shapes = [(*x.shape[:axis], s, *x.shape[axis + 1 :]) for s in parts]
        if any(not isinstance(s[axis], int) for s in shapes):
            return tuple(Spec(x.dtype, s) for s in shapes)
        cuts = np.cumsum([int(s[axis]) for s in shapes])[:-1]  # type: ignore[arg-type]
        contents = [moved(lambda a, at=i: np.split(a, cuts, axis)[at], [x]) for i in range(len(shapes))]
        return tuple(Spec(x.dtype, s, c) for s, c in zip(shapes, contents, strict=True))

    def _part_sizes(self, size: Dim, given: Sequence[int]) -> list[Dim]:
        """The sizes of the parts of an axis, symbolic where the axis is."""
        if len(given) == 1 and isinstance(size, int) and given[0] > 0:
            return [min(given[0], size - at) for at in range(0, size, given[0])]
        if given:
            stated = sum(s for s in given if s >= 0)
            if isinstance(size, int) and (stated > size or (stated < size and min(given) >= 0)):
                raise ValueError(f"parts of {list(given)} do not make up {size}")
            return [add(size, -stated) if s < 0 else s for s in given]
        if self.parts < 1:
            return [None]
        if isinstance(size, int) and size % self.parts:
            raise ValueError(f"{size} cannot be split into {self.parts} equal parts")
        return [floordiv(size, self.parts)] * self.parts

    def ref(self, x: np.ndarray, sizes: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
        given = self.sizes if sizes is None else tuple(int(s) for s in sizes)
        parts = self._part_sizes(x.shape[self.axis], given)
        if parts == [None]:
            raise ValueError("it is not known into how many parts to split")
        cuts = np.cumsum([int(s) for s in parts])[:-1]  # type: ignore[arg-type]
        return tuple(np.ascontiguousarray(part) for part in np.split(x, cuts, self.axis))

    def emit(self, *inputs: Spec) -> Emission:
        points = list(self.sizes) if self.sizes else [self.parts] if self.parts else None
        source = "TORCH" if self.sizes else "TENSORFLOW"
        return Emission("Slice", "Slice", {"axis": self.axis, "slicePoints": points, "sourceType": source})

    @classmethod
    def parse(cls, type: str, fields: Fields) -> Slice:
        axis, source = fields["axis"], fields["sourceType"]
        points = tuple(int(p) for p in fields.get("slicePoints", ()))
        if source == "CAFFE":
            return cls(axis, (*np.diff((0, *points)).tolist(), -1))
        if len(points) == 1 and source != "TORCH":
            return cls(axis, parts=points[0] if source == "TENSORFLOW" else 0)
        return cls(axis, points)

    def for_results(self, count: int) -> Slice:
        """The op when it is known to have `count` results, which settles equal parts that no field counts."""
        return self if self.sizes or self.parts else Slice(self.axis, parts=count)

    samples = (
        grid(axis=[1, -2], sizes=[(1, 3, 2), (2, -1), (6, 0), (4,)], x=[(2, 6, 4)])
        + grid(axis=[1], parts=[1, 2, 3], x=[(2, 6)])
        + grid(axis=[0], sizes=[(1, -1)], x=[integers(4)])
    )


def slice_bounds(size: int, start: int, end: int, step: int) -> tuple[int, int]:
    """Start and end within an axis as ONNX clamps them; an end of -1 is before the first element."""
    start, end = (v + size if v < 0 else v for v in (start, end))
    if step > 0:
        return min(max(start, 0), size), min(max(end, 0), size)
    return min(max(start, 0), size - 1), min(max(end, -1), size - 1)


def python_slice(size: int, start: int, end: int, step: int) -> slice:
    first, last = slice_bounds(size, start, end, step)
    return slice(first, None if last < 0 else last, step) if size else slice(0, 0)


def slice_size(size: Dim, start: Dim, end: Dim, step: Dim) -> Dim:
    """How many elements a slice takes; a symbol where the axis or a bound is one, None where nothing can be said.

    A symbolic bound is taken to lie inside the axis: where it does not, the model does not fit itself.
    """
    if not isinstance(step, int) or step == 0:
        return None
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        if size == 0:
            return 0
        first, last = slice_bounds(size, start, end, step)
        return max(0, -((first - last) // step))
    if step < 0:
        whole = isinstance(start, int) and (start == -1 or start >= FAR) and isinstance(end, int) and end <= -FAR
        return ceildiv(size, -step) if whole else None
    return _forward_size(size, start, end, step)


def _negated(dim: str) -> Dim:
    """n of the symbol `(-1*n)`; None for other symbols."""
    if not dim.startswith("(-1*"):
        return None
    rest, depth = dim[4:-1], 0
    for c in rest:
        depth += (c == "(") - (c == ")")
        if c == "*" and not depth:
            return f"({rest})"  # a product is written in brackets
    return rest


def _forward_size(size: Dim, start: Dim, end: Dim, step: int) -> Dim:
    if start == end and start is not None:
        return 0
    to_end = isinstance(end, int) and end >= FAR
    if isinstance(start, str) and (length := _negated(start)) is not None:
        return ceildiv(length, step) if to_end else None
    if not isinstance(start, int):
        return None
    if start < 0:
        return ceildiv(_at_most(size, -start), step) if to_end else None
    if to_end or end == size:
        last = size
    elif isinstance(end, int):
        last = add(size, end) if end < 0 else _at_most(size, end)
    elif isinstance(end, str) and (length := _negated(end)) is not None:
        return 0 if length == size else None
    else:
        last = end
    return ceildiv(add(last, -start), step)


def _at_most(size: Dim, limit: int) -> Dim:
    """min(size, limit); an axis is taken to have at least one element."""
    return (
        limit
        if limit == 1
        else None
        if size is None
        else min(size, limit)
        if isinstance(size, int)
        else f"min({limit},{size})"
    )


def _index_shape(shape: Shape, picks: Sequence[Any]) -> Shape:
    """The shape of x[picks]; a pick is None (a new axis), a size-less int (drops an axis) or (start, end, step)."""
    result: list[Dim] = []
    axes = iter(shape)
    for pick in picks:
        if pick is None:
            result.append(1)
        elif isinstance(pick, tuple):
            result.append(slice_size(next(axes), *pick))
        else:
            next(axes)
    return tuple(result)


@register()
class StridedSlice(Op):
    """x[start:end:step]. Operands int32.

    `from_type` 1: x, starts, ends[, axes[, steps]], clamped as ONNX says. `from_type` 0: x, begin, end, strides for the
    leading axes, with TensorFlow's bit masks.
    """

    begin_mask: int = 0
    end_mask: int = 0
    ellipsis_mask: int = 0
    new_axis_mask: int = 0
    shrink_axis_mask: int = 0
    from_type: int = 1

    form = Form("StridedSlice", "StridedSliceParam", {
        "begin_mask": "beginMask", "end_mask": "endMask", "ellipsis_mask": "ellipsisMask",
        "new_axis_mask": "newAxisMask", "shrink_axis_mask": "shrinkAxisMask", "from_type": "fromType",
    })  # fmt: skip

    def infer(self, x: Spec, begin: Spec, end: Spec, *rest: Spec) -> Spec:
        bounds = [b.sizes for b in (begin, end, *rest)]
        if x.shape is None:
            return Spec(x.dtype)
        if any(b is None for b in bounds):
            return Spec(x.dtype, self._partly(x.shape, begin, end, rest))
        picks = self.picks(len(x.shape), *bounds)  # type: ignore[arg-type]
        contents = [b.content for b in (begin, end, *rest)]
        return Spec(x.dtype, _index_shape(x.shape, picks), moved(self.ref, [x], *contents))

    def _partly(self, shape: Shape, begin: Spec, end: Spec, rest: Sequence[Spec]) -> Shape | None:
        """What can be said when some bounds are not known at all."""
        if self.from_type != 1:
            masks = self.ellipsis_mask | self.new_axis_mask | self.shrink_axis_mask
            return None if masks else (None,) * len(shape)
        axes = numbers(rest[0]) if rest else None
        if not rest:
            count = begin.shape[0] if begin.shape else end.shape[0] if end.shape else None
            axes = list(range(count)) if isinstance(count, int) else None
        if axes is None:
            return (None,) * len(shape)
        cut = {normal_axis(a, len(shape)) for a in axes}
        return tuple(None if i in cut else d for i, d in enumerate(shape))

    def picks(self, rank: int, begin: list[Dim], end: list[Dim], *rest: list[Dim]) -> list[Any]:
        """One pick per axis of the result, in the sense of `_index_shape`."""
        if self.from_type == 1:
            return _onnx_picks(rank, begin, end, *rest)
        return self._tf_picks(rank, begin, end, rest[0] if rest else [1] * len(begin))

    def _tf_picks(self, rank: int, begin: list[Dim], end: list[Dim], strides: list[Dim]) -> list[Any]:
        picks: list[Any] = []
        consuming = sum(not self._bit("new_axis", i) and not self._bit("ellipsis", i) for i in range(len(begin)))
        if consuming > rank:
            raise ValueError(f"{consuming} bounds for {rank} axes")
        for i, (first, last, step) in enumerate(zip(begin, end, strides, strict=True)):
            if self._bit("ellipsis", i):
                picks += [(0, FAR, 1)] * (rank - consuming)
            elif self._bit("new_axis", i):
                picks.append(None)
            elif self._bit("shrink_axis", i):
                picks.append(first if first is not None else "?")
            else:
                forward = not isinstance(step, int) or step > 0
                start = (0 if forward else FAR) if self._bit("begin", i) else first
                picks.append((start, (FAR if forward else -FAR) if self._bit("end", i) else last, step))
        used = sum(p is not None for p in picks)
        return picks + [(0, FAR, 1)] * (rank - used)

    def _bit(self, mask: str, index: int) -> bool:
        return bool(getattr(self, f"{mask}_mask") >> index & 1)

    def ref(self, x: np.ndarray, begin: np.ndarray, end: np.ndarray, *rest: np.ndarray) -> np.ndarray:
        bounds: list[list[Dim]] = [[int(v) for v in b.reshape(-1)] for b in (begin, end, *rest)]
        index: list[Any] = []
        axes = iter(x.shape)
        for pick in self.picks(x.ndim, *bounds):
            size = None if pick is None else next(axes)
            index.append(python_slice(size, *pick) if isinstance(pick, tuple) and size is not None else pick)
        return np.array(x[tuple(index)])

    samples = (
        grid(x=[(4, 8, 6)], starts=[exactly([1, -3]), exactly([0, 9])],
             ends=[exactly([3, 2**31 - 1]), exactly([-1, 5])],
             axes=[exactly([0, -1]), exactly([1, 2])])
        + grid(x=[(4, 8), integers(4, 3)], starts=[exactly([-1])], ends=[exactly([-(2**31)])], axes=[exactly([0])],
               steps=[exactly([-1]), exactly([-3])])
        + grid(x=[(4, 8)], starts=[exactly([1])], ends=[exactly([3])], from_type=[1])
        + grid(x=[(4, 8, 6)], begin=[exactly([1, 2])], end=[exactly([3, 5])], strides=[exactly([1, 2])], from_type=[0],
               begin_mask=[0, 1], end_mask=[0, 2], shrink_axis_mask=[0, 1], new_axis_mask=[0, 2])
        + grid(x=[(4, 8, 6)], begin=[exactly([1, 0, 2])], end=[exactly([3, 0, 5])], strides=[exactly([1, 1, 2])],
               from_type=[0], ellipsis_mask=[2], shrink_axis_mask=[0, 4])
    )  # fmt: skip


def _onnx_picks(rank: int, starts: list[Dim], ends: list[Dim], axes: list[Dim] | None = None,
                steps: list[Dim] | None = None) -> list[Any]:  # fmt: skip
    count = len(starts)
    places = list(range(count)) if axes is None else axes
    picks: list[Any] = [(0, FAR, 1)] * rank
    for axis, start, end, step in zip(places, starts, ends, steps or [1] * count, strict=True):
        if not isinstance(axis, int):
            return [(None, None, None)] * rank
        picks[normal_axis(axis, rank)] = (start, end, step)
    return picks


@register()
class SliceTf(Op):
    """x[begin : begin + size] on every axis; operands begin and size int32, a size of -1 reaches to the end."""

    form = Form("SliceTf")

    def infer(self, x: Spec, begin: Spec, size: Spec) -> Spec:
        first, sizes = begin.sizes, size.sizes
        if x.shape is None or first is None or sizes is None:
            rank = x.rank if x.rank is not None else len(first) if first is not None else None
            return Spec(x.dtype, None if rank is None else (None,) * rank)
        rows = zip(x.shape, first, sizes, strict=True)
        shape = tuple(self._size(*row) for row in rows)
        return Spec(x.dtype, shape, moved(self.ref, [x], begin.content, size.content))

    def _size(self, axis: Dim, begin: Dim, size: Dim) -> Dim:
        """What is left of `size` where the axis is known to end before; it may be open until the model runs."""
        if isinstance(size, int) and size < 0:
            return slice_size(axis, begin, FAR, 1)
        known = isinstance(axis, int) and isinstance(begin, int) and isinstance(size, int)
        return slice_size(axis, begin, begin + size, 1) if known else size  # type: ignore[operator]

    def ref(self, x: np.ndarray, begin: np.ndarray, size: np.ndarray) -> np.ndarray:
        index = tuple(slice(b, None if s < 0 else b + s) for b, s in zip(begin.tolist(), size.tolist(), strict=True))
        return np.ascontiguousarray(x[index])

    samples = grid(x=[(4, 6)], begin=[exactly([1, 0]), exactly([0, 2])], size=[exactly([2, -1]), exactly([-1, 3])])
