"""What attentions of every backend share: the op, and the call of the kernel for patterns.

Heads are strides, whichever axis they are on; so are heads of queries that share keys.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mnnconvert.ir import F32, Node, Value
from mnnconvert.ops.attention import Attention, is_causal
from mnnconvert.runtime_ref.lower import Lowering, Sizes, Tensor
from mnnconvert.runtime_ref.products import Operand, geometry, source_of

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Form:
    """Sizes of an op Attention: `mask` is one that is added, of `columns`, which may not `fit` the scores."""

    q: Value
    k: Value
    v: Value
    mask: Value | None
    sinks: Value | None
    batch: int
    queries: int
    heads: int
    depth: int
    keys: int
    key_heads: int
    width: int
    mask_shape: Sizes
    scale: float
    causal: bool

    @property
    def columns(self) -> int:
        return self.mask_shape[-1] if self.mask_shape else 0

    @property
    def fits(self) -> bool:
        lead = (self.batch, self.heads, self.queries)
        pairs = zip(self.mask_shape[-2::-1], lead[::-1], strict=False)
        return len(self.mask_shape) <= 4 and all(m in (1, n) for m, n in pairs)

    def arguments(self, ctx: Lowering) -> Arguments:
        """Those of kernels that do not depend on where q, k, v and the result lie."""
        names = ("batch", "heads", "key_heads", "queries", "depth", "width", "scale")
        return {
            "mask": None if self.mask is None else ctx.read(self.mask),
            "sinks": None if self.sinks is None else ctx.read(self.sinks),
            **{name: getattr(self, name) for name in names}, **_mask_strides(self.mask_shape),
        }  # fmt: skip


def form_of(ctx: Lowering, node: Node) -> Form:
    """The sizes of an op Attention."""
    op, (q, k, v, *rest) = node.op, node.inputs
    assert isinstance(op, Attention)
    batch, queries, heads, depth = ctx.shape(q)
    keys, key_heads, width = *ctx.shape(k)[1:3], ctx.shape(v)[3]
    shape = ctx.shape(rest[0]) if rest else ()
    mask = rest[0] if shape and rest[0].dtype == F32 else None
    return Form(q, k, v, mask, rest[1] if len(rest) > 1 else None, batch, queries, heads, depth, keys, key_heads, width,
                shape if mask else (), op.factor(depth), is_causal(shape))  # fmt: skip


def attention(ctx: Lowering, node: Node) -> bool:
    """Lower the op, without what it may keep from run to run."""
    form = form_of(ctx, node)
    if not form.fits or not ctx.attends(form.depth, form.width) or form.columns > form.keys:
        return False
    common = form.arguments(ctx)
    sources = {name: rows_of(ctx, getattr(form, name), False) for name in ("q", "k", "v")}
    strides = {
        f"{name}_{axis}": stride
        for name, source in sources.items()
        for axis, stride in zip(("batch", "row", "head"), source.strides, strict=False)
    }
    heads, width = form.heads, form.width
    ctx.attention(**{name: source.tensor for name, source in sources.items()}, y=ctx.result(node.output), **common,
                  **strides, keys=form.keys, k_column=1, y_batch=form.queries * heads * width, y_head=width,
                  y_row=heads * width, seen=1 + form.keys - form.queries if form.causal else form.keys,
                  seen_step=int(form.causal), unmasked=form.keys - form.columns, replaces=False, blank=0,
                  cap=0.0)  # fmt: skip
    return True


def _mask_strides(shape: Sizes) -> dict[str, int]:
    """Strides of a mask [batch or 1, heads or 1, queries or 1, columns], of which axes in front may be absent."""
    wide = (1,) * (4 - len(shape)) + shape
    steps = [math.prod(wide[i + 1 :]) if size > 1 else 0 for i, size in enumerate(wide[:-1])]
    return dict(zip(("mask_batch", "mask_head", "mask_row"), steps, strict=True))


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
    scores become. `blank` is a number of attention_form.py.
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
        ctx.attention(
            **dict(zip(("q", "k", "v", "mask", "y"), parts, strict=True)), sinks=None, batch=outer.size,
            heads=inner.size * group.size, key_heads=inner.size, queries=queries, keys=keys, depth=depth, width=width,
            **strides, q_row=q.strides[-2], k_row=k.strides[-2], k_column=k.strides[-1] or 1, v_row=v.strides[-2],
            mask_row=added.strides[-2] if added else 0, y_row=y.strides[-2],
            seen=keys if scores.seen is None else scores.seen, seen_step=int(scores.seen is not None), unmasked=0,
            replaces=scores.replaces, blank=scores.blank, scale=scores.scale, cap=scores.cap,
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
    made = ctx.copied(operand.tensor, view)
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
