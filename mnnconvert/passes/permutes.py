"""Permutations move behind ops that do not care for the order of axes, until they meet their inverse and both vanish.

A channels-last model arrives with every convolution between two of them. What stays after this pass are those of the
inputs and outputs, and of the ops in between that do care.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mnnconvert.ir import Builder, Graph, Node, Operation, Shape, Value
from mnnconvert.ir.types import merge
from mnnconvert.ops.shape import Permute, Reshape
from mnnconvert.passes.base import GraphPass, Notes
from mnnconvert.passes.edit import replace_nodes
from mnnconvert.passes.reshapes import VIEWS, target_of

Order = tuple[int, ...]
Twin = tuple[Value, Order]  # what a value is a permutation of, and by which order

ELEMENTWISE = {
    "Unary", "Binary", "Cast", "Select", "Identity", "ReLU", "ReLU6", "ELU", "Selu", "Threshold", "FloatToInt8",
    "Int8ToFloat",
}  # fmt: skip


@dataclass(frozen=True)
class SinkPermutes(GraphPass):
    """Apply ops that take any order of axes before a permutation rather than behind it, where one less is left then."""

    name = "sink-permutes"
    after = ("resolve-reshapes",)

    def change(self, graph: Graph, notes: Notes) -> int:
        if not any(isinstance(node.op, Permute) for node in graph.nodes):
            return 0
        count = replace_nodes(graph, _Sinking(graph).replace)
        return count + (graph.prune() if count else 0)


class _Sinking:
    """One walk over a graph. `twins` knows of each permutation what it permutes."""

    def __init__(self, graph: Graph):
        self.wanted = _wanted(graph)
        self.twins: dict[Value, Twin] = {}

    def replace(self, b: Builder, node: Node) -> Sequence[Value] | None:
        """See `replace_nodes`."""
        if isinstance(node.op, Permute):
            return self._permute(b, node, node.op)
        twin = next((self.twins[v] for v in node.inputs if v in self.twins), None)
        if twin is None:
            return None
        if node.op.kind in VIEWS:
            return self._view(b, node)
        form = FORMS.get("elementwise" if node.op.kind in ELEMENTWISE else node.op.kind)
        if form is None or not self._gains(node):
            return None
        return self._sunk(b, node, twin[1], form)

    def _permute(self, b: Builder, node: Node, op: Permute) -> Sequence[Value] | None:
        """Two permutations in a row are one, or none."""
        rank = node.output.rank
        if rank is None:
            return None
        order = op.dims or tuple(range(rank))[::-1]
        source = node.inputs[0]
        if source in self.twins:
            source, inner = self.twins[source]
            order = tuple(inner[i] for i in order)
            made = source if order == tuple(range(rank)) else self._ordered(b, source, order)
            if made is not source:
                self.twins[made] = source, order
            return [made]
        moved = self._before_padding(b, node, order)
        if moved is not None:
            return [moved]
        if _keeps_order(source.shape, order) and target_of(source.shape, node.output.shape) is not None:
            made = self._ordered(b, source, order)
            self.twins[made] = source, order
            return [made]
        self.twins[node.output] = source, order
        return None

    def _ordered(self, b: Builder, x: Value, order: Order) -> Value:
        """`x` with its axes in an order; as a reshape where only axes of size 1 move."""
        dims = target_of(x.shape, tuple(x.shape[i] for i in order)) if x.shape else None
        made = b.add(Permute(order) if dims is None or not _keeps_order(x.shape, order) else Reshape(dims), x)
        made.steps = x.steps
        return made

    def _before_padding(self, b: Builder, node: Node, order: Order) -> Value | None:
        """A permutation of what only it reads and padding made goes in front of the padding, where a window sees it."""
        padding = node.inputs[0].producer
        if padding is None or padding.op.kind != "Padding" or len(node.inputs[0].users) != 1:
            return None
        amounts = padding.inputs[1].constant
        if amounts is None or padding.inputs[0] in self.twins:
            return None
        inner = self._ordered(b, padding.inputs[0], order)
        pairs = np.asarray(amounts).reshape(-1, 2)[list(order)]
        made: Value = b.add(padding.op, inner, b.ints(pairs.reshape(-1)), *padding.inputs[2:])
        made.steps = node.output.steps
        return made

    def _view(self, b: Builder, node: Node) -> Sequence[Value] | None:
        """A reshape of a permutation that only moves axes of size 1 reads what was permuted."""
        x = node.inputs[0]
        if x not in self.twins:
            return None
        source, order = self.twins[x]
        dims = target_of(source.shape, node.output.shape)
        if not _keeps_order(source.shape, order) or dims is None or 0 in dims:
            return None
        made = b.add(Reshape(dims), source)
        made.steps = node.output.steps
        return [made]

    def _gains(self, node: Node) -> bool:
        """Whether a permutation goes or shrinks: somebody wants the other order, axes go, or several become one."""
        if any(v in self.wanted for v in node.outputs) or _absorbs(node):
            return True
        moved = {v for v in node.inputs if v in self.twins}
        return len(moved) > len(node.outputs) and all(u is node for v in moved for u in v.users)

    def _sunk(self, b: Builder, node: Node, order: Order, form: Form) -> Sequence[Value] | None:
        if form in (_elementwise, _concat):
            operands = self._operands(b, node, order)
        else:
            operands = [self.twins[node.inputs[0]][0]] if node.inputs[0] in self.twins else None
        if operands is None or node.output.rank is None:
            return None
        made = form(b, node, operands, order)
        if made is None:
            return None
        op, inputs, after = made
        inner = b.add(op, *inputs, names=[""] * len(node.outputs))
        return [self._restored(b, i, old, after) for i, old in zip(inner, node.outputs, strict=True)]

    def _restored(self, b: Builder, inner: Value, old: Value, order: Order) -> Value:
        """A result in the order that its readers know."""
        inner.steps = old.steps
        if old.shape is not None and len(old.shape) == len(order):
            places = [order.index(i) for i in range(len(order))]
            inner.spec.shape = merge(inner.shape, tuple(old.shape[p] for p in places))
        if order == tuple(range(len(order))):
            return inner
        made = b.add(Permute(order), inner)
        made.steps = old.steps
        self.twins[made] = inner, order
        return made

    def _operands(self, b: Builder, node: Node, order: Order) -> list[Value] | None:
        """All operands in the order of what was permuted; None where that takes another permutation."""
        result = []
        for value in node.inputs:
            if value in self.twins:
                source, own = self.twins[value]
                made = source if own == order else None
            elif value.is_constant or _is_single(value):
                made = self._constant(b, value, order)
            else:
                made = self._spread(b, value, order)
            if made is None:
                return None
            result.append(made)
        return result

    def _constant(self, b: Builder, value: Value, order: Order) -> Value | None:
        if (value.rank or 0) > len(order):
            return None
        if _is_single(value):
            return value if (value.rank or 0) <= 1 or value.tensor is None else b.constant(_array(value).reshape(()))
        array = _array(value)
        full = array.reshape((1,) * (len(order) - array.ndim) + array.shape)
        return b.constant(np.ascontiguousarray(full.transpose(_inverse(order))))

    def _spread(self, b: Builder, value: Value, order: Order) -> Value | None:
        """An operand that is no permutation, where a reshape makes one of it."""
        if value.shape is None or len(value.shape) > len(order):
            return None
        shape = (1,) * (len(order) - len(value.shape)) + value.shape
        dims = target_of(value.shape, tuple(shape[i] for i in _inverse(order)))
        return b.add(Reshape(dims), value) if dims is not None and _keeps_order(shape, _inverse(order)) else None


def _wanted(graph: Graph) -> set[Value]:
    """Values that somebody further down would take in another order of axes, as far as a walk upwards tells."""
    wanted: set[Value] = set()
    for node in reversed(graph.nodes):
        passes = node.op.kind in ELEMENTWISE or node.op.kind in FORMS
        if isinstance(node.op, Permute) or _absorbs(node):
            wanted.add(node.inputs[0])
        elif passes and any(v in wanted for v in node.outputs):
            wanted.update(v for v in node.inputs if not v.is_constant)
    return wanted


def _absorbs(node: Node) -> bool:
    """Whether an op drops axes, or sees no difference between orders, so that what it reads may have any."""
    if node.op.kind == "Reduction":
        return not node.op.keep_dims  # type: ignore[attr-defined]
    return node.op.kind in VIEWS and sum(d != 1 for d in node.inputs[0].shape or (0, 0)) <= 1


Made = tuple[Operation, Sequence[Value], Order]  # the op, its operands, and the order that restores its results
Form = Callable[[Builder, Node, list[Value], Order], Made | None]


def _elementwise(b: Builder, node: Node, operands: list[Value], order: Order) -> Made | None:
    if getattr(node.op, "scale", None) is not None and len(getattr(node.op, "scale", ())) > 1:
        return None  # one step for each channel
    return node.op, operands, order


def _concat(b: Builder, node: Node, operands: list[Value], order: Order) -> Made | None:
    if any(v.rank != len(order) for v in operands):
        return None
    return _at_axis(node.op, order), operands, order


def _at_axis(op: Any, order: Order) -> Operation:
    """The op on the same axis, where that is now."""
    made: Operation = replace(op, axis=order[op.axis % len(order)])
    return made


def _one_axis(b: Builder, node: Node, operands: list[Value], order: Order) -> Made | None:
    if len(node.inputs) > 1:
        return None
    return _at_axis(node.op, order), operands[:1], order


def _padding(b: Builder, node: Node, operands: list[Value], order: Order) -> Made | None:
    amounts = node.inputs[1].constant
    if amounts is None:
        return None
    pairs = np.asarray(amounts).reshape(-1, 2)[list(_inverse(order))]
    return node.op, [operands[0], b.ints(pairs.reshape(-1)), *node.inputs[2:]], order


def _reduction(b: Builder, node: Node, operands: list[Value], order: Order) -> Made | None:
    op: Any = node.op
    if op.dims is None or len(node.inputs) > 1:
        return None
    gone = {d % len(order) for d in op.dims}
    made = replace(op, dims=tuple(sorted(order[d] for d in gone)))
    if op.keep_dims:
        return made, operands, order
    left = [order[i] for i in range(len(order)) if i not in gone]
    return made, operands, tuple(sorted(left).index(axis) for axis in left)


def _strided_slice(b: Builder, node: Node, operands: list[Value], order: Order) -> Made | None:
    """Axes that are listed get their new numbers; bounds of all axes, where none is added or dropped, a new order."""
    op: Any = node.op
    if op.from_type == 1:
        starts = node.inputs[1].sizes
        axes = node.inputs[3].constant if len(node.inputs) > 3 else np.arange(len(starts or ()))
        if axes is None or not axes.size:
            return None
        places = b.ints([order[int(a) % len(order)] for a in np.reshape(axes, -1)])
        return op, [operands[0], *node.inputs[1:3], places, *node.inputs[4:]], order
    bounds = [v.constant for v in node.inputs[1:] if v.constant is not None]
    if op.ellipsis_mask or op.new_axis_mask or op.shrink_axis_mask or len(bounds) < len(node.inputs) - 1:
        return None
    if any(v.size != len(order) for v in bounds):
        return None
    back = _inverse(order)
    masks = {
        f"{name}_mask": sum((getattr(op, f"{name}_mask") >> axis & 1) << i for i, axis in enumerate(back))
        for name in ("begin", "end")
    }
    return replace(op, **masks), [operands[0], *(b.ints(np.reshape(v, -1)[list(back)]) for v in bounds)], order


def _slice_tf(b: Builder, node: Node, operands: list[Value], order: Order) -> Made | None:
    bounds = [v.constant for v in node.inputs[1:] if v.constant is not None]
    if len(bounds) < 2:
        return None
    back = list(_inverse(order))
    return node.op, [operands[0], *(b.ints(np.reshape(v, -1)[back]) for v in bounds)], order


def _inverse(order: Order) -> Order:
    return tuple(order.index(i) for i in range(len(order)))


def _keeps_order(shape: Shape | None, order: Order) -> bool:
    """Whether a permutation of this shape moves axes of size 1 only."""
    if shape is None or len(shape) != len(order):
        return False
    moving = [axis for axis in order if shape[axis] != 1]
    return moving == sorted(moving)


def _is_single(value: Value) -> bool:
    return value.shape is not None and all(d == 1 for d in value.shape) and (value.rank == 0 or value.is_constant)


def _array(value: Value) -> np.ndarray:
    array = value.constant
    assert array is not None  # the caller asked for constants
    return array


FORMS: dict[str, Form] = {
    "elementwise": _elementwise, "Concat": _concat, "Slice": _one_axis, "Softmax": _one_axis, "Padding": _padding,
    "Reduction": _reduction, "StridedSlice": _strided_slice, "SliceTf": _slice_tf,
}  # fmt: skip
