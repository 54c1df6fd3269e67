"""Attention that a graph spells as two products and what is between: found before lowering, computed by one kernel.

    q k^T -> factors, soft cap -> masks -> softmax -> (zero for NaN, or where a mask forbids) -> times v

The kernel takes the place of the last product: by then all operands are there. Transposes of heads are strides, as they
are for products, and so are keys that are repeated for several heads. Masks that are known are put into one; one that
hides what is behind a query becomes the kernel's own causality. Others are put together at each run, without the heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from mnnconvert.ir import F32, Node, Value
from mnnconvert.ir.types import normal_axis
from mnnconvert.ops.arrange import BroadcastTo
from mnnconvert.ops.elementwise import Binary, Select, Unary
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.matmul import MatMul
from mnnconvert.ops.normalization import Softmax
from mnnconvert.ops.shape import ExpandDims, Permute, Reshape, Unsqueeze
from mnnconvert.runtime_ref.cpu.chain import MOST_OPERANDS, MOST_RESULTS, Chain
from mnnconvert.runtime_ref.cpu.lower import VIEWS, Epilogue, Lowering, Sizes, Tensor, finds, same_values
from mnnconvert.runtime_ref.cpu.lowering.attention import WIDEST, Scores, as_rows, attend, common_sizes, rows_of
from mnnconvert.runtime_ref.cpu.lowering.matmul import Operand, source_of, target_of
from mnnconvert.runtime_ref.cpu.lowering.movement import geometry
from mnnconvert.runtime_ref.cpu.strided import phantom

MOST_AXES = 6
MOST_KNOWN = 1 << 22  # elements of a mask that is computed while a program is built
ZERO_FOR_NAN, ZERO_UNSEEN = 1, 2  # what becomes of rows that see no key, by the numbers of attention.cpp
NEVER = -1e9  # a score, or what is added to one, from which on a key does not count beside others


class Mask(NamedTuple):
    """What is added to scores of a shape; or a condition, and what scores become where it is not `allowed`."""

    value: Value
    shape: Sizes
    allowed: bool | None = None
    filler: float = 0.0


class Repeated(NamedTuple):
    """Keys or values [batch, heads, rows, size] of which each is there for `group` heads in a row; see `_repeated`."""

    source: Value
    group: int
    swapped: bool
    nodes: list[Node]


@dataclass
class Pattern:
    """Two products, and what is between them: `inner` nodes whose values nobody else reads."""

    first: Node
    last: Node
    scores: Scores
    masks: list[Mask]
    q: Value
    k: Repeated
    v: Repeated
    inner: list[Node]


@dataclass
class Between:
    """What is found on the way from the first product to the softmax."""

    nodes: list[Node]
    factor: float = 1.0
    before_cap: float | None = None  # the factor in front of tanh
    masks: list[Mask] = field(default_factory=list)

    def scores(self) -> Scores:
        if self.before_cap is None:
            return Scores(self.factor)
        return Scores(self.before_cap * self.factor, self.factor)


@finds(MatMul)
def find_attention(ctx: Lowering, first: Node) -> None:
    """Plans the attention that begins with a product."""
    pattern = _match(ctx, first)
    if pattern is not None:
        ctx.plan(pattern.inner, pattern.last, lambda ctx, _: _call(ctx, pattern))


# The pattern.


def _match(ctx: Lowering, first: Node) -> Pattern | None:
    """The attention that begins with a product."""
    if not _is_product(ctx, first):
        return None
    value, found = first.output, Between([first])
    while (user := ctx.only_user(value)) is not None:
        if isinstance(user.op, Softmax):
            return _pattern(ctx, found, user)
        if not _continues(ctx, user, value, found):
            return None
        found.nodes.append(user)
        value = user.output
    return None


def _continues(ctx: Lowering, node: Node, value: Value, found: Between) -> bool:
    """Whether a node that reads scores belongs to an attention; `found` then knows what it does."""
    factor = _factor(ctx, node, value) if not found.masks else None
    if factor is not None:
        found.factor *= factor
        return True
    if isinstance(node.op, Unary) and node.op.function == "TANH" and found.before_cap is None and not found.masks:
        found.before_cap, found.factor = found.factor, 1.0
        return True
    mask = _mask(ctx, node, value)
    if mask is not None and all(mask.shape == other.shape for other in found.masks):
        found.masks.append(mask)
        return True
    return _keeps_rows(ctx, node)


def _pattern(ctx: Lowering, found: Between, softmax: Node) -> Pattern | None:
    """The pattern that goes on with a softmax, if the kernel can take it."""
    first, masks, scores = found.nodes[0], found.masks, found.scores()
    cleared = _cleared(ctx, softmax, masks)
    end = _last(ctx, softmax, cleared[-1].output if cleared else softmax.output)
    if end is None or scores.cap < 0 or (found.before_cap is not None and not scores.cap):
        return None
    more, last = end
    q, factor, scaled = _unscaled(ctx, first.inputs[0])
    keys, key_factor, scaled_keys = _unscaled(ctx, first.inputs[1])
    k, v = _repeated(ctx, keys), _repeated(ctx, last.inputs[1])
    scores.scale *= factor * key_factor
    scores.blank = (0, ZERO_UNSEEN, ZERO_FOR_NAN)[len(cleared)]
    inner = [*found.nodes, softmax, *cleared, *more, *scaled, *scaled_keys, *k.nodes, *v.nodes]
    pattern = Pattern(first, last, scores, masks, q, k, v, inner)
    shape, result = ctx.shape(first.output), ctx.shape(last.output)
    depth = ctx.shape(first.inputs[0])[-2 if first.op.transpose_a else -1]  # type: ignore[attr-defined]
    known = common_sizes(_leads(ctx, pattern)) is not None
    return pattern if known and 0 < depth <= WIDEST - result[-1] and 0 not in shape else None


def _leads(ctx: Lowering, pattern: Pattern) -> list[Sizes]:
    """The batch axes of q, k, v, mask and y."""
    scores, result = (ctx.shape(node.output)[:-2] for node in (pattern.first, pattern.last))
    mask = pattern.masks[0].shape[:-2] if pattern.masks else scores
    return [scores, _lead(ctx, pattern.k, scores), _lead(ctx, pattern.v, result), mask, result]


def _lead(ctx: Lowering, operand: Repeated, lead: Sizes) -> Sizes:
    return (*ctx.shape(operand.source)[:-2], operand.group) if operand.nodes else lead


def _is_product(ctx: Lowering, node: Node) -> bool:
    """Whether a product is one of batches of matrices, without a bias."""
    ranks = [len(ctx.shape(v)) for v in node.inputs]
    return len(ranks) == 2 and min(ranks) >= 2 and max(ranks) <= MOST_AXES and node.output.dtype == F32


def _keeps_rows(ctx: Lowering, node: Node) -> bool:
    """Whether an op hands on rows and columns as they are."""
    if not (same_values(node.op) or isinstance(node.op, VIEWS)):
        return False
    before, after = ctx.shape(node.inputs[0]), ctx.shape(node.output)
    return before[-2:] == after[-2:] and len(after) >= 2


def _number(ctx: Lowering, value: Value) -> float | None:
    """A constant of one element."""
    content = ctx.constant(value) if math.prod(ctx.shape(value)) == 1 else None
    return None if content is None else float(content.reshape(-1)[0])


def _factor(ctx: Lowering, node: Node, value: Value) -> float | None:
    """What a node multiplies a value by, if that is one constant."""
    op = node.op
    if not isinstance(op, Binary) or op.activation or op.function not in ("MUL", "REALDIV") or value.dtype != F32:
        return None
    left, right = node.inputs
    if right is value and op.function == "MUL":
        left, right = right, left
    if left is not value or right is value or len(ctx.shape(right)) > len(ctx.shape(value)):
        return None
    number = _number(ctx, right)
    if number is None or (op.function == "REALDIV" and not number):
        return None
    return number if op.function == "MUL" else 1 / number


def _mask(ctx: Lowering, node: Node, value: Value) -> Mask | None:
    """What a node adds to scores, or puts in the place of some, if the scores keep their shape."""
    shape = ctx.shape(value)
    if value.dtype != F32 or ctx.shape(node.output) != shape:
        return None
    if isinstance(node.op, Binary) and node.op.function == "ADD" and not node.op.activation:
        other = node.inputs[1] if node.inputs[0] is value else node.inputs[0]
        has_columns = other is not value and ctx.shape(other)[-1:] == shape[-1:]
        return Mask(other, shape) if has_columns else None
    if not isinstance(node.op, Select):
        return None
    condition, *choices = node.inputs
    other = next((v for v in choices if v is not value), value)
    filler = None if other is value else _number(ctx, other)
    if filler is None or filler > NEVER or condition is value or ctx.shape(condition)[-1:] != shape[-1:]:
        return None
    return Mask(condition, shape, choices[0] is value, filler)


def _cleared(ctx: Lowering, softmax: Node, masks: Sequence[Mask]) -> list[Node]:
    """The nodes that put zero in the place of NaN after a softmax, or where a condition has forbidden keys before.

    A row that such a condition hides only together with another mask becomes zero as well, not NaN.
    """
    value = softmax.output
    if value in ctx.wanted:
        return []
    if (select := ctx.only_user(value)) is not None:
        mask = next((m for m in masks if select.inputs[0] is m.value and m.filler == -math.inf), None)
        if not isinstance(select.op, Select) or mask is None:
            return []
        _, *choices = select.inputs
        kept, zero = choices if mask.allowed else choices[::-1]
        return [select] if kept is value and _number(ctx, zero) == 0 else []
    test = next((n for n in value.users if isinstance(n.op, Binary) and n.op.function == "NOTEQUAL"), None)
    select = ctx.only_user(test.output) if test else None
    if test is None or select is None or not isinstance(select.op, Select):
        return []
    condition, zero, other = select.inputs
    same = condition is test.output and other is value and all(v is value for v in test.inputs)
    return [test, select] if same and _number(ctx, zero) == 0 and set(value.users) == {test, select} else []


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


# Operands.


def _unscaled(ctx: Lowering, value: Value) -> tuple[Value, float, list[Node]]:
    """A value before it is multiplied by a constant for this reader alone, and that constant."""
    node = ctx.maker(value)
    if node is None or not isinstance(node.op, Binary):
        return value, 1.0, []
    for source in node.inputs:
        factor = _factor(ctx, node, source)
        if factor is not None and ctx.shape(source) == ctx.shape(value):
            return source, factor, [node]
    return value, 1.0, []


def _repeated(ctx: Lowering, value: Value) -> Repeated:
    """Keys or values before their heads are repeated for this reader alone: by indices, or by broadcasting an axis.

    `nodes` does so; none where nothing is repeated. `swapped`: the last two axes change places on the way.
    """
    nothing = Repeated(value, 1, False, [])
    node, nodes, swapped = _producer(ctx, value), [], False
    if node is not None and isinstance(node.op, Permute) and node.op.dims == (0, 1, 3, 2):
        nodes, swapped = [node], True
        node = _producer(ctx, node.inputs[0])
    if node is None:
        return nothing
    found = _by_indices(ctx, node) or _by_broadcast(ctx, node)
    if found is None:
        return nothing
    source, group, more = found
    return Repeated(source, group, swapped, [*nodes, *more])


def _producer(ctx: Lowering, value: Value) -> Node | None:
    """The node that makes a value of four axes for one reader."""
    return ctx.maker(value) if len(ctx.shape(value)) in (4, 5) else None


def _by_indices(ctx: Lowering, node: Node) -> tuple[Value, int, list[Node]] | None:
    if not isinstance(node.op, GatherV2) or len(node.inputs) != 2 or node.op.axis != 1:
        return None
    source, indices = node.inputs[0], ctx.constant(node.inputs[1])
    heads = ctx.shape(source)[1] if len(ctx.shape(source)) == 4 else 0
    if indices is None or not heads or indices.size % heads:
        return None
    group = indices.size // heads
    same = np.array_equal(indices.reshape(-1), np.repeat(np.arange(heads), group))
    return (source, group, [node]) if same else None


def _by_broadcast(ctx: Lowering, node: Node) -> tuple[Value, int, list[Node]] | None:
    """Reshape([batch, heads, group, rows, size]) of a broadcast of [batch, heads, 1, rows, size]."""
    wide = _producer(ctx, node.inputs[0]) if isinstance(node.op, Reshape) else None
    if wide is None or not isinstance(wide.op, BroadcastTo):
        return None
    thin = _producer(ctx, wide.inputs[0])
    if thin is None or len(ctx.shape(node.output)) != 4 or not isinstance(thin.op, (Reshape, Unsqueeze, ExpandDims)):
        return None
    source, (batch, _, rows, size) = thin.inputs[0], ctx.shape(node.output)
    if len(ctx.shape(source)) != 4 or len(ctx.shape(wide.output)) != 5:
        return None
    heads, group = ctx.shape(source)[1], ctx.shape(wide.output)[2]
    shapes = [(batch, heads, rows, size), (batch, heads, 1, rows, size), (batch, heads, group, rows, size)]
    fits = [ctx.shape(v) for v in (source, thin.output, wide.output)] == shapes
    return (source, group, [node, wide, thin]) if fits and ctx.shape(node.output)[1] == heads * group else None


# The call.


def _call(ctx: Lowering, pattern: Pattern) -> bool:
    ctx.skip(*pattern.inner)
    first, last, scores = pattern.first, pattern.last, pattern.scores
    shape, result = ctx.shape(first.output), ctx.shape(last.output)
    q = rows_of(ctx, pattern.q, first.op.transpose_a)  # type: ignore[attr-defined]
    k = _heads(ctx, pattern.k, not first.op.transpose_b, either=True)  # type: ignore[attr-defined]
    v = _heads(ctx, pattern.v, last.op.transpose_b)  # type: ignore[attr-defined]
    y = target_of(ctx, last.output, Epilogue(last.output), result)
    added = _added(ctx, pattern.masks, scores, (shape[-2], shape[-1]))
    attend(ctx, (q, k, v, added, y), _leads(ctx, pattern), scores)
    return True


def _heads(ctx: Lowering, operand: Repeated, swapped: bool, either: bool = False) -> Operand:
    """Rows [..., rows, size] of keys or values; [batch, heads, group, rows, size] where they are repeated."""
    if not operand.nodes:
        return rows_of(ctx, operand.source, swapped, either)
    rows = as_rows(ctx, source_of(ctx, operand.source), swapped != operand.swapped, either)
    view = rows.view[:, :, None]
    return Operand(rows.tensor, np.broadcast_to(view, (*view.shape[:2], operand.group, *view.shape[3:])))


# Masks.


def _added(ctx: Lowering, masks: Sequence[Mask], scores: Scores, rows: tuple[int, int]) -> Operand | None:
    """What is added to the scores, all masks together; `scores` is told where they are causality and nothing else."""
    contents = {mask: content for mask in masks if (content := _content(ctx, mask.value)) is not None}
    known = _folded(list(contents), contents)
    seen = _seen(known, rows) if contents else None
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
    return Operand(tensor, np.broadcast_to(geometry(ctx, tensor), masks[0].shape))


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


def _folded(masks: Sequence[Mask], contents: Mapping[Mask, np.ndarray]) -> np.ndarray:
    """What known masks do to a score of 0, one after the other."""
    total = np.zeros((1, 1), F32)
    for mask in masks:
        content = contents[mask]
        if mask.allowed is None:
            total = total + content
        else:
            total = np.where((content != 0) == mask.allowed, total, np.float32(mask.filler))
    return total


def _seen(added: np.ndarray, rows: tuple[int, int]) -> int | None:
    """How many keys the first query sees, if each further one sees one more, and that is all that a mask says."""
    flat = added.reshape(-1, *added.shape[-2:]) if added.ndim > 1 else added.reshape(1, 1, -1)
    if len(flat) > 1 or flat.shape[1] != rows[0]:
        return None
    hidden = flat[0] <= NEVER
    seen = rows[1] - int(hidden[0].sum())
    behind = np.arange(rows[1]) >= seen + np.arange(rows[0])[:, None]
    plain = not flat[0][~hidden].any() and np.array_equal(hidden, behind)
    return seen if plain and (seen > 0 or np.isneginf(flat[0][hidden]).all()) else None


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
        x = chain.apply("TO_BOOL" if tensor.dtype == F32 else "TO_BOOL.i", x)
        choices = total, chain.constant(mask.filler)
        total = chain.apply("SELECT", x, *(choices if mask.allowed else choices[::-1]))
    chain.result(total)
    code, constants = chain.encode(ctx.library)
    y = ctx.tensor(shape)
    named = {f"x{i}": tensors[i] if i < len(tensors) else None for i in range(MOST_OPERANDS)}
    named |= {f"y{i}": y if i == 0 else None for i in range(MOST_RESULTS)}
    ctx.call("chain", code=ctx.literal(code), constants=ctx.literal(constants), count=math.prod(shape), **named)
    return y
