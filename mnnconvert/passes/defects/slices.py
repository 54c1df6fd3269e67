"""Slices: a start in front of the axis is not moved to it, and empty slices with steps get elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mnnconvert.ir import Builder, Dim, Node, Value
from mnnconvert.ops.elementwise import Binary
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.generators import Range
from mnnconvert.ops.shape import Reshape, ShapeOf
from mnnconvert.ops.slicing import FAR, StridedSlice, slice_bounds
from mnnconvert.passes.defects.arithmetic import select
from mnnconvert.passes.defects.base import Defect, RefusedError, axes_operand, rank_of, size_of
from mnnconvert.passes.defects.indices import counts_from_zero, wrapped

Made = Sequence[Value] | None
Bounds = tuple[int, int, int]  # start, end, step


def _slice(b: Builder, node: Node) -> Made:
    op, (x, starts, ends, *rest) = node.op, node.inputs
    if not isinstance(op, StridedSlice) or op.from_type != 1:
        return None
    steps = axes_operand(node, 4) if len(rest) > 1 else None
    if len(rest) > 1 and steps is None:
        raise RefusedError("a slice whose steps are known only at run time")
    known = _known(node, steps)
    if known is not None:
        safe = [_safe(size, bounds) for size, bounds in known]
        if safe == [bounds for _, bounds in known]:
            return None
        new_starts, new_ends, new_steps = (b.ints(list(v)) for v in zip(*safe, strict=True))
        axes = rest[0] if rest else b.ints(np.arange(len(safe)))
        return [b.add(op, x, new_starts, new_ends, axes, new_steps)]
    if steps is None or all(s == 1 for s in steps):
        return None if _is_near(starts) and _is_near(ends) else [_clamped(b, op, x, starts, ends, rest)]
    return None if _is_whole(node, steps) else [_picked(b, node, steps)]


def _known(node: Node, steps: tuple[int, ...] | None) -> list[tuple[int, Bounds]] | None:
    """The size of every axis that is cut, with its bounds; None where some of it is not known."""
    x, starts, ends = node.inputs[0], axes_operand(node, 1), axes_operand(node, 2)
    if starts is None or ends is None or x.shape is None:
        return None
    axes = axes_operand(node, 3) if len(node.inputs) > 3 else tuple(range(len(starts)))
    sizes: list[Dim] = [] if axes is None else [x.shape[a] for a in axes]
    if axes is None or not all(isinstance(s, int) for s in sizes):
        return None
    rows = zip(sizes, starts, ends, steps or (1,) * len(starts), strict=True)
    return [(int(size), (start, end, step)) for size, start, end, step in rows]  # type: ignore[arg-type]


def _safe(size: int, bounds: Bounds) -> Bounds:
    """Bounds that take the same elements and that the runtime understands; the given ones where it does anyway."""
    start, end, step = bounds
    first, last = slice_bounds(size, start, end, step)
    if size == 0 or (last - first) * step <= 0:
        return bounds if step == 1 and start >= 0 and end >= 0 else (0, 0, 1)
    if start < -size or (step > 0 and end < -size):
        return first, last if last >= 0 else -FAR, step
    return bounds


def _is_near(bounds: Value) -> bool:
    """Whether no bound lies in front of an axis, which is taken to have an element."""
    known = bounds.constant
    return bool((known >= -1).all()) if known is not None else counts_from_zero(bounds)


def _is_whole(node: Node, steps: Sequence[int]) -> bool:
    """Whether every step but 1 runs over a whole axis, which is taken to have an element."""
    starts, ends = axes_operand(node, 1), axes_operand(node, 2)
    if starts is None or ends is None:
        return False
    rows = zip(starts, ends, steps, strict=True)
    return all(
        (s == 0 and e >= FAR) if k > 1 else (s in (-1, FAR) and e <= -FAR) if k < 0 else min(s, e) >= -1
        for s, e, k in rows
    )


def _clamped(b: Builder, op: StridedSlice, x: Value, starts: Value, ends: Value, rest: Sequence[Value]) -> Value:
    """The slice with bounds that count from the start, none of them negative."""
    count = next((v.shape[0] for v in (starts, ends, *rest) if v.shape and isinstance(v.shape[0], int)), None)
    if count is None:
        raise RefusedError("a slice of an unknown number of axes")
    axes = rest[0] if rest else b.ints(np.arange(count))
    sizes = b.add(GatherV2(), b.add(ShapeOf(), x), wrapped(b, axes, b.ints(rank_of(x, "a slice"))), b.ints(0))
    bounds = [v if _is_near(v) else _not_negative(b, wrapped(b, v, sizes)) for v in (starts, ends)]
    return b.add(op, x, *bounds, axes, b.ints([1] * count))


def _not_negative(b: Builder, x: Value) -> Value:
    return select(b, b.add(Binary("GREATER"), x, b.ints(0)), x, b.ints(0))


def _picked(b: Builder, node: Node, steps: Sequence[int]) -> Value:
    """Along the axis with steps, elements picked by their numbers; the others are cut."""
    x, starts, ends = node.inputs[:3]
    axes = axes_operand(node, 3) if len(node.inputs) > 3 else tuple(range(len(steps)))
    stepped = [i for i, step in enumerate(steps) if step != 1]
    if axes is None or len(stepped) > 1:  # nothing can be picked from no elements
        raise RefusedError("a slice with steps along several axes, or along axes that are known only at run time")
    i, axis = stepped[0], axes[stepped[0]] % rank_of(x, "a slice")
    size, step = size_of(b, x, axis), max(-FAR, min(steps[i], FAR))  # a larger one overflows in the runtime
    low, high = (b.ints(0), size) if step > 0 else (b.ints(-1), _sum(b, size, -1))
    first, last = (_number(b, v, i, size) for v in (starts, ends))
    first = _between(b, first, b.ints(0) if step < 0 else low, high)
    x = b.add(GatherV2(), x, b.add(Range(), first, _between(b, last, low, high), b.ints(step)), b.ints(axis))
    others = [j for j in range(len(steps)) if j != i]
    if not others:
        return x
    starts, ends = (b.add(GatherV2(), v, b.ints(others), b.ints(0)) for v in (starts, ends))
    return _clamped(b, StridedSlice(), x, starts, ends, [b.ints([axes[j] for j in others])])


def _sum(b: Builder, x: Value, number: int) -> Value:
    return b.add(Binary("ADD"), x, b.ints(number))


def _number(b: Builder, bounds: Value, index: int, size: Value) -> Value:
    """A bound as a scalar that counts from the start."""
    known = bounds.constant
    if known is not None:
        bound = b.ints(int(known.reshape(-1)[index]))
    else:
        bound = b.add(Reshape(()), b.add(GatherV2(), bounds, b.ints([index]), b.ints(0)))
    return bound if counts_from_zero(bound) else wrapped(b, bound, size)


def _between(b: Builder, x: Value, low: Value, high: Value) -> Value:
    x = select(b, b.add(Binary("GREATER"), low, x), low, x)
    return select(b, b.add(Binary("GREATER"), x, high), high, x)


DEFECTS = (
    Defect("StridedSlice", "a bound in front of the axis is not moved to it, and an empty slice is not", _slice),
)
