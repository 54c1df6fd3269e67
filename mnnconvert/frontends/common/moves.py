"""Axes and sizes while a graph is built: reordering, cutting, and shapes that are partly computed by the model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mnnconvert.frontends.common.compose import calc
from mnnconvert.ir import Builder, Value
from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.reduction import Reduction
from mnnconvert.ops.shape import Permute, Reshape, ShapeOf, Squeeze, Unsqueeze
from mnnconvert.ops.slicing import StridedSlice

Part = int | tuple[Value, int]  # a size: a number, or the size of a value on an axis
FAR = 2**31 - 1


def clip(b: Builder, x: Value, low: Value | float, high: Value | float) -> Value:
    return calc(b, "MINIMUM", calc(b, "MAXIMUM", x, low), high)


def reduced(b: Builder, operation: str, x: Value, *axes: int, keep: bool = True) -> Value:
    return b.add(Reduction(operation, axes, keep), x)


def permuted(b: Builder, x: Value, order: Sequence[int]) -> Value:
    """`x` with its axes in another order; itself when that is the order they have."""
    return x if list(order) == list(range(len(order))) else b.add(Permute(tuple(order)), x)


def unsqueezed(b: Builder, x: Value, *axes: int) -> Value:
    return b.add(Unsqueeze(tuple(axes)), x) if axes else x


def squeezed(b: Builder, x: Value, *axes: int) -> Value:
    return b.add(Squeeze(tuple(axes)), x) if axes else x


def sliced(b: Builder, x: Value, axis: int, start: int, end: int = FAR) -> Value:
    """x[start:end] on one axis."""
    return b.add(StridedSlice(), x, b.ints([start]), b.ints([end]), b.ints([axis]), b.ints([1]))


def part(x: Value, axis: int) -> Part:
    """The size of an axis, as a number where it is known."""
    size = None if x.shape is None else x.shape[axis]
    return size if isinstance(size, int) else (x, axis)


def size_of(b: Builder, size: Part) -> Value:
    """A size as an int32 vector of one element."""
    if isinstance(size, int):
        return b.ints([size])
    value, axis = size
    return b.add(ShapeOf(axis, axis + 1 if axis != -1 else None), value)


def size_product(b: Builder, parts: Sequence[Part]) -> Part | Value:
    """The product of sizes: a number, a size that needs no arithmetic, or an int32 vector of one element."""
    number = int(np.prod([p for p in parts if isinstance(p, int)], dtype=np.int64))
    others = [p for p in parts if not isinstance(p, int)]
    if not others or (number == 1 and len(others) == 1):
        return others[0] if others else number
    value = size_of(b, number)
    for other in others:
        value = calc(b, "MUL", value, size_of(b, other))
    return value


def reshaped(b: Builder, x: Value, sizes: Sequence[Part | Value]) -> Value:
    """`x` in the given sizes; one that is not known is inferred, more are computed when the model runs."""
    open_places = [i for i, s in enumerate(sizes) if not isinstance(s, int)]
    dims = tuple(s if isinstance(s, int) else -1 for s in sizes)
    if dims == x.shape:
        return x
    if len(open_places) <= 1 and 0 not in dims:
        return b.add(Reshape(dims), x)
    if not open_places:  # a size 0 means just that
        return b.add(Reshape(dims, "NHWC"), x)
    vectors = [s if isinstance(s, Value) else size_of(b, s) for s in sizes]
    return b.add(Reshape(), x, b.add(Concat(0), *vectors) if len(vectors) > 1 else vectors[0])
