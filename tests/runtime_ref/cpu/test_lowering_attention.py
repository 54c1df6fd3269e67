"""Attention in programs: which graphs become one kernel, and that all of them agree with numpy."""

from __future__ import annotations

import numpy as np
import pytest

from mnnconvert.ir import Builder, Graph
from mnnconvert.ops.arrange import BroadcastTo
from mnnconvert.ops.elementwise import Binary, Select, Unary
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.matmul import MatMul
from mnnconvert.ops.normalization import Softmax
from mnnconvert.ops.shape import Permute, Reshape, Unsqueeze
from mnnconvert.runtime_ref.cpu import lowering as _rules  # noqa: F401  (registers them)
from mnnconvert.runtime_ref.cpu.lower import Call, Lowering
from mnnconvert.runtime_ref.cpu.program import Program
from mnnconvert.runtime_ref.lower import Constants

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
        self.nodes = builder.graph.nodes
        self.ctx.lower(self.nodes)

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


# Masks that are conditions, several masks, soft caps, factors in front, repeated heads.


def operands(queries=9, keys=20, heads=(2, 3), size=16):
    return tuple(numbers(*heads, n, size, seed=i) for i, n in enumerate((queries, keys, keys)))


def scores_of(b, q, k):
    return b.add(MatMul(transpose_b=True), q, k)


def weighted(b, scores, v):
    return [b.add(MatMul(), b.add(Softmax(-1), scores), v)]


def hides(allowed, filler=-np.inf):
    return np.where(allowed, 0.0, filler)


def call_of(case, kernel="attention"):
    return next(s for s in case.ctx.steps if isinstance(s, Call) and s.kernel.name == kernel)


def parameter(call, name):
    return call.params[call.kernel.params.index(name)]


@pytest.mark.parametrize("filler", [-np.inf, -3.4e38, -1e9])
@pytest.mark.parametrize("form", ["kept first", "kept last"])
def test_known_causal_conditions_are_counted(lib, filler, form):
    q, k, v = operands(12, 20)
    allowed = np.tri(12, 20, 8, dtype=bool)

    def build(b, q, k, v):
        scores, other = scores_of(b, q, k), b.constant(np.float32(filler).reshape(1))
        if form == "kept first":
            return weighted(b, b.add(Select(), b.constant(allowed.astype(np.int32)), scores, other), v)
        return weighted(b, b.add(Select(), b.constant((~allowed).astype(np.int32)), other, scores), v)

    check(lib, build, attend(q, k, v, hides(allowed)), q, k, v)
    call = call_of(Attention(lib, build, q, k, v))
    assert (parameter(call, "seen"), parameter(call, "seen_step")) == (9, 1) and call.args[3] is None


@pytest.mark.parametrize("size", [9, 200])
def test_causality_of_compared_positions_is_counted(lib, size):
    """200 x 200 is too much for the arithmetic on shapes."""
    q, k, v = operands(size, size)

    def build(b, q, k, v):
        rows, columns = (b.constant(np.arange(size, dtype=np.int32).reshape(s)) for s in ((-1, 1), (1, -1)))
        allowed = b.add(Binary("GREATER_EQUAL"), rows, columns)
        return weighted(b, b.add(Select(), allowed, scores_of(b, q, k), b.constant(np.float32([-np.inf]))), v)

    case = Attention(lib, build, q, k, v)
    np.testing.assert_allclose(case.run()[0], attend(q, k, v, hides(np.tri(size, dtype=bool))), rtol=1e-4, atol=1e-5)
    assert parameter(call_of(case), "seen_step") == 1


@pytest.mark.parametrize("offset", [0, 1])
def test_known_causal_numbers_are_counted_if_nothing_else_is_added(lib, offset):
    q, k, v = operands(9, 9)
    mask = hides(np.tri(9, dtype=bool), -1e30).astype(np.float32)
    mask[5, 2] = offset

    def build(b, q, k, v):
        return weighted(b, b.add(Binary("ADD"), scores_of(b, q, k), b.constant(mask)), v)

    check(lib, build, attend(q, k, v, mask), q, k, v)
    assert parameter(call_of(Attention(lib, build, q, k, v)), "seen_step") == 1 - offset


@pytest.mark.parametrize("seen", [0, -3])
def test_rows_without_keys_are_not_causal_where_a_large_number_hides(lib, seen):
    """All keys are then alike, and count."""
    q, k, v = operands(9, 9)
    mask = hides(np.tri(9, 9, seen - 1, dtype=bool), -1e30).astype(np.float32)

    def build(b, q, k, v):
        return weighted(b, b.add(Binary("ADD"), scores_of(b, q, k), b.constant(mask)), v)

    check(lib, build, attend(q, k, v, mask), q, k, v)


