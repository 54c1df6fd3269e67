"""Masks of attentions: what they do to scores together, and the parts for each head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import numpy as np

from mnnconvert.ir import F32, Builder, Value
from mnnconvert.ops.attention_form import AttentionForm, Mask, UnlikeError, folded
from mnnconvert.ops.elementwise import Binary, Select
from mnnconvert.ops.reduction import Reduction
from mnnconvert.ops.shape import Reshape, ShapeOf, Squeeze
from mnnconvert.ops.slicing import Slice

Size = int | str | None
Sizes = tuple[Size, ...]

MOST_KNOWN = 1 << 22  # elements of a mask that is looked at


def mask_sizes(form: AttentionForm) -> Sizes:
    """Sizes of all masks together, with four axes; () without one."""
    shapes = []
    for mask in form.masks:
        shape = mask.value.shape
        if shape is None or len(mask.shape) > 4 or (len(shape) > 2 and shape[-3] is None):
            raise UnlikeError(f"the mask '{mask.value.name}' is not known to be one for all heads")
        shapes.append((1,) * (4 - len(shape)) + shape)
    return tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*shapes, strict=True))


def known_masks(form: AttentionForm) -> np.ndarray | None:
    """All masks together, where they are constants."""
    contents = []
    for mask in form.masks:
        if math.prod(s if isinstance(s, int) else MOST_KNOWN for s in mask.value.shape or ()) > MOST_KNOWN:
            return None
        content = mask.value.constant
        if content is None:
            return None
        contents.append((mask, content))
    return folded(contents).astype(F32) if contents else np.zeros((1, 1), F32)


def total_of(b: Builder, masks: Sequence[Mask]) -> Value:
    """What masks do to a score of 0, one after the other."""

    def further(total: Value | None, mask: Mask) -> Value:
        if mask.allowed is None:
            return mask.value if total is None else b.add(Binary("ADD"), total, mask.value)
        kept, filler = b.floats(0.0) if total is None else total, b.floats(mask.filler)
        return b.add(Select(), mask.value, *((kept, filler) if mask.allowed else (filler, kept)))

    total: Value | None = reduce(further, masks, None)
    assert total is not None  # only asked for where there are masks
    return total


def blanked(b: Builder, y: Value, mask: Value) -> Value:
    """y [batch, rows, elements], with zeros in rows that see no key."""
    best = b.add(Reduction("MAXIMUM", (-1,), True), mask)
    seen = b.add(Binary("GREATER"), best, b.floats(-np.inf))
    seen = b.add(Squeeze((1,)), seen) if seen.rank == 4 else seen
    return b.add(Select(), seen, y, b.floats(0.0))


def cut(b: Builder, x: Value, axis: int, parts: Size) -> Sequence[Value]:
    """A value in equal parts along an axis."""
    assert isinstance(parts, int)
    if x.constant is not None:
        return [b.constant(np.ascontiguousarray(part)) for part in np.split(x.constant, parts, axis)]
    return b.add(Slice(axis, parts=parts), x, names=[""] * parts)


def per_head(b: Builder, sinks: Value) -> Value:
    """Sinks [1, heads, 1, 1], or a constant that repeats these, as [heads]."""
    content = sinks.constant
    return b.add(Reshape((-1,)), sinks) if content is None else b.constant(np.ascontiguousarray(content[0, :, 0, 0]))


def size_of(b: Builder, x: Value, axis: int) -> Value:
    """The size of an axis as int32 [1]."""
    return b.add(ShapeOf(axis, axis + 1), x)
