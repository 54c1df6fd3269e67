"""Element-wise ops: as many as hang together become one call of the kernel `chain`; blocked feature maps stay so."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mnnconvert.ir import Node
from mnnconvert.runtime_ref.chain import MOST_OPERANDS, MOST_RESULTS
from mnnconvert.runtime_ref.cpu.chain import encode
from mnnconvert.runtime_ref.cpu.lower import Lowering, lowers
from mnnconvert.runtime_ref.cpu.lowering.normalization import add_and_normalize
from mnnconvert.runtime_ref.fusion import EMIT, WORDS, Builder, build, layouts, region, results
from mnnconvert.runtime_ref.lower import BLOCKED, Tensor

FINITE = {
    "ABS", "NEG", "FLOOR", "CEIL", "SIN", "COS", "SIGN", "ROUND", "ERF", "SIGMOID", "TANH", "HARDSWISH", "GELU", "BNLL",
    "GELU_STANDARD", "SILU", "RELU", "ADD", "SUB", "MUL", "MINIMUM", "MAXIMUM", "LEAKY", "ELU", "CLIP", "THRESHOLD",
    "COPY", "MULADD",
}  # fmt: skip
"""Functions that make no infinity of ordinary numbers: safe on the unused lanes of blocked maps."""


@lowers(*EMIT)
def elementwise(ctx: Lowering, node: Node) -> bool:
    if add_and_normalize(ctx, node):
        return True
    for nodes in (region(ctx, node), [node]):
        for layout in layouts(ctx, nodes):
            built = _build(ctx, nodes, layout)
            if built is not None:
                _call(ctx, nodes, *built)
                return True
    return False


def _build(ctx: Lowering, nodes: Sequence[Node], layout: str) -> tuple[Builder, np.ndarray, np.ndarray] | None:
    """The program of a chain, before anything is called; None where the kernel cannot do it."""
    builder = build(ctx, nodes, layout)
    if builder is None or (layout == BLOCKED and not _stays_finite(ctx, builder)):
        return None
    try:
        return builder, *encode(builder.chain, ctx.library)
    except ValueError:
        return None


def _stays_finite(ctx: Lowering, builder: Builder) -> bool:
    """Whether the unused lanes of blocks do."""
    functions = {i.function for i in builder.chain.instructions}
    return builder.shape[1] % ctx.lanes == 0 or functions <= FINITE


def _call(ctx: Lowering, nodes: Sequence[Node], builder: Builder, code: np.ndarray, constants: np.ndarray) -> None:
    operands = [builder.tensor(value, shape) for value, shape in builder.sources]
    values = results(ctx, nodes)
    over = _overwritten(builder, operands) if len(values) == 1 else None
    made = [ctx.result(v, builder.layout, over if v.dtype in WORDS else None) for v in values]
    named: dict[str, Tensor | None] = {f"x{i}": None for i in range(MOST_OPERANDS)}
    named |= {f"y{i}": None for i in range(MOST_RESULTS)}
    named |= {f"x{i}": t for i, t in enumerate(operands)} | {f"y{i}": t for i, t in enumerate(made)}
    count = math.prod(builder.chain.shape)
    ctx.call("chain", code=ctx.literal(code), constants=ctx.literal(constants), count=count, **named)
    ctx.skip(*nodes)


def _overwritten(builder: Builder, operands: Sequence[Tensor]) -> Tensor | None:
    """An operand whose place the result may take: it is read once, element by element."""
    for (value, shape), tensor in zip(builder.sources, operands, strict=True):
        alone = sum(t.buffer is tensor.buffer for t in operands) == 1
        if alone and shape == builder.shape and value.dtype in WORDS and tensor.layout == builder.layout:
            return tensor
    return None
