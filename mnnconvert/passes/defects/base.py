"""What a defect of a runtime is, and the small forms that many of its workarounds share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mnnconvert.ir import F32, I32, Builder, Node, Value
from mnnconvert.ir.types import known
from mnnconvert.ops.elementwise import Binary
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.shape import Rank, Reshape, ShapeOf

Form = Callable[[Builder, Node], Sequence[Value] | None]


class RefusedError(Exception):
    """There is no form that the runtime computes right; the text says why."""


@dataclass(frozen=True)
class Defect:
    """Something that a released runtime computes wrong.

    `form` builds what it computes right instead, returns None where the op is fine as it is, and raises `RefusedError`
    where nothing else will do. `negative_index` marks what does not matter while all indices count from the start.
    """

    kind: str
    what: str
    form: Form
    negative_index: bool = False


def equal(b: Builder, x: Value, y: Value) -> Value:
    """int32: 1 where x equals y, else 0. The runtime's EQUAL compares the bits of floats, its NOTEQUAL numbers.

    One of them has the shape of the result, or one element: else NOTEQUAL compares bits, too.
    """
    if x.dtype != F32:
        return b.add(Binary("EQUAL"), x, y)
    return b.add(Binary("EQUAL"), b.add(Binary("NOTEQUAL"), x, y), b.ints(0))


def is_read(b: Builder, value: Value) -> bool:
    """Whether a result is used at all."""
    return bool(value.users) or any(v is value for _, v in b.graph.outputs)


def rank_of(value: Value, what: str) -> int:
    """The rank, which a form needs."""
    if value.rank is None:
        raise RefusedError(f"{what} of a tensor of unknown rank")
    return value.rank


def size_of(b: Builder, value: Value, axis: int | Value) -> Value:
    """The size of an axis as a scalar: a constant where it is known. The axis may be known only at run time."""
    if isinstance(axis, int) and value.shape is not None:
        size = value.shape[axis]
        if isinstance(size, int):
            return b.ints(size)
        axis %= len(value.shape)
    return b.add(GatherV2(), b.add(ShapeOf(), value), _from_start(b, value, axis), b.ints(0))


def _from_start(b: Builder, value: Value, axis: int | Value) -> Value:
    """An axis counted from the start, as an int32 scalar."""
    if isinstance(axis, int):
        return b.ints(axis) if axis >= 0 else b.add(Binary("ADD"), b.add(Rank(), value), b.ints(axis))
    rank = rank_of(value, "negative indices into an axis that is known only at run time,")
    number = b.add(Reshape(()), axis)
    negative = b.add(Binary("GREATER"), b.ints(0), number)
    return b.add(Binary("ADD"), number, b.add(Binary("MUL"), negative, b.ints(rank)))


def shape_of(b: Builder, value: Value) -> Value:
    """The shape as an int32 vector: a constant where it is known."""
    return b.constant(np.array(value.shape, I32)) if known(value.shape) else b.add(ShapeOf(), value)


def axis_operand(node: Node, index: int, default: int) -> int | None:
    """The axis that stands in operand `index`, `default` without it; None when it is known only at run time."""
    if len(node.inputs) <= index:
        return default
    content = node.inputs[index].constant
    return None if content is None else int(content.reshape(-1)[0])


def axes_operand(node: Node, index: int) -> tuple[int, ...] | None:
    """All numbers in operand `index`; None when they are known only at run time."""
    content = node.inputs[index].constant
    return None if content is None else tuple(int(n) for n in content.reshape(-1))
