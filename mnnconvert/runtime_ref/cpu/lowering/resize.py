"""Resizing: nearest neighbours are picks, linear and cubic sums of taps from tables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mnnconvert.ir import F32, Node
from mnnconvert.ops.resample import CUBIC, LINEAR, Interp
from mnnconvert.runtime_ref.cpu.lower import Lowering, lowers
from mnnconvert.runtime_ref.cpu.lowering.movement import pick
from mnnconvert.runtime_ref.lower import BLOCKED, Tensor
from mnnconvert.runtime_ref.resize import Taps, fits, nearest, scales_of, taps


@lowers(Interp)
def interp(ctx: Lowering, node: Node) -> bool:
    op: Any = node.op
    if node.inputs[0].dtype != F32 or not fits(ctx, node):
        return False
    sizes, out = ctx.shape(node.inputs[0])[2:], ctx.shape(node.output)[2:]
    scales = scales_of(ctx, node)
    changed = [s != 1 or op.coordinate_rule() == "TensorflowHalfPixels" for s in scales]
    if not any(changed):
        ctx.alias(node.output, node.inputs[0])
        return True
    blocked = BLOCKED in ctx.layouts(node.inputs[0])
    x = ctx.read_blocked(node.inputs[0]) if blocked else ctx.read(node.inputs[0])
    axes = list(zip(sizes, out, scales, changed, strict=True))
    if op.resize_type not in (LINEAR, CUBIC):
        places = [nearest(op, n, m, s) if change else np.arange(n) for n, m, s, change in axes]
        return pick(ctx, node.output, x, [np.arange(x.shape[0]), np.arange(x.shape[1]), *places])
    _resize(ctx, node, x, [taps(op, n, m, s) if change else None for n, m, s, change in axes])
    return True


def _resize(ctx: Lowering, node: Node, x: Tensor, tables: list[Taps | None]) -> None:
    """One axis, two, or three: then the depth first, each plane of which is a row."""
    *depth, rows, columns = [None, *tables] if len(tables) == 1 else tables
    sizes, out = x.shape[2:], ctx.shape(node.output)[2:]
    n, blocks = ctx.stored(x.shape, x.layout)[:2]
    unit = ctx.lanes if x.layout == BLOCKED else 1
    planes = n * blocks
    if depth and depth[0] is not None:
        flat = rows is None and columns is None
        shape = (*x.shape[:2], out[0], *sizes[1:])
        y = ctx.result(node.output, x.layout) if flat else ctx.tensor(shape, layout=x.layout)
        _call(ctx, x, y, (planes, sizes[0], math.prod(sizes[1:])), (out[0], math.prod(sizes[1:])), depth[0], None, unit)
        if flat:
            return
        x = y
    height, width = (1, *sizes)[-2:]
    planes *= out[0] if depth else 1
    y = ctx.result(node.output, x.layout)
    _call(ctx, x, y, (planes, height, width), (1, *out)[-2:], rows, columns, unit)


def _call(ctx: Lowering, x: Tensor, y: Tensor, sizes: tuple[int, int, int], out: tuple[int, ...], rows: Taps | None,
          columns: Taps | None, unit: int) -> None:  # fmt: skip
    tables: dict[str, Tensor | None] = {}
    for name, weights, axis in (("rows", "row_weights", rows), ("columns", "column_weights", columns)):
        indices, factors = axis if axis is not None else (None, None)
        if name == "rows" and indices is not None and factors is not None:
            indices, factors = indices.T, factors.T
        tables[name] = None if indices is None else ctx.literal(np.ascontiguousarray(indices))
        tables[weights] = None if factors is None else ctx.literal(np.ascontiguousarray(factors))
    planes, height, width = sizes
    ctx.call("resize", x=x, y=y, planes=planes, height=height, width=width, out_height=out[0], out_width=out[1],
             row_taps=0 if rows is None else len(rows[0]), column_taps=0 if columns is None else len(columns[0]),
             unit=unit, **tables)  # fmt: skip
