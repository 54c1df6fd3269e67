"""Which value of a converted file stands for which value of its source, and how to bring one into the other's form.

Passes keep the names of values, so that a value with a name of the source has its content. What a frontend or a pass
makes beside is named after the source value it works for: `conv/ReLU` belongs to `conv`. Where the last thing done for
a source value only moved it (channels back to the end, an axis taken away), passes that cancel moves leave the value
before it, which holds the same numbers in another order.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from mnnconvert.ir import Graph, Value
from mnnconvert.ops.matmul import CONVERTED
from mnnconvert.ops.steps import MOVES

CHANNELS_LAST = ("TFLITE", "TENSORFLOW")  # sources whose values have their channels at the end
_OWN = re.compile(r"/[A-Za-z0-9]+(_\d+)?$")  # what a builder appends to the name of a scope: the kind of an op
_FORMS = re.compile(r"/(c4|nchw|nhwc|int8|float)(_\d+)?$")  # copies in another form

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Match:
    """A value of the file and the source value it stands for; `moved` where it may hold it in another order."""

    value: Value
    source: str
    moved: bool = False


def correspond(graph: Graph, names: Collection[str]) -> list[Match]:
    """The matches of a file with source values `names`, in the order of computation; inputs are not among them."""
    made = [value for node in graph.nodes for value in node.outputs]
    present = {value.name for value in made}
    last: dict[str, Value] = {}  # of each source value that has gone, what was made for it last
    for value in made:
        owner = _owner(value.name)
        if owner in names and owner not in present and not _FORMS.search(value.name) and not _prepares(value, owner):
            last[owner] = value
    moved = {value: owner for owner, value in last.items()}
    matches = [Match(v, v.name) if v.name in names else Match(v, moved[v], True) for v in made
               if v.name in names or v in moved]  # fmt: skip
    return matches


def _prepares(value: Value, owner: str) -> bool:
    """Whether a value is only an operand of `owner` in another shape or order, made of what other layers computed."""
    node = value.producer
    return node is not None and isinstance(node.op, MOVES) and _owner(node.inputs[0].name) != owner


def _owner(name: str) -> str:
    """The source value that a value was made for, as its name tells."""
    return _OWN.sub("", name).removesuffix(CONVERTED)


def moved_order(file: Shape, source: Shape, channels_last: bool) -> str | None:
    """How a moved value lies: "same" order of elements, channels "last" in the source, or None where it cannot be."""
    if int(np.prod(file)) != int(np.prod(source)):
        return None
    behind = (file[0], *file[2:], file[1]) if len(file) > 2 else file
    fits = [kind for kind, shape in (("same", file), ("last", behind)) if _long(shape) == _long(source)]
    if len(fits) == 2:
        return "last" if channels_last else "same"
    return fits[0] if fits else None


def _long(shape: Iterable[int]) -> list[int]:
    """Sizes without those of 1."""
    return [size for size in shape if size != 1]


def to_source(array: np.ndarray, order: str, shape: Shape) -> np.ndarray:
    """A value of the file in the order and shape of the source."""
    return (np.moveaxis(array, 1, -1) if order == "last" else array).reshape(shape)


def to_file(array: np.ndarray, order: str, shape: Shape) -> np.ndarray:
    """A value of the source as the file holds it, in `shape`."""
    if order == "same":
        return array.reshape(shape)
    return np.moveaxis(array.reshape((shape[0], *shape[2:], shape[1])), -1, 1)
