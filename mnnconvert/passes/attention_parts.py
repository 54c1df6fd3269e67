"""What Attention is given: heads in its order of axes, and one mask for all that keeps queries from keys.

MNN 3.6.1 computes one sequence with as many keys as queries, whose mask has a row for each query and is that of all
heads. Several sequences become more heads of one sequence; where each has a mask of its own they become one long
sequence, whose mask keeps each to itself. Where each head has a mask of its own, it has an op of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from mnnconvert.ir import Builder, Value
from mnnconvert.ir.types import merge
from mnnconvert.ops.arrange import BroadcastTo, Concat
from mnnconvert.ops.attention import Attention
from mnnconvert.ops.attention_form import AttentionForm, Repeated, UnlikeError, seen_by_first
from mnnconvert.ops.elementwise import Binary, Select
from mnnconvert.ops.generators import Range
from mnnconvert.ops.shape import Permute, Reshape, Squeeze, Unsqueeze
from mnnconvert.passes.attention_masks import (
    Size,
    Sizes,
    blanked,
    cut,
    known_masks,
    mask_sizes,
    per_head,
    size_of,
    total_of,
)

MOST_HEADS = 64  # of which each gets an op of its own


@dataclass
class Sequences:
    """Sizes of an attention: sequences, heads, queries, keys, elements of a key and of a value; `flat` where products
    have no axis for sequences. A mask is [batch or 1, heads or 1, queries or 1, keys], None where that is not known;
    () stands for none.
    """

    flat: bool
    batch: Size
    heads: Size
    queries: Size
    keys: Size
    depth: int
    width: int
    mask: Sizes = ()


class Operands(NamedTuple):
    """Rows [1 or batch, rows, heads, size] of queries, keys and values; all masks together; sinks [heads]."""

    q: Value
    k: Value
    v: Value
    total: Value | None
    sinks: Value | None


@dataclass
class Plan:
    """How a form becomes an op. `way`: 'plain', sequences as more 'heads', or as one 'long' sequence."""

    form: AttentionForm
    sizes: Sequences
    runtime: bool
    way: str
    known: np.ndarray | None  # all masks together, where they are known
    causal: bool
    kept: bool  # whether keys and values of earlier calls are there as well
    parted: bool = False  # whether each head has an op of its own
    layer: int = -1

    @property
    def ops(self) -> int:
        """How many ops it takes."""
        return int(self.sizes.heads or 0) if self.parted else 1

    def build(self, b: Builder) -> Value:
        """The result of the last product."""
        form, first, sizes = self.form, self.form.first, self.sizes
        products: Any = (first.op, form.last.op)
        q = self._rows(b, form.q, products[0].transpose_a, sizes.depth)
        k = self._rows(b, form.k.source, products[0].transpose_b == form.k.swapped, sizes.depth)
        v = self._rows(b, form.v.source, products[1].transpose_b != form.v.swapped, sizes.width)
        sinks = None if form.sinks is None else per_head(b, form.sinks)
        operands = Operands(q, k, v, self._total(b), sinks)
        y = self._apiece(b, operands) if self.parted else self._together(b, operands)
        result = self._restored(b, y, form.q)
        result.spec.shape = merge(result.shape, form.last.output.shape)
        return result

    def _together(self, b: Builder, x: Operands, number: int = 0) -> Value:
        """What queries find, [1 or batch, queries, heads * size], by one op, the layer's first or a further one."""
        plain = abs(self.form.scale * math.sqrt(self.sizes.depth) - 1) < 1e-6
        op = Attention(self.kept, self.layer + number, 0.0 if plain else self.form.scale)
        mask = None if x.total is None else self._mask(b, x.total, x.q, x.k)
        y = b.add(op, x.q, x.k, x.v, *(more for more in (mask, x.sinks) if more is not None))
        return blanked(b, y, mask) if mask is not None and self.form.blank and not self._sees_a_key() else y

    def _apiece(self, b: Builder, x: Operands) -> Value:
        """The same by an op for each head. In the way 'heads' rows are [rows, heads, batch, size] here."""
        found = [self._together(b, own, h) for h, own in enumerate(self._of_heads(b, x))]
        if self.way != "heads":
            return b.add(Concat(-1), *found)
        columns = [b.add(Reshape((0, -1, 1, self.sizes.width)), b.add(Squeeze((0,)), y)) for y in found]
        return b.add(Unsqueeze((0,)), b.add(Reshape((0, -1)), b.add(Concat(2), *columns)))

    def _of_heads(self, b: Builder, x: Operands) -> Iterator[Operands]:
        """What each head is given."""
        assert x.total is not None and x.total.rank is not None  # `plan` has looked
        axis, heads = 1 if self.way == "heads" else 2, self.ops
        rows = [cut(b, part, axis, (part.shape or ())[axis]) for part in (x.q, x.k, x.v)]
        masks = cut(b, x.total, x.total.rank - 3, heads)
        sinks = cut(b, x.sinks, 0, heads) if x.sinks is not None else [None] * heads
        for h in range(heads):
            q, k, v = (parts[h * len(parts) // heads] for parts in rows)
            if self.way == "heads":
                q, k, v = (b.add(Unsqueeze((0,)), b.add(Squeeze((1,)), part)) for part in (q, k, v))
            yield Operands(q, k, v, masks[h], sinks[h])

    def _rows(self, b: Builder, x: Value, swapped: bool, size: int) -> Value:
        """[batch, heads, rows, size], the last two perhaps swapped, as [batch, rows, heads, size]."""
        if self.sizes.flat:
            return b.add(Unsqueeze((0,)), b.add(Permute((2, 0, 1) if swapped else (1, 0, 2)), x))
        rows, elements = (3, 2) if swapped else (2, 3)
        if self.way == "heads" and self.parted:
            return b.add(Permute((rows, 1, 0, elements)), x)
        if self.way == "heads":
            together = b.add(Reshape((0, -1, size)), b.add(Permute((rows, 0, 1, elements)), x))
            return b.add(Unsqueeze((0,)), together)
        ordered = b.add(Permute((0, rows, 1, elements)), x)
        own = (x.shape or ())[1]
        return b.add(Reshape((1, -1, int(own or 0), size)), ordered) if self.way == "long" else ordered

    def _restored(self, b: Builder, y: Value, q: Value) -> Value:
        """y [1 or batch, rows, heads * size] in the order of the last product."""
        heads, size = self.sizes.heads, self.sizes.width
        if self.sizes.flat:
            split = b.add(Reshape((0, -1, size)), b.add(Squeeze((0,)), y))
            return b.add(Permute((1, 0, 2)), split)
        assert isinstance(heads, int)  # `_sizes` has looked
        if self.way == "heads":
            split = b.add(Reshape((0, -1, heads, size)), b.add(Squeeze((0,)), y))
            return b.add(Permute((1, 2, 0, 3)), split)
        if self.way == "long":
            axis = 3 if self.form.first.op.transpose_a else 2  # type: ignore[attr-defined]
            target = b.add(Concat(0), size_of(b, q, 0), size_of(b, q, axis), b.ints(np.array([heads, size])))
            return b.add(Permute((0, 2, 1, 3)), b.add(Reshape(), y, target))
        return b.add(Permute((0, 2, 1, 3)), b.add(Reshape((0, 0, heads, size)), y))

    def _sees_a_key(self) -> bool:
        return self.known is not None and not np.isneginf(self.known).all(-1).any()

    def _total(self, b: Builder) -> Value | None:
        """All masks together; None where the op needs none."""
        if self.causal:
            return None
        return b.constant(self.known) if self.known is not None else total_of(b, self.form.masks)

    def _mask(self, b: Builder, total: Value, q: Value, k: Value) -> Value:
        """What is added to the scores of q [1 or batch, queries, ...] and k [1 or batch, keys, ...]."""
        shape = self.sizes.mask
        if not self.form.masks and not self.runtime:
            return total
        if self.way == "long":
            return self._apart(b, total, q)
        rows = shape[2] if shape else None
        if shape and shape[3] == self.sizes.keys and (rows == self.sizes.queries or (not self.runtime and rows == 1)):
            return total
        columns = b.ints(np.array([1])) if self.kept and shape else size_of(b, k, 1)
        target = b.add(Concat(0), b.ints(np.array([1, 1])), size_of(b, q, 1), columns)
        return b.add(BroadcastTo(), total, target)

    def _apart(self, b: Builder, total: Value, q: Value) -> Value:
        """A mask [batch, 1, 1 or rows, keys] as [1, 1, batch * rows, batch * keys] that keeps sequences apart."""
        source = self.form.q
        axis = 3 if self.form.first.op.transpose_a else 2  # type: ignore[attr-defined]
        count, rows, one = size_of(b, source, 0), size_of(b, source, axis), b.ints(np.array([1]))
        number = b.add(Range(), b.ints(0), b.add(Reshape(()), count), b.ints(1))
        own = b.add(Binary("EQUAL"), b.add(Reshape((-1, 1, 1, 1)), number), b.add(Reshape((1, 1, -1, 1)), number))
        whole = b.add(BroadcastTo(), total, b.add(Concat(0), one, one, rows, rows))
        spread = b.add(Permute((0, 2, 1, 3)), whole)
        apart = b.add(Select(), own, spread, b.floats(-np.inf))
        long = size_of(b, q, 1)
        return b.add(Reshape(), apart, b.add(Concat(0), one, one, long, long))


def plan(form: AttentionForm, runtime: bool, kept: bool = False) -> Plan:
    """How the op says what a form does; UnlikeError where it, or the runtime if that matters, cannot.

    Of a form whose keys and values are `kept`, those operands are the new ones only.
    """
    if form.k.group != form.v.group:
        form = replace(form, k=_whole(form.k), v=_whole(form.v))
    sizes = _sizes(form)
    if form.cap:
        raise UnlikeError(f"scores are capped softly at {form.cap:g}")
    if sizes.mask and sizes.flat and sizes.mask[0] != 1:
        raise UnlikeError("the mask differs from sequence to sequence, which have no axis in the products")
    known = known_masks(form)
    causal = known is not None and bool(form.masks) and seen_by_first(known, _rows_and_keys(sizes)) == 1
    causal = causal and sizes.queries == sizes.keys and form.sinks is None
    way = _way(sizes, causal, form.sinks is not None) if runtime else "plain"
    if kept:
        _check_kept(sizes, runtime)
    if runtime:
        _check_runtime(sizes, way, kept)
    elif not _has_keys_enough(sizes):
        raise UnlikeError(f"{sizes.queries} queries on {sizes.keys} keys, which may be fewer")
    if form.blank and not runtime and sizes.mask and sizes.mask[1] != 1:
        raise UnlikeError("rows may see no key, under masks that differ from head to head")
    return Plan(form, sizes, runtime, way, known, causal, kept, parted=runtime and _per_head_masks(sizes))


def _whole(heads: Repeated) -> Repeated:
    """Keys or values as they are when they have been repeated."""
    return Repeated(heads.nodes[0].output, 1, False, []) if heads.nodes else heads


def _rows_and_keys(sizes: Sequences) -> tuple[int, int]:
    return tuple(s if isinstance(s, int) else -1 for s in (sizes.queries, sizes.keys))  # type: ignore[return-value]


def _sizes(form: AttentionForm) -> Sequences:
    """The sizes of a form of three or four axes; UnlikeError for any other."""
    scores, q = form.first.output.shape or (), form.q.shape or ()
    if len(scores) not in (3, 4) or any(
        len(x.shape or ()) != len(scores) for x in (form.q, form.k.source, form.v.source)
    ):
        raise UnlikeError("the products do not all have three or four axes")
    flat = len(scores) == 3
    batch, heads = (1, scores[0]) if flat else scores[:2]
    depth = q[-2 if form.first.op.transpose_a else -1]  # type: ignore[attr-defined]
    width = (form.last.output.shape or (None,))[-1]
    if not isinstance(depth, int) or not isinstance(width, int) or not (flat or isinstance(heads, int)):
        raise UnlikeError("the number of heads, or their size, is not known")
    for x in (form.q, form.k.source, form.v.source):
        lead = (x.shape or ())[:-2]
        if lead[:-1] != scores[:-3] or None in lead or not _shares(lead[-1], heads):
            raise UnlikeError(f"'{x.name}' has other batches or heads than the scores")
    if (form.q.shape or ())[:-2] != scores[:-2]:
        raise UnlikeError(f"'{form.q.name}' has other batches or heads than the scores")
    return Sequences(flat, batch, heads, scores[-2], scores[-1], depth, width, mask_sizes(form))


def _shares(own: Size, heads: Size) -> bool:
    """Whether each of so many heads of keys is there for equally many of all heads."""
    return own == heads or (isinstance(own, int) and isinstance(heads, int) and own > 0 and heads % own == 0)


def _way(sizes: Sequences, causal: bool, sinks: bool) -> str:
    if sizes.batch == 1 or sizes.flat:
        return "plain"
    return "long" if sinks or (sizes.mask and sizes.mask[0] != 1 and not causal) else "heads"


def _has_keys_enough(sizes: Sequences) -> bool:
    """Whether there are as many keys as queries, or more."""
    queries, keys = sizes.queries, sizes.keys
    if isinstance(queries, int) and isinstance(keys, int):
        return keys >= queries
    return queries is not None and (queries == keys or str(queries) in str(keys).strip("()").split("+"))


def _check_kept(sizes: Sequences, runtime: bool) -> None:
    """UnlikeError where what is kept would not be what is meant."""
    if runtime and sizes.batch != 1:
        raise UnlikeError("MNN 3.6.1 keeps the keys of one sequence only: --batch 1 says that there is one")
    if sizes.mask and sizes.mask[3] != sizes.keys:
        raise UnlikeError("the mask is not known to have a column for each key")


def _per_head_masks(sizes: Sequences) -> bool:
    """Whether the mask is not one for all heads."""
    return bool(sizes.mask) and sizes.mask[1] != 1


def _check_runtime(sizes: Sequences, way: str, kept: bool) -> None:
    """UnlikeError for what MNN 3.6.1 computes wrong, whatever the form."""
    if not kept and (sizes.queries is None or sizes.queries != sizes.keys):
        queries, keys = (str(s or "an unknown number of") for s in (sizes.queries, sizes.keys))
        raise UnlikeError(f"{queries} queries on {keys} keys; MNN 3.6.1 needs as many")
    if sizes.width != sizes.depth:
        raise UnlikeError(f"keys of {sizes.depth} and values of {sizes.width} elements; MNN 3.6.1 needs as many")
    if not _per_head_masks(sizes):
        return
    if sizes.mask[1] != sizes.heads or not isinstance(sizes.heads, int):
        raise UnlikeError("the mask differs from head to head, and how many there are is not known")
    if sizes.heads > MOST_HEADS:
        raise UnlikeError(f"the mask differs between {sizes.heads} heads, each of which would need an op of its own")
    if way == "long" and not str(sizes.batch).isidentifier():
        raise UnlikeError(f"the mask differs from head to head, and between {sizes.batch} sequences")
