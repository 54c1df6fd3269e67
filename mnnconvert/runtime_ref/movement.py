"""What ops that move elements mean, for every backend: the order of axes, indices, views, and tables of elements.

A view is a function of a numpy array, which may be a phantom (strided.py), of the shape of the first operand. It gives
the elements of the result in order, maybe under another shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from mnnconvert.ir import I32, Node
from mnnconvert.ir.types import normal_axis
from mnnconvert.ops import slicing
from mnnconvert.ops.arrange import BroadcastTo, Reverse, Tile
from mnnconvert.ops.layout import ConvertTensor, axis_order
from mnnconvert.ops.padding import NUMPY_MODES, Padding
from mnnconvert.ops.shape import Permute, Transpose
from mnnconvert.ops.vision import DepthToSpace, SpaceToDepth
from mnnconvert.runtime_ref.lower import Lowering

OUTSIDE = -1
MOST_AXES = 8  # of gathers and scatters of elements
REDUCTIONS = {"": 0, "ADD": 1, "MUL": 2, "MAXIMUM": 3, "MINIMUM": 4}
"""What scatters do, by the numbers of the kernels."""

View = Callable[[np.ndarray], np.ndarray]

ORDERS = (Permute, Transpose, ConvertTensor)
CUTS = (slicing.StridedSlice, slicing.SliceTf, Reverse)
VIEWS = (DepthToSpace, SpaceToDepth, Tile, BroadcastTo)


def order(ctx: Lowering, node: Node) -> list[int] | None:
    """The operand's axis that each axis of the result is, for `ORDERS`; None where it depends on data."""
    op: Any = node.op
    rank = len(ctx.shape(node.inputs[0]))
    if isinstance(op, ConvertTensor):
        return list(axis_order(op.source, op.dest, rank))
    dims = op.dims or range(rank)[::-1] if isinstance(op, Permute) else ctx.constant(node.inputs[1])
    return None if dims is None else [normal_axis(int(d), rank) for d in np.ravel(dims)]


def index(ctx: Lowering, node: Node) -> list[Any] | None:
    """The index, of numpy's basic kind and with a place for each axis, that `CUTS` stand for; None if data says it."""
    shape = ctx.shape(node.inputs[0])
    if isinstance(node.op, slicing.StridedSlice):
        return _strided(ctx, node)
    place = ctx.constant(node.inputs[1])
    if place is None:
        return None
    if isinstance(node.op, Reverse):
        return [
            slice(None, None, -1) if i == int(place.reshape(-1)[0]) % len(shape) else slice(None)
            for i in range(len(shape))
        ]
    return [slice(int(b), int(b) + s) for b, s in zip(place.reshape(-1), ctx.shape(node.output), strict=True)]


def _strided(ctx: Lowering, node: Node) -> list[Any] | None:
    op: Any = node.op
    bounds = [ctx.constant(v) for v in node.inputs[1:]]
    if any(b is None for b in bounds):
        return None
    shape, found = ctx.shape(node.inputs[0]), []
    axes = iter(shape)
    for pick in op.picks(len(shape), *([int(v) for v in b.reshape(-1)] for b in bounds if b is not None)):
        size = None if pick is None else next(axes)
        found.append(slicing.python_slice(size, *pick) if isinstance(pick, tuple) and size is not None else pick)
    return found


def view(ctx: Lowering, node: Node) -> View | None:
    """What `VIEWS` do; None where it depends on data."""
    op: Any = node.op
    if isinstance(op, DepthToSpace):
        return lambda x: _depth_to_space(x, op.block, op.mode)
    if isinstance(op, SpaceToDepth):
        return lambda x: _space_to_depth(x, op.block)
    if isinstance(op, BroadcastTo):
        return lambda x: np.broadcast_to(x, ctx.shape(node.output))
    times = ctx.constant(node.inputs[1])
    return None if times is None else lambda x: _tiled(x, times.reshape(-1).tolist())


