"""Running sums and products."""

from __future__ import annotations

from typing import Any

from mnnconvert.ir import F32, I32, Node
from mnnconvert.ops.reduction import CumProd, CumSum
from mnnconvert.runtime_ref.cpu.lower import Lowering, lowers
from mnnconvert.runtime_ref.reduction import around


@lowers(CumSum)
def running_sum(ctx: Lowering, node: Node) -> bool:
    op: Any = node.op
    axis = ctx.constant(node.inputs[1])
    return axis is not None and _scan(ctx, node, int(axis.reshape(())), op.exclusive, op.reverse)


@lowers(CumProd)
def running_product(ctx: Lowering, node: Node) -> bool:
    op: Any = node.op
    return _scan(ctx, node, op.axis, product=True)


def _scan(
    ctx: Lowering, node: Node, axis: int, exclusive: bool = False, reverse: bool = False, product: bool = False
) -> bool:
    x = node.inputs[0]
    if x.dtype not in (F32, I32) or not ctx.shape(x):
        return False
    outer, n, inner = around(ctx.shape(x), axis)
    ctx.call("scan_f32" if x.dtype == F32 else "scan_i32", x=ctx.read(x), y=ctx.result(node.output),
             outer=outer, n=n, inner=inner, exclusive=exclusive, reverse=reverse, product=product)  # fmt: skip
    return True
