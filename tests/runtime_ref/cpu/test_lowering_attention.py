"""Attention in programs: which graphs become one kernel, and that all of them agree with numpy."""

from __future__ import annotations

import numpy as np
import pytest

from mnnconvert.ir import Builder, Graph
from mnnconvert.ops.arrange import BroadcastTo
from mnnconvert.ops.elementwise import Binary, Select
from mnnconvert.ops.matmul import MatMul
from mnnconvert.ops.normalization import Softmax
from mnnconvert.ops.shape import Permute, Reshape
from mnnconvert.runtime_ref.cpu import lowering as _rules  # noqa: F401  (registers them)
from mnnconvert.runtime_ref.cpu.lower import Call, Constants, Lowering
from mnnconvert.runtime_ref.cpu.program import Program

HEADS = (0, 2, 1, 3)


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def softmax(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def attend(q, k, v, mask=0.0, scale=1.0):
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    return softmax(scale * q @ k.swapaxes(-1, -2) + mask) @ v


class Attention:
    """A graph on inputs: `build(builder, *values)`; `wanted` of the values that it returns are results as well."""

    def __init__(self, lib, build, *operands):
        builder = Builder(Graph())
        self.feeds = {builder.input(f"x{i}", x.dtype, x.shape): x for i, x in enumerate(operands)}
        self.outputs = build(builder, *self.feeds)
        self.ctx = Lowering(lib, lib.pool(2), Constants(), self.outputs)
        for value, array in self.feeds.items():
            self.ctx.feed(value, array.shape)
        self.ctx.lower(builder.graph.nodes)

    @property
    def kernels(self):
        return [step.kernel.name if isinstance(step, Call) else "reference" for step in self.ctx.steps]

    def run(self):
        program = Program(self.ctx, {value: self.ctx.read(value) for value in self.outputs})
        return list(program.run(self.feeds, compute=lambda node, operands: (node.op.ref(*operands),)).values())


def check(lib, build, want, *operands, kernels=("attention",)):
    case = Attention(lib, build, *operands)
    assert case.kernels == list(kernels)
    y, *_ = case.run()
    assert y.shape == want.shape
    assert np.abs(y - want).max() <= 2e-6 * np.abs(want).max()


def attention(builder, q, k, v, mask=None, *, scale=1.0, masked_shape=None, **transposes):
    """Products and softmax; `masked_shape` is that of the scores when the mask is added."""
    scores = builder.add(MatMul(**{"transpose_b": True, **transposes}), q, k)
    scores = builder.add(Binary("REALDIV"), scores, builder.constant(np.float32([1 / scale])))
    if mask is not None:
        shape = scores.shape
        scores = reshaped(builder, scores, masked_shape or shape)
        scores = reshaped(builder, builder.add(Binary("ADD"), mask, scores), shape)
    return [builder.add(MatMul(), builder.add(Softmax(-1), scores), v)]


def reshaped(builder, value, shape):
    return builder.add(Reshape(), value, builder.constant(np.int32(shape)))


@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (2, 1, 3), (2, 3, 2)])
def test_batches(lib, batch):
    q, k, v = numbers(*batch, 9, 16), numbers(*batch, 20, 16, seed=1), numbers(*batch, 20, 8, seed=2)
    check(lib, lambda b, *x: attention(b, *x, scale=0.25), attend(q, k, v, scale=0.25), q, k, v)


@pytest.mark.parametrize(
    "mask", [(20,), (9, 20), (3, 1, 20), (2, 1, 1, 20), (2, 3, 1, 20), (2, 3, 9, 20), (1, 1, 20), (2, 1, 9, 20)]
)
def test_masks(lib, mask):
    q, k, v, m = (
        numbers(2, 3, 9, 16),
        numbers(2, 3, 20, 16, seed=1),
        numbers(2, 3, 20, 16, seed=2),
        numbers(*mask, seed=3),
    )
    check(lib, lambda b, *x: attention(b, *x, scale=0.25), attend(q, k, v, m, 0.25), q, k, v, m)


@pytest.mark.parametrize("mask, calls", [((1, 4, 1, 9, 9), 2), ((2, 1, 3, 9, 9), 2), ((9, 9), 1), ((4, 1, 9, 9), 2)])
def test_masks_of_windows_are_added_to_scores_of_another_shape(lib, mask, calls):
    q, k, v = (numbers(8, 3, 9, 16, seed=i) for i in range(3))
    m = numbers(*mask, seed=3)
    shape = (2, 4, 3, 9, 9)
    scores = (q.astype(np.float64) @ k.swapaxes(-1, -2)).reshape(shape) + m
    want = softmax(scores).reshape(8, 3, 9, 9) @ v
    kernels = ["attention"] * calls
    check(lib, lambda b, *x: attention(b, *x, masked_shape=shape), want, q, k, v, m, kernels=kernels)


