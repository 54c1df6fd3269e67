"""Products with coded weights against numpy: whole numbers bit for bit, floats within rounding."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from blocked import from_blocked, to_blocked
from kernels import both, guarded

from mnnconvert.ir import F32, Builder, CodedTensor, CodedWeights, Graph, TransposedMatrix, Value
from mnnconvert.ops.activation import ReLU
from mnnconvert.ops.convolution import Convolution
from mnnconvert.ops.elementwise import Binary
from mnnconvert.ops.matmul import MatMul
from mnnconvert.ops.shape import Reshape
from mnnconvert.runtime_ref.cpu import library
from mnnconvert.runtime_ref.cpu.lower import RULES, Call, Lowering
from mnnconvert.runtime_ref.cpu.lowering.coded import coded_convolution, coded_matmul, packed_codes, packed_numbers
from mnnconvert.runtime_ref.cpu.program import Program
from mnnconvert.runtime_ref.lower import ACTIVATIONS, Constants, Rule

SHAPES = [  # rows of x, columns, block, outputs, bits, minima
    (1, 64, 32, 100, 4, True),
    (1, 40, 8, 3, 4, False),
    (3, 17, 17, 17, 3, True),
    (5, 27, 9, 63, 4, True),
    (17, 128, 64, 33, 2, False),
    (63, 48, 16, 5, 4, True),
    (1, 64, 32, 100, 8, True),
    (3, 63, 21, 17, 8, False),
    (17, 128, 128, 40, 5, True),
    (7, 12, 1, 9, 6, True),
    (1, 1, 1, 1, 8, True),
    (70, 500, 500, 20, 8, True),
    (2, 1000, 1000, 65, 4, False),
]


@functools.cache
def coded(columns: int, block: int, outputs: int, bits: int, minima: bool) -> CodedWeights:
    """Random codes, scales around 0.01, minima near those that make the codes symmetric."""
    rng = np.random.default_rng([columns, outputs, bits])
    half = 1 << (bits - 1)
    codes = rng.integers(-half, half, (outputs, columns), np.int8)
    scale = rng.uniform(0.005, 0.02, (outputs, columns // block)).astype(np.float32)
    minimum = (scale * rng.uniform(-half - 1, -half + 1, scale.shape)).astype(np.float32) if minima else None
    return CodedWeights(codes, scale, minimum, bits)


def parameters(lib: library.Library, weights: CodedWeights, rows: int, exact: bool) -> dict[str, Any]:
    """Arguments of a product with a matrix."""
    outputs, columns = weights.codes.shape
    return {
        "packed": guarded(packed_codes(lib, lib.pool(2), weights)),
        "numbers": guarded(packed_numbers(lib, lib.pool(2), weights)),
        "images": 1, "lines": 1, "width": rows, "columns": columns, "outputs": outputs, "block": weights.block,
        "bits": weights.bits, "minima": weights.minimum is not None, "x_image": 0, "x_line": 0, "x_row": columns,
        "x_piece": lib.lanes, "y_image": 0, "y_row": outputs, "y_piece": lib.lanes, "padded": False, "exact": exact,
        "activation": 0, "low": 0.0, "high": 0.0,
    }  # fmt: skip


def product(lib: library.Library, x: np.ndarray, weights: CodedWeights, exact: bool, **more: Any) -> np.ndarray:
    """x times the transpose of the weights, for one and two threads."""
    values = parameters(lib, weights, len(x), exact) | more
    return both(lib, "coded_product", (len(x), len(weights.codes)), x=guarded(x), **values)


def rounded(x: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scales [rows, blocks, ...] of activations, in float32 as the kernel computes them."""
    blocks = x.reshape(len(x), -1, block)
    largest = np.abs(blocks).max(-1, keepdims=True)
    factor = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    return np.rint(blocks * factor).astype(np.int64), largest / np.float32(127)


