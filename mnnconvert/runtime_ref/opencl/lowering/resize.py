"""Resizing: nearest neighbours, linear and cubic, as sums of taps from tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from mnnconvert.ir import F32, I32, Node
from mnnconvert.ops.resample import CUBIC, LINEAR, Interp
from mnnconvert.runtime_ref.lower import LAST, PLAIN, Tensor
from mnnconvert.runtime_ref.opencl.lower import Lowering, lowers
from mnnconvert.runtime_ref.opencl.lowering.panels import indexable, light, span_of
from mnnconvert.runtime_ref.resize import Taps, fits, nearest, scales_of, taps


@lowers(Interp)
def interp(ctx: Lowering, node: Node) -> bool:
    op: Any = node.op
    value = node.inputs[0]
    if value.dtype != F32 or not fits(ctx, node) or not indexable(ctx, value, node.output):
        return False
    sizes, out = ctx.shape(value)[2:], ctx.shape(node.output)[2:]
    scales = scales_of(ctx, node)
    changed = [s != 1 or op.coordinate_rule() == "TensorflowHalfPixels" for s in scales]
    if not any(changed):
        ctx.alias(node.output, value)
        return True
    axes = zip(sizes, out, scales, changed, strict=True)
    tables = [_table(op, n, m, s) if change else _picked(np.arange(n)) for n, m, s, change in axes]
    layout = LAST if LAST in ctx.layouts(value) or ctx.shape(value)[1] >= ctx.lanes else PLAIN
    x = ctx.read_map(value) if layout == LAST else ctx.read(value)
    *depth, rows, columns = [_picked(np.arange(1)), *tables] if len(tables) == 1 else tables
    *_, height, width = (1, *sizes)
    if depth and changed[0]:
        flat = _picked(np.arange(height * width))
        last = not any(changed[1:])
        shape = (*x.shape[:2], out[0], height, width)
        y = ctx.result(node.output, layout) if last else ctx.tensor(shape, layout=layout)
        _call(ctx, x, y, 1, (sizes[0], height * width), (depth[0], flat))
        if last:
            return True
        x = y
    _call(ctx, x, ctx.result(node.output, layout), out[0] if depth else 1, (height, width), (rows, columns))
    return True


def _table(op: Any, size: int, out: int, scale: float) -> Taps:
    if op.resize_type in (LINEAR, CUBIC):
        return taps(op, size, out, scale)
    return _picked(nearest(op, size, out, scale))


def _picked(places: np.ndarray) -> Taps:
    return places[None].astype(I32), np.ones((1, len(places)), F32)


def _call(ctx: Lowering, x: Tensor, y: Tensor, depth: int, sizes: tuple[int, int], tables: tuple[Taps, Taps]) -> None:
    """Resize planes of these sizes, of which there are `depth` in a map."""
    (rows, row_weights), (columns, column_weights) = tables
    n, channels = x.shape[:2]
    whole = x.layout == LAST
    planes, pitch = (n * depth, ctx.stored(x.shape, LAST)[-1]) if whole else (n * channels * depth, 1)
    out_h, out_w = rows.shape[1], columns.shape[1]
    span = span_of(ctx, pitch) if whole else 1
    ctx.call(
        "resize", (-(-pitch // span), out_w, planes * out_h), local=light(ctx), defines={"WHOLE": int(whole)}, x=x, y=y,
        rows=ctx.literal(rows), row_weights=ctx.literal(row_weights, exactly=True), columns=ctx.literal(columns),
        column_weights=ctx.literal(column_weights, exactly=True), planes=planes, pitch=pitch, span=span,
        height=sizes[0], width=sizes[1], out_h=out_h, out_w=out_w, row_taps=len(rows), column_taps=len(columns),
    )  # fmt: skip
