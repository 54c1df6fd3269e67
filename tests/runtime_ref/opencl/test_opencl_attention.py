"""Attention on OpenCL: odd sizes, shared heads, masks, spelled-out graphs, all variants, small devices, halves."""

from __future__ import annotations

import numpy as np
import pytest
from op_samples import CASES, choices, graph_of

from mnnconvert.ir import Builder, Graph
from mnnconvert.ops.attention import Attention
from mnnconvert.ops.elementwise import Binary, Select, Unary
from mnnconvert.ops.matmul import InnerProduct, MatMul
from mnnconvert.ops.normalization import Softmax
from mnnconvert.ops.shape import Permute
from mnnconvert.runtime_ref.opencl.device import Device
from mnnconvert.runtime_ref.session import Session

# batch, queries, keys, heads, key heads, depth, width
SIZES = [(1, 1, 1, 1, 1, 1, 1), (2, 5, 9, 4, 2, 7, 5), (1, 17, 70, 2, 2, 16, 40), (1, 63, 63, 3, 1, 33, 17)]


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def operands(batch, queries, keys, heads, key_heads, depth, width):
    q = numbers(batch, queries, heads, depth)
    return [q, numbers(batch, keys, key_heads, depth, seed=1), numbers(batch, keys, key_heads, width, seed=2)]


def op(arrays, **attributes):
    """The op on these operands, and what to feed."""
    builder = Builder(Graph())
    values = [builder.input(f"x{i}", x.dtype, x.shape) for i, x in enumerate(arrays)]
    builder.output(builder.add(Attention(**{"kv_cache": False, **attributes}), *values, name="y"))
    return builder.graph, {v.name: x for v, x in zip(values, arrays, strict=True)}


def spelled(build, *arrays):
    """Products around a softmax of what `build` makes of the scores and further operands."""
    builder = Builder(Graph())
    q, k, v, *more = values = [builder.input(f"x{i}", x.dtype, x.shape) for i, x in enumerate(arrays)]
    scores = builder.add(MatMul(transpose_b=True), q, k)
    scores = builder.add(Binary("MUL"), scores, builder.constant(np.float32([0.25])))
    weights = builder.add(Softmax(-1), build(builder, scores, *more))
    builder.output(builder.add(MatMul(), weights, v, name="y"))
    return builder.graph, {v.name: x for v, x in zip(values, arrays, strict=True)}


def wanted(graph, feeds):
    (want,) = Session(graph, "reference").run(feeds).values()
    return want


def agree(got, want, bound=1e-5):
    assert got.shape == want.shape and np.array_equal(np.isnan(got), np.isnan(want))
    assert np.nanmax(np.abs(got - want), initial=0) <= bound * np.nanmax(np.abs(want), initial=0)


def kernels(graph, feeds):
    return [t.kernel for t in Session(graph, "opencl", strict=True).profile(feeds)]


@pytest.mark.parametrize(("cls", "sample"), [c for c in CASES if c.values[0] in (Attention, InnerProduct, MatMul)])
def test_no_sample_is_left_to_numpy(cls, sample):
    for fixed in choices(sample):
        graph, feeds = graph_of(cls, sample, fixed)
        Session(graph, "opencl", strict=True).run(feeds)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("sizes", SIZES)
def test_every_variant(variants, sizes, causal):
    arrays = operands(*sizes)
    if not causal:
        arrays.append(numbers(sizes[1], sizes[2], seed=3))
    graph, feeds = op(arrays)
    want, count = wanted(graph, feeds), 0
    for _, got in variants(graph, feeds, strict=True):
        agree(got["y"], want)
        count += 1
    assert count > 1


@pytest.mark.parametrize(
    "shape", [(5, 9), (1, 9), (2, 1, 5, 9), (1, 4, 5, 9), (2, 4, 1, 9), (2, 4, 5, 9), (5, 3), (2, 1, 5, 1)]
)
def test_masks(shape):
    graph, feeds = op([*operands(2, 5, 9, 4, 2, 8, 8), numbers(*shape, seed=3)])
    agree(Session(graph, "opencl", strict=True).run(feeds)["y"], wanted(graph, feeds))


