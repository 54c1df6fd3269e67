"""Known defects of the released MNN runtime: equivalent forms that it computes right, and what has none.

The table `DEFECTS` is data: op, what is wrong in a sentence, when it applies, and the form written instead. Everything
here is measured on MNN 3.6.1; our executor computes both forms alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mnnconvert.errors import ConversionError, Diagnostic
from mnnconvert.ir import F32, I32, Builder, Graph, Node, Value
from mnnconvert.ops.elementwise import Binary, Cast, Unary
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.shape import ShapeOf
from mnnconvert.passes.base import GraphPass, Notes
from mnnconvert.passes.edit import replace_nodes

Form = Callable[[Builder, Node], Sequence[Value] | None]  # None: the op is fine as it is
Refusal = Callable[[Node], str]  # empty: the op is fine as it is


@dataclass(frozen=True)
class Defect:
    """Something that a released runtime computes wrong, and the form that it computes right (or the refusal)."""

    kind: str
    what: str
    form: Form | None = None
    refusal: Refusal | None = None


def _less(b: Builder, node: Node) -> Sequence[Value] | None:
    op = node.op
    if not isinstance(op, Binary) or op.function != "LESS" or node.inputs[0].dtype != F32:
        return None
    return [b.add(Binary("GREATER", op.activation), node.inputs[1], node.inputs[0])]


INTEGER_UNARY = {"ABS", "NEG", "SQUARE", "SIGN"}


def _integer_unary(b: Builder, node: Node) -> Sequence[Value] | None:
    op, x = node.op, node.inputs[0]
    if not isinstance(op, Unary) or x.dtype != I32 or op.function in INTEGER_UNARY:
        return None
    return [b.add(Cast("DT_INT32"), b.add(op, b.add(Cast("DT_FLOAT"), x)))]


def _gather(b: Builder, node: Node) -> Sequence[Value] | None:
    x, indices = node.inputs[0], node.inputs[1]
    axis = _gather_axis(node)
    if axis is None:
        return None
    counted = from_start(b, indices, x, axis)
    return None if counted is indices else [b.add(node.op, x, counted, *node.inputs[2:])]


def _gather_axis(node: Node) -> int | None:
    """The axis counted from the start, or None when it is not known."""
    axis = getattr(node.op, "axis", 0)
    if len(node.inputs) > 2:
        known = node.inputs[2].constant
        if known is None:
            return None
        axis = int(known.reshape(-1)[0])
    rank = node.inputs[0].rank
    return axis if axis >= 0 else None if rank is None else axis + rank


def _gather_elements(b: Builder, node: Node) -> Sequence[Value] | None:
    return _gather(b, node)


def _scatter_elements(b: Builder, node: Node) -> Sequence[Value] | None:
    data, indices, updates = node.inputs[:3]
    known = node.inputs[3].constant if len(node.inputs) > 3 else np.array(0)
    if known is None or data.rank is None:
        return None
    axis = int(known.reshape(-1)[0]) % max(data.rank, 1)
    counted = from_start(b, indices, data, axis)
    return None if counted is indices else [b.add(node.op, data, counted, updates, *node.inputs[3:])]


def from_start(b: Builder, indices: Value, data: Value, axis: int) -> Value:
    """`indices` with negative ones counted from the start of `axis`; itself when none can be negative."""
    if counts_from_zero(indices):
        return indices
    size = data.shape[axis] if data.shape is not None and axis < len(data.shape) else None
    known = indices.constant
    if isinstance(size, int) and known is not None:
        return b.constant(np.where(known < 0, known + size, known).astype(I32))
    length = (
        b.ints(size) if isinstance(size, int) else b.add(GatherV2(), b.add(ShapeOf(), data), b.ints(axis), b.ints(0))
    )
    negative = b.add(Binary("GREATER"), b.ints(0), indices)
    return b.add(Binary("ADD"), indices, b.add(Binary("MUL"), negative, length))


COUNTING = {"ArgMax", "ArgMin", "ShapeOf", "Size", "Rank", "Where"}


def counts_from_zero(value: Value) -> bool:
    """Whether a value is known to hold no negative numbers."""
    known = value.constant if value.tensor is not None or value.spec.constant is not None else None
    if known is not None:
        return bool((known >= 0).all())
    sizes = value.sizes
    if sizes is not None and all(isinstance(s, str) or (isinstance(s, int) and s >= 0) for s in sizes):
        return True
    producer = value.producer
    if producer is None:
        return False
    if producer.op.kind in COUNTING or (producer.op.kind == "TopKV2" and value is producer.outputs[-1]):
        return True
    passing = producer.op.kind in ("Reshape", "Squeeze", "Unsqueeze", "Permute", "Identity")
    return passing and counts_from_zero(producer.inputs[0])


DEFECTS: dict[str, tuple[Defect, ...]] = {
    "none": (),
    "mnn-3.6.1": (
        Defect("Binary", "float LESS is reversed when both operands are negative", _less),
        Defect("Unary", "only ABS, NEG, SQUARE and SIGN are computed on integers", _integer_unary),
        Defect("GatherV2", "a negative index gives zeros", _gather),
        Defect("Gather", "a negative index gives zeros", _gather),
        Defect("GatherElements", "a negative index is not counted from the end", _gather_elements),
        Defect("ScatterElements", "a negative index is not counted from the end", _scatter_elements),
    ),
}


@dataclass(frozen=True)
class Legalize(GraphPass):
    """Write what the target runtime computes wrong in another form; refuse by name what has none.

    At `level` 2 indices are taken to count from the start, as exporters write them.
    """

    target: str = "mnn-3.6.1"
    level: int = 1

    name = "legalize"

    def change(self, graph: Graph, notes: Notes) -> int:
        table = [d for d in DEFECTS[self.target] if not (self.level > 1 and "negative index" in d.what)]
        if self.level > 1:
            notes.notes.append("level 2: indices are taken to be non-negative")
        problems = [p for node in graph.nodes for p in _refusals(node, table)]
        if problems:
            raise ConversionError(problems)
        forms: dict[str, list[Defect]] = {}
        for defect in table:
            if defect.form is not None:
                forms.setdefault(defect.kind, []).append(defect)

        def replace(b: Builder, node: Node) -> Sequence[Value] | None:
            for defect in forms.get(node.op.kind, ()):
                made = defect.form(b, node) if defect.form is not None else None
                if made is not None:
                    return made
            return None

        return replace_nodes(graph, replace)


def _refusals(node: Node, table: Sequence[Defect]) -> Iterator[Diagnostic]:
    for defect in table:
        if defect.kind == node.op.kind and defect.refusal is not None:
            reason = defect.refusal(node)
            if reason:
                yield Diagnostic(
                    "runtime-defect",
                    f"MNN 3.6.1 computes this wrong: {reason}",
                    {"node": ", ".join(node.origin), "op": node.op.kind},
                    "--target none writes the file for another runtime",
                )