def test_heads_of_rows_need_no_copies(lib):
    q, k, v, mask = (
        numbers(2, 9, 48),
        numbers(2, 20, 48, seed=1),
        numbers(2, 20, 48, seed=2),
        numbers(2, 1, 1, 20, seed=3),
    )

    def build(b, q, k, v, mask):
        q, k, v = (reshaped(b, x, (2, -1, 3, 16)) for x in (q, k, v))
        q, k, v = b.add(Permute(HEADS), q), b.add(Permute((0, 2, 3, 1)), k), b.add(Permute(HEADS), v)
        (y,) = attention(b, q, k, v, mask, transpose_b=False)
        return [reshaped(b, b.add(Permute(HEADS), y), (2, 9, 48))]

    heads = [x.reshape(2, -1, 3, 16).transpose(HEADS) for x in (q, k, v)]
    check(lib, build, attend(*heads, mask).transpose(HEADS).reshape(2, 9, 48), q, k, v, mask)


def test_operands_of_every_order(lib):
    q, k, v = numbers(2, 16, 9), numbers(2, 20, 16, seed=1), numbers(2, 8, 20, seed=2)

    def build(b, q, k, v):
        return attention(b, b.add(Permute((0, 2, 1)), q), k, b.add(Permute((0, 2, 1)), v))

    kernels = ["copy_strided", "copy_strided", "attention"]
    check(lib, build, attend(q.swapaxes(1, 2), k, v.swapaxes(1, 2)), q, k, v, kernels=kernels)


def test_values_that_come_after_the_scores(lib):
    q, k, v = numbers(2, 9, 16), numbers(2, 20, 16, seed=1), numbers(2, 20, 16, seed=2)

    def build(b, q, k, v):
        weights = b.add(Softmax(-1), b.add(MatMul(transpose_b=True), q, k))
        return [b.add(MatMul(), weights, b.add(Binary("ADD"), v, v))]

    case = Attention(lib, build, q, k, v)
    assert case.kernels[-1] == "attention"
    np.testing.assert_allclose(case.run()[0], attend(q, k, 2 * v), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("choices, fused", [((0.0, None), True), ((None, 0.0), False), ((1.0, None), False)])
def test_zero_in_the_place_of_nan(lib, choices, fused):
    q, k, v, mask = numbers(2, 9, 16), numbers(2, 20, 16, seed=1), numbers(2, 20, 16, seed=2), numbers(9, 20, seed=3)
    mask[4] = -np.inf

    def build(b, q, k, v, mask):
        scores = b.add(Binary("ADD"), b.add(MatMul(transpose_b=True), q, k), mask)
        weights = b.add(Softmax(-1), scores)
        is_nan = b.add(Binary("NOTEQUAL"), weights, weights)
        picks = [weights if c is None else b.constant(np.float32([c])) for c in choices]
        return [b.add(MatMul(), b.add(Select(), is_nan, *picks), v)]

    if not fused:
        assert "attention" not in Attention(lib, build, q, k, v, mask).kernels
        return
    with np.errstate(invalid="ignore"):
        want = np.nan_to_num(attend(q, k, v, mask))
    check(lib, build, want, q, k, v, mask)


@pytest.mark.parametrize("queries", [1, 9])
@pytest.mark.parametrize("batch", [1, 2])
def test_heads_that_share_keys(lib, queries, batch):
    q, k = numbers(batch, 3, 4, queries, 16), numbers(batch, 3, 1, 20, 16, seed=1)
    v, mask = numbers(batch, 3, 1, 20, 16, seed=2), numbers(batch, 1, 1, 1, 20, seed=3)
    check(lib, lambda b, *x: attention(b, *x, scale=0.25), attend(q, k, v, mask, 0.25), q, k, v, mask)


def test_what_others_read_is_computed(lib):
    q, k, v = numbers(2, 9, 16), numbers(2, 20, 16, seed=1), numbers(2, 20, 16, seed=2)

    def build(b, q, k, v):
        weights = b.add(Softmax(-1), b.add(MatMul(transpose_b=True), q, k))
        return [b.add(MatMul(), weights, v), weights]

    case = Attention(lib, build, q, k, v)
    assert "attention" not in case.kernels
    y, weights = case.run()
    np.testing.assert_allclose(weights, softmax(q.astype(np.float64) @ k.swapaxes(1, 2)), rtol=1e-5)
    np.testing.assert_allclose(y, attend(q, k, v), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "change",
    [lambda b, s: b.add(Binary("MUL"), s, s), lambda b, s: b.add(Binary("ADD"), s, b.constant(numbers(9, 1))),
     lambda b, s: b.add(Permute((0, 2, 1)), s), lambda b, s: b.add(Binary("REALDIV"), b.constant(numbers(1)), s),
     lambda b, s: b.add(BroadcastTo(), s, b.constant(np.int32([2, 9, 9])))],
)  # fmt: skip
def test_what_is_no_attention(lib, change):
    q, k, v = (numbers(2, 9, 16, seed=i) for i in range(3))

    def build(b, q, k, v):
        scores = change(b, b.add(MatMul(transpose_b=True), q, k))
        return [b.add(MatMul(), b.add(Softmax(-1), scores), v)]

    assert "attention" not in Attention(lib, build, q, k, v).kernels
