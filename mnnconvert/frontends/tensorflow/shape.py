"""Import rules of ops that move values without computing with them, and of sizes."""

from __future__ import annotations

import numpy as np

from mnnconvert.frontends.common import slices
from mnnconvert.frontends.common.channels_last import batch_to_space, space_to_batch
from mnnconvert.frontends.common.compose import calc, cast, chain, choose
from mnnconvert.frontends.common.moves import permuted, reshaped, sliced
from mnnconvert.frontends.common.nodes import FIX_SIZES, axis_of, known_rank, known_sizes
from mnnconvert.frontends.common.run_time import count_up, scalar
from mnnconvert.frontends.tensorflow.compose import from_planes, has_channels_first, spatial, to_planes
from mnnconvert.frontends.tensorflow.node import TfNode
from mnnconvert.frontends.tensorflow.registry import tf_op
from mnnconvert.frontends.tensorflow.wire import BAD
from mnnconvert.ir import I32, Builder, Value
from mnnconvert.ops.arrange import BroadcastTo, Concat, Pack, Reverse, ReverseSequence, Tile, Unpack
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.padding import Padding
from mnnconvert.ops.scatter import ScatterNd
from mnnconvert.ops.shape import ExpandDims, Rank, Reshape, ShapeOf, Size, Squeeze, Transpose
from mnnconvert.ops.slicing import Slice, SliceTf, StridedSlice
from mnnconvert.ops.vision import DepthToSpace, SpaceToDepth
from mnnconvert.ops.windows import same_pads

MOST_TAPS = 256  # positions of a window that is cut out piece by piece
WINDOWS = f"known sizes, windows of at most {MOST_TAPS} elements"


@tf_op("Reshape")
def reshape_to(b: Builder, n: TfNode) -> Value:
    """To the sizes of the second operand; -1 is inferred and 0 means just that."""
    x, wanted = n.input(0), n.constant(1)
    if wanted is not None:
        return reshaped(b, x, [int(d) for d in wanted.reshape(-1)])
    return b.add(Reshape(), x, n.input(1))


@tf_op("Squeeze")
def squeeze(b: Builder, n: TfNode) -> Value:
    x = n.input(0)
    axes = n.ints_attr("squeeze_dims") or n.ints_attr("axis")
    return b.add(Squeeze(tuple(axis_of(n, a, known_rank(n, x)) for a in axes)), x)


@tf_op("ExpandDims")
def expand_dims(b: Builder, n: TfNode) -> Value:
    return b.add(ExpandDims(n.ints(1, "the axis")[0]), n.input(0))


@tf_op("Transpose")
def transpose(b: Builder, n: TfNode) -> Value:
    order = n.constant(1)
    if order is None:
        return b.add(Transpose(), n.input(0), n.input(1))
    return permuted(b, n.input(0), [axis_of(n, int(d), order.size) for d in order.reshape(-1)])


@tf_op("Concat", "ConcatV2")
def concat(b: Builder, n: TfNode) -> Value:
    """The axis is the first operand, or (ConcatV2) the last."""
    place = 0 if n.op == "Concat" else n.input_count - 1
    parts = [n.input(i) for i in range(n.input_count) if i != place]
    axis = axis_of(n, n.ints(place, "the axis")[0], max(known_rank(n, x) for x in parts))
    return b.add(Concat(axis), *parts) if len(parts) > 1 else parts[0]


@tf_op("Pack")
def pack(b: Builder, n: TfNode) -> Value:
    return b.add(Pack(axis_of(n, n.int_attr("axis"), known_rank(n, n.input(0)) + 1)), *n.inputs)


@tf_op("Unpack")
def unpack(b: Builder, n: TfNode) -> tuple[Value, ...]:
    x, count = n.input(0), n.int_attr("num")
    axis = axis_of(n, n.int_attr("axis"), known_rank(n, x))
    size = x.shape[axis] if x.shape else None
    if isinstance(size, int) and size != count:
        raise n.refuse(f"Unpack gives {count} of {size} parts", reference=BAD)
    made: tuple[Value, ...] = b.add(Unpack(axis), x, names=[""] * count)
    return made


@tf_op("Split")
def split(b: Builder, n: TfNode) -> tuple[Value, ...]:
    """Equal parts along the axis that the first operand names."""
    x, count = n.input(1), n.int_attr("num_split", 1)
    axis = axis_of(n, n.ints(0, "the axis")[0], known_rank(n, x))
    return b.add(Slice(axis, parts=count), x, names=[""] * count) if count > 1 else (x,)


