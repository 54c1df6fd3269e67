"""Copies between two numpy views of phantoms (strided.py) as launches of the kernels of kernels/movement.cl."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mnnconvert.runtime_ref.lower import Sizes
from mnnconvert.runtime_ref.strided import MOST_AXES, Axis, merged, offset

TYPES = {1: "uchar", 2: "ushort", 4: "uint"}
"""What elements are moved as, by their bytes."""
ITEM = 1024  # elements that an item copies on a processor
TILE, TILE_ROWS = 8, 32


class Copy(NamedTuple):
    """A kernel, its work-items, and its numbers."""

    kernel: str
    size: Sizes
    numbers: dict[str, int]


def plan(source: np.ndarray, target: np.ndarray, item: int) -> Copy:
    """What makes `target[...] = source`, which is broadcast; up to `item` elements for a work-item.

    Raises ValueError where more than eight axes are left after merging.
    """
    unit = target.itemsize
    pairs = zip(target.shape, np.broadcast_to(source, target.shape).strides, target.strides, strict=True)
    axes = merged([(n, x // unit, y // unit) for n, x, y in pairs if n > 1])
    if len(axes) > MOST_AXES:
        raise ValueError(f"a copy over {len(axes)} axes")
    places = {"x_at": offset(source) // unit, "y_at": offset(target) // unit}
    across = next((i for i, axis in enumerate(axes[:-1]) if axis[1] == 1 and axes[-1][2] == 1), None)
    if across is not None and min(axes[-1][0], axes[across][0]) >= TILE:
        return _tiles(axes, across, places)
    if len(axes) > 1 and axes[-1][1:] != (1, 1) and axes[-1][0] < TILE < axes[-2][0]:
        axes[-2:] = axes[:-3:-1]
    axes = [(1, 0, 0)] * (MOST_AXES - len(axes)) + axes
    runs = axes[-1][0] == 1 or axes[-1][1:] == (1, 1)
    chunk = min(item, axes[-1][0])
    rows = _product(axes[:-2])
    numbers = _numbered(axes) | places | {"chunk": chunk, "rows": rows}
    if runs:
        del numbers["x7"], numbers["y7"]
    return Copy("copy_runs" if runs else "copy_steps", (-(-axes[-1][0] // chunk), axes[-2][0], rows), numbers)


def _tiles(axes: Sequence[Axis], across: int, places: dict[str, int]) -> Copy:
    (rows, xs, _), (columns, _, ys) = axes[-1], axes[across]
    outer = [axis for i, axis in enumerate(axes[:-1]) if i != across]
    outer = [(1, 0, 0)] * (MOST_AXES - 2 - len(outer)) + outer
    count = _product(outer)
    numbers = {"rows": rows, "xs": xs, "columns": columns, "ys": ys, "count": count} | places | _numbered(outer)
    return Copy("copy_tiles", (-(-rows // TILE_ROWS), -(-columns // TILE), count), numbers)


def _numbered(axes: Sequence[Axis]) -> dict[str, int]:
    return {f"{name}{i}": axis[k] for k, name in enumerate("nxy") for i, axis in enumerate(axes)}


def _product(axes: Sequence[Axis]) -> int:
    return int(np.prod([n for n, _, _ in axes], dtype=np.int64))


def group(size: Sequence[int], work: int) -> Sizes:
    """Items of a group on a processor, where each touches `work` elements: few kinds, as each has to be compiled."""
    wide = max(range(len(size)), key=lambda i: size[i])
    count = 16 if size[wide] >= 16 and work <= ITEM else 1
    return tuple(count if i == wide else 1 for i in range(len(size)))


def table_offsets(tables: Sequence[np.ndarray], strides: Sequence[int], sizes: Sequence[int]) -> tuple[list[Any], int]:
    """Offsets of a pick in elements, an array per axis, and the run that moves at once; negative: outside.

    `tables` say which of the `sizes` elements of each axis, that lie `strides` elements apart, stand in the result.
    Axes at the end that stay as they are and lie without gaps become the run; neighbours that stay become one.
    """
    run, found = 1, list(zip(tables, strides, sizes, strict=True))
    while found and _stays(found[-1][0], found[-1][2]) and found[-1][1] == run:
        run *= found.pop()[2]
    offsets: list[np.ndarray] = []
    last: tuple[int, int] | None = None  # stride and size of the axis behind, where that stays as it is
    for table, stride, size in reversed(found):
        stays = _stays(table, size)
        if stays and last is not None and stride == last[0] * last[1]:
            offsets[0] = (np.arange(size)[:, None] * stride + offsets[0]).reshape(-1)
            last = (last[0], last[1] * size)
            continue
        offsets.insert(0, np.where(table < 0, -1, table.astype(np.int64) * stride))
        last = (stride, size) if stays else None
    return offsets, run


def _stays(table: np.ndarray, size: int) -> bool:
    return len(table) == size and bool((table == np.arange(size)).all())
