"""Products as launches of kernels/gemm.cl: the shape of tiles, and the variants that tuning chooses from."""

from __future__ import annotations

from typing import Any

from mnnconvert.runtime_ref.lower import Tensor
from mnnconvert.runtime_ref.opencl.lower import Lowering, Variant
from mnnconvert.runtime_ref.opencl.tiles import best_rows, vectors_of

START = 1
"""What a tile costs besides its rows, in rows."""
DEPTH, GROUP, GROUP_TILE = 16, 8, 4  # of gemm_local: numbers along k, items along each side, rows of an item


def append(ctx: Lowering, *, packed: bool, activation: int, b_column: int, **arguments: Any) -> None:
    """Append a product; the arguments are those of the CPU's kernel `gemm_f32`."""
    if not packed and b_column != 1 and arguments["n"] > 1:
        arguments |= _in_panels(ctx, b_column=b_column, **arguments)
        packed = True
    m, n = arguments["m"], arguments["n"]
    tensors = {name: arguments[name] for name in ("bias", "residual")}
    arguments |= {f"{name}_at": 0 for name, tensor in tensors.items() if tensor is None}
    vectors = vectors_of(ctx.lanes, n)
    panels, places = -(-n // (vectors * ctx.lanes)), arguments["outer"] * arguments["inner"]

    def variant(rows: int, group: int) -> Variant:
        tiles = -(-m // rows)
        along = 0 if ctx.device.is_cpu else 1  # neighbours read the same panel, or the same rows
        defines = {"P": rows, "B": vectors, "PANELS": int(packed), "ROWS": along, "ACTIVATION": activation}
        size, local = (tiles, panels, places), (group, 1, 1)
        if along:
            size, local = (panels, tiles, places), (group, 1, 1)
        return ctx.variant("gemm", size, local, defines, **arguments)

    likely = best_rows(ctx.lanes, vectors, m, START)[:2]
    best = likely[0]
    count = -(-m // best) if ctx.device.is_cpu else panels
    default = _group(count)
    variants = [variant(best, default)]
    variants += [variant(rows, group) for rows in likely for group in (16, 4, 1) if (rows, group) != (best, default)]
    if packed and m > GROUP_TILE:
        variants += _with_local_memory(ctx, panels, places, activation, arguments)
    if packed and arguments["b"].buffer.device is not None and not arguments["b"].offset:
        variants += _with_image(ctx, variants[0], panels, arguments)
    ctx.choose(variants)


def _group(count: int) -> int:
    """Items of a group, for so many tiles: few sizes, as drivers compile for each."""
    return next(size for size in (16, 4, 1) if count >= size)


def _in_panels(
    ctx: Lowering, *, b: Tensor, n: int, k: int, outer: int, inner: int, b_row: int, b_column: int, b_outer: int,
    b_inner: int, **_: Any,
) -> dict[str, Any]:  # fmt: skip
    """The right operand in panels, packed by a kernel in each run."""
    vectors = vectors_of(ctx.lanes, n)
    panels = -(-n // (vectors * ctx.lanes))
    whole = panels * k * vectors * ctx.lanes
    places = (outer if b_outer else 1, inner if b_inner else 1)
    made = ctx.tensor((places[0] * places[1] * whole,))
    ctx.call("gemm_pack", (k, panels, places[0] * places[1]), defines={"B": vectors}, b=b, y=made, n=n, k=k,
             places=places[0] * places[1], inner=places[1], b_row=b_row, b_column=b_column, b_outer=b_outer,
             b_inner=b_inner)  # fmt: skip
    return {"b": made, "b_outer": whole * places[1] if b_outer else 0, "b_inner": whole if b_inner else 0}


def _with_local_memory(
    ctx: Lowering, panels: int, places: int, activation: int, arguments: dict[str, Any]
) -> list[Variant]:
    vectors = vectors_of(ctx.lanes, arguments["n"])
    tile = GROUP * GROUP_TILE, GROUP * vectors * ctx.lanes
    if sum(tile) * DEPTH * 4 > ctx.limits.local_bytes or ctx.limits.work_group < GROUP * GROUP:
        return []
    defines = {"P": GROUP_TILE, "B": vectors, "GROUP_ROWS": GROUP, "GROUP_COLUMNS": GROUP, "DEPTH": DEPTH,
               "ACTIVATION": activation}  # fmt: skip
    size = (panels, -(-arguments["m"] // GROUP_TILE), places)
    return [ctx.variant("gemm_local", size, (GROUP, GROUP, 1), defines, **arguments)]


def _with_image(ctx: Lowering, like: Variant, panels: int, arguments: dict[str, Any]) -> list[Variant]:
    """The right operand, a constant, as an image: what lies in panels is a line per step along k there."""
    b, k, line = arguments["b"], arguments["k"], panels * vectors_of(ctx.lanes, arguments["n"]) * ctx.lanes
    lines = b.size // line
    if max(line // 4, lines) > ctx.limits.image_width:
        return []

    def made() -> Tensor:
        return ctx.held_image(b, lambda array: array.reshape(-1, panels, k, line // panels).swapaxes(1, 2))

    steps = {name: int(arguments[name]) // line for name in ("b_outer", "b_inner")}
    defines = {**like.defines, "IMAGE": 1}
    return [ctx.variant("gemm", like.size, like.local, defines, **{**arguments, **steps, "b": made, "b_at": 0})]