def test_a_window_is_a_mask(lib):
    q, k, v = operands(9, 9)
    allowed = np.tri(9, dtype=bool) & ~np.tri(9, 9, -4, dtype=bool)

    def build(b, q, k, v):
        masked = b.add(
            Select(), b.constant(allowed.astype(np.int32)), scores_of(b, q, k), b.constant(np.float32([-1e30]))
        )
        return weighted(b, masked, v)

    check(lib, build, attend(q, k, v, hides(allowed)), q, k, v)


@pytest.mark.parametrize("dtype", [np.int32, np.float32, np.uint8])
def test_conditions_of_a_run(lib, dtype):
    q, k, v = operands()
    allowed = numbers(2, 1, 1, 20, seed=4) > 0

    def build(b, q, k, v, condition):
        masked = b.add(Select(), condition, scores_of(b, q, k), b.constant(np.float32([-np.inf])))
        return weighted(b, masked, v)

    want = attend(q, k, v, hides(allowed))
    check(lib, build, want, q, k, v, allowed.astype(dtype), kernels=["chain", "attention"])


def test_several_masks(lib):
    q, k, v = operands(9, 20)
    padding, bias = numbers(2, 1, 1, 20, seed=4) > 0, numbers(3, 9, 20, seed=5)
    causal = np.tri(9, 20, 11, dtype=bool)

    def build(b, q, k, v, padding, bias):
        scores, never = b.add(Binary("ADD"), bias, scores_of(b, q, k)), b.constant(np.float32([-np.inf]))
        scores = b.add(Select(), b.constant(causal.astype(np.int32)), scores, never)
        return weighted(b, b.add(Select(), padding, scores, never), v)

    want = attend(q, k, v, bias + hides(causal) + hides(padding))
    check(lib, build, want, q, k, v, padding.astype(np.int32), bias, kernels=["chain", "attention"])
    case = Attention(lib, build, q, k, v, padding.astype(np.int32), bias)
    assert parameter(call_of(case), "seen") == 12


@pytest.mark.parametrize("where", ["same", "another"])
def test_zero_where_a_condition_forbids(lib, where):
    q, k, v = operands()
    allowed = numbers(2, 3, 9, 20, seed=4) > 0
    allowed[0, 1, 4] = False
    other = np.ones_like(allowed)

    def build(b, q, k, v, condition, other):
        masked = b.add(Select(), condition, scores_of(b, q, k), b.constant(np.float32([-np.inf])))
        weights = b.add(Softmax(-1), masked)
        chosen = condition if where == "same" else other
        return [b.add(MatMul(), b.add(Select(), chosen, weights, b.constant(np.float32([0.0]))), v)]

    with np.errstate(invalid="ignore"):
        want = attend(q, k, v, hides(allowed))
    feeds = q, k, v, allowed.astype(np.int32), other.astype(np.int32)
    if where == "same":
        check(lib, build, np.nan_to_num(want), *feeds, kernels=["chain", "attention"])
    else:
        assert "attention" not in Attention(lib, build, *feeds).kernels


@pytest.mark.parametrize("filler", [-1e4, 0.0, np.inf])
def test_small_fillers_are_no_masks(lib, filler):
    """What is put in the place of a score counts in rows where all are hidden."""
    q, k, v = operands()
    condition = np.zeros((9, 20), np.int32)

    def build(b, q, k, v):
        masked = b.add(Select(), b.constant(condition), scores_of(b, q, k), b.constant(np.float32([filler])))
        return weighted(b, masked, v)

    assert "attention" not in Attention(lib, build, q, k, v).kernels


@pytest.mark.parametrize("cap", [None, 2.5])
def test_soft_cap(lib, cap):
    q, k, v = operands()

    def build(b, q, k, v):
        scores = b.add(Unary("TANH"), b.add(Binary("MUL"), scores_of(b, q, k), b.constant(np.float32([0.2]))))
        scores = scores if cap is None else b.add(Binary("MUL"), b.constant(np.float32([cap])), scores)
        return weighted(b, scores, v)

    scores = (cap or 1.0) * np.tanh(0.2 * (q.astype(np.float64) @ k.swapaxes(-1, -2)))
    check(lib, build, softmax(scores) @ v, q, k, v)


def test_no_cap_after_a_mask_nor_upside_down(lib):
    q, k, v = operands()
    mask = numbers(9, 20, seed=3)

    def after(b, q, k, v, mask):
        return weighted(b, b.add(Unary("TANH"), b.add(Binary("ADD"), scores_of(b, q, k), mask)), v)

    def negative(b, q, k, v, mask):
        capped = b.add(Binary("MUL"), b.add(Unary("TANH"), scores_of(b, q, k)), b.constant(np.float32([-1.0])))
        return weighted(b, capped, v)

    for build in (after, negative):
        assert "attention" not in Attention(lib, build, q, k, v, mask).kernels


def test_factors_in_front_of_the_product(lib):
    q, k, v = operands()

    def build(b, q, k, v):
        q = b.add(Binary("MUL"), q, b.constant(np.float32([0.5])))
        k = b.add(Binary("REALDIV"), b.add(Permute((0, 1, 3, 2)), k), b.constant(np.float32([4.0])))
        return weighted(b, b.add(MatMul(), q, k), v)

    check(lib, build, attend(q, k, v, scale=0.125), q, k, v)


