"""Import rules of sequences and optionals. Both exist only during import: as lists of values of known length."""

from __future__ import annotations

from typing import Any

import numpy as np

from mnnconvert.frontends.onnx.arrange import parts_of
from mnnconvert.frontends.onnx.node import OnnxNode, ValueList
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.ir import I32, Builder, Value
from mnnconvert.ir.types import normal_axis
from mnnconvert.ops.arrange import Concat, Pack
from mnnconvert.ops.shape import Squeeze
from mnnconvert.ops.slicing import Slice

PER_PART = 1 << 12  # a value of the graph is worth as many numbers


@onnx_op("SplitToSequence", limits="the number of parts must be known")
def split_to_sequence(b: Builder, n: OnnxNode) -> ValueList:
    x = n.input(0)
    if x.rank is None:
        raise n.refuse("the rank of what SplitToSequence splits is not known")
    axis = normal_axis(n.attr("axis", 0), x.rank)
    sizes = n.input(1) if n.has(1) and n.constant(1) is None else None
    if sizes is not None and sizes.rank == 1 and sizes.shape and isinstance(sizes.shape[0], int):
        return ValueList(parts_of(b, x, axis, sizes, sizes.shape[0]))
    parts = b.add(Slice(axis, _part_sizes(n, x, axis)), x, names=[""] * len(_part_sizes(n, x, axis)))
    if n.has(1) or n.attr("keepdims", 1):
        return ValueList(parts)
    return ValueList(b.add(Squeeze((axis,)), part) for part in parts)


def _part_sizes(n: OnnxNode, x: Value, axis: int) -> tuple[int, ...]:
    """The sizes of the parts: as given, or all of one given size (the last may be smaller), or 1."""
    size = x.shape[axis] if x.shape is not None else None
    split = n.required_constant(1, "the operand split") if n.has(1) else np.array(1)
    if split.ndim:
        return tuple(int(s) for s in split)
    if not isinstance(size, int):
        raise n.refuse(
            f"the size of axis {axis}, which SplitToSequence splits, is not known", hint="fix the input sizes"
        )
    step = int(split)
    if step < 1:
        raise n.refuse(f"SplitToSequence cannot make parts of size {step}")
    n.limited(-(-size // step), PER_PART)
    return tuple(min(step, size - at) for at in range(0, size, step))


@onnx_op("SequenceConstruct")
def sequence_construct(b: Builder, n: OnnxNode) -> ValueList:
    return ValueList(n.inputs)


@onnx_op("SequenceEmpty")
def sequence_empty(b: Builder, n: OnnxNode) -> ValueList:
    return ValueList()


def _position(n: OnnxNode, index: int, length: int, default: int) -> int:
    """A position in a sequence of `length` values, counted from the start."""
    given = n.required_constant(index, "the position") if n.has(index) else np.array(default)
    position = int(given.reshape(-1)[0])
    if not -length <= position < max(length, 1):
        raise n.refuse(f"the position {position} is outside of a sequence of {length} values")
    return position + length if position < 0 else position


@onnx_op("SequenceAt", limits="a position that is known only at run time")
def sequence_at(b: Builder, n: OnnxNode) -> Value:
    values = n.sequence(0)
    if not values:
        raise n.refuse("SequenceAt takes a value from an empty sequence")
    return values.values[_position(n, 1, len(values), 0)]


@onnx_op("SequenceInsert", limits="a position that is known only at run time")
def sequence_insert(b: Builder, n: OnnxNode) -> ValueList:
    values = n.sequence(0)
    place = _position(n, 2, len(values) + 1, len(values)) if n.has(2) else len(values)
    if n.has(2) and int(n.required_constant(2, "the position").reshape(-1)[0]) < 0:
        place -= 1  # counted from the end of the sequence as it was
    return ValueList([*values[:place], n.input(1), *values[place:]])


@onnx_op("SequenceErase", limits="a position that is known only at run time")
def sequence_erase(b: Builder, n: OnnxNode) -> ValueList:
    values = n.sequence(0)
    place = _position(n, 1, len(values), -1)
    return ValueList([*values[:place], *values[place + 1 :]])


@onnx_op("SequenceLength")
def sequence_length(b: Builder, n: OnnxNode) -> Value:
    return b.constant(np.array(len(n.sequence(0)), I32))


@onnx_op("ConcatFromSequence")
def concat_from_sequence(b: Builder, n: OnnxNode) -> Value:
    values = n.sequence(0)
    if not values:
        raise n.refuse("ConcatFromSequence joins an empty sequence")
    axis = n.attr("axis")
    return b.add(Pack(axis) if n.attr("new_axis", 0) else Concat(axis), *values)


@onnx_op("SequenceMap")
def sequence_map(b: Builder, n: OnnxNode) -> tuple[ValueList, ...]:
    """The body once for each value of the first sequence; other sequences are walked along with it."""
    body, operands = n.attr("body"), [n.any_input(i) for i in range(len(n.proto.input))]
    rows = [
        n.scope.inline(body).run_graph(body, [v[k] if isinstance(v, ValueList) else v for v in operands])
        for k in range(len(n.sequence(0)))
    ]
    return tuple(ValueList(row[i] for row in rows) for i in range(n.output_count))


@onnx_op("Optional")
def optional(b: Builder, n: OnnxNode) -> Any:
    return n.any_input(0) if n.has(0) else ValueList(absent=True)


def _is_there(n: OnnxNode) -> bool:
    if not n.has(0):
        return False
    value = n.any_input(0)
    return not (isinstance(value, ValueList) and value.absent)


@onnx_op("OptionalHasElement")
def optional_has_element(b: Builder, n: OnnxNode) -> Value:
    return b.constant(np.array(_is_there(n), I32))


@onnx_op("OptionalGetElement")
def optional_get_element(b: Builder, n: OnnxNode) -> Any:
    if not _is_there(n):
        raise n.refuse("OptionalGetElement takes the value of an optional that is known to be absent")
    return n.any_input(0)