def error(y: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(y - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_exact_is_the_product_of_decoded_weights(lib: library.Library, shape: tuple[Any, ...]) -> None:
    rows, columns, *rest = shape
    weights = coded(columns, *rest)
    x = np.random.default_rng(1).standard_normal((rows, columns), np.float32)
    y = product(lib, x, weights, exact=True)
    assert error(y, x.astype(np.float64) @ weights.decode(np.float64).T) < 2e-6


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_exact_decodes_as_the_numpy_definition(lib: library.Library, shape: tuple[Any, ...]) -> None:
    _, columns, *rest = shape
    weights = coded(columns, *rest)
    y = product(lib, np.eye(columns, dtype=np.float32), weights, exact=True)
    np.testing.assert_array_equal(y, weights.decode().T)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_fast_is_the_product_with_rounded_activations(lib: library.Library, shape: tuple[Any, ...]) -> None:
    rows, columns, *rest = shape
    weights = coded(columns, *rest)
    x = np.random.default_rng(2).standard_normal((rows, columns), np.float32)
    codes, scale = rounded(x, weights.block)
    y = product(lib, x, weights, exact=False)
    decoded = weights.decode(np.float64)
    assert error(y, (codes * scale.astype(np.float64)).reshape(x.shape) @ decoded.T) < 2e-6
    original = x.astype(np.float64) @ decoded.T
    assert np.linalg.norm(y - original) < 0.015 * np.linalg.norm(original)


@pytest.mark.parametrize("block", [8, 9, 32, 64, 100, 256])
@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize(("bits", "minima"), [(4, True), (4, False), (8, True), (8, False), (5, True)])
def test_integers_are_exact(lib: library.Library, block: int, rows: int, bits: int, minima: bool) -> None:
    rng = np.random.default_rng(3)
    columns, outputs, half = 2 * block, 37, 1 << (bits - 1)
    codes = rng.integers(-half, half, (outputs, columns), np.int8)
    codes[0], codes[1] = half - 1, -half
    minimum = rng.integers(-9, 9, (outputs, 2)).astype(np.float32) if minima else None
    weights = CodedWeights(codes, np.ones((outputs, 2), np.float32), minimum, bits)
    x = rng.integers(-127, 128, (rows, columns)).astype(np.float32)
    x[:, ::block] = 127  # so that the scale of activations is 1
    x[0] = -127 if rows > 1 else 127
    y = product(lib, x, weights, exact=False)
    np.testing.assert_array_equal(y, x.astype(np.int64) @ weights.decode(np.int64).T)


@pytest.mark.parametrize("exact", [False, True])
def test_a_row_does_not_depend_on_the_others(lib: library.Library, exact: bool) -> None:
    weights = coded(96, 32, 50, 4, True)
    x = np.random.default_rng(4).standard_normal((70, 96), np.float32)
    y = product(lib, x, weights, exact)
    for i in (0, 3, 69):
        assert product(lib, x[i : i + 1], weights, exact).tobytes() == y[i : i + 1].tobytes()


@pytest.mark.parametrize("bits", [4, 8])
def test_activations_that_are_zero_tiny_or_not_finite(lib: library.Library, bits: int) -> None:
    weights = coded(64, 32, 20, bits, True)
    x = np.random.default_rng(5).standard_normal((5, 64), np.float32)
    x[0], x[1, 3], x[2, 40], x[3] = 0, np.inf, np.nan, 1e-38
    y = product(lib, x, weights, exact=False)
    assert (y[0] == 0).all()
    assert np.isnan(y[1:3]).all()
    assert (y[3] == 0).all()
    assert np.isfinite(y[4]).all()


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("outputs", [3, 64, 45])
def test_epilogue(lib: library.Library, exact: bool, outputs: int) -> None:
    weights = coded(64, 32, outputs, 4, True)
    rng = np.random.default_rng(6)
    x, residual = rng.standard_normal((3, 64), np.float32), rng.standard_normal((3, outputs), np.float32)
    bias = rng.standard_normal(outputs, np.float32)
    plain = product(lib, x, weights, exact)
    y = product(lib, x, weights, exact, bias=guarded(bias), residual=guarded(residual), activation=ACTIVATIONS["CLIP"],
                low=0.0, high=0.5)  # fmt: skip
    np.testing.assert_array_equal(y, np.clip(plain + bias + residual, 0, np.float32(0.5)))


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(("channels", "block", "outputs", "stride"), [(24, 24, 20, 1), (40, 20, 33, 2), (5, 5, 3, 2)])
def test_pixels_of_blocked_maps(
    lib: library.Library, exact: bool, channels: int, block: int, outputs: int, stride: int
) -> None:
    weights = coded(channels, block, outputs, 4, True)
    x = np.random.default_rng(7).standard_normal((2, channels, 7, 6), np.float32)
    taken = x[:, :, ::stride, ::stride]
    n, _, height, width = taken.shape
    lanes, pixels = lib.lanes, height * width
    values = parameters(lib, weights, 0, exact) | {
        "images": n, "lines": height, "width": width, "x_image": -(-channels // lanes) * 42 * lanes,
        "x_line": 6 * stride * lanes, "x_row": stride * lanes, "x_piece": 42 * lanes,
        "y_image": -(-outputs // lanes) * pixels * lanes, "y_row": lanes, "y_piece": pixels * lanes, "padded": True,
    }  # fmt: skip
    shape = (n, -(-outputs // lanes), height, width, lanes)
    y = both(lib, "coded_product", shape, x=guarded(to_blocked(x, lanes)), **values)
    rows = np.ascontiguousarray(np.moveaxis(taken, 1, -1)).reshape(-1, channels)
    expected = product(lib, rows, weights, exact).reshape(n, height, width, outputs)
    np.testing.assert_array_equal(from_blocked(y, outputs), np.moveaxis(expected, -1, 1))


def test_nothing_is_done_for_no_rows(lib: library.Library) -> None:
    weights = coded(64, 32, 20, 4, True)
    for exact in (False, True):
        assert product(lib, np.empty((0, 64), np.float32), weights, exact).shape == (0, 20)


def test_packed_form(lib: library.Library) -> None:
    weights = coded(27, 9, 3, 4, True)  # blocks of 9 are stored as 16 columns
    packed = packed_codes(lib, lib.pool(1), weights).reshape(3, 2, lib.lanes, 4)
    codes = np.zeros((3, 3, 16), np.uint8)
    codes[:, :, :9] = (weights.codes + 8).reshape(3, 3, 9)
    halves = np.moveaxis(codes, 0, -1).reshape(3, 2, 2, 4, 3)  # block, group, half, column, row
    np.testing.assert_array_equal(packed[:, :, :3], np.moveaxis(halves[:, :, 0] | halves[:, :, 1] << 4, -1, 2))
    assert not packed[:, :, 3:].any()
    numbers = packed_numbers(lib, lib.pool(1), weights).reshape(3, 2, lib.lanes)
    np.testing.assert_array_equal(numbers[:, 0, :3], weights.scale.T)
    np.testing.assert_array_equal(numbers[:, 1, :3], weights.minimum.T)  # type: ignore[union-attr]


class Net:
    """A graph with one input, lowered by one rule."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rule: Rule, x: np.ndarray):
        self.builder = Builder(Graph())
        self.x = x
        self.input = self.builder.input("x", F32, x.shape)
        self.rule = rule
        monkeypatch.setitem(RULES, MatMul if rule is coded_matmul else Convolution, rule)

    def run(
        self, lib: library.Library, y: Value, exact: bool = True, constants: Constants | None = None
    ) -> tuple[list[str], np.ndarray]:
        """The kernels that were called, and what y is."""
        ctx = Lowering(lib, lib.pool(1), constants or Constants(), [y], exact)
        ctx.feed(self.input, self.x.shape)
        ctx.lower(self.builder.graph.nodes)
        kernels = [step.kernel.name if isinstance(step, Call) else str(step) for step in ctx.steps]
        result = Program(ctx, {y: ctx.read(y)}).run({self.input: self.x}, compute=None)[y]  # type: ignore[arg-type]
        return kernels, np.array(result)


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("lead", [(), (3,), (2, 1, 3)])
def test_matmul_reads_codes(
    lib: library.Library, monkeypatch: pytest.MonkeyPatch, lead: tuple[int, ...], exact: bool, view: bool
) -> None:
    weights = coded(64, 32, 20, 4, True)
    x = np.random.default_rng(8).standard_normal((*lead, 64), np.float32)
    net = Net(monkeypatch, coded_matmul, x)
    tensor = CodedTensor(weights, weights.codes.shape)
    w = net.builder.constant(TransposedMatrix(tensor) if view else tensor)
    y = net.builder.add(MatMul(transpose_b=not view), net.input, w)
    bias = np.arange(20, dtype=np.float32)
    z = net.builder.add(ReLU(), net.builder.add(Binary("ADD"), y, net.builder.constant(bias)))
    kernels, result = net.run(lib, z, exact)
    assert kernels == ["coded_product"]
    rows = product(lib, x.reshape(-1, 64), weights, exact)
    np.testing.assert_array_equal(result, np.maximum(rows + bias, 0).reshape(*lead, 20))


@pytest.mark.parametrize("shape", [(5, 24, 1, 1), (2, 24, 5, 7), (2, 24, 6)])
@pytest.mark.parametrize("strides", [(1, 1), (2, 3)])
def test_pointwise_convolution_reads_codes(
    lib: library.Library, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], strides: tuple[int, int]
) -> None:
    op = Convolution(strides=strides, activation="relu6")
    tensor = CodedTensor(coded(24, 8, 33, 4, False), (33, 24, 1, 1))
    bias = np.linspace(-1, 1, 33).astype(np.float32)
    x = np.random.default_rng(9).standard_normal(shape, np.float32) * 10
    net = Net(monkeypatch, coded_convolution, x)
    y = net.builder.add(op, net.input, net.builder.constant(tensor), net.builder.constant(bias))
    kernels, result = net.run(lib, y)
    maps = shape[2:] != (1, 1)
    assert kernels == ["nchw_to_blocked"] * maps + ["coded_product"]
    np.testing.assert_allclose(result, op.ref(x, tensor.numpy(), bias), rtol=0, atol=2e-5)


def test_vectors_as_convolution_are_one_kernel(lib: library.Library, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = CodedTensor(coded(64, 32, 20, 4, True), (20, 64, 1, 1))
    x = np.random.default_rng(10).standard_normal((3, 64), np.float32)
    net = Net(monkeypatch, coded_convolution, x)
    add, constant = net.builder.add, net.builder.constant
    y = add(Convolution(), add(Reshape(), net.input, constant(np.array([3, 64, 1, 1], np.int32))), constant(tensor))
    rows = add(Reshape(), y, constant(np.array([3, 20], np.int32)))
    kernels, result = net.run(lib, add(ReLU(), rows))
    assert kernels == ["coded_product"]
    np.testing.assert_array_equal(result, np.maximum(product(lib, x, tensor.coded, exact=True), 0))


def test_codes_are_in_memory_only_while_they_are_packed(lib: library.Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """And are packed once, whatever the sizes of later runs."""
    stored = coded(64, 32, 20, 4, True)
    weights = CodedWeights(stored.codes, stored.scale, stored.minimum, stored.bits)
    reads = []
    weights.reread_by(lambda: reads.append(None) or stored.codes)  # type: ignore[func-returns-value]
    weights.let_go()
    constants, tensor = Constants(), CodedTensor(weights, (20, 64))
    for rows in (3, 5):
        x = np.random.default_rng(rows).standard_normal((rows, 64), np.float32)
        net = Net(monkeypatch, coded_matmul, x)
        y = net.builder.add(MatMul(transpose_b=True), net.input, net.builder.constant(tensor))
        _, result = net.run(lib, y, constants=constants)
        np.testing.assert_array_equal(result, product(lib, x, stored, exact=True))
        assert len(reads) == 1 and "codes" not in vars(weights)