def _depth_to_space(x: np.ndarray, block: int, mode: str) -> np.ndarray:
    n, c, h, w = x.shape
    if mode == "CRD":
        return x.reshape(n, c // block**2, block, block, h, w).transpose(0, 1, 4, 2, 5, 3)
    return x.reshape(n, block, block, c // block**2, h, w).transpose(0, 3, 4, 1, 5, 2)


def _space_to_depth(x: np.ndarray, block: int) -> np.ndarray:
    n, c, h, w = x.shape
    return x.reshape(n, c, h // block, block, w // block, block).transpose(0, 3, 5, 1, 2, 4)


def _tiled(x: np.ndarray, times: Sequence[int]) -> np.ndarray:
    sizes = [size for pair in zip(times, x.shape, strict=True) for size in pair]
    return np.broadcast_to(np.expand_dims(x, tuple(range(0, len(sizes), 2))), sizes)


def parts(axis: int, sizes: Sequence[int]) -> list[tuple[slice, ...]]:
    """Indices of parts of these sizes that follow each other on an axis."""
    starts = accumulate(sizes, initial=0)
    return [(*(slice(None),) * axis, slice(start, start + size)) for start, size in zip(starts, sizes, strict=False)]


def axis_operand(ctx: Lowering, node: Node, place: int, default: int = 0) -> int | None:
    """The axis that an operand names, or the default without it; None where it is not known."""
    if len(node.inputs) <= place:
        return default
    axis = ctx.constant(node.inputs[place])
    return None if axis is None else int(axis.reshape(-1)[0])


def numbered(name: str, numbers: Sequence[int]) -> dict[str, int]:
    """Eight parameters of one name, padded with 1 behind."""
    return {f"{name}{i}": n for i, n in enumerate([*numbers, *[1] * (MOST_AXES - len(numbers))])}


def elements(sizes: Sequence[int], picked: Sequence[int], axis: int) -> dict[str, int]:
    """Parameters of the kernels that go along `picked` indices on an array of `sizes`, but for that of the axis."""
    strides = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    front = [1] * (MOST_AXES - len(sizes))
    steps = [0 if i == axis else s for i, s in enumerate(strides)]
    named = numbered("n", [*front, *picked]) | numbered("s", [*front, *steps])
    return {"stride": strides[axis], **named}


def neighbours(indices: np.ndarray, size: int) -> slice | None:
    """The slice of an axis that known indices pick, where they follow each other."""
    places = np.where(indices < 0, indices + size, indices).reshape(-1).astype(np.int64)
    if not places.size or places[0] < 0 or places[-1] >= size or (np.diff(places) != 1).any():
        return None
    return slice(int(places[0]), int(places[0]) + places.size)


def borders(ctx: Lowering, node: Node) -> tuple[list[tuple[int, int]], np.ndarray] | None:
    """Elements to add before and after each axis, and the value of a Padding; None where they depend on data."""
    pads = ctx.constant(node.inputs[1])
    value = ctx.constant(node.inputs[2]) if len(node.inputs) > 2 else np.zeros(1, I32)
    return None if pads is None or value is None else ([(b, a) for b, a in pads.reshape(-1, 2).tolist()], value)


def without(shape: Sequence[int], pairs: Sequence[tuple[int, int]]) -> list[slice] | None:
    """The index of what is left where borders are only taken away."""
    if any(p > 0 for pair in pairs for p in pair):
        return None
    return [slice(-b, s + a) for (b, a), s in zip(pairs, shape, strict=True)]


def padded(op: Padding, shape: Sequence[int], pairs: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    """For each axis which element stands at each place of the padded one; `OUTSIDE`: the value."""
    return [_padded(s, b, a, op.mode) for (b, a), s in zip(pairs, shape, strict=True)]


def _padded(size: int, before: int, after: int, mode: str) -> np.ndarray:
    kept = np.arange(size)[max(0, -before) : size - max(0, -after)]
    grow = (max(0, before), max(0, after))
    if mode == "CONSTANT":
        return np.pad(kept, grow, constant_values=OUTSIDE)
    return np.pad(kept, grow, NUMPY_MODES[mode])
