"""Attention that a graph spells as two products and what is between: found before lowering, computed by one kernel.

What it looks like is in `ops/attention_form.py`. The kernel takes the place of the last product: by then all operands
are there. Transposes of heads are strides, as they are for products, and so are keys that are repeated for several
heads. Masks that are known are put into one; one that hides what is behind a query becomes the kernel's own causality.
Others are put together at each run, without the heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from mnnconvert.ir import F32, Node, Value
from mnnconvert.ops.attention_form import (
    NEVER,
    AttentionForm,
    Mask,
    Repeated,
    UnlikeError,
    attention_form,
    folded,
    seen_by_first,
)
from mnnconvert.ops.elementwise import Binary, Select, Unary
from mnnconvert.runtime_ref.attention import Scores, as_rows, attend, common_sizes, rows_of
from mnnconvert.runtime_ref.chain import Chain
from mnnconvert.runtime_ref.lower import Epilogue, Lowering, Sizes, Tensor
from mnnconvert.runtime_ref.products import Operand, geometry, source_of, target_of
from mnnconvert.runtime_ref.strided import phantom

MOST_KNOWN = 1 << 22  # elements of a mask that is computed while a program is built


def find_attention(ctx: Lowering, first: Node) -> None:
    """Plans the attention that begins with a product, if the kernel can take it."""
    try:
        form = attention_form(ctx, first)
    except UnlikeError:
        return
    if form.sinks is not None:
        return
    shape, result = ctx.shape(first.output), ctx.shape(form.last.output)
    depth = ctx.shape(first.inputs[0])[-2 if first.op.transpose_a else -1]  # type: ignore[attr-defined]
    known = common_sizes(_leads(ctx, form)) is not None
    if known and ctx.attends(depth, result[-1]) and 0 not in shape:
        ctx.plan(form.inner, form.last, lambda ctx, _: _call(ctx, form))


def _leads(ctx: Lowering, form: AttentionForm) -> list[Sizes]:
    """The batch axes of q, k, v, mask and y."""
    scores, result = (ctx.shape(node.output)[:-2] for node in (form.first, form.last))
    mask = form.masked[:-2] if form.masks else scores
    return [scores, _lead(ctx, form.k, scores), _lead(ctx, form.v, result), mask, result]


def _lead(ctx: Lowering, operand: Repeated, lead: Sizes) -> Sizes:
    return (*ctx.shape(operand.source)[:-2], operand.group) if operand.nodes else lead


def _call(ctx: Lowering, form: AttentionForm) -> bool:
    ctx.skip(*form.inner)
    first, last, scores = form.first, form.last, Scores(form.scale, form.cap, blank=form.blank)
    shape, result = ctx.shape(first.output), ctx.shape(last.output)
    q = rows_of(ctx, form.q, first.op.transpose_a)  # type: ignore[attr-defined]
    k = _heads(ctx, form.k, not first.op.transpose_b, either=True)  # type: ignore[attr-defined]
    v = _heads(ctx, form.v, last.op.transpose_b)  # type: ignore[attr-defined]
    y = target_of(ctx, last.output, Epilogue(last.output), result)
    added = _added(ctx, form, scores, (shape[-2], shape[-1]))
    attend(ctx, (q, k, v, added, y), _leads(ctx, form), scores)
    return True


def _heads(ctx: Lowering, operand: Repeated, swapped: bool, either: bool = False) -> Operand:
    """Rows [..., rows, size] of keys or values; [batch, heads, group, rows, size] where they are repeated."""
    if not operand.nodes:
        return rows_of(ctx, operand.source, swapped, either)
    rows = as_rows(ctx, source_of(ctx, operand.source), swapped != operand.swapped, either)
    view = rows.view[:, :, None]
    return Operand(rows.tensor, np.broadcast_to(view, (*view.shape[:2], operand.group, *view.shape[3:])))


# Masks.


def _added(ctx: Lowering, form: AttentionForm, scores: Scores, rows: tuple[int, int]) -> Operand | None:
    """What is added to the scores, all masks together; `scores` is told where they are causality and nothing else."""
    masks = form.masks
    contents = {mask: content for mask in masks if (content := _content(ctx, mask.value)) is not None}
    known = folded([(mask, contents[mask]) for mask in masks if mask in contents])
    seen = seen_by_first(known, rows) if contents else None
    rest = list(masks)
    if seen is not None and (len(contents) == len(masks) or np.isneginf(known[known <= NEVER]).all()):
        scores.seen, rest = seen, [mask for mask in masks if mask not in contents]
    if not rest:
        return None
    scores.replaces = all(mask.allowed is not None for mask in rest)
    if len(rest) == 1 and not scores.replaces:
        tensor = ctx.read(rest[0].value)
    elif len(contents) == len(masks):
        tensor = ctx.literal(np.ascontiguousarray(known, F32))
    else:
        tensor = _together(ctx, rest, contents)
    return Operand(tensor, np.broadcast_to(geometry(ctx, tensor), form.masked))


def _content(ctx: Lowering, value: Value) -> np.ndarray | None:
    """The content of a mask that follows from shapes and constants, be it through a comparison of these."""
    if value.tensor is None and value not in ctx.specs:
        return None  # an earlier program has used it up
    content = ctx.constant(value)
    node = value.producer
    if content is not None or node is None or math.prod(ctx.shape(value)) > MOST_KNOWN:
        return content
    if not isinstance(node.op, Binary | Unary | Select):
        return None
    operands = [_content(ctx, v) for v in node.inputs]
    known = [x for x in operands if x is not None]
    if len(known) < len(operands):
        return None
    with np.errstate(all="ignore"):
        return np.asarray(node.op.ref(*known))


def _together(ctx: Lowering, masks: Sequence[Mask], contents: Mapping[Mask, np.ndarray]) -> Tensor:
    """What masks do to a score of 0, one after the other, as a tensor that is computed at each run."""
    tensors = [ctx.literal(contents[m]) if m in contents else ctx.read(m.value) for m in masks]
    shape = np.broadcast_shapes(*(tensor.shape for tensor in tensors))
    chain = Chain(shape)
    total = chain.constant(0.0)
    for mask, tensor in zip(masks, tensors, strict=True):
        x = chain.operand(phantom(tensor.shape, tensor.dtype))
        if mask.allowed is None:
            total = chain.apply("ADD", total, x)
            continue
        x = chain.apply("TO_BOOL" if tensor.dtype.kind == "f" else "TO_BOOL.i", x)
        choices = total, chain.constant(mask.filler)
        total = chain.apply("SELECT", x, *(choices if mask.allowed else choices[::-1]))
    chain.result(total)
    return ctx.chained(chain, tensors)
