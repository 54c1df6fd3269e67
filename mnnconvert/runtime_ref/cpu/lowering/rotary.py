"""Rotary position embeddings, which graphs spell in two ways, found before lowering and computed by one kernel.

    concat(u cos - v sin, u sin + v cos)   u, v: the halves of a head, or its even and odd elements
    x cos + concat(-v, u) sin              angles are given for all elements

Halves may be stacked, not concatenated, so that pairs are neighbours again, or be put into that order afterwards. The
first form may be followed by what is not rotated of a head.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mnnconvert.ir import F32, Node, Value
from mnnconvert.ir.types import normal_axis
from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.elementwise import Binary, Unary
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.shape import VIEWS
from mnnconvert.ops.slicing import Slice, StridedSlice
from mnnconvert.runtime_ref import movement
from mnnconvert.runtime_ref.attention import as_rows
from mnnconvert.runtime_ref.cpu.lower import Lowering, finds
from mnnconvert.runtime_ref.lower import Sizes
from mnnconvert.runtime_ref.products import geometry, source_of

OUTER = 3  # axes in front of the elements of a head


class Part(NamedTuple):
    """Elements `start`, start + step ... of the last axis of a value, and the node that picks them."""

    source: Value
    start: int
    step: int
    length: int
    node: Node


@dataclass
class Rotation:
    """What is rotated, and how; `inner` nodes make values that nobody else reads, `last` is the one after them.

    Pairs are (x[i x_step], x[i x_step + x_pair]), their angles at i step and i step + second.
    """

    x: Value
    cos: Value
    sin: Value
    pairs: int
    x_step: int
    x_pair: int
    inner: list[Node]
    last: Node
    y_step: int = 1
    step: int = 1
    second: int = 0
    rest: int = 0

    @property
    def y_pair(self) -> int:
        return self.pairs if self.y_step == 1 else 1


@finds(Concat)
def find_halves(ctx: Lowering, node: Node) -> None:
    """Plans concat(u cos - v sin, u sin + v cos), and what follows."""
    join = _joined(ctx, node.output)
    found = None if join is None else _halves(ctx, join)
    if found is None:
        return
    for extend in (_interleaved, _completed):
        found = extend(ctx, found) or found
    _plan(ctx, found)


@finds(Binary)
def find_sum(ctx: Lowering, node: Node) -> None:
    """Plans x cos + concat(-v, u) sin."""
    found = _sum(ctx, node)
    if found is not None:
        _plan(ctx, found)


def _plan(ctx: Lowering, found: Rotation) -> None:
    shape = ctx.shape(found.x)
    angles = found.pairs * (2 if found.second else 1)
    fits = all(_broadcasts(ctx.shape(table), (*shape[:-1], angles)) for table in (found.cos, found.sin))
    covered = 2 * found.pairs + found.rest == shape[-1] and ctx.shape(found.last.output) == shape
    if fits and covered and len(shape) <= OUTER + 1 and found.x.dtype == F32 and _alone(ctx, found):
        ctx.plan(found.inner, found.last, lambda ctx, _: _call(ctx, found))


def _broadcasts(shape: Sizes, to: Sizes) -> bool:
    lead = list(zip(shape[-2::-1], to[-2::-1], strict=False))
    return shape[-1:] == to[-1:] and len(shape) <= len(to) and all(a in (1, b) for a, b in lead)


def _alone(ctx: Lowering, found: Rotation) -> bool:
    """Whether nobody but the pattern reads what is inside, and all of it is lowered here."""
    own = {*found.inner, found.last}
    values = [value for node in found.inner for value in node.outputs]
    here = all(ctx.is_here(node) and not ctx.is_planned(node) for node in own)
    return here and not any(value in ctx.wanted or set(value.users) - own for value in values)


# The patterns.


class Join(NamedTuple):
    """Two halves that are put one behind the other, or one between the other (`y_step` 2); `nodes`, up to `last`."""

    first: Value
    second: Value
    y_step: int
    nodes: list[Node]
    last: Node


def _joined(ctx: Lowering, value: Value) -> Join | None:
    """The halves that a value, or what is made of it, consists of: a concatenation, or a stack that is flattened."""
    node = value.producer
    if node is None or not isinstance(node.op, Concat) or len(node.inputs) != 2 or not _joins_last(ctx, node):
        return None
    shape, sources = ctx.shape(value), [v.producer for v in node.inputs]
    views = [n for n in sources if n is not None and isinstance(n.op, VIEWS)]
    halves = [n.inputs[0] for n in views]
    if len(shape) < 2 or len(views) < 2 or any((*ctx.shape(v), 2) != shape for v in halves):
        return Join(node.inputs[0], node.inputs[1], 1, [], node)
    flat = ctx.only_user(value)
    whole = (*shape[:-2], 2 * shape[-2])
    if flat is None or not isinstance(flat.op, VIEWS) or ctx.shape(flat.output) != whole:
        return None
    return Join(halves[0], halves[1], 2, [*views, node], flat)


def _halves(ctx: Lowering, join: Join) -> Rotation | None:
    first, second = _made_by(join.first, "SUB"), _made_by(join.second, "ADD")
    if first is None or second is None:
        return None
    terms = [_made_by(value, "MUL") for value in (*first.inputs, *second.inputs)]
    products = [term for term in terms if term is not None]
    if len(products) < len(terms):
        return None
    for u, cos in _both(products[0]):
        for v, sin in _both(products[1]):
            got, wanted = [set(product.inputs) for product in products[2:]], [{u, sin}, {v, cos}]
            pairs = _pairs(ctx, u, v) if got in (wanted, wanted[::-1]) else None
            if pairs is not None:
                x, x_step, x_pair, nodes = pairs
                inner = [*join.nodes, first, second, *products, *nodes]
                return Rotation(x, cos, sin, ctx.shape(u)[-1], x_step, x_pair, inner, join.last, join.y_step)
    return None


def _pairs(ctx: Lowering, u: Value, v: Value) -> tuple[Value, int, int, list[Node]] | None:
    """What u and v are the halves, or the even and odd elements, of: x, how far apart, and the nodes that pick them."""
    first, second = _part(ctx, u), _part(ctx, v)
    if first is None or second is None or first.source is not second.source or first.length != second.length:
        return None
    if (first.step, second.step, first.start, second.start) not in ((1, 1, 0, first.length), (2, 2, 0, 1)):
        return None
    return first.source, first.step, second.start, [*dict.fromkeys((first.node, second.node))]


def _interleaved(ctx: Lowering, found: Rotation) -> Rotation | None:
    """The order 0, n, 1, n + 1 ... after a rotation."""
    user = ctx.only_user(found.last.output)
    picks = None if user is None or found.y_step != 1 else _picks(ctx, user)
    order = np.arange(2 * found.pairs).reshape(2, -1).T.reshape(-1)
    if user is None or picks is None or not np.array_equal(picks, order):
        return None
    found.inner.append(found.last)
    found.last, found.y_step = user, 2
    return found


def _completed(ctx: Lowering, found: Rotation) -> Rotation | None:
    """The elements that are not rotated, behind the others."""
    user, turned = ctx.only_user(found.last.output), 2 * found.pairs
    if user is None or not isinstance(user.op, Concat) or len(user.inputs) != 2 or not _joins_last(ctx, user):
        return None
    tail = _part(ctx, user.inputs[1]) if user.inputs[0] is found.last.output else None
    if tail is None or (tail.source, tail.start, tail.step) != (found.x, turned, 1):
        return None
    found.inner += [found.last, tail.node]
    found.last, found.rest = user, tail.length
    return found


def _sum(ctx: Lowering, node: Node) -> Rotation | None:
    products = [_made_by(value, "MUL") for value in node.inputs] if _is(node, "ADD") else []
    if len(products) != 2 or products[0] is products[1]:
        return None
    for straight, turned in (products, products[::-1]):
        if straight is None or turned is None:
            return None
        for x, cos in _both(straight):
            for around, sin in _both(turned):
                found = _turned_around(ctx, around, x)
                if found is not None:
                    step, pair, inner = found
                    half = ctx.shape(x)[-1] // 2
                    inner += [straight, turned]
                    return Rotation(x, cos, sin, half, step, pair, inner, node, step, step, pair)
    return None


def _turned_around(ctx: Lowering, value: Value, x: Value) -> tuple[int, int, list[Node]] | None:
    """The step and distance of the pairs of which a value holds (-second, first), and the nodes that make it."""
    last = value.producer
    if last is not None and isinstance(last.op, VIEWS):
        value = last.inputs[0]
    join = _joined(ctx, value)
    negative = None if join is None or join.last is not last else join.first.producer
    v = None if negative is None else _negated(ctx, negative)
    pairs = None if v is None or join is None else _pairs(ctx, join.second, v)
    if pairs is None or join is None or last is None or negative is None:
        return None
    source, step, pair, nodes = pairs
    whole = source is x and 2 * ctx.shape(join.second)[-1] == ctx.shape(x)[-1]
    return (step, pair, [last, *join.nodes, negative, *nodes]) if whole and step == join.y_step else None


def _negated(ctx: Lowering, node: Node) -> Value | None:
    """The operand of a negation, or of a product with -1."""
    if isinstance(node.op, Unary) and node.op.function == "NEG":
        return node.inputs[0]
    for value, other in _both(node) if _is(node, "MUL") else ():
        content = ctx.constant(other) if other.tensor is not None else None
        if content is not None and content.size == 1 and content.item() == -1:
            return value
    return None


# Their pieces.


def _is(node: Node | None, function: str) -> bool:
    return node is not None and isinstance(node.op, Binary) and node.op.function == function and not node.op.activation


def _made_by(value: Value, function: str) -> Node | None:
    """The node that computes a value, if it is an arithmetic one of this name."""
    return value.producer if _is(value.producer, function) else None


def _both(node: Node) -> Iterator[tuple[Value, Value]]:
    left, right = node.inputs
    yield left, right
    yield right, left


def _joins_last(ctx: Lowering, node: Node) -> bool:
    rank = len(ctx.shape(node.output))
    return normal_axis(node.op.axis, rank) == rank - 1  # type: ignore[attr-defined]


def _picks(ctx: Lowering, node: Node) -> np.ndarray | None:
    """The places of the last axis that a gather picks."""
    rank = len(ctx.shape(node.inputs[0]))
    if not isinstance(node.op, GatherV2) or len(node.inputs) != 2 or normal_axis(node.op.axis, rank) != rank - 1:
        return None
    places = ctx.constant(node.inputs[1])
    return None if places is None or places.ndim != 1 else places


def _part(ctx: Lowering, value: Value) -> Part | None:
    """Elements of the last axis, if that is what a value is."""
    node = value.producer
    if node is None or not ctx.is_here(node) or not ctx.shape(value):
        return None
    source, size = node.inputs[0], ctx.shape(value)[-1]
    picks: Collection[int] | None = None
    if isinstance(node.op, GatherV2):
        picks = _picks(ctx, node)
    elif isinstance(node.op, Slice) and _joins_last(ctx, node):
        before = sum(ctx.shape(v)[-1] for v in node.outputs[: list(node.outputs).index(value)])
        picks = range(before, before + size)
    elif isinstance(node.op, StridedSlice):
        picks = _sliced(ctx, node)
    if picks is None or len(picks) < 1 or ctx.shape(value)[:-1] != ctx.shape(source)[:-1]:
        return None
    places = np.asarray(picks)
    step = int(places[1] - places[0]) if len(places) > 1 else 1
    regular = step > 0 and places[0] >= 0 and (np.diff(places) == step).all()
    return Part(source, int(places[0]), step, len(places), node) if regular else None


def _sliced(ctx: Lowering, node: Node) -> range | None:
    """The places of the last axis that a slice leaves, if it leaves all others."""
    index, shape = movement.index(ctx, node), ctx.shape(node.inputs[0])
    if index is None or len(index) != len(shape) or not all(isinstance(pick, slice) for pick in index):
        return None
    ranges = [range(size)[pick] for size, pick in zip(shape, index, strict=True)]
    return ranges[-1] if ranges[:-1] == [range(size) for size in shape[:-1]] else None


# The call.


def _call(ctx: Lowering, found: Rotation) -> bool:
    ctx.skip(*found.inner)
    shape = ctx.shape(found.x)
    x = as_rows(ctx, source_of(ctx, found.x, {*found.inner, found.last}), swapped=False)
    y = ctx.result(found.last.output)
    tables = [ctx.read(table) for table in (found.cos, found.sin)]
    wide = [np.broadcast_to(geometry(ctx, t), (*shape[:-1], t.shape[-1])) for t in tables]
    sizes = _outer(shape[:-1], 1)
    strides = {
        f"{name}{i}": stride
        for name, view in zip(("x", "cos", "sin", "y"), (x.view, *wide, geometry(ctx, y)), strict=True)
        for i, stride in enumerate(_outer([s // view.itemsize for s in view.strides[:-1]], 0))
    }
    ctx.call("rotary", x=x.tensor, cos=tables[0], sin=tables[1], y=y, **{f"n{i}": n for i, n in enumerate(sizes)},
             **strides, pairs=found.pairs, x_pair=found.x_pair, x_step=found.x_step, y_pair=found.y_pair,
             y_step=found.y_step, step=found.step, second=found.second, rest=found.rest)  # fmt: skip
    return True


def _outer(numbers: Sequence[int], filler: int) -> list[int]:
    """As many numbers as there are axes in front of a row."""
    return [filler] * (OUTER - len(numbers)) + list(numbers)
