"""Attention: softmax(scale q k^T + mask) v as one kernel, where a graph spells it as two products and what is between.

The kernel takes the place of the last product: by then all operands are there. Transposes of heads are strides, as they
are for products.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mnnconvert.ir import F32, Node, Value
from mnnconvert.ir.types import normal_axis
from mnnconvert.ops.elementwise import Binary, Select
from mnnconvert.ops.matmul import MatMul
from mnnconvert.ops.normalization import Softmax
from mnnconvert.runtime_ref.cpu.lower import VIEWS, Epilogue, Lowering, Sizes, Tensor, same_values
from mnnconvert.runtime_ref.cpu.lowering.matmul import FIRST, Operand, source_of, target_of
from mnnconvert.runtime_ref.cpu.lowering.movement import copy, geometry

WIDEST = 1024  # numbers of a key and its value, up to which a tile of them stays in the caches
MOST_AXES = 6


class Added(NamedTuple):
    """A mask, and the shape of the scores that it is added to."""

    value: Value
    shape: Sizes


class Pattern(NamedTuple):
    """Two products, and what is between them: nodes whose values nobody else reads."""

    first: Node
    between: list[Node]
    last: Node
    scale: float
    mask: Added | None
    blank: bool  # NaN in the softmax counts as zero
    batch: list[int]  # sizes, of which the batch axes of all shapes of the scores are products


def attention(ctx: Lowering, node: Node) -> bool:
    """The rule for both products of an attention: the first is put off until the last."""
    if not ctx.is_ready(node.inputs[0]):
        pattern = _match(ctx, _put_off(ctx, node))
        assert pattern is not None and pattern.last is node
        _call(ctx, pattern)
        return True
    pattern = _match(ctx, node)
    if pattern is not None:
        ctx.skip(*pattern.between)
    return pattern is not None


FIRST.append(attention)


def _put_off(ctx: Lowering, last: Node) -> Node:
    """The first product of an attention."""
    node = last.inputs[0].producer
    while node is not None and not isinstance(node.op, MatMul):
        node = next(v for v in node.inputs if not ctx.is_ready(v)).producer
    assert node is not None
    return node


# The pattern.


def _match(ctx: Lowering, first: Node) -> Pattern | None:
    """The attention that begins with a product."""
    value, scale, mask = first.output, 1.0, None
    between: list[Node] = []
    if not _is_product(ctx, first):
        return None
    while (user := ctx.only_user(value)) is not None:
        if isinstance(user.op, Softmax):
            return _pattern(ctx, [first, *between, user], scale, mask)
        factor = _factor(ctx, user, value) if mask is None else None
        added = _mask(ctx, user, value) if mask is None else None
        if factor is not None:
            scale *= factor
        elif added is not None:
            mask = added
        elif not _keeps_rows(ctx, user):
            return None
        between.append(user)
        value = user.output
    return None


def _pattern(ctx: Lowering, nodes: list[Node], scale: float, mask: Added | None) -> Pattern | None:
    """The pattern that begins with these nodes, of which the last is a softmax, if the kernel can take it."""
    first, *between, softmax = nodes
    without_nan = _without_nan(ctx, softmax)
    found = _last(ctx, softmax, without_nan[-1].output if without_nan else softmax.output)
    if found is None:
        return None
    more, last = found
    shapes = [ctx.shape(first.output), ctx.shape(last.output), *([mask.shape] if mask else [])]
    batch = _common([shape[:-2] for shape in shapes])
    depth = ctx.shape(first.inputs[0])[-2 if first.op.transpose_a else -1]  # type: ignore[attr-defined]
    if batch is None or depth + shapes[1][-1] > WIDEST or 0 in shapes[0] or depth == 0:
        return None
    return Pattern(first, [*between, softmax, *without_nan, *more], last, scale, mask, bool(without_nan), batch)


def _common(shapes: Sequence[Sizes]) -> list[int] | None:
    """Sizes whose products, of neighbours, are the sizes of all shapes; None if there are none."""
    cuts = sorted({math.prod(shape[i:]) for shape in shapes for i in range(len(shape) + 1)})
    if len({math.prod(shape) for shape in shapes}) > 1 or any(b % a for a, b in itertools.pairwise(cuts)):
        return None
    return [b // a for a, b in itertools.pairwise(cuts)][::-1]


def _is_product(ctx: Lowering, node: Node) -> bool:
    """Whether a product is one of batches of matrices, without a bias."""
    ranks = [len(ctx.shape(v)) for v in node.inputs]
    return len(ranks) == 2 and min(ranks) >= 2 and max(ranks) <= MOST_AXES


def _keeps_rows(ctx: Lowering, node: Node) -> bool:
    """Whether an op hands on rows and columns as they are."""
    if not (same_values(node.op) or isinstance(node.op, VIEWS)):
        return False
    before, after = ctx.shape(node.inputs[0]), ctx.shape(node.output)
    return before[-2:] == after[-2:] and len(after) >= 2


def _factor(ctx: Lowering, node: Node, value: Value) -> float | None:
    """What a node multiplies a value by, if that is one constant."""
    op = node.op
    if not isinstance(op, Binary) or op.activation or op.function not in ("MUL", "REALDIV"):
        return None
    left, right = node.inputs
    if right is value and op.function == "MUL":
        left, right = right, left
    if left is not value or math.prod(ctx.shape(right)) != 1 or len(ctx.shape(right)) > len(ctx.shape(value)):
        return None
    content = ctx.constant(right) if right.tensor is not None or ctx.specs[right].constant is not None else None
    if content is None or (op.function == "REALDIV" and not content.all()):
        return None
    number = float(content.reshape(-1)[0])
    return number if op.function == "MUL" else 1 / number


def _mask(ctx: Lowering, node: Node, value: Value) -> Added | None:
    """What a node adds to scores, if that has their columns."""
    if not isinstance(node.op, Binary) or node.op.activation or node.op.function != "ADD" or value.dtype != F32:
        return None
    other = node.inputs[1] if node.inputs[0] is value else node.inputs[0]
    shape = ctx.shape(value)
    fits = other is not value and ctx.shape(other)[-1:] == shape[-1:] and ctx.shape(node.output) == shape
    return Added(other, shape) if fits else None


def _without_nan(ctx: Lowering, softmax: Node) -> list[Node]:
    """The nodes that put zero in the place of NaN, if that is all that becomes of a softmax."""
    value = softmax.output
    test = next((n for n in value.users if isinstance(n.op, Binary) and n.op.function == "NOTEQUAL"), None)
    select = ctx.only_user(test.output) if test else None
    if test is None or select is None or not isinstance(select.op, Select) or value in ctx.wanted:
        return []
    condition, zero, other = select.inputs
    content = ctx.constant(zero) if ctx.is_ready(zero) else None
    nothing = content is not None and content.size == 1 and not content.any()
    same = condition is test.output and other is value and all(v is value for v in test.inputs)
    return [test, select] if same and nothing and set(value.users) == {test, select} else []


def _last(ctx: Lowering, softmax: Node, value: Value) -> tuple[list[Node], Node] | None:
    """The product of the rows of a softmax, which are in `value`, with values, and what is before it."""
    between: list[Node] = []
    shape = ctx.shape(value)
    if normal_axis(softmax.op.axis, len(shape)) != len(shape) - 1:  # type: ignore[attr-defined]
        return None
    while (user := ctx.only_user(value)) is not None and _keeps_rows(ctx, user):
        between.append(user)
        value = user.output
    if user is None or not isinstance(user.op, MatMul) or not _is_product(ctx, user):
        return None
    wide = ctx.shape(user.output)[:-2] != ctx.shape(value)[:-2]
    if user.inputs[0] is not value or user.inputs[1] is value or user.op.transpose_a or wide:
        return None
    return between, user


# The call.


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


def _call(ctx: Lowering, pattern: Pattern) -> None:
    first, last, mask = pattern.first, pattern.last, pattern.mask
    scores, shape = ctx.shape(first.output), ctx.shape(last.output)
    q = _rows(ctx, first.inputs[0], first.op.transpose_a)  # type: ignore[attr-defined]
    k = _rows(ctx, first.inputs[1], not first.op.transpose_b, either=True)  # type: ignore[attr-defined]
    v = _rows(ctx, last.inputs[1], last.op.transpose_b)  # type: ignore[attr-defined]
    y = target_of(ctx, last.output, Epilogue(last.output), shape)
    added = None
    if mask is not None:
        tensor = ctx.read(mask.value)
        added = Operand(tensor, np.broadcast_to(geometry(ctx, tensor), mask.shape))
    leads = [(q, scores), (k, scores), (v, shape), (added, mask.shape if mask else scores), (y, shape)]
    split = [_split(operand, lead[:-2], pattern.batch) for operand, lead in leads]
    *loops, outer, inner, group = _axes([Axis(*axis) for axis in zip(pattern.batch, *split, strict=True)])
    strides = {
        f"{name}_{level}": getattr(axis, name)
        for name in ("q", "k", "v", "mask", "y")
        for level, axis in (("batch", outer), ("head", inner if name in "kv" else group))
    }
    sizes = {"batch": outer.size, "heads": inner.size * group.size, "key_heads": inner.size, "queries": scores[-2],
             "keys": scores[-1], "depth": q.view.shape[-1], "width": shape[-1]}  # fmt: skip
    for place in itertools.product(*(range(axis.size) for axis in loops)):
        at = [sum(i * axis[j] for i, axis in zip(place, loops, strict=True)) for j in range(1, 6)]
        parts = [x and _part(ctx, x.tensor, start) for x, start in zip((q, k, v, added, y), at, strict=True)]
        ctx.call(
            "attention", **dict(zip(("q", "k", "v", "mask", "y"), parts, strict=True)), **sizes, **strides,
            q_row=q.strides[-2], k_row=k.strides[-2], k_column=k.strides[-1] or 1, v_row=v.strides[-2],
            mask_row=added.strides[-2] if added else 0, y_row=y.strides[-2], seen=scores[-1], seen_step=0,
            blank=pattern.blank, scale=pattern.scale,
        )  # fmt: skip


def _rows(ctx: Lowering, value: Value, swapped: bool, either: bool = False) -> Operand:
    """Where the rows of an operand [..., rows, size] lie.

    Elements of a row are neighbours, or those of a column if `either`; a copy is made where that is not so.
    """
    operand = source_of(ctx, value)
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
