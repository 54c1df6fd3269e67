"""The geometry of copies: numpy views without memory, and the parameters of the kernel `copy_strided` between two.

    x = phantom((2, 3, 4), np.float32)
    y = phantom((4, 3, 2), np.float32)
    copy_parameters(x.transpose(2, 1, 0), y)  # {"bytes": 4, "x_at": 0, ...}

Whatever numpy can express as a view (a transpose, a slice, a reversal, a broadcast) the kernel copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

MOST_AXES = 8
UNITS = (2, 4, 8, 16)  # bytes of runs that the kernel moves as one element

Axis = tuple[int, int, int]  # size, stride in x, stride in y; strides in bytes


def phantom(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """An array of a shape whose elements must not be touched: it owns one, however many it has."""
    dtype = np.dtype(dtype)
    steps = [dtype.itemsize]
    for size in reversed(shape[1:]):
        steps.insert(0, steps[0] * max(size, 1))
    return as_strided(np.zeros(1, dtype), tuple(shape), steps[: len(shape)])


def split(view: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """A view under another shape of the same elements; ValueError where these strides do not allow it."""
    view = view.view()
    try:
        view.shape = tuple(shape)
    except AttributeError:
        raise ValueError(f"{view.shape} with strides {view.strides} is no {shape}") from None
    return view


def copy_parameters(x: np.ndarray, y: np.ndarray) -> dict[str, int]:
    """Parameters of `copy_strided` that make `y[...] = x`, both views of phantoms or of real arrays.

    `x` is broadcast to the shape of `y`. `x_at` and `y_at` count from the first bytes of the arrays that own the
    memory. Raises ValueError where more than eight axes are left after merging.
    """
    x = np.broadcast_to(x, y.shape)
    axes: list[Axis] = []
    if y.size:
        pairs = zip(y.shape, x.strides, y.strides, strict=True)
        axes = merged([axis for axis in pairs if axis[0] > 1])
    unit = y.itemsize
    if axes and axes[-1][1:] == (unit, unit) and axes[-1][0] * unit in UNITS:
        unit *= axes.pop()[0]
    if len(axes) > MOST_AXES:
        raise ValueError(f"a copy over {len(axes)} axes")
    axes = [(1 if y.size else 0, 0, 0)] * (MOST_AXES - len(axes)) + axes
    named = {f"{name}{i}": axis[k] for k, name in enumerate("nxy") for i, axis in enumerate(axes)}
    return {"bytes": unit, "x_at": offset(x), "y_at": offset(y), **named}


def merged(axes: Sequence[Axis]) -> list[Axis]:
    """The axes by falling stride in y; those that follow each other on both sides are one."""
    result: list[Axis] = []
    for size, x, y in sorted(axes, key=lambda axis: -axis[2]):
        if result and result[-1][1:] == (x * size, y * size):
            result[-1] = (result[-1][0] * size, x, y)
        else:
            result.append((size, x, y))
    return result


def offset(view: np.ndarray) -> int:
    """Where a view begins in the memory of its owner, in bytes."""
    owner = view
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    return int(view.__array_interface__["data"][0] - owner.__array_interface__["data"][0])
