"""What shared rules ask of a source node, whatever framework it is from."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.ir import Value

FIX_SIZES = "give the sizes of the input with --inputShape"
MOST_NUMBERS = 1 << 26  # in a table that a rule makes


class SourceNode(Protocol):
    """A node being translated: its op, a way to refuse it, and the reference of files that break their own rules."""

    @property
    def op(self) -> str: ...

    @property
    def broken(self) -> str: ...

    def refuse(self, message: str, hint: str = "", reference: str = "unsupported-attribute") -> ConversionError:
        """An error that names the node; raise it."""
        ...


def known_rank(n: SourceNode, x: Value) -> int:
    """The rank of an operand; refused where it is not known."""
    if x.rank is None:
        raise n.refuse(f"the rank of an operand of {n.op} is not known", hint=FIX_SIZES, reference="open-size")
    return x.rank


def known_sizes(n: SourceNode, x: Value) -> list[int]:
    """All sizes behind the first axis; refused where one is not known."""
    known_rank(n, x)
    sizes = [d for d in (x.shape or ())[1:] if isinstance(d, int)]
    if len(sizes) + 1 != x.rank:
        raise n.refuse(f"{n.op} needs the sizes of its operand", hint=FIX_SIZES)
    return sizes


def axis_of(n: SourceNode, axis: int, rank: int) -> int:
    """An axis counted from the start; refused outside of the rank."""
    if not -rank <= axis < rank:
        raise n.refuse(f"{n.op} names the axis {axis} of {rank}", reference=n.broken)
    return axis % rank


def limited(n: SourceNode, *sizes: Any) -> None:
    """Refuse to make a table of so many numbers that no real model needs it (sizes that are not known count 1)."""
    count = math.prod(int(s) for s in sizes if isinstance(s, int | np.integer))
    if count > MOST_NUMBERS:
        raise n.refuse(f"{n.op} needs a table of {count} numbers", reference="too-large")
