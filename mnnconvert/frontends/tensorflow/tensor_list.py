"""Lists of tensors of one shape (TensorList, TensorArray) while a model is imported.

Where their length and all places are known they are lists of values; otherwise one tensor with an element a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mnnconvert.frontends.common.compose import reshape
from mnnconvert.frontends.common.moves import unsqueezed
from mnnconvert.frontends.common.nodes import FIX_SIZES, limited
from mnnconvert.frontends.common.run_time import scalar, scalar_size, vector_of
from mnnconvert.frontends.tensorflow.node import TfNode
from mnnconvert.ir import Builder, Dim, Shape, Spec, Value
from mnnconvert.ir.types import known, merge
from mnnconvert.ops.arrange import Concat, Pack
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.generators import Fill
from mnnconvert.ops.scatter import ScatterNd
from mnnconvert.ops.shape import ShapeOf

MOST_ITEMS = 1 << 16


@dataclass
class TensorList:
    """One of: `items` (None where nothing was set yet), `rows` [n, element...], or `count` places with nothing set.

    `dtype` and `shape` are what is known of an element; a list that is probed notes in `seen` what is set into it.
    """

    dtype: np.dtype
    shape: Shape | None = None
    items: list[Value | None] | None = None
    rows: Value | None = None
    count: Value | None = None
    seen: list[Spec] | None = field(default=None, compare=False)

    @classmethod
    def of(cls, rows: Value) -> TensorList:
        """The rows of a tensor."""
        return cls(rows.dtype, None if rows.shape is None else rows.shape[1:], rows=rows)

    @classmethod
    def reserved(cls, n: TfNode, dtype: np.dtype, shape: Shape | None, count: Value) -> TensorList:
        """Places with nothing in them."""
        number = count.constant
        if number is None:
            return cls(dtype, shape, count=count)
        limited(n, int(number.reshape(-1)[0]), 1 << 10)
        return cls(dtype, shape, items=[None] * max(0, int(number.reshape(-1)[0])))

    @property
    def has_known_elements(self) -> bool:
        """Whether it can be made a tensor."""
        return self.rows is not None or known(self._element()) or (bool(self.items) and None not in (self.items or ()))

    def moved(self, take: Callable[[Any], Any]) -> TensorList:
        """The same list in another graph."""
        items = None if self.items is None else [None if v is None else take(v) for v in self.items]
        return replace(self, items=items, rows=take(self.rows), count=take(self.count))

    def probing(self) -> TensorList:
        return replace(self, seen=[])

    def learn(self, spec: Spec) -> None:
        """Take over what was seen of an element."""
        self.dtype, self.shape = spec.dtype, merge(self.shape, spec.shape)

    def _element(self) -> Shape | None:
        shape = self.shape
        for item in self.items or ():
            if item is not None:
                shape = merge(shape, item.shape)
        return shape

    def length(self, b: Builder) -> Value:
        """How many elements there are, an int32 scalar."""
        if self.items is not None:
            return b.ints(len(self.items))
        return scalar_size(b, self.rows, 0) if self.rows is not None else scalar(b, self.count or b.ints(0))

    def get(self, b: Builder, n: TfNode, index: Value) -> Value:
        """Element `index`; zeros where nothing was set."""
        place = index.constant
        if self.items is not None and place is not None:
            at = int(place.reshape(-1)[0])
            if not -len(self.items) <= at < len(self.items):
                raise ValueError(f"there is no element {at} of {len(self.items)}")
            found = self.items[at]
            return found if found is not None else self._zeros(b, n, [])
        if self.seen is not None:
            return self.seen_zeros(b, n)
        return b.add(GatherV2(), self.tensor(b, n), scalar(b, index), b.ints(0))

    def seen_zeros(self, b: Builder, n: TfNode) -> Value:
        """Something like an element of a list that is probed."""
        shape = self.seen[0].shape if self.seen else self._element()
        if not known(shape):
            raise n.refuse(f"{n.op} reads a list before anything was set, and its elements are not known", FIX_SIZES)
        return b.constant(np.zeros([d for d in shape or () if isinstance(d, int)], self.dtype))

    def set(self, b: Builder, n: TfNode, index: Value, value: Value) -> TensorList:
        """The list with element `index` replaced."""
        place = index.constant
        if self.seen is not None:
            self.seen.append(Spec(value.dtype, value.shape))
            return self
        if self.items is not None and place is not None:
            at, items = int(place.reshape(-1)[0]), list(self.items)
            items += [None] * (at + 1 - len(items)) if at < MOST_ITEMS else []
            items[at] = value
            return replace(self, items=items)
        self.learn(Spec(value.dtype, value.shape))
        rows = self.tensor(b, n)
        places = reshape(b, index, (1, 1))
        return TensorList.of(b.add(ScatterNd(), places, unsqueezed(b, value, 0), b.add(ShapeOf(), rows), rows))

    def push(self, b: Builder, n: TfNode, value: Value) -> TensorList:
        """The list with one element more."""
        if self.seen is not None:
            self.seen.append(Spec(value.dtype, value.shape))
            return self
        if self.items is not None:
            return replace(self, items=[*self.items, value])
        self.learn(Spec(value.dtype, value.shape))
        return TensorList.of(b.add(Concat(0), self.tensor(b, n), unsqueezed(b, value, 0)))

    def tensor(self, b: Builder, n: TfNode) -> Value:
        """All elements, stacked."""
        if self.rows is not None:
            return self.rows
        if self.items and any(v is not None for v in self.items):
            return b.add(Pack(0), *(v if v is not None else self._zeros(b, n, []) for v in self.items))
        return self._zeros(b, n, [self.length(b)])

    def _zeros(self, b: Builder, n: TfNode, leading: list[Value]) -> Value:
        """Zeros of the sizes `leading`, then those of an element."""
        element = self._element()
        if element is None:
            raise n.refuse(f"the elements of a list that {n.op} uses are not known", hint=FIX_SIZES)
        sizes = [*leading, *(_size(b, n, d) for d in element)]
        if not sizes:
            return b.constant(np.zeros((), self.dtype))
        return b.add(Fill(), vector_of(b, sizes), b.constant(np.zeros((), self.dtype)))


def _size(b: Builder, n: TfNode, size: Dim) -> Value:
    """A size as an int32 scalar: that of any value of the graph that has it."""
    if isinstance(size, int):
        return b.ints(size)
    if size is not None:
        for value in (*b.graph.inputs, *(v for node in b.graph.nodes for v in node.outputs)):
            if value.shape is not None and size in value.shape:
                return scalar_size(b, value, value.shape.index(size))
    raise n.refuse(f"a size of the elements of a list that {n.op} uses is not known", hint=FIX_SIZES)
