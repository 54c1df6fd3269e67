"""Attention as launches of kernels/attention.cl, behind one that puts keys into panels."""

from __future__ import annotations

from typing import Any

from mnnconvert.runtime_ref.lower import Tensor
from mnnconvert.runtime_ref.opencl.lower import Lowering, Variant
from mnnconvert.runtime_ref.opencl.tiles import best_rows

VECTORS = 2  # of keys, in a panel
KEYS = {16: 64, 8: 64, 4: 16}
"""Keys that an item looks at at once, by the lanes of the device."""
GPU_QUERIES = 2
"""Queries that an item of a GPU may compute; those of a processor are as many as there are registers for."""
START = 1
"""What a tile costs besides its queries, in queries."""


def append(ctx: Lowering, *, k: Tensor, k_batch: int, k_row: int, k_column: int, k_head: int, **arguments: Any) -> None:
    """Append an attention; the arguments are those of the CPU's kernel `attention`."""
    places = {"batch": arguments["batch"] if k_batch else 1, "key_heads": arguments["key_heads"] if k_head else 1}
    keys, depth, panel = arguments["keys"], arguments["depth"], VECTORS * ctx.lanes
    count, panels = places["batch"] * places["key_heads"], -(-keys // panel)
    made, place = ctx.tensor((count * panels * depth * panel,)), panels * depth * panel
    ctx.call("gemm_pack", (depth, panels, count), local=(16, 1, 1), defines={"B": VECTORS}, b=k, y=made, n=keys,
             k=depth, places=count, inner=places["key_heads"], b_row=k_column, b_column=k_row, b_outer=k_batch,
             b_inner=k_head)  # fmt: skip
    arguments |= {"k": made, "k_batch": place * places["key_heads"] if k_batch else 0, "k_head": place if k_head else 0}
    arguments |= {f"{name}_at": 0 for name in ("mask", "sinks") if arguments[name] is None}
    rows = best_rows(ctx.lanes, VECTORS, arguments["queries"], START)
    fitting = [each for each in rows if ctx.device.is_cpu or each <= GPU_QUERIES]
    ctx.choose([_variant(ctx, arguments, each) for each in fitting[:2]])


def _variant(ctx: Lowering, arguments: dict[str, Any], rows: int) -> Variant:
    size = (-(-arguments["queries"] // rows), arguments["heads"], arguments["batch"])
    defines = {"P": rows, "B": VECTORS, "KEYS": KEYS[ctx.lanes], "WIDTH": -(-arguments["width"] // ctx.lanes)}
    return ctx.variant("attention", size, (1, 1, 1) if ctx.device.is_cpu else (8, 8, 1), defines, **arguments)