def test_hidden_keys_and_rows_that_see_none():
    mask = np.zeros((70, 130), np.float32)
    mask[:, :100] = -np.inf  # whole tiles, before any key is seen
    mask[3] = -np.inf
    graph, feeds = op([*operands(1, 70, 130, 2, 2, 8, 8), mask])
    got = Session(graph, "opencl", strict=True).run(feeds)["y"]
    assert np.isnan(got[0, 3]).all() and not np.isnan(got[0, [2, 4]]).any()
    agree(got, wanted(graph, feeds))


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [0, 1, 2])
def test_what_is_not_finite_goes_where_it_is_seen(where, number):
    arrays = [*operands(1, 7, 9, 2, 2, 8, 8), np.zeros((7, 9), np.float32)]
    arrays[where][0, 5, 1, 3] = number
    graph, feeds = op(arrays)
    with np.errstate(all="ignore"):
        agree(Session(graph, "opencl", strict=True).run(feeds)["y"], wanted(graph, feeds))


def test_sinks():
    graph, feeds = op([*operands(1, 5, 7, 4, 2, 8, 8), numbers(1, 1, 5, 7, seed=3), numbers(4, seed=4)])
    agree(Session(graph, "opencl", strict=True).run(feeds)["y"], wanted(graph, feeds))


def test_wide_values_are_left_to_numpy():
    graph, feeds = op(operands(1, 2, 3, 1, 1, 4, 300))
    session = Session(graph, "opencl")
    agree(session.run(feeds)["y"], wanted(graph, feeds))
    assert session.fallbacks == {"Attention": 1}


@pytest.mark.parametrize("limits", ["lanes=4", "work_group=1,local_bytes=0"])
def test_a_device_that_can_do_less(variants, device, monkeypatch, limits):
    monkeypatch.setenv("MNNCONVERT_OPENCL_LIMITS", limits)
    lied = Device(device.cl)
    monkeypatch.setattr("mnnconvert.runtime_ref.opencl.device.device", lambda: lied)
    graph, feeds = op(operands(2, 17, 21, 4, 2, 9, 10))
    for _, got in variants(graph, feeds, strict=True):
        agree(got["y"], wanted(graph, feeds))


def test_halves(variants):
    graph, feeds = op(operands(2, 17, 80, 4, 2, 32, 32))
    for _, got in variants(graph, feeds, precision="half"):
        agree(got["y"], wanted(graph, feeds), 1e-2)


def test_nothing_is_written_beside(guarded):
    for sizes in SIZES:
        graph, feeds = op([*operands(*sizes), numbers(sizes[1], sizes[2], seed=3)])
        Session(graph, "opencl", strict=True).run(feeds)
    assert guarded and not sum(p.broken_guards() for p in guarded)


# What a graph spells out.


def masked(b, scores, mask):
    return b.add(Binary("ADD"), scores, mask)


def capped(b, scores, mask):
    cap = b.constant(np.float32([1.5]))
    bounded = b.add(Binary("MUL"), b.add(Unary("TANH"), b.add(Binary("REALDIV"), scores, cap)), cap)
    return b.add(Binary("ADD"), bounded, mask)


def chosen(b, scores, mask):
    seen = b.add(Binary("GREATER"), mask, b.constant(np.float32([0])))
    return b.add(Select(), seen, scores, b.constant(np.float32([-np.inf])))


def chosen_and_masked(b, scores, mask):
    return chosen(b, masked(b, scores, mask), mask)


@pytest.mark.parametrize("precision", ["exact", "half"])
@pytest.mark.parametrize("build", [masked, capped, chosen, chosen_and_masked])
def test_graphs_that_spell_it_out(build, precision):
    q, k, v = numbers(2, 3, 9, 16), numbers(2, 3, 20, 16, seed=1), numbers(2, 3, 20, 8, seed=2)
    graph, feeds = spelled(build, q, k, v, numbers(2, 1, 9, 20, seed=3))
    assert [name for name in kernels(graph, feeds) if name not in ("chain", "gemm_pack")] == ["attention"]
    got = Session(graph, "opencl", strict=True, precision=precision).run(feeds)["y"]
    agree(got, wanted(graph, feeds), 1e-5 if precision == "exact" else 2e-2)


def test_transposed_heads_are_strides():
    builder = Builder(Graph())
    shapes = {"q": (2, 9, 3, 16), "k": (2, 20, 3, 16), "v": (2, 20, 3, 8)}
    feeds = {name: numbers(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    rows = [builder.add(Permute((0, 2, 1, 3)), builder.input(n, x.dtype, x.shape)) for n, x in feeds.items()]
    weights = builder.add(Softmax(-1), builder.add(MatMul(transpose_b=True), *rows[:2]))
    heads = builder.add(MatMul(), weights, rows[2])
    builder.output(builder.add(Permute((0, 2, 1, 3)), heads, name="y"))
    assert kernels(builder.graph, feeds) == ["gemm_pack", "attention"]
    agree(Session(builder.graph, "opencl", strict=True).run(feeds)["y"], wanted(builder.graph, feeds))
