"""Attention: the op, with what it keeps from run to run."""

from __future__ import annotations

from mnnconvert.errors import ConversionError
from mnnconvert.ir import F32, Node
from mnnconvert.ops.attention import Attention
from mnnconvert.runtime_ref import attention as shared
from mnnconvert.runtime_ref.cache import KvCache
from mnnconvert.runtime_ref.cpu.lower import Growth, Lowering, lowers
from mnnconvert.runtime_ref.lower import Buffer, Tensor


@lowers(Attention)
def attention(ctx: Lowering, node: Node) -> bool:
    """The op. Where keys and values are kept, their memory and number are found anew at each run."""
    cache = ctx.caches.of(node) if ctx.caches is not None else None
    if cache is None:
        return shared.attention(ctx, node)
    form = shared.form_of(ctx, node)
    if not form.fits:
        scores = [form.batch, form.heads, form.queries, form.keys]
        what = f"Attention failed: a mask {list(form.mask_shape)} on scores {scores}"
        raise ConversionError.of("run-failed", what, node=node.name)
    if not ctx.attends(form.depth, form.width):
        return False
    common = form.arguments(ctx)
    ctx.growths.append(Growth(cache, ctx.shape(form.k), ctx.shape(form.v), form.columns, 2 * ctx.lanes))
    kept = {"keys": _kept(cache, "keys"), "values": _kept(cache, "values"), "place": _kept(cache, "place")}
    ctx.call("attention_cached", q=ctx.read(form.q), k=ctx.read(form.k), v=ctx.read(form.v), y=ctx.result(node.output),
             **kept, mask_columns=form.columns, causal=form.causal, **common)  # fmt: skip
    return True


def _kept(cache: KvCache, name: str) -> Tensor:
    """An array of a cache, wherever it lies at a run."""
    return Tensor(Buffer(0, kept=lambda: getattr(cache, name)), (), F32)
