"""Convolution: a matrix product where every pixel, or every whole map, is a row of one; else over windows."""

from __future__ import annotations

import math

from mnnconvert.ir import Node
from mnnconvert.ops.convolution import Convolution
from mnnconvert.runtime_ref import products
from mnnconvert.runtime_ref.lower import LAST
from mnnconvert.runtime_ref.opencl.lower import Lowering, lowers
from mnnconvert.runtime_ref.opencl.lowering.coded import coded_convolution
from mnnconvert.runtime_ref.opencl.lowering.spatial import spatial_convolution


@lowers(Convolution)
def convolution(ctx: Lowering, node: Node) -> bool:
    if coded_convolution(ctx, node):
        return True
    return products.dense(ctx, node) or _pointwise(ctx, node) or spatial_convolution(ctx, node)


def _pointwise(ctx: Lowering, node: Node) -> bool:
    """A kernel of 1 x 1: the pixels of all images are rows."""
    op, (x, weight, *bias) = node.op, node.inputs
    assert isinstance(op, Convolution)
    outputs, inputs, *kernel = ctx.shape(weight)
    moved = set(kernel) != {1} or any(op.pads) or set(op.strides) != {1}
    if moved or op.group > 1 or weight.tensor is None or 0 in ctx.shape(x):
        return False
    epilogue = ctx.epilogue(node, op.activation)
    a = ctx.read_map(x)
    b = products.packed_right(ctx, weight, True, (outputs, inputs))
    ctx.fuse(node, epilogue)
    residual = ctx.read_map(epilogue.residual) if epilogue.residual else None
    rows = math.prod(ctx.shape(x)) // inputs
    ctx.product(a=a, b=b.tensor, y=ctx.result(epilogue.value, LAST), bias=ctx.read(bias[0]) if bias else None,
                residual=residual, m=rows, n=outputs, k=inputs, outer=1, inner=1, a_row=ctx.channels(x), a_column=1,
                b_row=0, b_column=1, y_row=ctx.channels(epilogue.value), a_outer=0, a_inner=0, b_outer=0, b_inner=0,
                y_outer=0, y_inner=0, packed=True, **epilogue.params)  # fmt: skip
    return True
