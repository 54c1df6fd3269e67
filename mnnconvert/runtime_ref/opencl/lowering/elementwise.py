"""Element-wise ops: as many as hang together become one generated kernel; maps stay with their channels last."""

from __future__ import annotations

from collections.abc import Sequence

from mnnconvert.ir import F32, Node
from mnnconvert.runtime_ref.fusion import EMIT, Builder, layouts, region, results
from mnnconvert.runtime_ref.lower import LAST
from mnnconvert.runtime_ref.opencl.chain import KERNEL, generate
from mnnconvert.runtime_ref.opencl.lower import Lowering, lowers


@lowers(*EMIT)
def elementwise(ctx: Lowering, node: Node) -> bool:
    for nodes in (region(ctx, node), [node]):
        for layout in layouts(ctx, nodes):
            builder = _build(ctx, nodes, layout)
            if builder is not None:
                _call(ctx, nodes, builder)
                return True
    return False


def _build(ctx: Lowering, nodes: Sequence[Node], layout: str) -> Builder | None:
    """The chain of these nodes, before anything is called; None where it cannot be one in this layout."""
    builder = Builder(ctx, ctx.shape(nodes[0].output), layout)
    try:
        for node in nodes:
            builder.registers[node.output] = EMIT[type(node.op)](builder, node)
        for value in results(ctx, nodes):
            builder.chain.result(builder.registers[value], value.dtype)
    except (ValueError, KeyError):
        return None
    if layout == LAST and not _stays(ctx, nodes, builder):
        return None
    return builder


def _stays(ctx: Lowering, nodes: Sequence[Node], builder: Builder) -> bool:
    """Whether operands have a form beside maps, and results are float maps."""
    for value, shape in builder.sources:
        per_channel = builder.stored(shape)[-1] > 1
        if value.dtype != F32 or (per_channel and len(ctx.shape(value)) != len(builder.shape) and value.tensor is None):
            return False
    return all(v.dtype == F32 for v in results(ctx, nodes))


def _call(ctx: Lowering, nodes: Sequence[Node], builder: Builder) -> None:
    operands = {f"x{i}": builder.tensor(value, shape) for i, (value, shape) in enumerate(builder.sources)}
    made = {f"y{i}": ctx.result(value, builder.layout) for i, value in enumerate(results(ctx, nodes))}
    kernel = generate(builder.chain, ctx.lanes)
    ctx.call(KERNEL, kernel.size, text=kernel.text, **operands, **made, **kernel.numbers)
    ctx.skip(*nodes)
