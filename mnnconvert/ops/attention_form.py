"""Attention that a graph spells as two products and what is between, as the passes and the executor find it.

    q k^T -> factors, soft cap -> masks -> (a sink beside them) -> softmax
    -> (zero for NaN, or where a mask forbids; the sink is cut off) -> times v

What is found is an `AttentionForm`; what is nearly one is an `UnlikeError`, which says what was in the way.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from mnnconvert.ir import F32, Node, Value
from mnnconvert.ir.types import normal_axis
from mnnconvert.ops.arrange import BroadcastTo, Concat
from mnnconvert.ops.elementwise import Binary, Select, Unary
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.layout import same_values
from mnnconvert.ops.matmul import MatMul
from mnnconvert.ops.normalization import Softmax
from mnnconvert.ops.reduction import Reduction
from mnnconvert.ops.shape import VIEWS, ExpandDims, Permute, Reshape, Unsqueeze
from mnnconvert.ops.slicing import StridedSlice

Sizes = tuple[Any, ...]  # numbers, symbols, or `Unknown`

MOST_AXES = 6
ZERO_FOR_NAN, ZERO_UNSEEN = 1, 2  # what becomes of rows that see no key, by the numbers of attention.cpp
NEVER = -1e9  # a score, or what is added to one, from which on a key does not count beside others


class Unknown:
    """A size that is not known: equal to nothing else."""

    def __repr__(self) -> str:
        return "?"


class Known(Protocol):
    """What is asked of a graph: sizes and contents, and who else needs a value."""

    @property
    def wanted(self) -> Collection[Value]:
        """Values that are needed whatever becomes of their readers."""

    def shape(self, value: Value) -> Sizes:
        """The sizes of a value; () where not even the rank is known."""

    def constant(self, value: Value) -> np.ndarray | None:
        """The content where it does not depend on the data of a run."""

    def only_user(self, value: Value) -> Node | None:
        """The one node that reads a value, once, if nothing else needs it."""

    def maker(self, value: Value) -> Node | None:
        """The node that makes a value for one reader alone."""


class UnlikeError(Exception):
    """Why a product does not begin an attention."""


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
class AttentionForm:
    """Two products, and what is between them: `inner` nodes whose values nobody else reads.

    Scores are cap tanh(scale q k^T / cap), without a cap scale q k^T. `blank` is what becomes of rows that see no key.
    `sinks` are one more score per head, [heads] under any shape, which counts in the sum of the softmax only.
    """

    first: Node
    last: Node
    masks: list[Mask]
    q: Value
    k: Repeated
    v: Repeated
    inner: list[Node]
    scale: float = 1.0
    cap: float = 0.0
    blank: int = 0
    sinks: Value | None = None

    @property
    def masked(self) -> Sizes:
        """The shape of what all masks are added to, one after the other: views may put ones in front."""
        return max((mask.shape for mask in self.masks), key=len, default=())


@dataclass
class _Between:
    """What is found on the way from the first product to the softmax."""

    nodes: list[Node]
    factor: float = 1.0
    before_cap: float | None = None  # the factor in front of tanh
    masks: list[Mask] = field(default_factory=list)
    sinks: Value | None = None

    def scale_and_cap(self) -> tuple[float, float]:
        if self.before_cap is None:
            return self.factor, 0.0
        if self.factor <= 0:
            raise UnlikeError(f"a soft cap of {self.factor:g}")
        return self.before_cap * self.factor, self.factor


def attention_form(known: Known, first: Node) -> AttentionForm:
    """The attention that begins with a product; UnlikeError where none does."""
    if not _is_product(known, first):
        raise UnlikeError(
            f"'{first.name}' is no product of float matrices with two to {MOST_AXES} axes, without a bias"
        )
    value, found = first.output, _Between([first])
    while (user := known.only_user(value)) is not None:
        if isinstance(user.op, Softmax):
            return _form(known, found, user)
        if isinstance(user.op, Concat):
            value = _sunk(known, user, value, found)
            continue
        if not _continues(known, user, value, found):
            raise UnlikeError(f"'{user.name}' ({name_of(user)}) is neither a scale, a soft cap nor a mask")
        found.nodes.append(user)
        value = user.output
    raise UnlikeError(f"the scores '{value.name}' have other readers")


def name_of(node: Node) -> str:
    """Kind of a node, and the function of an arithmetic one."""
    return getattr(node.op, "function", node.op.kind)


def _continues(known: Known, node: Node, value: Value, found: _Between) -> bool:
    """Whether a node that reads scores belongs to an attention; `found` then knows what it does."""
    factor = _factor(known, node, value) if not found.masks else None
    if factor is not None:
        found.factor *= factor
        return True
    if isinstance(node.op, Unary) and node.op.function == "TANH" and found.before_cap is None and not found.masks:
        found.before_cap, found.factor = found.factor, 1.0
        return True
    mask = _mask(known, node, value)
    if mask is not None:
        if not all(_fits(_inner(mask.shape), _inner(other.shape)) for other in found.masks):
            raise UnlikeError(f"'{node.name}' is a mask on scores of another shape than those before")
        found.masks.append(mask)
        return True
    return _keeps_rows(known, node)


def _form(known: Known, found: _Between, softmax: Node) -> AttentionForm:
    """The form that goes on with a softmax."""
    first, masks = found.nodes[0], found.masks
    scale, cap = found.scale_and_cap()
    cleared = _cleared(known, softmax, masks) if found.sinks is None else _cut(known, softmax, first)
    more, last = _last(known, softmax, cleared[-1].output if cleared else softmax.output)
    q, factor, scaled = _unscaled(known, first.inputs[0])
    keys, key_factor, scaled_keys = _unscaled(known, first.inputs[1])
    k, v = _repeated(known, keys), _repeated(known, last.inputs[1])
    inner = [*found.nodes, softmax, *cleared, *more, *scaled, *scaled_keys, *k.nodes, *v.nodes]
    blank = (0, ZERO_UNSEEN, ZERO_FOR_NAN)[len(cleared)] if found.sinks is None else 0
    return AttentionForm(first, last, masks, q, k, v, inner, scale * factor * key_factor, cap, blank, found.sinks)


def _sunk(known: Known, node: Node, value: Value, found: _Between) -> Value:
    """The scores with a column of sinks beside them, perhaps less the largest of each row, which changes nothing."""
    shape, joined = known.shape(value), node.output
    source = node.inputs[-1]
    wide = source.producer
    if wide is not None and isinstance(wide.op, BroadcastTo):
        source = wide.inputs[0]
    size, content = known.shape(source), known.constant(source)
    if content is not None and content.ndim == 4 and np.array_equal(content, np.broadcast_to(content[:1, :, :1], size)):
        size = (1, size[1], 1, size[3])  # broadcast when it was folded
    per_head = len(shape) == 4 and size == (1, shape[1], 1, 1)
    if len(node.inputs) != 2 or node.inputs[0] is not value or not per_head or found.sinks is not None:
        raise UnlikeError(f"'{node.name}' does not put one sink per head beside the scores")
    found.sinks = source
    found.nodes.append(node)
    less = next((n for n in joined.users if isinstance(n.op, Binary) and n.op.function == "SUB"), None)
    best = less.inputs[1].producer if less is not None else None
    if less is None or best is None or joined in known.wanted or set(joined.users) != {less, best}:
        return joined
    op = best.op
    largest = isinstance(op, Reduction) and op.operation == "MAXIMUM" and op.keep_dims and op.dims in ((-1,), (3,))
    if not largest or less.inputs[0] is not joined or known.only_user(best.output) is not less:
        raise UnlikeError(f"'{less.name}' is not the difference from the largest score of a row")
    found.nodes += [best, less]
    return less.output


def _cut(known: Known, softmax: Node, first: Node) -> list[Node]:
    """The node that takes the last column of a softmax, that of the sinks, away."""
    node = known.only_user(softmax.output)
    if node is None or not isinstance(node.op, StridedSlice) or node.op.from_type != 1 or len(node.inputs) < 4:
        raise UnlikeError(f"the probability of the sink in '{softmax.output.name}' is not cut off")
    begin, _, axes, *steps = (known.constant(v) for v in node.inputs[1:])
    whole = all(x is not None and x.size == 1 for x in (begin, axes, *steps))
    numbers = [int(x.reshape(-1)[0]) for x in (begin, axes, *steps) if x is not None] if whole else []
    if numbers not in ([0, -1, 1], [0, 3, 1], [0, -1], [0, 3]) or known.shape(node.output) != known.shape(first.output):
        raise UnlikeError(f"'{node.name}' does not cut the sink off")
    return [node]


def _is_product(known: Known, node: Node) -> bool:
    """Whether a product is one of batches of matrices, without a bias."""
    ranks = [len(known.shape(v)) for v in node.inputs]
    return len(ranks) == 2 and min(ranks) >= 2 and max(ranks) <= MOST_AXES and node.output.dtype == F32


def _keeps_rows(known: Known, node: Node) -> bool:
    """Whether an op hands on rows and columns as they are."""
    if not (same_values(node.op) or isinstance(node.op, VIEWS)):
        return False
    before, after = known.shape(node.inputs[0]), known.shape(node.output)
    return before[-2:] == after[-2:] and len(after) >= 2


def _number(known: Known, value: Value) -> float | None:
    """A constant of one element."""
    content = known.constant(value) if all(size == 1 for size in known.shape(value)) else None
    return None if content is None else float(content.reshape(-1)[0])


def _factor(known: Known, node: Node, value: Value) -> float | None:
    """What a node multiplies a value by, if that is one constant."""
    op = node.op
    if not isinstance(op, Binary) or op.activation or op.function not in ("MUL", "REALDIV") or value.dtype != F32:
        return None
    left, right = node.inputs
    if right is value and op.function == "MUL":
        left, right = right, left
    if left is not value or right is value or len(known.shape(right)) > len(known.shape(value)):
        return None
    number = _number(known, right)
    if number is None or (op.function == "REALDIV" and not number):
        return None
    return number if op.function == "MUL" else 1 / number


def _inner(shape: Sizes) -> Sizes:
    """A shape without ones in front."""
    return next((shape[i:] for i, size in enumerate(shape) if size != 1), ())


def _fits(shape: Sizes, other: Sizes) -> bool:
    """Whether two shapes are equal as far as they are known."""
    pairs = list(zip(shape, other, strict=False))
    return len(shape) == len(other) and all(
        a == b or isinstance(a, Unknown) or isinstance(b, Unknown) for a, b in pairs
    )


def _mask(known: Known, node: Node, value: Value) -> Mask | None:
    """What a node adds to scores, or puts in the place of some, if the scores keep their shape."""
    shape = known.shape(value)
    if value.dtype != F32 or not _fits(known.shape(node.output), shape):
        return None
    if isinstance(node.op, Binary) and node.op.function == "ADD" and not node.op.activation:
        other = node.inputs[1] if node.inputs[0] is value else node.inputs[0]
        columns, keys = known.shape(other)[-1:], shape[-1:]
        if other is value or columns in ((), (1,)):
            return None
        if not _fits(columns, keys):
            raise UnlikeError(f"'{node.name}' is a mask of {columns[0]} columns on {keys[0]} keys")
        return Mask(other, shape)
    if not isinstance(node.op, Select):
        return None
    condition, *choices = node.inputs
    other = next((v for v in choices if v is not value), value)
    filler = None if other is value else _number(known, other)
    if filler is None or filler > NEVER or condition is value or not _fits(known.shape(condition)[-1:], shape[-1:]):
        return None
    return Mask(condition, shape, choices[0] is value, filler)


def _cleared(known: Known, softmax: Node, masks: Sequence[Mask]) -> list[Node]:
    """The nodes that put zero in the place of NaN after a softmax, or where a condition has forbidden keys before.

    A row that such a condition hides only together with another mask becomes zero as well, not NaN.
    """
    value = softmax.output
    if value in known.wanted:
        return []
    if (select := known.only_user(value)) is not None:
        mask = next((m for m in masks if select.inputs[0] is m.value and m.filler == -math.inf), None)
        if not isinstance(select.op, Select) or mask is None:
            return []
        _, *choices = select.inputs
        kept, zero = choices if mask.allowed else choices[::-1]
        return [select] if kept is value and _number(known, zero) == 0 else []
    test = next((n for n in value.users if isinstance(n.op, Binary) and n.op.function == "NOTEQUAL"), None)
    select = known.only_user(test.output) if test else None
    if test is None or select is None or not isinstance(select.op, Select):
        return []
    condition, zero, other = select.inputs
    same = condition is test.output and other is value and all(v is value for v in test.inputs)
    return [test, select] if same and _number(known, zero) == 0 and set(value.users) == {test, select} else []


def _last(known: Known, softmax: Node, value: Value) -> tuple[list[Node], Node]:
    """The product of the rows of a softmax, which are in `value`, with values, and what is before it."""
    between: list[Node] = []
    shape = known.shape(value)
    if normal_axis(softmax.op.axis, len(shape)) != len(shape) - 1:  # type: ignore[attr-defined]
        raise UnlikeError(f"the softmax '{softmax.name}' is not over the keys")
    while (user := known.only_user(value)) is not None and _keeps_rows(known, user):
        between.append(user)
        value = user.output
    if user is None:
        raise UnlikeError(f"the probabilities '{value.name}' have other readers")
    if not isinstance(user.op, MatMul) or not _is_product(known, user):
        raise UnlikeError(f"'{user.name}' ({name_of(user)}) is no product of the probabilities with values")
    wide = known.shape(user.output)[:-2] != known.shape(value)[:-2]
    if user.inputs[0] is not value or user.inputs[1] is value or user.op.transpose_a or wide:
        raise UnlikeError(f"'{user.name}' is no product of the probabilities with values of the same heads")
    return between, user


# Operands.


def _unscaled(known: Known, value: Value) -> tuple[Value, float, list[Node]]:
    """A value before it is multiplied by a constant for this reader alone, and that constant."""
    node = known.maker(value)
    if node is None or not isinstance(node.op, Binary):
        return value, 1.0, []
    for source in node.inputs:
        factor = _factor(known, node, source)
        if factor is not None and known.shape(source) == known.shape(value):
            return source, factor, [node]
    return value, 1.0, []


def _repeated(known: Known, value: Value) -> Repeated:
    """Keys or values before their heads are repeated for this reader alone: by indices, or by broadcasting an axis.

    `nodes` does so; none where nothing is repeated. `swapped`: the last two axes change places on the way.
    """
    nothing = Repeated(value, 1, False, [])
    node, nodes, swapped = _producer(known, value), [], False
    if node is not None and isinstance(node.op, Permute) and node.op.dims == (0, 1, 3, 2):
        nodes, swapped = [node], True
        node = _producer(known, node.inputs[0])
    if node is None:
        return nothing
    found = _by_indices(known, node) or _by_broadcast(known, node)
    if found is None:
        return nothing
    source, group, more = found
    return Repeated(source, group, swapped, [*nodes, *more])


def _producer(known: Known, value: Value) -> Node | None:
    """The node that makes a value of four axes for one reader."""
    return known.maker(value) if len(known.shape(value)) in (4, 5) else None


def _by_indices(known: Known, node: Node) -> tuple[Value, int, list[Node]] | None:
    if not isinstance(node.op, GatherV2) or len(node.inputs) != 2 or node.op.axis != 1:
        return None
    source, indices = node.inputs[0], known.constant(node.inputs[1])
    heads = known.shape(source)[1] if len(known.shape(source)) == 4 else 0
    if indices is None or not heads or indices.size % heads:
        return None
    group = indices.size // heads
    same = np.array_equal(indices.reshape(-1), np.repeat(np.arange(heads), group))
    return (source, group, [node]) if same else None


def _by_broadcast(known: Known, node: Node) -> tuple[Value, int, list[Node]] | None:
    """Reshape([batch, heads, group, rows, size]) of a broadcast of [batch, heads, 1, rows, size]."""
    wide = _producer(known, node.inputs[0]) if isinstance(node.op, Reshape) else None
    if wide is None or not isinstance(wide.op, BroadcastTo):
        return None
    thin = _producer(known, wide.inputs[0])
    if thin is None or len(known.shape(node.output)) != 4 or not isinstance(thin.op, (Reshape, Unsqueeze, ExpandDims)):
        return None
    source, (batch, _, rows, size) = thin.inputs[0], known.shape(node.output)
    if len(known.shape(source)) != 4 or len(known.shape(wide.output)) != 5:
        return None
    heads, group = known.shape(source)[1], known.shape(wide.output)[2]
    shapes = [(batch, heads, rows, size), (batch, heads, 1, rows, size), (batch, heads, group, rows, size)]
    fits = [known.shape(v) for v in (source, thin.output, wide.output)] == shapes
    return (source, group, [node, wide, thin]) if fits and known.shape(node.output)[1] == heads * group else None


# Masks that are known.


def folded(masks: Sequence[tuple[Mask, np.ndarray]]) -> np.ndarray:
    """What known masks do to a score of 0, one after the other."""
    total = np.zeros((1, 1), F32)
    for mask, content in masks:
        if mask.allowed is None:
            total = total + content
        else:
            total = np.where((content != 0) == mask.allowed, total, np.float32(mask.filler))
    return total


def seen_by_first(added: np.ndarray, rows: tuple[int, int]) -> int | None:
    """How many keys the first query sees, if each further one sees one more, and that is all that a mask says."""
    flat = added.reshape(-1, *added.shape[-2:]) if added.ndim > 1 else added.reshape(1, 1, -1)
    if len(flat) > 1 or flat.shape[1] != rows[0]:
        return None
    hidden = flat[0] <= NEVER
    seen = rows[1] - int(hidden[0].sum())
    behind = np.arange(rows[1]) >= seen + np.arange(rows[0])[:, None]
    plain = not flat[0][~hidden].any() and np.array_equal(hidden, behind)
    return seen if plain and (seen > 0 or np.isneginf(flat[0][hidden]).all()) else None
