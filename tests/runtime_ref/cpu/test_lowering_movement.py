"""Data movement in programs: what is a view, what stays blocked, and that nothing is left to numpy."""

from __future__ import annotations

import numpy as np
import pytest

from mnnconvert.ir import F32, Builder, Graph
from mnnconvert.ir.types import Spec
from mnnconvert.ops.arrange import BroadcastTo, Concat, Pack, Reverse, Tile, Unpack
from mnnconvert.ops.gather import Gather, GatherElements, GatherND, OneHot
from mnnconvert.ops.layout import ConvertTensor, Identity
from mnnconvert.ops.padding import Padding
from mnnconvert.ops.resample import CUBIC, LINEAR, NEAREST, Interp
from mnnconvert.ops.scatter import ScatterElements, ScatterNd
from mnnconvert.ops.shape import Permute, Reshape, Squeeze
from mnnconvert.ops.slicing import Slice, SliceTf, StridedSlice
from mnnconvert.ops.vision import DepthToSpace, SpaceToDepth
from mnnconvert.runtime_ref.cpu import lowering as _rules  # noqa: F401  (registers them)
from mnnconvert.runtime_ref.cpu.lower import Call, Lowering
from mnnconvert.runtime_ref.cpu.program import Program
from mnnconvert.runtime_ref.lower import BLOCKED, Buffer, Constants, Tensor


