"""Matrix products on OpenCL: odd sizes, transposes, batches, all variants, small devices, halves, infinities."""

from __future__ import annotations

import numpy as np
import pytest

from mnnconvert.ir import F32, Builder, Graph
from mnnconvert.ops.convolution import Convolution
from mnnconvert.ops.elementwise import Binary, Unary
from mnnconvert.ops.matmul import MatMul
from mnnconvert.runtime_ref.opencl import product as opencl_product
from mnnconvert.runtime_ref.opencl.cache import Folder
from mnnconvert.runtime_ref.opencl.device import Device
from mnnconvert.runtime_ref.session import Session

SIZES = [(1, 1, 1), (3, 5, 7), (17, 63, 5), (6, 16, 33), (40, 9, 70), (1, 100, 31)]


def product(a, b, constant, after=False, **attributes):
    """a @ b, with a bias, a residual and an activation after it if asked for; and what to feed."""
    builder, feeds = Builder(Graph()), {"a": a}
    x = builder.input("a", F32, a.shape)
    if constant:
        w = builder.constant(b, "b")
    else:
        w, feeds["b"] = builder.input("b", F32, b.shape), b
    y = builder.add(MatMul(**attributes), x, w, name="p")
    if after:
        columns = y.shape[-1]
        y = builder.add(
            Binary("ADD"), y, builder.constant(np.linspace(-1, 1, columns, dtype=np.float32), "bias"), name="s"
        )
        feeds["r"] = np.ones(y.shape, np.float32) / 4
        y = builder.add(
            Unary("SILU"), builder.add(Binary("ADD"), y, builder.input("r", F32, y.shape), name="t"), name="y"
        )
    builder.output(y)
    return builder.graph, feeds


def agree(got, want, bound=1e-5):
    assert got.shape == want.shape and np.abs(got - want).max(initial=0) <= bound * np.abs(want).max(initial=1)


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(("m", "k", "n"), SIZES)
def test_every_variant(rng, variants, m, k, n, constant):
    a, b = rng.standard_normal((2, m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)
    graph, feeds = product(a, b, constant, after=True)
    (want,) = Session(graph, "reference").run(feeds).values()
    count = 0
    for _, got in variants(graph, feeds, strict=True):
        agree(*got.values(), want)
        count += 1
    assert count >= 6


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(("left", "right"), [(False, True), (True, False), (True, True)])
def test_transposes_and_batches(rng, left, right, constant):
    a = rng.standard_normal((3, 1, *((9, 4) if left else (4, 9)))).astype(np.float32)
    b = rng.standard_normal((1, 2, *((5, 9) if right else (9, 5)))).astype(np.float32)
    graph, feeds = product(a, b, constant, transpose_a=left, transpose_b=right)
    (want,) = Session(graph, "reference").run(feeds).values()
    agree(*Session(graph, "opencl", strict=True).run(feeds).values(), want)


def test_a_device_that_can_do_less(rng, variants, device, monkeypatch):
    a, b = rng.standard_normal((33, 20)).astype(np.float32), rng.standard_normal((20, 30)).astype(np.float32)
    graph, feeds = product(a, b, True)
    seen = set()
    for limits in ("lanes=4", "lanes=4,local_bytes=0", "work_group=1", "work_group=8,lanes=4"):
        monkeypatch.setenv("MNNCONVERT_OPENCL_LIMITS", limits)
        lied = Device(device.cl)
        monkeypatch.setattr("mnnconvert.runtime_ref.opencl.device.device", lambda lied=lied: lied)
        runs = list(variants(graph, feeds, strict=True))
        seen.add(len(runs))
        for _, got in runs:
            agree(*got.values(), a @ b)
    assert len(seen) > 1  # with less memory and smaller groups there is less to choose from


def test_halves(rng, variants):
    a, b = rng.standard_normal((13, 40)).astype(np.float32), rng.standard_normal((40, 21)).astype(np.float32)
    graph, feeds = product(a, b, True)
    for _, got in variants(graph, feeds, precision="half"):
        agree(*got.values(), a @ b, 3e-3)


def test_what_is_not_finite_stays_in_its_row():
    a = np.ones((9, 8), np.float32)
    a[2, 3], a[4, 1] = np.nan, np.inf
    b = np.ones((8, 5), np.float32)
    graph, feeds = product(a, b, True)
    (got,) = Session(graph, "opencl", strict=True).run(feeds).values()
    assert np.array_equal(got, a @ b, equal_nan=True)


@pytest.mark.parametrize("channels", [(3, 5), (16, 8), (17, 40)])
def test_pixels_are_rows(rng, variants, channels):
    """A 1x1 convolution between maps, with all that may follow it."""
    inputs, outputs = channels
    builder = Builder(Graph())
    x = builder.input("x", F32, (2, inputs, 5, 7))
    r = builder.input("r", F32, (2, outputs, 5, 7))
    w = builder.constant(rng.standard_normal((outputs, inputs, 1, 1)).astype(np.float32), "w")
    bias = builder.constant(rng.standard_normal(outputs).astype(np.float32), "bias")
    y = builder.add(Convolution(), x, w, bias, name="c")
    y = builder.add(Unary("HARDSWISH"), builder.add(Binary("ADD"), y, r, name="s"), name="y")
    builder.output(
        builder.add(Convolution(), y, builder.constant(np.ones((2, outputs, 1, 1), np.float32), "v"), name="z")
    )
    feeds = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in builder.graph.inputs}
    (want,) = Session(builder.graph, "reference").run(feeds).values()
    for _, got in variants(builder.graph, feeds, strict=True):
        agree(*got.values(), want)


def test_nothing_is_written_beside(rng, guarded):
    for m, k, n in SIZES:
        a, b = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)
        for constant in (True, False):
            graph, feeds = product(a, b, constant)
            Session(graph, "opencl").run(feeds)
    assert guarded and not sum(p.broken_guards() for p in guarded)


def test_a_variant_that_the_driver_refuses_is_not_taken(tmp_path, monkeypatch, device):
    def refused(ctx, panels, places, activation, arguments):
        return [ctx.variant("f", (1,), text="kernel void f(global real *y) { nonsense; }", y=arguments["y"])]

    monkeypatch.setenv("MNNCONVERT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(device, "folder", Folder(device.identity))
    monkeypatch.setattr(opencl_product, "_with_local_memory", refused)
    a, b = (np.random.default_rng(0).standard_normal(shape).astype(np.float32) for shape in ((9, 16), (16, 40)))
    graph, feeds = product(a, b, True)
    (got,) = Session(graph, "opencl", tune=True).run(feeds).values()
    np.testing.assert_allclose(got, a @ b, rtol=0, atol=1e-5)
    (kept,) = device.folder.path.glob("*.json")
    assert b"Infinity" in kept.read_bytes()
