"""Samples of maps at given points."""

from __future__ import annotations

import math
from typing import Any

from mnnconvert.ir import F32, Node
from mnnconvert.ops.vision import GridSample
from mnnconvert.runtime_ref.cpu.lower import Lowering, lowers
from mnnconvert.runtime_ref.lower import BLOCKED


@lowers(GridSample)
def grid_sample(ctx: Lowering, node: Node) -> bool:
    op: Any = node.op
    x, points = node.inputs
    n, channels, *sizes = ctx.shape(x)
    batch, *places, axes = ctx.shape(points)
    if x.dtype != F32 or points.dtype != F32 or batch != n or axes != len(sizes) or 0 in sizes:
        return False
    depth, height, width = [1, *sizes][-3:]
    ctx.call("grid_sample", x=ctx.read_blocked(x), grid=ctx.read(points), y=ctx.result(node.output, BLOCKED), n=n,
             channels=channels, axes=axes, depth=depth, height=height, width=width, points=math.prod(places),
             nearest=op.mode == "NEAREST", zeros=op.padding == "ZEROS", align=op.align_corners)  # fmt: skip
    return True