def test_a_factor_that_others_read_stays(lib):
    q, k, v = operands()

    def build(b, q, k, v):
        scaled = b.add(Binary("MUL"), q, b.constant(np.float32([0.5])))
        return [*weighted(b, scores_of(b, scaled, k), v), scaled]

    check(lib, build, attend(q, k, v, scale=0.5), q, k, v, kernels=["chain", "attention"])


def by_indices(b, x, order):
    return b.add(GatherV2(1), x, b.constant(np.int32(order)))


def by_broadcast(b, x, order):
    batch, heads, rows, size = x.shape
    group = len(order) // heads
    wide = b.add(BroadcastTo(), b.add(Unsqueeze((2,)), x), b.ints(np.array([batch, heads, group, rows, size])))
    return reshaped(b, wide, (batch, heads * group, rows, size))


@pytest.mark.parametrize("queries", [1, 9])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("repeat", [by_indices, by_broadcast])
def test_repeated_heads_need_no_copies(lib, repeat, swapped, queries):
    q, k, v = numbers(2, 6, queries, 16), numbers(2, 3, 20, 16, seed=1), numbers(2, 3, 20, 8, seed=2)
    mask, order = numbers(2, 6, queries, 20, seed=3), [0, 0, 1, 1, 2, 2]

    def build(b, q, k, v, mask):
        k, v = repeat(b, k, order), repeat(b, v, order)
        k = b.add(Permute((0, 1, 3, 2)), k) if swapped else k
        scores = b.add(Binary("ADD"), b.add(MatMul(transpose_b=not swapped), q, k), mask)
        return weighted(b, scores, v)

    check(lib, build, attend(q, np.repeat(k, 2, 1), np.repeat(v, 2, 1), mask), q, k, v, mask)


@pytest.mark.parametrize("order", [[0, 1, 0, 1], [1, 1, 0, 0], [0, 0, 0, 1]])
def test_heads_in_another_order_are_copied(lib, order):
    q, k, v = numbers(2, 4, 9, 16), numbers(2, 2, 20, 16, seed=1), numbers(2, 2, 20, 16, seed=2)

    def build(b, q, k, v):
        return weighted(b, scores_of(b, q, by_indices(b, k, order)), by_indices(b, v, order))

    check(lib, build, attend(q, k[:, order], v[:, order]), q, k, v, kernels=["gather", "gather", "attention"])


def test_repeated_keys_that_others_read_are_there(lib):
    q, k, v = numbers(2, 4, 9, 16), numbers(2, 2, 20, 16, seed=1), numbers(2, 2, 20, 16, seed=2)

    def build(b, q, k, v):
        repeated = by_indices(b, k, [0, 0, 1, 1])
        return [*weighted(b, scores_of(b, q, repeated), by_indices(b, v, [0, 0, 1, 1])), repeated]

    case = Attention(lib, build, q, k, v)
    y, repeated = case.run()
    np.testing.assert_allclose(y, attend(q, np.repeat(k, 2, 1), np.repeat(v, 2, 1)), rtol=1e-4, atol=1e-5)
    assert (repeated == np.repeat(k, 2, 1)).all() and "attention" in case.kernels


@pytest.mark.parametrize("known", [False, True])
def test_conditions_one_after_the_other(lib, known):
    """Where a row is all hidden, every key counts alike, however many conditions hide it."""
    q, k, v = operands(9, 9)
    padding, causal = np.ones((1, 1, 1, 9), np.int32), np.tri(9, dtype=np.int32)
    padding[..., :3] = 0

    def build(b, q, k, v, *padding_fed):
        condition = padding_fed[0] if padding_fed else b.constant(padding)
        never = b.constant(np.float32([-3.4e38]))
        scores = b.add(Select(), b.constant(causal), scores_of(b, q, k), never)
        return weighted(b, b.add(Select(), condition, scores, never), v)

    scores = np.where(causal * padding != 0, q.astype(np.float64) @ k.swapaxes(-1, -2), -3.4e38)
    feeds = () if known else (padding,)
    check(lib, build, softmax(scores) @ v, q, k, v, *feeds, kernels=["attention"] if known else ["chain", "attention"])


def test_hidden_keys_may_be_no_numbers(lib):
    q, k, v = operands(9, 20)
    k[:, :, 15:] = np.nan
    allowed = np.ones((9, 20), np.int32)
    allowed[:, 15:] = 0

    def build(b, q, k, v, condition):
        return weighted(b, b.add(Select(), condition, scores_of(b, q, k), b.constant(np.float32([-np.inf]))), v)

    want = attend(q, k[:, :, :15], v[:, :, :15])
    check(lib, build, want, q, k, v, allowed, kernels=["chain", "attention"])
