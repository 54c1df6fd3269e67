"""Samples of maps at given points."""

from __future__ import annotations

import math

from mnnconvert.ir import F32, Node
from mnnconvert.ops.vision import GridSample
from mnnconvert.runtime_ref.lower import LAST
from mnnconvert.runtime_ref.opencl.lower import Lowering, lowers
from mnnconvert.runtime_ref.opencl.lowering.panels import indexable, light, span_of


@lowers(GridSample)
def grid_sample(ctx: Lowering, node: Node) -> bool:
    op, (x, points) = node.op, node.inputs
    assert isinstance(op, GridSample)
    n, _, *sizes = ctx.shape(x)
    batch, *places, axes = ctx.shape(points)
    fits = x.dtype == points.dtype == F32 and batch == n and axes == len(sizes) and 0 not in sizes
    if not fits or not indexable(ctx, x, node.output):
        return False
    depth, height, width = [1, *sizes][-3:]
    pitch = ctx.channels(x)
    span, count = span_of(ctx, pitch), math.prod(places)
    defines = {"AXES": axes, "NEAREST": int(op.mode == "NEAREST"), "ZEROS": int(op.padding == "ZEROS"),
               "ALIGN": int(op.align_corners)}  # fmt: skip
    ctx.call(
        "grid_sample", (-(-pitch // span), count, n), local=light(ctx), defines=defines, x=ctx.read_map(x),
        points=ctx.read(points), y=ctx.result(node.output, LAST), images=n, pitch=pitch, span=span, depth=depth,
        height=height, width=width, count=count,
    )  # fmt: skip
    return True