class Case:
    """One op on operands: floats are fed (blocked if asked), the rest is constant."""

    def __init__(self, lib, op, *operands, blocked=(), threads=2):
        builder = Builder(Graph())
        self.lib, self.op, self.operands = lib, op, operands
        self.values = [
            builder.input(f"x{i}", a.dtype, a.shape) if a.dtype == F32 else builder.constant(a)
            for i, a in enumerate(operands)
        ]
        self.outputs = builder.add(op, *self.values, names=[f"y{i}" for i in range(self._count())])
        self.outputs = list(self.outputs) if isinstance(self.outputs, tuple | list) else [self.outputs]
        self.ctx = Lowering(lib, lib.pool(threads), Constants(), self.outputs)
        self.feeds = {}
        for i, (value, array) in enumerate(zip(self.values, operands, strict=True)):
            if value.tensor is None:
                self._feed(value, array, i in blocked)
        self.ctx.lower(builder.graph.nodes)

    def _count(self):
        results = self.op.infer(*(Spec(a.dtype, a.shape, a if a.dtype != F32 else None) for a in self.operands))
        return len(results) if isinstance(results, tuple) else 1

    def _feed(self, value, array, blocked):
        self.feeds[value] = array
        if not blocked:
            return self.ctx.feed(value, array.shape)
        self.feeds[value] = as_blocks(array, self.lib.lanes)
        self.ctx.specs[value] = Spec(F32, array.shape)
        self.ctx.define(value, Tensor(Buffer(self.feeds[value].nbytes, fed=value), array.shape, np.dtype(F32), BLOCKED))

    @property
    def kernels(self):
        """Names of the kernels called; asserts that there is nothing else."""
        assert all(isinstance(step, Call) for step in self.ctx.steps)
        return [step.kernel.name for step in self.ctx.steps]

    def agrees(self, bound=0.0):
        """Whether all results are those of the definition; True, or an AssertionError."""
        wanted = self.op.ref(*self.operands)
        results = {v: self.ctx.read(v) for v in self.outputs}
        got = Program(self.ctx, results).run(self.feeds, compute=None)
        for value, want in zip(self.outputs, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
            assert got[value].shape == want.shape
            np.testing.assert_allclose(got[value], want, rtol=0, atol=bound)
        return True


def as_blocks(array, lanes):
    """[N,C,...] blocked, with 9 in the lanes beyond the channels."""
    n, c, *rest = array.shape
    whole = np.full((n, -(-c // lanes) * lanes, *rest), 9, F32)
    whole[:, :c] = array
    return np.ascontiguousarray(np.moveaxis(whole.reshape(n, -1, lanes, *rest), 2, -1))


def floats(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(F32)


def ints(*numbers):
    return np.array(numbers, np.int32)


VIEWS = [
    (Reshape(), floats(2, 3, 4), ints(4, 6)),
    (Identity(), floats(2, 3)),
    (Squeeze(axes=(0,)), floats(1, 3)),
    (Permute((0, 2, 1, 3)), floats(2, 1, 5, 3)),
    (Slice(axis=0, sizes=(1, 2)), floats(3, 4)),
    (Slice(axis=1, sizes=(1, 2)), floats(1, 3, 4)),
    (StridedSlice(), floats(4, 3), ints(1), ints(3)),
    (StridedSlice(from_type=0, new_axis_mask=1, shrink_axis_mask=2), floats(4, 6), ints(0, 1), ints(1, 2), ints(1, 1)),
    (Gather(), floats(4, 3), ints(-2)),
    (Unpack(), floats(4, 3)),
    (ConvertTensor("NHWC", "NCHW"), floats(1, 1, 1, 5)),
    (Interp(out_height=3, out_width=2), floats(1, 2, 3, 2)),
    (Concat(1), floats(2, 3), floats(2, 0)),
]


@pytest.mark.parametrize("case", VIEWS, ids=lambda c: c[0].kind)
def test_views_cost_nothing(lib, case):
    made = Case(lib, *case)
    assert made.kernels == [] and made.agrees()


COPIES = [
    ("copy_strided", Permute((0, 2, 1)), floats(2, 3, 4)),
    ("copy_strided", StridedSlice(), floats(4, 6), ints(5), ints(-9), ints(1), ints(-2)),
    ("copy_strided", StridedSlice(from_type=0, new_axis_mask=1, shrink_axis_mask=4), floats(4, 6), ints(0, 1, 2),
     ints(1, 3, 4), ints(1, 1, 1)),
    ("copy_strided", SliceTf(), floats(4, 6), ints(1, 2), ints(-1, 3)),
    ("copy_strided", SliceTf(), floats(4, 6), ints(1, 2), ints(2, 9)),
    ("copy_strided", Reverse(), floats(4, 6), ints(1)),
    ("copy_strided", Tile(), floats(4, 1, 6), ints(2, 3, 2)),
    ("copy_strided", BroadcastTo(), floats(4, 1), ints(2, 4, 5)),
    ("copy_strided", Gather(axis=1), floats(4, 6), ints(2, 3)),
    ("copy_strided", DepthToSpace(2), floats(2, 8, 3, 4)),
    ("copy_strided", DepthToSpace(2, "CRD"), floats(2, 8, 3, 4)),
    ("copy_strided", SpaceToDepth(2), floats(2, 3, 4, 6)),
    ("copy_strided", Padding(), floats(4, 6), ints(-1, 0, 0, -2)),
    ("gather", Gather(axis=1), floats(4, 6), ints(2, 0)),
    ("gather_nd", GatherND(), floats(4, 6), ints(2, 0).reshape(1, 2)),
    ("gather_elements", GatherElements(), floats(4, 6), ints(2, 0).reshape(1, 2)),
    ("pick", Padding("REFLECT"), floats(4, 5, 6, 7), ints(0, 0, 1, 2, 3, -1, 0, 1)),
    ("pick", Padding(), floats(2, 3, 40, 50), ints(0, 0, 0, 1, 1, 0, 0, 0)),
    ("pick", Interp(resize_type=NEAREST, width_scale=2, height_scale=2), floats(2, 3, 4, 5)),
    ("pick", Interp(resize_type=NEAREST, width_scale=2, height_scale=1.5, depth_scale=1), floats(2, 3, 4, 5, 6)),
    ("resize", Interp(resize_type=LINEAR, width_scale=2, height_scale=1), floats(2, 3, 4, 5)),
    ("resize", Interp(resize_type=LINEAR, width_scale=1, height_scale=1, depth_scale=3), floats(1, 2, 4, 5, 6)),
    ("resize", Interp(resize_type=CUBIC, width_scale=2), floats(2, 3, 7)),
]  # fmt: skip


@pytest.mark.parametrize("case", COPIES, ids=lambda c: f"{c[0]}-{c[1].kind}")
def test_moves_are_one_call(lib, case):
    kernel, *rest = case
    made = Case(lib, *rest)
    assert made.kernels == [kernel] and made.agrees(1e-6)


@pytest.mark.parametrize(
    ("kernels", "case"),
    [
        (["copy_strided"] * 2, (Pack(1), floats(2, 3), floats(2, 3))),
        (["copy_strided"] * 2, (Concat(-1), floats(2, 3), floats(2, 1))),
        (["copy_strided", "scatter_nd"], (ScatterNd("ADD"), ints([1], [1]), floats(2, 3), ints(4, 3), floats(4, 3))),
        (["copy_strided", "scatter_nd"], (ScatterNd(), ints([1], [0]), floats(2, 3), ints(4, 3))),
        (["copy_strided", "scatter_elements"], (ScatterElements(), floats(4, 3), ints([1, 2]), floats(1, 2))),
        (["resize"] * 2, (Interp(width_scale=2, height_scale=2, depth_scale=2), floats(1, 2, 3, 4, 5))),
        (["one_hot"], (OneHot(1), ints([1, 2, 7], [0, -1, 1]), ints(4), floats(), floats())),
    ],
    ids=lambda c: c[0].kind if isinstance(c, tuple) else "",
)
def test_moves_of_several_calls(lib, kernels, case):
    made = Case(lib, *case)
    assert made.kernels == kernels and made.agrees(1e-6)


@pytest.fixture
def layouts(lib):
    if "nchw_to_blocked" not in lib.kernels:
        pytest.skip("built without the kernels of layouts")


STAY = [
    (["resize"], Interp(width_scale=2, height_scale=2), floats(2, 21, 4, 5)),
    (["resize"] * 2, Interp(width_scale=2, height_scale=3, depth_scale=2), floats(1, 5, 3, 4, 5)),
    (["pick"], Interp(resize_type=NEAREST, width_scale=2, height_scale=2), floats(2, 21, 4, 5)),
    (["pick"], Padding("REFLECT"), floats(1, 21, 4, 5), ints(0, 0, 0, 0, 1, 2, 2, 1)),
    (["copy_strided"], StridedSlice(), floats(2, 21, 4, 5), ints(1), ints(9), ints(2), ints(2)),
    (["copy_strided"] * 2, Slice(axis=3, sizes=(2, 3)), floats(2, 21, 4, 5)),
    ([], Slice(axis=0, sizes=(2, 1)), floats(3, 21, 4, 5)),
    ([], Slice(axis=1, sizes=(16, 5)), floats(1, 21, 4, 5)),
    ([], Identity(), floats(3, 21, 4, 5)),
]


@pytest.mark.parametrize("case", STAY, ids=lambda c: c[1].kind)
def test_blocked_maps_stay_blocked(lib, layouts, case):
    kernels, *rest = case
    made = Case(lib, *rest, blocked=[0])
    assert made.kernels == kernels
    assert all(made.ctx.layouts(v) == {BLOCKED} for v in made.outputs) and made.agrees(2e-6)


@pytest.mark.parametrize("perm", [(0, 2, 3, 1), (2, 0, 1, 3), (3, 2, 1, 0)])
@pytest.mark.parametrize("channels", [3, 16, 37])
def test_blocked_maps_are_permuted_at_once(lib, layouts, perm, channels):
    made = Case(lib, Permute(perm), floats(2, channels, 5, 3), blocked=[0])
    assert set(made.kernels) == {"copy_strided"} and made.agrees()


@pytest.mark.parametrize("channels", [[16, 32], [16, 5], [3, 4, 6], [12, 20, 8, 1], [21, 21], [1] * 9, [6, 8]])
@pytest.mark.parametrize("axis", [1, 2])
def test_blocked_channels_are_joined(lib, layouts, channels, axis):
    parts = [floats(2, c if axis == 1 else 21, 3 if axis == 1 else c, 2) for c in channels]
    made = Case(lib, Concat(axis), *parts, blocked=range(len(parts)))
    assert set(made.kernels) == {"copy_strided"} and made.agrees()
    assert np.isfinite(blocks_of(made)).all()


def blocks_of(made):
    """The first result as it lies in memory, lanes beyond the channels included; NaN where nothing was written."""
    tensor = made.ctx.read_blocked(made.outputs[0])
    stored = made.ctx.stored(tensor.shape, BLOCKED)
    whole = Tensor(tensor.buffer, stored, tensor.dtype, offset=tensor.offset)
    program = Program(made.ctx, {made.outputs[0]: whole})
    program._arena[...] = 0xFF  # NaN
    return program.run(made.feeds, compute=None)[made.outputs[0]]


@pytest.mark.parametrize("sizes", [(16, 21), (5, 16), (3, 4, 6), (12, 20, 8), (1,) * 9, (20, 1), (6, 14)])
def test_blocked_channels_are_split(lib, layouts, sizes):
    made = Case(lib, Slice(axis=1, sizes=sizes), floats(2, sum(sizes), 3, 2), blocked=[0])
    assert set(made.kernels) <= {"copy_strided"} and made.agrees()
    assert np.isfinite(blocks_of(made)).all()


def test_single_pixels_in_whole_blocks_are_plain_already(lib):
    made = Case(lib, Reshape(), floats(3, 32, 1, 1), ints(3, 32), blocked=[0])
    assert made.kernels == [] and made.agrees()


def test_a_mixed_concat_takes_the_layout_of_the_larger_part(lib, layouts):
    parts = floats(1, 16, 5, 5), floats(1, 8, 5, 5)
    made = Case(lib, Concat(1), *parts, blocked=[0])
    assert made.kernels[0] == "nchw_to_blocked" and made.agrees()
    made = Case(lib, Concat(1), *parts, blocked=[1])
    assert made.kernels[0] == "blocked_to_nchw" and made.agrees()
