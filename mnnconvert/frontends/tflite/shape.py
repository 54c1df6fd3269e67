"""Import rules of ops that move values without computing with them."""

from __future__ import annotations

import numpy as np

from mnnconvert.frontends.common import slices
from mnnconvert.frontends.common.channels_last import batched_gather
from mnnconvert.frontends.common.compose import calc, cast
from mnnconvert.frontends.common.moves import reshaped
from mnnconvert.frontends.common.nodes import axis_of, known_rank
from mnnconvert.frontends.tflite.compose import activated
from mnnconvert.frontends.tflite.model import BAD
from mnnconvert.frontends.tflite.node import TfliteNode
from mnnconvert.frontends.tflite.registry import tflite_op
from mnnconvert.ir import I32, Builder, Value
from mnnconvert.ops.arrange import BroadcastTo, Concat, Pack, Reverse, ReverseSequence, Tile, Unpack
from mnnconvert.ops.gather import GatherND, GatherV2
from mnnconvert.ops.padding import Padding
from mnnconvert.ops.shape import ExpandDims, Permute, Rank, Reshape, ShapeOf, Squeeze, Transpose
from mnnconvert.ops.slicing import Slice, SliceTf


@tflite_op("RESHAPE", moves=True)
def reshape(b: Builder, n: TfliteNode) -> Value:
    """To the sizes of the second operand, or of the option NewShape; -1 is inferred and 0 means just that."""
    x = n.input(0)
    wanted = n.constant(1) if n.has(1) else np.array(n.option_ints("NewShape"), np.int64)
    if wanted is not None:
        return reshaped(b, x, [int(d) for d in wanted.reshape(-1)])
    return b.add(Reshape(), x, n.input(1))


@tflite_op("SQUEEZE", moves=True)
def squeeze(b: Builder, n: TfliteNode) -> Value:
    x = n.input(0)
    axes = n.option_ints("SqueezeDims")
    return b.add(Squeeze(tuple(axis_of(n, a, known_rank(n, x)) for a in axes)), x)


@tflite_op("EXPAND_DIMS", moves=True)
def expand_dims(b: Builder, n: TfliteNode) -> Value:
    return b.add(ExpandDims(n.ints(1, "the axis")[0]), n.input(0))


@tflite_op("TRANSPOSE", moves=True)
def transpose(b: Builder, n: TfliteNode) -> Value:
    order = n.constant(1)
    if order is None:
        return b.add(Transpose(), n.input(0), n.input(1))
    return b.add(Permute(tuple(int(d) for d in order)), n.input(0))


@tflite_op("CONCATENATION", moves=True)
def concatenation(b: Builder, n: TfliteNode) -> Value:
    parts = n.inputs
    axis = axis_of(n, int(n.option("Axis", 0)), max(known_rank(n, x) for x in parts))
    return activated(b, n, b.add(Concat(axis), *parts) if len(parts) > 1 else parts[0])


@tflite_op("PACK", moves=True)
def pack(b: Builder, n: TfliteNode) -> Value:
    return b.add(Pack(axis_of(n, int(n.option("Axis", 0)), known_rank(n, n.input(0)) + 1)), *n.inputs)


@tflite_op("UNPACK", moves=True)
def unpack(b: Builder, n: TfliteNode) -> tuple[Value, ...]:
    x = n.input(0)
    axis = axis_of(n, int(n.option("Axis", 0)), known_rank(n, x))
    if x.shape and x.shape[axis] not in (None, n.output_count) and isinstance(x.shape[axis], int):
        raise n.refuse(f"UNPACK gives {n.output_count} of {x.shape[axis]} parts", reference=BAD)
    return b.add(Unpack(axis), x, names=[""] * n.output_count)


@tflite_op("SPLIT", moves=True)
def split(b: Builder, n: TfliteNode) -> tuple[Value, ...]:
    """Equal parts along the axis that the first operand names."""
    x, count = n.input(1), n.output_count
    axis = axis_of(n, n.ints(0, "the axis")[0], known_rank(n, x))
    return b.add(Slice(axis, parts=count), x, names=[""] * count) if count > 1 else (x,)


