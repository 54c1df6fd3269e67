"""Import rules that move values about: joining, cutting, reordering, repeating, constants."""

from __future__ import annotations

import itertools
import math

import numpy as np

from mnnconvert.frontends.caffe.model import sizes as sizes_of
from mnnconvert.frontends.caffe.node import CaffeNode, Params
from mnnconvert.frontends.caffe.registry import caffe_op
from mnnconvert.frontends.caffe.text import BAD
from mnnconvert.frontends.common.compose import cast, reshape
from mnnconvert.frontends.common.moves import permuted, sliced
from mnnconvert.ir import I32, Builder, Value
from mnnconvert.ops.arrange import Concat, Tile
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.search import Where
from mnnconvert.ops.slicing import Slice


def _axis(n: CaffeNode, p: Params, old: str) -> int:
    """The axis of a layer that older nets call by another name."""
    return n.axis(p.integer("axis", p.integer(old, 1)), n.rank(n.input()))


@caffe_op("Concat")
def concat(b: Builder, n: CaffeNode) -> Value:
    axis, values = _axis(n, n.params("concat_param"), "concat_dim"), n.inputs
    return b.add(Concat(axis), *values) if len(values) > 1 else values[0]


@caffe_op("Slice")
def slice_(b: Builder, n: CaffeNode) -> tuple[Value, ...]:
    """Cut at the given points, or into equal parts."""
    p, x, parts = n.params("slice_param"), n.input(), n.output_count
    axis, points = _axis(n, p, "slice_dim"), p.integers("slice_point")
    size = n.sizes(x, axis, axis + 1)[0]
    if not points and size % parts == 0:
        points = tuple(size // parts * i for i in range(1, parts))
    bounds = (0, *points, size)
    lengths = tuple(after - before for before, after in itertools.pairwise(bounds))
    if len(lengths) != parts or min(lengths) < 1:
        raise n.refuse(f"Slice of an axis of {size} at {list(points)} into {parts} blobs", reference=BAD)
    if parts == 1:
        return (x,)
    return b.add(Slice(axis, lengths), x, names=[""] * parts)


@caffe_op("Flatten")
def flatten(b: Builder, n: CaffeNode) -> Value:
    p, x = n.params("flatten_param"), n.input()
    rank = n.rank(x)
    first, last = n.axis(p.integer("axis", 1), rank), n.axis(p.integer("end_axis", -1), rank)
    if last < first:
        raise n.refuse(f"Flatten of the axes {first} to {last}", reference=BAD)
    return reshape(b, x, (*(0,) * first, math.prod(n.sizes(x, first, last + 1)), *n.sizes(x, last + 1)))


@caffe_op("Reshape")
def reshape_(b: Builder, n: CaffeNode) -> Value:
    """The axes from `axis` on, or `num_axes` of them, in other sizes: 0 copies one, -1 is what is left."""
    p, x = n.params("reshape_param"), n.input()
    rank, axis, count = n.rank(x), p.integer("axis", 0), p.integer("num_axes", -1)
    start = axis if axis >= 0 else rank + axis + 1
    end = rank if count == -1 else start + count
    if not 0 <= start <= end <= rank:
        raise n.refuse(f"Reshape of the axes {start} to {end} of {rank}", reference=BAD)
    given = sizes_of(p.params("shape").message)
    p.message.asked.add("shape")
    have = n.sizes(x)
    wanted = [have[start + i] if d == 0 else d for i, d in enumerate(given)]
    if -1 in wanted:
        known = math.prod(d for d in wanted if d != -1)
        wanted[wanted.index(-1)] = math.prod(have[start:end]) // max(1, known)
    if math.prod(wanted) != math.prod(have[start:end]) or min((1, *wanted)) < 1:
        raise n.refuse(f"Reshape of {list(have[start:end])} to {list(given)}", reference=BAD)
    return reshape(b, x, (*have[:start], *wanted, *have[end:]))


@caffe_op("Permute")
def permute(b: Builder, n: CaffeNode) -> Value:
    """The axes in the given order; those that are not named follow."""
    order, rank = n.params("permute_param").integers("order"), n.rank(n.input())
    whole = (*order, *(i for i in range(rank) if i not in order))
    if sorted(whole) != list(range(rank)):
        raise n.refuse(f"Permute of {rank} axes in the order {list(order)}", reference=BAD)
    return permuted(b, n.input(), whole)


@caffe_op("Crop")
def crop(b: Builder, n: CaffeNode) -> Value:
    """The first operand cut to the sizes of the second from `axis` on, beginning at the offsets."""
    n.takes(2)
    p, x = n.params("crop_param"), n.input()
    rank, offsets = n.rank(x), p.integers("offset")
    axis, have, want = n.axis(p.integer("axis", 2), rank), n.sizes(x), n.sizes(n.input(1))
    if len(offsets) not in (0, 1, rank - axis) or len(want) != rank:
        raise n.refuse(f"Crop of {rank} axes from {axis} on, with {len(offsets)} offsets", reference=BAD)
    starts = offsets if len(offsets) == rank - axis else (*offsets, 0)[:1] * (rank - axis)
    for i, start in enumerate(starts, axis):
        if start < 0 or start + want[i] > have[i]:
            raise n.refuse(f"Crop of an axis of {have[i]} from {start} on to {want[i]}", reference=BAD)
        if want[i] < have[i]:
            x = sliced(b, x, i, start, start + want[i])
    return x


@caffe_op("Tile")
def tile(b: Builder, n: CaffeNode) -> Value:
    p, rank = n.params("tile_param"), n.rank(n.input())
    axis, times = n.axis(p.integer("axis", 1), rank), p.integer("tiles", 0)
    if times < 1:
        raise n.refuse(f"Tile of {times} tiles", reference=BAD)
    return b.add(Tile(), n.input(), b.ints([times if i == axis else 1 for i in range(rank)]))


@caffe_op("ShuffleChannel")
def shuffle_channel(b: Builder, n: CaffeNode) -> Value:
    """Channel i of group g becomes channel g of group i."""
    group, x = n.params("shuffle_channel_param").integer("group", 1), n.input()
    images, channels, *sizes = n.sizes(x)
    if group < 1 or channels % group:
        raise n.refuse(f"ShuffleChannel of {channels} channels in {group} groups", reference=BAD)
    y = permuted(b, reshape(b, x, (images, group, channels // group, math.prod(sizes))), (0, 2, 1, 3))
    return reshape(b, y, (images, channels, *sizes))


@caffe_op("BatchReindex")
def batch_reindex(b: Builder, n: CaffeNode) -> Value:
    """Images picked by index."""
    n.takes(2)
    return b.add(GatherV2(), n.input(), cast(b, reshape(b, n.input(1), (-1,)), I32), b.ints(0))


@caffe_op("Filter")
def filter_(b: Builder, n: CaffeNode) -> tuple[Value, ...]:
    """The images for which the last operand is not 0, of every operand before it."""
    n.takes(2, 99)
    *values, selector = n.inputs
    chosen = reshape(b, b.add(Where(), reshape(b, selector, (-1,))), (-1,))
    return tuple(b.add(GatherV2(), v, chosen, b.ints(0)) for v in values)


@caffe_op("DummyData", limits="constant values")
def dummy_data(b: Builder, n: CaffeNode) -> tuple[Value, ...]:
    """Constants: one filler and one shape for all results, or one for each."""
    p, count = n.params("dummy_data_param"), n.output_count
    p.ignore("data_filler", "shape")
    shapes = [sizes_of(shape) for shape in p.message.messages("shape")]
    if not shapes:
        columns = [p.integers(name) for name in ("num", "channels", "height", "width")]
        shapes = list(zip(*columns, strict=True))
    fillers = p.message.messages("data_filler")
    values = []
    for filler in fillers:
        if filler.text("type", "constant") != "constant":
            raise n.refuse(f"DummyData draws values of the kind {filler.text('type')}")
        values.append(Params(n, "data_filler", filler).number("value", 0.0))
    values = values or [0.0]
    if len(shapes) not in (1, count) or len(values) not in (1, count):
        raise n.refuse(f"DummyData has {len(shapes)} shapes and {len(values)} fillers for {count} blobs")
    made = []
    for i in range(count):
        shape = shapes[i % len(shapes)]
        n.limited(*shape)
        made.append(b.constant(np.full(shape, values[i % len(values)], np.float32), n.layer.tops[i]))
    return tuple(made)


@caffe_op("Parameter")
def parameter(b: Builder, n: CaffeNode) -> Value:
    """A trained constant."""
    return n.weight(b, 0, sizes_of(n.params("parameter_param").params("shape").message), "value")
