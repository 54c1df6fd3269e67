"""Attention as one kernel, behind one that puts keys into panels. Heads are strides."""

from __future__ import annotations

import math
from typing import Any

from mnnconvert.ir import F32, Node, Value
from mnnconvert.ops.attention import Attention, is_causal
from mnnconvert.runtime_ref.lower import Sizes, Tensor
from mnnconvert.runtime_ref.opencl.lower import MOST_ELEMENTS, Lowering, Variant, lowers

VECTORS = 2  # of keys, in a panel
KEYS = {8: 64, 4: 16}
"""Keys that an item looks at at once, by the lanes of the device."""
QUERIES = {8: (6, 4, 2, 1), 4: (2, 1)}
WIDEST = 256  # numbers of a value, of which an item keeps some in private memory


@lowers(Attention)
def attention(ctx: Lowering, node: Node) -> bool:
    """The op, where no keys are kept from run to run."""
    op, (q, k, v, *rest) = node.op, node.inputs
    assert isinstance(op, Attention)
    batch, queries, heads, depth = ctx.shape(q)
    keys, key_heads, width = *ctx.shape(k)[1:3], ctx.shape(v)[3]
    shape = ctx.shape(rest[0]) if rest else ()
    added = bool(shape) and rest[0].dtype == F32
    lead, columns = (batch, heads, queries), shape[-1] if added else 0
    fits = not added or (len(shape) <= 4 and all(m in (1, n) for m, n in zip(shape[-2::-1], lead[::-1], strict=False)))
    kept = ctx.caches is not None and ctx.caches.of(node) is not None
    large = any(math.prod(ctx.shape(x)) >= MOST_ELEMENTS for x in (*node.inputs, node.output))
    if kept or large or not fits or not 0 < width <= WIDEST or not depth or columns > keys:
        return False
    causal = is_causal(shape)
    mask = ctx.read(rest[0]) if added else None
    sinks = ctx.read(rest[1]) if len(rest) > 1 else None
    panels, place = _panels(ctx, k)
    common: dict[str, Any] = {
        "q": ctx.read(q), "k": panels, "v": ctx.read(v), "mask": mask, "sinks": sinks, "y": ctx.result(node.output),
        "batch": batch, "heads": heads, "key_heads": key_heads, "queries": queries, "keys": keys, "depth": depth,
        "width": width, "q_batch": queries * heads * depth, "q_row": heads * depth, "q_head": depth, "k_place": place,
        "v_batch": keys * key_heads * width, "v_row": key_heads * width, "v_head": width, "unmasked": keys - columns,
        "seen": 1 + keys - queries if causal else keys, "seen_step": int(causal), "scale": op.factor(depth),
        **_mask_strides(shape if added else ()), **{f"{name}_at": 0 for name in ("mask", "sinks")},
    }  # fmt: skip
    common |= {f"{name}_at": t.offset // t.dtype.itemsize for name, t in (("mask", mask), ("sinks", sinks)) if t}
    ctx.choose([_variant(ctx, common, rows) for rows in _rows(ctx, queries)])
    return True


def _rows(ctx: Lowering, queries: int) -> list[int]:
    """How many queries an item may compute, the best number first."""
    return sorted(QUERIES[ctx.lanes], key=lambda rows: (-(-queries // rows) * (rows + 1), rows))[:2]


def _variant(ctx: Lowering, arguments: dict[str, Any], rows: int) -> Variant:
    size = (-(-arguments["queries"] // rows), arguments["heads"], arguments["batch"])
    defines = {"P": rows, "B": VECTORS, "KEYS": KEYS[ctx.lanes], "WIDTH": -(-arguments["width"] // ctx.lanes)}
    return ctx.variant("attention", size, (1, 1, 1) if ctx.device.is_cpu else (8, 8, 1), defines, **arguments)


def _panels(ctx: Lowering, k: Value) -> tuple[Tensor, int]:
    """Keys [B,T,K,D] in panels, a place for each head of each batch, and the elements from place to place."""
    batch, keys, heads, depth = ctx.shape(k)
    panel = VECTORS * ctx.lanes
    panels = -(-keys // panel)
    made = ctx.tensor((batch * heads * panels * depth * panel,))
    ctx.call(
        "gemm_pack", (depth, panels, batch * heads), local=(16, 1, 1), defines={"B": VECTORS}, b=ctx.read(k), y=made,
        n=keys, k=depth, places=batch * heads, inner=heads, b_row=1, b_column=heads * depth,
        b_outer=keys * heads * depth, b_inner=depth,
    )  # fmt: skip
    return made, panels * depth * panel


def _mask_strides(shape: Sizes) -> dict[str, int]:
    """Strides of a mask [batch or 1, heads or 1, queries or 1, columns], of which axes in front may be absent."""
    wide = (1,) * (4 - len(shape)) + shape
    steps = [math.prod(wide[i + 1 :]) if size > 1 else 0 for i, size in enumerate(wide[:-1])]
    return dict(zip(("mask_batch", "mask_head", "mask_row"), steps, strict=True))
