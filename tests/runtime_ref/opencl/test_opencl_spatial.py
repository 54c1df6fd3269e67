"""Convolutions, their transposes, pooling and resizing on OpenCL: odd sizes, what is not finite, all variants, halves,
and devices of other shapes.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from one_op import check
from op_samples import close

from mnnconvert.ir import F32, Builder, CodedTensor, CodedWeights, Graph
from mnnconvert.ops.convolution import Convolution
from mnnconvert.ops.deconvolution import Deconvolution
from mnnconvert.ops.elementwise import Binary, Unary
from mnnconvert.ops.pooling import Pooling, Pooling3D
from mnnconvert.ops.resample import CUBIC, LINEAR, NEAREST, NEAREST_ROUND, Interp
from mnnconvert.ops.vision import GridSample
from mnnconvert.runtime_ref.opencl import device as devices
from mnnconvert.runtime_ref.opencl.cache import Folder
from mnnconvert.runtime_ref.opencl.lowering import winograd
from mnnconvert.runtime_ref.session import Session

BOUND = 2e-5


def fused(op, x, *constants):
    """The graph of op(x, constants), with a residual and an activation behind it; and what to feed."""
    builder = Builder(Graph())
    y = builder.add(op, builder.input("x", F32, x.shape), *(builder.constant(c) for c in constants))
    r = np.random.default_rng(1).standard_normal(y.shape, dtype=np.float32)
    builder.output(builder.add(Unary("SILU"), builder.add(Binary("ADD"), y, builder.input("r", F32, r.shape))), "y")
    return builder.graph, {"x": x, "r": r}


def check_fused(op, x, *constants, bound=BOUND, **options):
    """It is what the definitions say, and computed by kernels."""
    graph, feeds = fused(op, x, *constants)
    session = Session(graph, "opencl", **options)
    assert close(session.run(feeds)["y"], Session(graph, "reference").run(feeds)["y"], bound)
    assert session.fallbacks == {}


@pytest.fixture
def limited(monkeypatch, device):
    """Sessions on a device that says that it can do less."""

    def limit(text):
        monkeypatch.setenv("MNNCONVERT_OPENCL_LIMITS", text)
        made = devices.Device(device.cl)
        monkeypatch.setattr(devices, "device", lambda: made)

    return limit


def noise(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def weights(outputs, inputs, *kernel):
    return noise(outputs, inputs, *kernel, seed=outputs) / np.float32(np.sqrt(inputs * np.prod(kernel)))


CONVOLUTIONS = [  # images, inputs, outputs, height, width, kernel, attributes
    (1, 1, 1, 1, 1, (1, 1), {}),
    (2, 3, 17, 5, 3, (3, 3), {"pads": (1, 1, 1, 1)}),
    (1, 4, 5, 17, 63, (5, 2), {"strides": (2, 3), "pads": (2, 0, 1, 1)}),
    (2, 17, 33, 9, 13, (3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
    (1, 9, 24, 11, 7, (3, 3), {"dilations": (2, 3), "pads": (2, 3, 2, 3)}),
    (3, 16, 8, 4, 6, (1, 1), {"strides": (2, 2)}),
    (1, 20, 12, 3, 3, (7, 7), {"pads": (3, 3, 3, 3)}),
    (2, 12, 20, 6, 7, (3, 3), {"group": 4, "pads": (1, 1, 1, 1)}),
    (1, 6, 36, 6, 7, (3, 1), {"group": 2}),
    (1, 32, 32, 5, 8, (3, 3), {"group": 2, "pads": (0, 1, 0, 1)}),
    (2, 19, 19, 7, 18, (3, 3), {"group": 19, "pads": (1, 1, 1, 1)}),
    (1, 8, 8, 15, 9, (5, 5), {"group": 8, "strides": (2, 2), "dilations": (1, 2), "pads": (2, 4, 2, 4)}),
    (1, 5, 10, 7, 18, (3, 3), {"group": 5}),
]


@pytest.mark.parametrize(("n", "inputs", "outputs", "h", "w", "kernel", "attributes"), CONVOLUTIONS)
@pytest.mark.parametrize("lanes", [16, 8, 4])
def test_convolution(n, inputs, outputs, h, w, kernel, attributes, lanes, limited):
    limited(f"lanes={lanes}")
    op, x = Convolution(**attributes), noise(n, inputs, h, w)
    taps = weights(outputs, inputs // op.group, *kernel)
    if lanes > 4:
        check(op, x, taps, bound=BOUND)
    check_fused(op, x, taps, noise(outputs))


@pytest.mark.parametrize("attributes", [{"strides": (2, 2)}, {"group": 12}])
def test_what_is_not_finite_stays_with_the_windows_that_meet_it(attributes):
    x = noise(1, 12, 9, 14)
    x[0, 3, 0, 0], x[0, 5, 4, 13], x[0, 11, 8, 5] = np.nan, np.inf, -np.inf
    op = Convolution(pads=(1, 1, 1, 1), **attributes)
    check(op, x, weights(12, 12 // op.group, 3, 3))
    check(Deconvolution(pads=(1, 1, 1, 1), **attributes), x, weights(12, 12 // op.group, 3, 3))


@pytest.mark.parametrize("shape", [(1, 16, 4, 4), (2, 17, 7, 13), (1, 33, 16, 5), (3, 24, 56, 30)])
@pytest.mark.parametrize("outputs", [8, 21])
@pytest.mark.parametrize("band", [winograd.BAND, 1])
def test_every_way_to_convolve_agrees(shape, outputs, band, monkeypatch, variants):
    monkeypatch.setattr(winograd, "BAND", band)
    op = Convolution(pads=(1, 0, 1, 2))
    graph, feeds = fused(op, noise(*shape), weights(outputs, shape[1], 3, 3), noise(outputs))
    want, number = Session(graph, "reference").run(feeds)["y"], 0
    for number, got in variants(graph, feeds):
        assert close(got["y"], want, BOUND), number
    assert number == 3  # directly and by Winograd's algorithm, with two sizes of tiles each


def test_tuning_measures_all_launches_of_a_variant(tmp_path, monkeypatch, device):
    monkeypatch.setenv("MNNCONVERT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(device, "folder", Folder(device.identity))
    check(Convolution(pads=(1, 1, 1, 1)), noise(1, 16, 24, 24), weights(16, 16, 3, 3), bound=BOUND, tune=True)
    (kept,) = device.folder.path.glob("*.json")
    assert b"winograd_into" in kept.read_bytes()


@pytest.mark.parametrize(
    "op", [Convolution(pads=(1, 1, 1, 1)), Convolution(strides=(2, 2)), Convolution(pads=(1, 1, 1, 1), group=24)]
)
def test_halves(op):
    x, taps = noise(1, 24, 20, 20), weights(24, 24 // op.group, 3, 3)
    check(op, x, taps, noise(24), bound=5e-3, precision="half")


@pytest.mark.parametrize(("bits", "group"), [(8, 1), (4, 1), (8, 24)])
def test_codes_of_weights_are_decoded(bits, group):
    rng, shape = np.random.default_rng(0), (24, 24 // group, 3, 3)
    half, columns = 1 << (bits - 1), 9 * shape[1]
    codes = rng.integers(-half, half, (24, columns), np.int8)
    scale = rng.uniform(0.005, 0.02, (24, columns // 9)).astype(np.float32)
    tensor = CodedTensor(CodedWeights(codes, scale, None, bits), shape)
    check_fused(Convolution(pads=(1, 1, 1, 1), group=group), noise(1, 24, 12, 9), tensor, noise(24))


DECONVOLUTIONS = [  # images, inputs, outputs, height, width, kernel, attributes
    (1, 1, 1, 1, 1, (2, 2), {"strides": (2, 2)}),
    (2, 24, 1, 9, 7, (2, 2), {"strides": (2, 2)}),
    (1, 17, 3, 5, 13, (4, 4), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
    (2, 9, 20, 4, 5, (3, 5), {"strides": (3, 2), "pads": (1, 2, 0, 1), "out_pads": (1, 0)}),
    (1, 8, 33, 3, 3, (3, 3), {"dilations": (2, 3), "strides": (2, 1)}),
    (1, 12, 12, 5, 9, (4, 4), {"strides": (2, 2), "group": 12, "pads": (1, 1, 1, 1)}),
    (2, 12, 20, 4, 3, (3, 3), {"strides": (2, 2), "group": 4, "pad_mode": "SAME"}),
]


@pytest.mark.parametrize(("n", "inputs", "outputs", "h", "w", "kernel", "attributes"), DECONVOLUTIONS)
@pytest.mark.parametrize("lanes", [16, 8, 4])
def test_deconvolution(n, inputs, outputs, h, w, kernel, attributes, lanes, limited):
    limited(f"lanes={lanes}")
    op, x = Deconvolution(**attributes), noise(n, inputs, h, w)
    taps = weights(inputs, outputs // op.group, *kernel)
    if lanes > 4:
        check(op, x, taps, bound=BOUND)
    check_fused(op, x, taps, noise(outputs))


@pytest.mark.parametrize("function", ["MAXPOOL", "AVEPOOL"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 5, 17, 3), (1, 33, 63, 10)])
def test_pooling(function, shape):
    x = noise(*shape)
    if x.size > 1:
        x.reshape(-1)[:: x.size // 3][:3] = [np.nan, np.inf, -np.inf]
    for op in (
        Pooling(function, (3, 2), (2, 1), (1, 1, 2, 0), count="INCLUDE_PADDING", ceil=True),
        Pooling(function, (2, 3), (1, 2), pad_mode="SAME"),
        Pooling(function, whole=True),
        Pooling3D(function, whole=True),
    ):
        check(op, x)


def test_the_mean_of_many_pixels_loses_nothing():
    check(Pooling("AVEPOOL", whole=True), noise(1, 3, 511, 513) + 100, bound=1e-6)


@pytest.mark.parametrize("kind", [NEAREST, LINEAR, CUBIC, NEAREST_ROUND])
@pytest.mark.parametrize("shape", [(1, 1, 5, 3), (2, 17, 6, 9), (1, 3, 4, 5, 6), (2, 9, 7)])
@pytest.mark.parametrize("precision", ["exact", "half"])
def test_resizing(kind, shape, precision):
    size = np.array([*shape[:2], *(s * 2 + i for i, s in enumerate(shape[2:]))], np.int32)
    bound = BOUND if precision == "exact" else 5e-3
    for rule in ("HalfPixels", "AlignCorners"):
        check(Interp(resize_type=kind, rule=rule), noise(*shape), size, bound=bound, precision=precision)


def test_neighbours_are_copies():
    x = noise(1, 9, 4, 4)
    x[0, :, 1, 2], x[0, :, 2, 2], x[0, :, 3, 3] = np.nan, -np.inf, -0.0
    check(Interp(resize_type=NEAREST), x, np.array([1, 9, 7, 3], np.int32), bound=0)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", ["ZEROS", "CLAMP"])
@pytest.mark.parametrize("mode", ["BILINEAR", "NEAREST"])
def test_samples_at_points(mode, padding, align):
    op = GridSample(mode=mode, padding=padding, align_corners=align)
    for shape, places in [
        ((1, 1, 1, 1), (3, 1)),
        ((2, 17, 5, 6), (31, 3)),
        ((1, 73, 6, 3), (1, 5)),
        ((2, 3, 3, 4, 5), (2, 9, 7)),
    ]:
        points = np.random.default_rng(2).uniform(-1.4, 1.4, (shape[0], *places, len(shape) - 2)).astype(F32)
        points[0].reshape(-1)[:3] = -1, 1, 0
        check(op, [noise(*shape), points], bound=BOUND)


@pytest.mark.parametrize("mode", ["BILINEAR", "NEAREST"])
def test_samples_far_away_and_nowhere(mode):
    x = noise(1, 3, 4, 5)
    x[0, 0, 0, 0] = np.inf  # does not leak into what is outside
    far = np.array(list(itertools.product([1e30, -1e30, np.inf, np.nan], repeat=2)), F32).reshape(1, 1, -1, 2)
    check(GridSample(mode=mode), [x, far], bound=BOUND)
