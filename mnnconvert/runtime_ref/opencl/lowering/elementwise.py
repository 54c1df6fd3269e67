"""Element-wise ops: as many as hang together become one generated kernel; maps stay with their channels last."""

from __future__ import annotations

from collections.abc import Sequence

from mnnconvert.ir import Node
from mnnconvert.runtime_ref.fusion import EMIT, Builder, build, layouts, region, results
from mnnconvert.runtime_ref.opencl.chain import KERNEL, generate
from mnnconvert.runtime_ref.opencl.lower import Lowering, lowers
from mnnconvert.runtime_ref.opencl.lowering.normalization import add_and_normalize


@lowers(*EMIT)
def elementwise(ctx: Lowering, node: Node) -> bool:
    if add_and_normalize(ctx, node):
        return True
    for nodes in (region(ctx, node), [node]):
        for layout in layouts(ctx, nodes):
            builder = build(ctx, nodes, layout)
            if builder is not None and _call(ctx, nodes, builder):
                return True
    return False


def _call(ctx: Lowering, nodes: Sequence[Node], builder: Builder) -> bool:
    try:
        kernel = generate(builder.chain, ctx.lanes)
    except ValueError:
        return False
    operands = {f"x{i}": builder.tensor(value, shape) for i, (value, shape) in enumerate(builder.sources)}
    made = {f"y{i}": ctx.result(value, builder.layout) for i, value in enumerate(results(ctx, nodes))}
    ctx.call(KERNEL, kernel.size, text=kernel.text, **operands, **made, **kernel.numbers)
    ctx.skip(*nodes)
    return True