@tf_op("SplitV", limits="the sizes of the parts must be known")
def split_v(b: Builder, n: TfNode) -> tuple[Value, ...]:
    """Parts of given sizes, of which one may be -1: what is left."""
    x, sizes = n.input(0), list(n.ints(1, "the sizes of the parts"))
    axis = axis_of(n, n.ints(2, "the axis")[0], known_rank(n, x))
    whole = x.shape[axis] if x.shape else None
    if -1 in sizes:
        if not isinstance(whole, int):
            raise n.refuse(f"{n.op} of an axis of unknown size needs the sizes of all parts", hint=FIX_SIZES)
        sizes[sizes.index(-1)] = whole - sum(s for s in sizes if s >= 0)
    return b.add(Slice(axis, tuple(sizes)), x, names=[""] * len(sizes)) if len(sizes) > 1 else (x,)


@tf_op("Slice")
def slice_(b: Builder, n: TfNode) -> Value:
    return b.add(SliceTf(), n.input(0), n.input(1), n.input(2))


@tf_op("StridedSlice")
def strided_slice(b: Builder, n: TfNode) -> Value:
    begin, end, ellipsis, new, shrink = (
        n.int_attr(f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    )
    vectors = [n.input(i) for i in (1, 2, 3)]
    return slices.strided_slice(b, n.input(0), vectors, (begin, end, ellipsis, new, shrink))


def _amounts(b: Builder, n: TfNode) -> Value:
    """Amounts [rank, 2] as one list of pairs."""
    pads = n.constant(1)
    return b.add(Reshape((-1,)), cast(b, n.input(1), I32)) if pads is None else b.ints(pads.reshape(-1))


@tf_op("Pad", "PadV2")
def pad(b: Builder, n: TfNode) -> Value:
    return b.add(Padding(), n.input(0), _amounts(b, n), *([n.input(2)] if n.has(2) else []))


@tf_op("MirrorPad")
def mirror_pad(b: Builder, n: TfNode) -> Value:
    return b.add(Padding(n.text("mode", "REFLECT")), n.input(0), _amounts(b, n))


@tf_op("Tile")
def tile(b: Builder, n: TfNode) -> Value:
    return b.add(Tile(), n.input(0), n.input(1))


@tf_op("BroadcastTo")
def broadcast_to(b: Builder, n: TfNode) -> Value:
    return b.add(BroadcastTo(), n.input(0), n.input(1))


@tf_op("BroadcastArgs", limits="the lengths of the operands must be known")
def broadcast_args(b: Builder, n: TfNode) -> Value:
    """The shape to which two shapes broadcast: where one has 1, the other counts."""
    pair = [n.input(0), n.input(1)]
    ranks = [x.shape[0] for x in pair if x.shape and isinstance(x.shape[0], int)]
    if len(ranks) != 2:
        raise n.refuse(f"{n.op} needs the lengths of its operands")
    x, y = (
        v if r == max(ranks) else b.add(Concat(0), b.ints([1] * (max(ranks) - r)), v)
        for v, r in zip(pair, ranks, strict=True)
    )
    return choose(b, calc(b, "EQUAL", x, 1), y, x, x)


@tf_op("ReverseV2", "Reverse")
def reverse(b: Builder, n: TfNode) -> Value:
    """Axes by number, or in the old form a truth for each."""
    x, axes = n.input(0), n.ints(1, "the axes")
    if n.op == "Reverse":
        axes = tuple(i for i, turned in enumerate(axes) if turned)
    for axis in axes:
        x = b.add(Reverse(), x, b.ints([axis_of(n, axis, known_rank(n, x))]))
    return x


@tf_op("ReverseSequence")
def reverse_sequence(b: Builder, n: TfNode) -> Value:
    return b.add(ReverseSequence(n.int_attr("batch_dim"), n.int_attr("seq_dim")), n.input(0), n.input(1))


@tf_op("Roll", limits="shifts and axes must be known")
def roll(b: Builder, n: TfNode) -> Value:
    """The end of an axis moved to its start, as many elements as the shift says."""
    x, sizes = n.input(0), n.input(0).shape
    for shift, axis in zip(n.ints(1, "the shift"), n.ints(2, "the axis"), strict=True):
        axis = axis_of(n, axis, known_rank(n, x))
        size = sizes[axis] if sizes else None
        at = -shift if not isinstance(size, int) or not size else -shift % size
        if isinstance(size, int) and not at:
            continue
        x = b.add(Concat(axis), sliced(b, x, axis, at), sliced(b, x, axis, 0, at))
    return x


@tf_op("Shape", gives="out_type")
def shape(b: Builder, n: TfNode) -> Value:
    return b.add(ShapeOf(), n.input(0))


@tf_op("ShapeN", gives="out_type")
def shape_n(b: Builder, n: TfNode) -> tuple[Value, ...]:
    return tuple(b.add(ShapeOf(), x) for x in n.inputs)


@tf_op("Size", gives="out_type")
def size(b: Builder, n: TfNode) -> Value:
    return b.add(Size(), n.input(0))


@tf_op("Rank", gives="int32")
def rank(b: Builder, n: TfNode) -> Value:
    return b.add(Rank(), n.input(0))


@tf_op("InvertPermutation")
def invert_permutation(b: Builder, n: TfNode) -> Value:
    """y[x[i]] = i."""
    x = n.input(0)
    count = b.add(ShapeOf(), x)
    return b.add(ScatterNd(), b.add(ExpandDims(1), x), count_up(b, scalar(b, count)), count)


@tf_op("SpaceToDepth")
def space_to_depth(b: Builder, n: TfNode) -> Value:
    return from_planes(b, n, b.add(SpaceToDepth(n.int_attr("block_size", 1)), to_planes(b, n, n.input(0), 4)))


@tf_op("DepthToSpace")
def depth_to_space(b: Builder, n: TfNode) -> Value:
    return from_planes(b, n, b.add(DepthToSpace(n.int_attr("block_size", 1)), to_planes(b, n, n.input(0), 4)))


def _blocks(n: TfNode, amounts: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Block sizes and pads (or crops), the old form naming one size for both axes."""
    if n.op.endswith("ND"):
        return n.ints(1, "the blocks"), n.ints(amounts, "the pads")
    return (n.int_attr("block_size"),) * 2, n.ints(1, "the pads")


@tf_op("SpaceToBatchND", "SpaceToBatch", limits="blocks and sizes must be known")
def space_to_batch_nd(b: Builder, n: TfNode) -> Value:
    return space_to_batch(b, n, n.input(0), *_blocks(n, 2))


@tf_op("BatchToSpaceND", "BatchToSpace", limits="blocks and sizes must be known")
def batch_to_space_nd(b: Builder, n: TfNode) -> Value:
    return batch_to_space(b, n, n.input(0), *_blocks(n, 2))


@tf_op("ExtractImagePatches", limits=WINDOWS)
def extract_image_patches(b: Builder, n: TfNode) -> Value:
    """For each place of a window its elements [ky, kx, C] side by side."""
    kernel = spatial(n, n.ints_attr("ksizes"), "ksizes")
    parts = _taps(b, n, kernel, 0.0)
    return b.add(Concat(3), *parts) if len(parts) > 1 else parts[0]


@tf_op("Dilation2D", limits=f"{WINDOWS}; a filter whose sizes are known")
def dilation_2d(b: Builder, n: TfNode) -> Value:
    """The largest sum of a window with a filter [H, W, C] (grayscale dilation)."""
    w = n.input(1)
    kernel = [d for d in (w.shape or ())[:2] if isinstance(d, int)]
    if len(kernel) != 2:
        raise n.refuse(f"{n.op} needs the sizes of its filter")
    parts = _taps(b, n, (kernel[0], kernel[1]), float(np.finfo(np.float32).min))
    rows = reshaped(b, w, [kernel[0] * kernel[1], -1])
    taps = [b.add(GatherV2(), rows, b.ints(i), b.ints(0)) for i in range(len(parts))]
    return chain(b, "MAXIMUM", [calc(b, "ADD", p, t) for p, t in zip(parts, taps, strict=True)])


def _taps(b: Builder, n: TfNode, kernel: tuple[int, ...], outside: float) -> list[Value]:
    """What each element of a window meets in all places of the window: one strided cut of the image for each."""
    x = n.input(0)
    strides, rates = (spatial(n, n.ints_attr(name), name) for name in ("strides", "rates"))
    height, width, _ = known_sizes(n, x)
    if has_channels_first(n) or int(np.prod(kernel)) > MOST_TAPS:
        raise n.refuse(f"{n.op} with the window {list(kernel)} is not supported")
    rows = list(zip((height, width), kernel, strides, rates, strict=True))
    if n.text("padding") == "SAME":
        pads = [same_pads(*row) for row in rows]
        x = b.add(Padding(), x, b.ints([0, 0, *pads[0], *pads[1], 0, 0]), b.floats(outside))
        rows = [(size + sum(p), k, s, r) for p, (size, k, s, r) in zip(pads, rows, strict=True)]
    reach = [(size - (k - 1) * r - 1) // s * s + 1 for size, k, s, r in rows]
    parts = []
    for ky, kx in np.ndindex(*kernel):
        start = [ky * rates[0], kx * rates[1]]
        end = [at + far for at, far in zip(start, reach, strict=True)]
        parts.append(b.add(StridedSlice(), x, b.ints(start), b.ints(end), b.ints([1, 2]), b.ints(strides)))
    return parts


@tf_op("UnravelIndex", limits="the sizes must be known")
def unravel_index(b: Builder, n: TfNode) -> Value:
    """Flat positions as coordinates, an axis of them in front."""
    x, sizes = n.input(0), n.ints(1, "the sizes")
    rows, left = [], x
    for extent in reversed(sizes):
        rows.append(calc(b, "MOD", left, extent))
        left = calc(b, "FLOORDIV", left, extent)
    return b.add(Pack(0), *reversed(rows))
