"""Products with integer codes on OpenCL: bits, blocks, minima, few and many rows, maps, small devices, halves."""

from __future__ import annotations

import numpy as np
import pytest

from mnnconvert.ir import F32, Builder, CodedTensor, CodedWeights, Graph, TransposedMatrix
from mnnconvert.ops.convolution import Convolution
from mnnconvert.ops.elementwise import Binary, Unary
from mnnconvert.ops.matmul import MatMul
from mnnconvert.runtime_ref.opencl.device import Device
from mnnconvert.runtime_ref.session import Session

ROWS = [1, 3, 4, 5, 17, 130]


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def coded(outputs, columns, block, bits, minima):
    rng = np.random.default_rng([outputs, columns, bits])
    half = 1 << (bits - 1)
    codes = rng.integers(-half, half, (outputs, columns), np.int8)
    scale = rng.uniform(0.005, 0.02, (outputs, columns // block)).astype(np.float32)
    minimum = (scale * rng.uniform(-half - 1, -half + 1, scale.shape)).astype(np.float32) if minima else None
    return CodedWeights(codes, scale, minimum, bits)


def product(x, weights, view=False, after=False):
    """x times the transpose of the weights, with a bias, a residual and an activation if asked for; what to feed."""
    builder, feeds = Builder(Graph()), {"x": x}
    tensor = CodedTensor(weights, weights.shape)
    w = builder.constant(TransposedMatrix(tensor) if view else tensor)
    y = builder.add(MatMul(transpose_b=not view), builder.input("x", F32, x.shape), w, name="p")
    if after:
        feeds["r"] = numbers(*y.shape, seed=5)
        bias = builder.constant(np.linspace(-1, 1, y.shape[-1], dtype=np.float32))
        y = builder.add(Binary("ADD"), builder.add(Binary("ADD"), y, bias), builder.input("r", F32, y.shape))
        y = builder.add(Unary("SILU"), y, name="y")
    builder.output(y)
    return builder.graph, feeds


def agree(graph, feeds, got, bound=1e-5):
    (want,) = Session(graph, "reference").run(feeds).values()
    (got,) = got.values()
    assert got.shape == want.shape and np.abs(got - want).max(initial=0) <= bound * np.abs(want).max(initial=0)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(
    ("bits", "outputs", "columns", "block", "minima"),
    [(8, 33, 70, 70, False), (4, 20, 96, 32, False), (4, 33, 40, 8, True), (8, 5, 192, 96, True), (3, 16, 9, 9, True),
     (6, 17, 130, 130, False)],
)  # fmt: skip
def test_every_variant(variants, rows, bits, outputs, columns, block, minima):
    weights = coded(outputs, columns, block, bits, minima)
    graph, feeds = product(numbers(rows, columns), weights, after=True)
    names = {t.kernel for t in Session(graph, "opencl", strict=True).profile(feeds)}
    assert names == {"coded_few" if rows <= 4 else "coded_many"}
    for _, got in variants(graph, feeds, strict=True):
        agree(graph, feeds, got)


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("lead", [(), (3,), (2, 1, 5)])
def test_vectors_batches_and_transposes(lead, view):
    graph, feeds = product(numbers(*lead, 64), coded(20, 64, 32, 4, True), view)
    agree(graph, feeds, Session(graph, "opencl", strict=True).run(feeds))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", [(5, 24, 1, 1), (2, 24, 5, 7), (2, 24, 6), (1, 24, 2, 2)])
def test_pixels_are_rows(shape, bits):
    builder = Builder(Graph())
    x = builder.input("x", F32, shape)
    w = builder.constant(CodedTensor(coded(33, 24, 8, bits, False), (33, 24, 1, 1)))
    y = builder.add(Convolution(activation="relu6"), x, w, builder.constant(np.linspace(-1, 1, 33, dtype=np.float32)))
    builder.output(y)
    feeds = {"x": numbers(*shape)}
    names = {t.kernel for t in Session(builder.graph, "opencl", strict=True).profile(feeds)}
    assert names & {"coded_few", "coded_many"}
    agree(builder.graph, feeds, Session(builder.graph, "opencl", strict=True).run(feeds))


def test_kernels_over_windows_decode_weights():
    builder = Builder(Graph())
    x = builder.input("x", F32, (1, 8, 6, 6))
    w = builder.constant(CodedTensor(coded(12, 72, 72, 8, True), (12, 8, 3, 3)))
    builder.output(builder.add(Convolution(pads=(1, 1, 1, 1)), x, w, builder.constant(np.zeros(12, np.float32))))
    feeds = {"x": numbers(1, 8, 6, 6)}
    agree(builder.graph, feeds, Session(builder.graph, "opencl", strict=True).run(feeds))


@pytest.mark.parametrize("limits", ["lanes=4", "work_group=1,local_bytes=0"])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_device_that_can_do_less(variants, device, monkeypatch, limits, bits):
    monkeypatch.setenv("MNNCONVERT_OPENCL_LIMITS", limits)
    lied = Device(device.cl)
    monkeypatch.setattr("mnnconvert.runtime_ref.opencl.device.device", lambda: lied)
    for rows in (2, 19):
        graph, feeds = product(numbers(rows, 64), coded(21, 64, 32, bits, True), after=True)
        for _, got in variants(graph, feeds, strict=True):
            agree(graph, feeds, got)


@pytest.mark.parametrize("rows", [2, 19])
def test_halves(variants, rows):
    """Scales are float32 still: those of half precision would be zero here."""
    weights = coded(21, 64, 32, 8, True)
    tiny = CodedWeights(weights.codes, weights.scale * np.float32(1e-6), weights.minimum * np.float32(1e-6), 8)
    graph, feeds = product(numbers(rows, 64) * 1e3, tiny)
    for _, got in variants(graph, feeds, precision="half"):
        agree(graph, feeds, got, 5e-3)


@pytest.mark.parametrize("rows", [3, 9])
def test_what_is_not_finite_stays_in_its_row(rows):
    x = numbers(rows, 64)
    x[1, 5], x[2, 7] = np.nan, np.inf
    graph, feeds = product(x, coded(20, 64, 64, 8, False))
    (got,) = Session(graph, "opencl", strict=True).run(feeds).values()
    assert np.isnan(got[1]).all() and not np.isfinite(got[2]).any() and np.isfinite(np.delete(got, [1, 2], 0)).all()


def test_nothing_is_written_beside(guarded):
    for rows in ROWS:
        for bits in (4, 8):
            graph, feeds = product(numbers(rows, 40), coded(21, 40, 8, bits, True), after=True)
            Session(graph, "opencl", strict=True).run(feeds)
    assert guarded and not sum(p.broken_guards() for p in guarded)
