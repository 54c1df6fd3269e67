"""Matrix products in programs: what becomes strides, what is fused, and that all shapes agree with numpy."""

from __future__ import annotations

import numpy as np
import pytest

from mnnconvert.ir import Builder, Graph
from mnnconvert.ops.activation import ReLU
from mnnconvert.ops.elementwise import Binary
from mnnconvert.ops.matmul import InnerProduct, MatMul
from mnnconvert.ops.shape import Permute, Reshape
from mnnconvert.runtime_ref.cpu import lowering as _rules  # noqa: F401  (registers them)
from mnnconvert.runtime_ref.cpu.lower import Call, Lowering
from mnnconvert.runtime_ref.cpu.program import Program
from mnnconvert.runtime_ref.lower import Constants

HEADS = (0, 2, 1, 3)


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Case:
    """A graph: `build(builder, *values)` on float operands, of which those in `fixed` are constants."""

    def __init__(self, lib, build, *operands, fixed=()):
        builder = Builder(Graph())
        self.feeds, values = {}, []
        for i, array in enumerate(operands):
            values.append(builder.constant(array) if i in fixed else builder.input(f"x{i}", array.dtype, array.shape))
            if i not in fixed:
                self.feeds[values[-1]] = array
        self.output = build(builder, *values)
        self.ctx = Lowering(lib, lib.pool(2), Constants(), [self.output])
        for value, array in self.feeds.items():
            self.ctx.feed(value, array.shape)
        self.ctx.lower(builder.graph.nodes)

    @property
    def kernels(self):
        """Names of the kernels called; asserts that there is nothing else."""
        assert all(isinstance(step, Call) for step in self.ctx.steps)
        return [step.kernel.name for step in self.ctx.steps]

    def check(self, want, *kernels):
        """The result, and the kernels that made it."""
        assert self.kernels == list(kernels)
        program = Program(self.ctx, {self.output: self.ctx.read(self.output)})
        y = program.run(self.feeds, compute=None)[self.output]
        assert y.shape == want.shape
        assert np.abs(y - want).max(initial=0) <= 2e-6 * np.abs(want).max(initial=0)


def matmul(**attributes):
    return lambda builder, *values: builder.add(MatMul(**attributes), *values)


@pytest.mark.parametrize("fixed", [(), (1,)])
@pytest.mark.parametrize(
    "a, b",
    [((3, 4), (4, 5)), ((4,), (4,)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (2, 4, 5)), ((2, 3, 4), (4,)),
     ((2, 3, 4), (4, 5)), ((2, 1, 4), (4, 5)), ((3, 4), (2, 4, 5)), ((2, 3, 4), (2, 4, 1)), ((5, 1, 3, 4), (2, 4, 5)),
     ((2, 1, 3, 4), (1, 6, 4, 5)), ((2, 1, 3, 3, 4), (2, 1, 4, 5)), ((2, 3, 1, 2, 3, 4), (1, 3, 2, 1, 4, 5))],
)  # fmt: skip
def test_every_shape(lib, a, b, fixed):
    x, w = numbers(*a), numbers(*b, seed=1)
    case = Case(lib, matmul(), x, w, fixed=fixed)
    case.check(np.matmul(x.astype(np.float64), w), *["gemm_f32"] * len(case.kernels))


def test_few_calls_for_many_batches(lib):
    x, w = numbers(2, 3, 4, 5, 6), numbers(2, 3, 4, 6, 7, seed=1)
    Case(lib, matmul(), x, w).check(np.matmul(x.astype(np.float64), w), "gemm_f32")
    Case(lib, matmul(), x, w[0, 0, 0]).check(np.matmul(x.astype(np.float64), w[0, 0, 0]), "gemm_f32")
    case = Case(lib, matmul(), x, w[0, 0, 0], fixed=(1,))
    assert case.ctx.steps[0].params[:1] == (2 * 3 * 4 * 5,), "the batch is not merged with the rows"


@pytest.mark.parametrize("fixed", [(), (1,)])
def test_transposed_operands(lib, fixed):
    x, w = numbers(2, 4, 3), numbers(5, 4, seed=1)
    case = Case(lib, matmul(transpose_a=True, transpose_b=True), x, w, fixed=fixed)
    case.check(np.matmul(x.astype(np.float64).swapaxes(1, 2), w.T), "gemm_f32")


def test_bias_residual_and_activation_are_fused(lib):
    x, w, bias, residual = numbers(2, 3, 4), numbers(4, 5, seed=1), numbers(5, seed=2), numbers(2, 3, 5, seed=3)

    def build(builder, x, w, bias, residual):
        y = builder.add(Binary("ADD"), builder.add(MatMul(), x, w), bias)
        return builder.add(ReLU(), builder.add(Binary("ADD"), residual, y))

    want = np.maximum(x.astype(np.float64) @ w + bias + residual, 0)
    Case(lib, build, x, w, bias, residual, fixed=(1, 2)).check(want, "gemm_f32")
    Case(lib, matmul(transpose_b=True), x, w.T.copy(), bias).check(x.astype(np.float64) @ w + bias, "gemm_f32")


def test_transposes_of_heads_are_strides(lib):
    q, k = numbers(2, 7, 3 * 4), numbers(2, 5, 3 * 4, seed=1)

    def build(builder, q, k):
        heads = [
            builder.add(Permute(HEADS), builder.add(Reshape(), x, builder.constant(np.int32([2, -1, 3, 4]))))
            for x in (q, k)
        ]
        scores = builder.add(MatMul(transpose_b=True), *heads)
        back = builder.add(Permute(HEADS), builder.add(MatMul(), scores, heads[1]))
        return builder.add(Reshape(), back, builder.constant(np.int32([2, 7, 12])))

    split_q, split_k = q.reshape(2, 7, 3, 4).astype(np.float64), k.reshape(2, 5, 3, 4)
    scores = np.einsum("brhs,bchs->bhrc", split_q, split_k)
    want = np.einsum("bhrc,bchs->brhs", scores, split_k).reshape(2, 7, 12)
    Case(lib, build, q, k).check(want, "copy_strided", "gemm_f32", "gemm_f32")  # k has two readers


def test_inner_product(lib):
    x, w, bias = numbers(2, 3, 4), numbers(5, 12, seed=1), numbers(5, seed=2)
    case = Case(lib, lambda builder, *v: builder.add(InnerProduct(1), *v), x, w, bias, fixed=(1, 2))
    case.check(x.reshape(2, 12).astype(np.float64) @ w.T + bias, "gemm_f32")
