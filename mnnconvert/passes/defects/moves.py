"""Ops that only move elements, and that the runtime moves to wrong places."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mnnconvert.ir import I32, U8, Builder, Node, Value
from mnnconvert.ops.arrange import BroadcastTo, Reverse, ReverseSequence
from mnnconvert.ops.elementwise import Binary, Cast
from mnnconvert.ops.layout import CHANNEL_FIRST, ConvertTensor, Identity
from mnnconvert.ops.shape import Flatten, Permute, Reshape, Squeeze, Unsqueeze
from mnnconvert.ops.slicing import Slice, StridedSlice
from mnnconvert.passes.defects.base import Defect, RefusedError, axes_operand, rank_of

Made = Sequence[Value] | None


def _broadcast(b: Builder, node: Node) -> Made:
    return [b.add(BroadcastTo(), *node.inputs)] if getattr(node.op, "exact", False) else None


def _convert(b: Builder, node: Node) -> Made:
    """Graphs of this package are channel first throughout: a conversion from or to NHWC permutes axes."""
    op, x = node.op, node.inputs[0]
    if not isinstance(op, ConvertTensor) or (op.source in CHANNEL_FIRST and op.dest in CHANNEL_FIRST):
        return None
    rank = rank_of(x, "a change of layout")
    if rank < 3 or op.source == op.dest:
        return [b.add(Identity(), x)]
    last = (0, rank - 1, *range(1, rank - 1)) if op.dest in CHANNEL_FIRST else (0, *range(2, rank), 1)
    return [b.add(Permute(last), x)]


def _permute(b: Builder, node: Node) -> Made:
    op, x = node.op, node.inputs[0]
    if not isinstance(op, Permute) or op.dims:
        return None
    return [b.add(Permute(tuple(range(rank_of(x, "the reversal of the axes")))[::-1]), x)]


def _flatten(b: Builder, node: Node) -> Made:
    op, x = node.op, node.inputs[0]
    if not isinstance(op, Flatten) or op.end_axis == 0:
        return None
    rank = rank_of(x, "Flatten up to an axis")
    first, behind = op.axis % rank, (x.shape or ())[op.end_axis % rank + 1 :]
    if not all(isinstance(d, int) for d in behind):
        raise RefusedError("Flatten up to an axis before axes of unknown size")
    return [b.add(Reshape((*(0,) * first, -1, *behind)), x)]  # type: ignore[arg-type]


def _axes(b: Builder, node: Node) -> Made:
    axes = axes_operand(node, 1) if len(node.inputs) > 1 else None
    if axes is None:
        return None  # in an operand they are read where the table holds none
    return [b.add(Squeeze(axes) if isinstance(node.op, Squeeze) else Unsqueeze(axes), node.inputs[0])]


def _fill(b: Builder, node: Node) -> Made:
    shape, value = node.inputs
    if shape.shape != (0,):
        return None
    return [b.add(Squeeze(tuple(range(rank_of(value, "Fill")))) if value.rank else Identity(), value)]


def _reverse(b: Builder, node: Node) -> Made:
    axes = axes_operand(node, 1)
    if axes is not None and min(axes) >= 0:
        return None
    if axes is None:
        raise RefusedError("Reverse along an axis that is known only at run time")
    rank = rank_of(node.inputs[0], "Reverse along a negative axis")
    return [b.add(Reverse(), node.inputs[0], b.ints([a % rank for a in axes]))]


def _reverse_sequence(b: Builder, node: Node) -> Made:
    x, lengths = node.inputs
    known = lengths.constant
    if not isinstance(node.op, ReverseSequence) or (known is not None and (known > 0).all()):
        return None
    negative = b.add(Binary("GREATER"), b.ints(1), lengths)  # 0 and 1 both leave a sequence as it is
    return [b.add(node.op, x, b.add(Binary("ADD"), lengths, negative))]


def _split(b: Builder, node: Node) -> Made:
    """Parts of explicit sizes, none of them empty."""
    op, x = node.op, node.inputs[0]
    if not isinstance(op, Slice) or len(node.inputs) > 1:
        return None
    axis = op.axis % rank_of(x, "a split")
    sizes = [v.shape[axis] for v in node.outputs if v.shape is not None]
    if len(op.sizes) != 1 and 0 not in sizes:
        return None
    if len(sizes) < len(node.outputs) or not all(isinstance(s, int) for s in sizes):
        raise RefusedError("a split into parts of one size along an axis of unknown size")
    filled = tuple(s for s in sizes if isinstance(s, int) and s)
    if len(filled) < 2:
        parts = iter([b.add(Identity(), x)] * len(filled))
    else:
        parts = iter(b.add(Slice(axis, filled), x, names=[""] * len(filled)))
    return [next(parts) if size else _nothing(b, x, axis) for size in sizes]


def _nothing(b: Builder, x: Value, axis: int) -> Value:
    return b.add(StridedSlice(), x, b.ints([0]), b.ints([0]), b.ints([axis]), b.ints([1]))


def _masks(b: Builder, node: Node) -> Made:
    op = node.op
    if not isinstance(op, StridedSlice) or not op.shrink_axis_mask & (op.begin_mask | op.end_mask):
        return None
    kept = ~op.shrink_axis_mask
    cleared = dataclasses.replace(op, begin_mask=op.begin_mask & kept, end_mask=op.end_mask & kept)
    return [b.add(cleared, *node.inputs)]


def _cast(b: Builder, node: Node) -> Made:
    op, x = node.op, node.inputs[0]
    if not isinstance(op, Cast) or x.dtype != U8 or op.to not in ("DT_BOOL", "DT_INT8"):
        return None
    whole = b.add(Cast("DT_INT32"), x)
    return [b.add(Binary("NOTEQUAL"), whole, b.ints(0)) if op.to == "DT_BOOL" else b.add(Cast("DT_INT8"), whole)]


def _small_integers(b: Builder, node: Node) -> Made:
    """The op on int32 instead of uint8."""
    if all(v.dtype != U8 for v in node.inputs):
        return None
    operands = [b.add(Cast("DT_INT32"), v) if v.dtype == U8 else v for v in node.inputs]
    results = b.add(node.op, *operands, names=[""] * len(node.outputs))
    return [r if old.dtype == I32 else b.add(Cast("DT_UINT8"), r) for r, old in zip(results, node.outputs, strict=True)]


DEFECTS = (
    Defect("BroadcastTo", "an exact target of higher rank is filled wrong", _broadcast),
    Defect("ConvertTensor", "the label of an operand wins over `source`", _convert),
    Defect("Permute", "crashes without an order", _permute),
    Defect("Flatten", "merging up to an axis loses the axes behind it", _flatten),
    Defect("Squeeze", "axes in an operand are not read where the table holds some", _axes),
    Defect("Unsqueeze", "axes in an operand are not read where the table holds some", _axes),
    Defect("Fill", "fails where the result is a scalar", _fill),
    Defect("Reverse", "a negative axis gives zeros", _reverse),
    Defect("ReverseSequence", "fails at a length of 0", _reverse_sequence),
    Defect("Slice", "a shorter last part gets full size; empty parts cannot be read", _split),
    Defect("StridedSlice", "masks of the begin win over a dropped axis", _masks),
    Defect("Cast", "bool from uint8 copies the value; int8 from uint8 is missing", _cast),
    *(
        Defect(kind, "computed as another type, or not at all, on uint8", _small_integers)
        for kind in ("TopKV2", "Reduction", "ScatterNd", "ScatterElements", "CumSum")
    ),
)
