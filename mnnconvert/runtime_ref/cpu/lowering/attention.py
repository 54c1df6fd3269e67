"""Attention: the op, with what it keeps from run to run, and the call of the kernel that patterns share.

Heads are strides, whichever axis they are on; so are heads of queries that share keys.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.ir import F32, Node, Value
from mnnconvert.ops.attention import Attention, is_causal
from mnnconvert.runtime_ref.cache import KvCache
from mnnconvert.runtime_ref.cpu.lower import Growth, Lowering, lowers
from mnnconvert.runtime_ref.cpu.lowering.movement import copy
from mnnconvert.runtime_ref.lower import Buffer, Sizes, Tensor
from mnnconvert.runtime_ref.products import Operand, geometry, source_of

WIDEST = 1024  # numbers of a key and its value, up to which a tile of them stays in the caches


@lowers(Attention)
def attention(ctx: Lowering, node: Node) -> bool:
    """The op. Where keys and values are kept, their memory and number are found anew at each run."""
    op, (q, k, v, *rest) = node.op, node.inputs
    assert isinstance(op, Attention)
    batch, queries, heads, depth = ctx.shape(q)
    keys, key_heads, width = *ctx.shape(k)[1:3], ctx.shape(v)[3]
    shape = ctx.shape(rest[0]) if rest else ()
    added = bool(shape) and rest[0].dtype == F32
    cache = ctx.caches.of(node) if ctx.caches is not None else None
    lead, causal, columns = (batch, heads, queries), is_causal(shape), shape[-1] if added else 0
    fits = not added or (len(shape) <= 4 and all(m in (1, n) for m, n in zip(shape[-2::-1], lead[::-1], strict=False)))
    if cache is not None and not fits:
        what = f"Attention failed: a mask {list(shape)} on scores {[*lead, keys]}"
        raise ConversionError.of("run-failed", what, node=node.name)
    if not fits or not 0 < depth <= WIDEST - width or (cache is None and columns > keys):
        return False
    mask = ctx.read(rest[0]) if added else None
    common = {
        "mask": mask, "sinks": ctx.read(rest[1]) if len(rest) > 1 else None, "batch": batch, "heads": heads,
        "key_heads": key_heads, "queries": queries, "depth": depth, "width": width, "scale": op.factor(depth),
        **_mask_strides(shape if added else ()),
    }  # fmt: skip
    if cache is not None:
        ctx.growths.append(Growth(cache, ctx.shape(k), ctx.shape(v), columns, 2 * ctx.lanes))
        kept = {"keys": _kept(cache, "keys"), "values": _kept(cache, "values"), "place": _kept(cache, "place")}
        ctx.call("attention_cached", q=ctx.read(q), k=ctx.read(k), v=ctx.read(v), y=ctx.result(node.output), **kept,
                 mask_columns=columns, causal=causal, **common)  # fmt: skip
        return True
    sources = {name: rows_of(ctx, value, False) for name, value in (("q", q), ("k", k), ("v", v))}
    strides = {
        f"{name}_{axis}": stride
        for name, source in sources.items()
        for axis, stride in zip(("batch", "row", "head"), source.strides, strict=False)
    }
    ctx.call("attention", **{name: source.tensor for name, source in sources.items()}, y=ctx.result(node.output),
             **common, **strides, keys=keys, k_column=1, y_batch=queries * heads * width, y_head=width,
             y_row=heads * width, seen=1 + keys - queries if causal else keys, seen_step=int(causal),
             unmasked=keys - columns, replaces=False, blank=0, cap=0.0,
             capacity=0)  # fmt: skip
    return True


def _mask_strides(shape: Sizes) -> dict[str, int]:
    """Strides of a mask [batch or 1, heads or 1, queries or 1, columns], of which axes in front may be absent."""
    wide = (1,) * (4 - len(shape)) + shape
    steps = [math.prod(wide[i + 1 :]) if size > 1 else 0 for i, size in enumerate(wide[:-1])]
    return dict(zip(("mask_batch", "mask_head", "mask_row"), steps, strict=True))


def _kept(cache: KvCache, name: str) -> Tensor:
    """An array of a cache, wherever it lies at a run."""
    return Tensor(Buffer(0, kept=lambda: getattr(cache, name)), (), F32)


# The call of a pattern.


class Axis(NamedTuple):
    """A batch axis: its size, and its strides in q, k, v, mask and y."""

    size: int
    q: int
    k: int
    v: int
    mask: int
    y: int

    def follows(self, other: Axis) -> bool:
        """Whether this axis and the one before it are one."""
        return other[1:] == tuple(stride * self.size for stride in self[1:])


@dataclass
class Scores:
    """How scores are made of products: cap tanh(scale product / cap), if there is a cap, plus a mask.

    Query i sees the first seen + i keys, or all where `seen` is None. Where a mask that `replaces` is not 0, it is what
    scores become. `blank` is a number of attention.cpp.
    """

    scale: float = 1.0
    cap: float = 0.0
    seen: int | None = None
    replaces: bool = False
    blank: int = 0


def attend(ctx: Lowering, operands: Sequence[Operand | None], leads: Sequence[Sizes], scores: Scores) -> None:
    """Append the calls for y = softmax(scores(q k^T)) v.

    `operands` are q [..., S, D], k [..., T, D], v [..., T, W], the mask [..., S, T] or None, and y [..., S, W], whose
    batch axes are those of `leads`. These are cut into sizes that all have in common.
    """
    q, k, v, added, y = operands
    assert q is not None and k is not None and v is not None and y is not None
    batch = common_sizes(leads)
    assert batch is not None  # whoever plans a pattern asks before
    split = [_split(operand, lead, batch) for operand, lead in zip(operands, leads, strict=True)]
    *loops, outer, inner, group = _axes([Axis(*axis) for axis in zip(batch, *split, strict=True)])
    strides = {
        f"{name}_{level}": getattr(axis, name)
        for name in ("q", "k", "v", "mask", "y")
        for level, axis in (("batch", outer), ("head", inner if name in "kv" else group))
    }
    queries, depth = q.view.shape[-2:]
    keys, width = v.view.shape[-2:]
    for place in itertools.product(*(range(axis.size) for axis in loops)):
        at = [sum(i * axis[j] for i, axis in zip(place, loops, strict=True)) for j in range(1, 6)]
        parts = [x and _part(ctx, x.tensor, start) for x, start in zip(operands, at, strict=True)]
        ctx.call(
            "attention", **dict(zip(("q", "k", "v", "mask", "y"), parts, strict=True)), sinks=None, batch=outer.size,
            heads=inner.size * group.size, key_heads=inner.size, queries=queries, keys=keys, depth=depth, width=width,
            **strides, q_row=q.strides[-2], k_row=k.strides[-2], k_column=k.strides[-1] or 1, v_row=v.strides[-2],
            mask_row=added.strides[-2] if added else 0, y_row=y.strides[-2],
            seen=keys if scores.seen is None else scores.seen, seen_step=int(scores.seen is not None), unmasked=0,
            replaces=scores.replaces, blank=scores.blank, capacity=0, scale=scores.scale, cap=scores.cap,
        )  # fmt: skip


def common_sizes(shapes: Sequence[Sizes]) -> list[int] | None:
    """Sizes whose products, of neighbours, are the sizes of all shapes; None if there are none."""
    cuts = sorted({math.prod(shape[i:]) for shape in shapes for i in range(len(shape) + 1)})
    if len({math.prod(shape) for shape in shapes}) > 1 or any(b % a for a, b in itertools.pairwise(cuts)):
        return None
    return [b // a for a, b in itertools.pairwise(cuts)][::-1]


def rows_of(ctx: Lowering, value: Value, swapped: bool, either: bool = False) -> Operand:
    """Where the rows of an operand [..., rows, size] lie.

    Elements of a row are neighbours, or those of a column if `either`; a copy is made where that is not so.
    """
    return as_rows(ctx, source_of(ctx, value), swapped, either)


def as_rows(ctx: Lowering, operand: Operand, swapped: bool, either: bool = False) -> Operand:
    """As `rows_of`, of a view."""
    view = np.swapaxes(operand.view, -1, -2) if swapped else operand.view
    near = [size == 1 or stride == view.itemsize for size, stride in zip(view.shape, view.strides, strict=True)]
    if near[-1] or (either and near[-2]):
        return Operand(operand.tensor, view)
    made = ctx.tensor(view.shape)
    copy(ctx, operand.tensor, view, made, geometry(ctx, made))
    return Operand(made, geometry(ctx, made))


def _split(operand: Operand | None, lead: Sizes, batch: Sequence[int]) -> list[int]:
    """Strides of the batch axes, when these are split into `batch`; all 0 without an operand."""
    if operand is None:
        return [0] * len(batch)
    view = np.broadcast_to(operand.view, (*lead, *operand.view.shape[-2:]))
    axes = [(size, stride // view.itemsize) for size, stride in zip(lead, view.strides, strict=False) if size > 1]
    strides: list[int] = []
    for size in reversed(batch):
        whole, stride = axes[-1]
        strides.insert(0, stride)
        axes[-1] = whole // size, stride * size
        if whole == size:
            axes.pop()
    return strides


def _axes(axes: Sequence[Axis]) -> list[Axis]:
    """At least three axes: ..., heads that have keys of their own, and heads that share these. Neighbours are merged.

    The strides of the last two are such that queries, masks and results of all heads are equally far apart.
    """
    merged: list[Axis] = []
    for axis in axes:
        if merged and axis.follows(merged[-1]):
            merged[-1] = Axis(merged[-1].size * axis.size, *axis[1:])
        else:
            merged.append(axis)
    one = Axis(1, 0, 0, 0, 0, 0)
    last = merged.pop() if merged else one
    if last.k or last.v:
        heads = [last, last._replace(size=1)]
    elif merged and all(getattr(merged[-1], name) == getattr(last, name) * last.size for name in ("q", "mask", "y")):
        heads = [merged.pop(), last]
    else:
        heads = [one, last]
    return [*(merged or [one]), *heads]


def _part(ctx: Lowering, tensor: Tensor, at: int) -> Tensor:
    return ctx.view(tensor, (tensor.size - at,), at) if at else tensor