@tflite_op("SPLIT_V", moves=True, limits="the sizes of the parts must be known")
def split_v(b: Builder, n: TfliteNode) -> tuple[Value, ...]:
    x, sizes = n.input(0), n.ints(1, "the sizes of the parts")
    axis = axis_of(n, n.ints(2, "the axis")[0], known_rank(n, x))
    return b.add(Slice(axis, sizes), x, names=[""] * len(sizes)) if len(sizes) > 1 else (x,)


@tflite_op("SLICE", moves=True)
def slice_(b: Builder, n: TfliteNode) -> Value:
    return b.add(SliceTf(), n.input(0), n.input(1), n.input(2))


@tflite_op("STRIDED_SLICE", moves=True)
def strided_slice(b: Builder, n: TfliteNode) -> Value:
    """In the way of TensorFlow, with masks; with `Offset` the ends count from the begins."""
    x, first, last, *step = n.inputs
    begin, end, ellipsis, new, shrink = (
        int(n.option(f"{name}Mask", 0)) for name in ("Begin", "End", "Ellipsis", "NewAxis", "ShrinkAxis")
    )
    last = calc(b, "ADD", first, last) if n.option("Offset", False) else last
    return slices.strided_slice(b, x, (first, last, *step), (begin, end, ellipsis, new, shrink))


def _pads(b: Builder, n: TfliteNode) -> Value:
    """Amounts [rank, 2] as one list of pairs."""
    pads = n.constant(1)
    return b.add(Reshape((-1,)), cast(b, n.input(1), I32)) if pads is None else b.ints(pads.reshape(-1))


@tflite_op("PAD", moves=True)
def pad(b: Builder, n: TfliteNode) -> Value:
    """With zeros; on codes with the zero point, which stands for 0."""
    return b.add(Padding(), n.input(0), _pads(b, n))


@tflite_op("PADV2", moves=True)
def pad_v2(b: Builder, n: TfliteNode) -> Value:
    return b.add(Padding(), n.input(0), _pads(b, n), n.input(2))


@tflite_op("MIRROR_PAD", moves=True)
def mirror_pad(b: Builder, n: TfliteNode) -> Value:
    return b.add(Padding(n.choice("Mode", "MirrorPadMode", "REFLECT")), n.input(0), _pads(b, n))


@tflite_op("TILE", moves=True)
def tile(b: Builder, n: TfliteNode) -> Value:
    return b.add(Tile(), n.input(0), n.input(1))


@tflite_op("BROADCAST_TO", moves=True)
def broadcast_to(b: Builder, n: TfliteNode) -> Value:
    return b.add(BroadcastTo(), n.input(0), n.input(1))


@tflite_op("REVERSE_V2", moves=True)
def reverse(b: Builder, n: TfliteNode) -> Value:
    x = n.input(0)
    for axis in n.ints(1, "the axes"):
        x = b.add(Reverse(), x, b.ints([axis_of(n, axis, known_rank(n, x))]))
    return x


@tflite_op("REVERSE_SEQUENCE", moves=True)
def reverse_sequence(b: Builder, n: TfliteNode) -> Value:
    op = ReverseSequence(int(n.option("BatchDim", 0)), int(n.option("SeqDim", 0)))
    return b.add(op, n.input(0), n.input(1))


@tflite_op("GATHER", moves=True, limits="batches need a known rank")
def gather(b: Builder, n: TfliteNode) -> Value:
    """Slices along an axis; with `BatchDims` the leading axes of both operands pair up."""
    x, indices = n.input(0), n.input(1)
    rank, batch = known_rank(n, x), int(n.option("BatchDims", 0))
    axis = axis_of(n, int(n.option("Axis", 0)), rank)
    if not batch:
        return b.add(GatherV2(), x, indices, b.ints(axis))
    batch += known_rank(n, indices) if batch < 0 else 0
    return batched_gather(b, n, x, indices, axis, batch)


@tflite_op("GATHER_ND", moves=True)
def gather_nd(b: Builder, n: TfliteNode) -> Value:
    return b.add(GatherND(), n.input(0), n.input(1))


@tflite_op("SHAPE")
def shape(b: Builder, n: TfliteNode) -> Value:
    return b.add(ShapeOf(), n.input(0))


@tflite_op("RANK")
def rank(b: Builder, n: TfliteNode) -> Value:
    return b.add(Rank(), n.input(0))
