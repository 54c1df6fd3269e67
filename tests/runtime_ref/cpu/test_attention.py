"""Attention: every size, strides, masks, shared heads, causality, one row with many keys; against float64."""

from __future__ import annotations

import numpy as np
import pytest
from kernels import both, guarded


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def strides(array, *axes):
    """Strides of axes in floats; 0 where an axis has size 1."""
    return [array.strides[axis] // 4 if array.shape[axis] > 1 else 0 for axis in axes]


def run(
    lib,
    q,
    k,
    v,
    mask=None,
    scale=0.3,
    seen=None,
    seen_step=0,
    blank=False,
    sinks=None,
    unmasked=0,
    cap=0.0,
    replaces=False,
):
    """y [batch, queries, heads, width] for views q, k, v [batch, heads, rows, size] of whole arrays."""
    (batch, heads, queries, depth), (_, key_heads, keys, _), width = q.shape, k.shape, v.shape[3]
    q_batch, q_head, q_row = strides(q, 0, 1, 2)
    k_batch, k_head, k_row, k_column = strides(k, 0, 1, 2, 3)
    v_batch, v_head, v_row = strides(v, 0, 1, 2)
    mask_batch, mask_head, mask_row = (0, 0, 0) if mask is None else strides(mask, 0, 1, 2)
    return both(
        lib, "attention", (batch, queries, heads, width), q=memory(q), k=memory(k), v=memory(v),
        mask=None if mask is None else memory(mask), batch=batch, heads=heads, key_heads=key_heads, queries=queries,
        keys=keys, depth=depth, width=width, q_batch=q_batch, q_head=q_head, q_row=q_row, k_batch=k_batch,
        k_head=k_head, k_row=k_row, k_column=k_column if depth > 1 else 1, v_batch=v_batch, v_head=v_head, v_row=v_row,
        mask_batch=mask_batch, mask_head=mask_head, mask_row=mask_row, y_batch=queries * heads * width, y_head=width,
        y_row=heads * width, seen=keys if seen is None else seen, seen_step=seen_step, unmasked=unmasked, blank=blank,
        capacity=0, replaces=replaces, scale=scale, cap=cap, sinks=None if sinks is None else guarded(sinks),
    )  # fmt: skip


def memory(view):
    """What a view with positive strides looks at, between guards."""
    owner = view if view.base is None else view.base
    return guarded(np.ascontiguousarray(owner))


def expected(q, k, v, mask=None, scale=0.3, allowed=None):
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = scale * q @ k.swapaxes(-1, -2)
    if mask is not None:
        scores = scores + mask
    if allowed is not None:
        scores = np.where(allowed, scores, -np.inf)
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return (weights / weights.sum(-1, keepdims=True) @ v).swapaxes(1, 2)


def close(y, want):
    assert np.array_equal(np.isnan(y), np.isnan(want))
    assert np.abs(np.nan_to_num(y) - np.nan_to_num(want)).max(initial=0) <= 2e-6 * np.nan_to_num(np.abs(want)).max(
        initial=0
    )


@pytest.mark.parametrize(
    "queries, keys, depth, width",
    [(1, 1, 1, 1), (3, 5, 3, 7), (17, 63, 8, 16), (128, 128, 32, 32), (63, 257, 17, 5), (101, 530, 64, 40),
     (5, 3, 256, 33), (1, 17, 32, 32), (4, 700, 64, 24), (2, 300, 5, 100)],
)  # fmt: skip
def test_sizes(lib, queries, keys, depth, width):
    q, k, v = numbers(2, 3, queries, depth), numbers(2, 3, keys, depth, seed=1), numbers(2, 3, keys, width, seed=2)
    close(run(lib, q, k, v), expected(q, k, v))
    mask = 3 * numbers(2, 1, 1, keys, seed=3)
    close(run(lib, q, k, v, mask), expected(q, k, v, mask))


def test_heads_side_by_side_and_transposed_keys(lib):
    q, k, v = (numbers(2, 50, 3, 16, seed=i).transpose(0, 2, 1, 3) for i in range(3))
    close(run(lib, q, k, v), expected(q, k, v))
    across = numbers(2, 3, 16, 50, seed=1).swapaxes(2, 3)
    close(run(lib, q, across, v), expected(q, across, v))
    close(run(lib, q[:, :, :1], across, v), expected(q[:, :, :1], across, v))


@pytest.mark.parametrize("shape", [(2, 3, 40, 300), (1, 1, 40, 300), (2, 1, 1, 300), (1, 3, 1, 300)])
def test_masks(lib, shape):
    q, k, v = numbers(2, 3, 40, 16), numbers(2, 3, 300, 16, seed=1), numbers(2, 3, 300, 16, seed=2)
    mask = np.where(numbers(*shape, seed=3) > 0.5, np.float32(-np.inf), numbers(*shape, seed=4))
    mask[..., -1, :260] = -np.inf  # the first tile of keys is hidden
    close(run(lib, q, k, v, mask), expected(q, k, v, mask))


def test_rows_without_keys_are_nan(lib):
    q, k, v = numbers(1, 2, 9, 16), numbers(1, 2, 20, 16, seed=1), numbers(1, 2, 20, 16, seed=2)
    mask = np.zeros((1, 1, 9, 20), np.float32)
    mask[:, :, 4] = -np.inf
    y = run(lib, q, k, v, mask)
    assert np.isnan(y[:, 4]).all()
    close(y, expected(q, k, v, mask))
    close(run(lib, q, k, v, mask, blank=True), np.nan_to_num(expected(q, k, v, mask)))


def test_nan_and_infinity_spoil_their_rows_only(lib):
    q, k, v = numbers(1, 2, 9, 16), numbers(1, 2, 20, 16, seed=1), numbers(1, 2, 20, 16, seed=2)
    q[0, 0, 3, 5], q[0, 1, 7, 2] = np.nan, np.inf
    y = run(lib, q, k, v)
    spoiled = np.isnan(y).any(-1)[0]
    assert spoiled[3, 0] and spoiled[7, 1] and spoiled.sum() == 2


def test_large_scores(lib):
    q, k, v = 100 * numbers(1, 2, 30, 16), numbers(1, 2, 600, 16, seed=1), numbers(1, 2, 600, 16, seed=2)
    y, want = run(lib, q, k, v, scale=1.0), expected(q, k, v, scale=1.0)
    assert np.abs(y - want).max() <= 1e-3 * np.abs(want).max()  # the scores themselves are rounded


@pytest.mark.parametrize("queries, keys", [(300, 300), (70, 600), (5, 9), (3, 2000), (40, 20)])
def test_causal(lib, queries, keys):
    q, k, v = numbers(1, 2, queries, 16), numbers(1, 2, keys, 16, seed=1), numbers(1, 2, keys, 16, seed=2)
    seen = 1 + keys - queries
    allowed = np.arange(keys) < seen + np.arange(queries)[:, None]
    close(run(lib, q, k, v, seen=seen, seen_step=1), expected(q, k, v, allowed=allowed))


@pytest.mark.parametrize("queries, keys, group", [(1, 40, 4), (1, 3000, 2), (1, 3000, 7), (2, 2500, 3), (40, 300, 3)])
def test_shared_keys(lib, queries, keys, group):
    q, k, v = numbers(2, 2 * group, queries, 32), numbers(2, 2, keys, 32, seed=1), numbers(2, 2, keys, 32, seed=2)
    mask = numbers(1, 2 * group, 1, keys, seed=3)
    close(run(lib, q, k, v, mask), expected(q, k, v, mask))


def test_blocks_of_rows_do_not_matter(lib):
    q, k, v = numbers(1, 1, 1000, 16), numbers(1, 1, 300, 16, seed=1), numbers(1, 1, 300, 16, seed=2)
    y = run(lib, q, k, v)
    assert (y[:, 995:] == run(lib, q[:, :, 5:].copy(), k, v)[:, 990:]).all()
    close(y, expected(q, k, v))


def test_nothing(lib):
    assert run(lib, numbers(1, 2, 0, 8), numbers(1, 2, 3, 8), numbers(1, 2, 3, 8)).size == 0
    y = run(lib, numbers(1, 2, 5, 8), numbers(1, 2, 0, 8), numbers(1, 2, 0, 8))
    assert np.isnan(y).all()


def with_sinks(q, k, v, sinks, mask=0.0, scale=0.3):
    """As `expected`, with one more score per head that has no value."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = scale * q @ k.swapaxes(-1, -2) + mask
    high = np.maximum(scores.max(-1, keepdims=True), sinks[:, None, None])
    weights = np.exp(scores - high)
    total = weights.sum(-1, keepdims=True) + np.exp(sinks[:, None, None] - high)
    return (weights / total @ v).swapaxes(1, 2)


@pytest.mark.parametrize("queries, keys, group", [(1, 40, 4), (1, 3000, 2), (3, 2000, 1), (70, 300, 2)])
def test_sinks(lib, queries, keys, group):
    q, k, v = numbers(2, 2 * group, queries, 32), numbers(2, 2, keys, 32, seed=1), numbers(2, 2, keys, 32, seed=2)
    sinks = 5 * numbers(2 * group, seed=3)
    close(run(lib, q, k, v, sinks=sinks), with_sinks(q, k, v, sinks))
    nothing = np.full(2 * group, -np.inf, np.float32)
    assert (run(lib, q, k, v, sinks=nothing) == run(lib, q, k, v)).all()


def test_a_row_that_sees_a_sink_alone_is_zero(lib):
    q, k, v = numbers(1, 2, 9, 16), numbers(1, 2, 20, 16, seed=1), numbers(1, 2, 20, 16, seed=2)
    mask = np.full((1, 1, 9, 20), -np.inf, np.float32)
    assert not run(lib, q, k, v, mask, sinks=numbers(2)).any()


@pytest.mark.parametrize(
    "queries, keys, columns", [(5, 9, 4), (1, 3000, 1), (1, 3000, 1500), (70, 600, 70), (9, 20, 20)]
)
def test_masks_for_the_last_keys(lib, queries, keys, columns):
    q, k, v = numbers(2, 3, queries, 16), numbers(2, 3, keys, 16, seed=1), numbers(2, 3, keys, 16, seed=2)
    mask = 3 * numbers(2, 1, queries, columns, seed=3)
    whole = np.pad(mask, [(0, 0)] * 3 + [(keys - columns, 0)])
    close(run(lib, q, k, v, mask, unmasked=keys - columns), expected(q, k, v, whole))


@pytest.mark.parametrize("queries, keys", [(1, 40), (3, 9), (70, 300)])
@pytest.mark.parametrize("cap", [0.5, 20.0])
def test_soft_cap(lib, queries, keys, cap):
    q, k, v = 3 * numbers(1, 2, queries, 16), numbers(1, 2, keys, 16, seed=1), numbers(1, 2, keys, 16, seed=2)
    mask = numbers(1, 1, queries, keys, seed=3)
    scores = cap * np.tanh(0.3 * (q.astype(np.float64) @ k.swapaxes(-1, -2)) / cap) + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    want = (weights / weights.sum(-1, keepdims=True) @ v).swapaxes(1, 2)
    close(run(lib, q, k, v, mask, cap=cap), want)


def test_zero_for_rows_without_keys_keeps_other_nan(lib):
    q, k, v = numbers(1, 1, 9, 16), numbers(1, 1, 20, 16, seed=1), numbers(1, 1, 20, 16, seed=2)
    q[0, 0, 3, 0] = np.nan
    mask = np.zeros((1, 1, 9, 20), np.float32)
    mask[:, :, 4] = -np.inf
    y = run(lib, q, k, v, mask, blank=2)[0, :, 0]
    assert np.isnan(y[3]).all() and not y[4].any() and np.isfinite(np.delete(y, 3, 0)).all()


# Keys and values that stay.


def cached(lib, steps, mask=None, sinks=None, capacity=64):
    """Results of calls one after the other; a step is q, k, v [batch, rows, heads, size]."""
    panel = 2 * lib.lanes
    (batch, _, heads, depth), (key_heads, width) = steps[0][0].shape, steps[0][2].shape[2:]
    keys = guarded(np.full((batch, key_heads, capacity // panel, depth, panel), np.nan, np.float32))
    groups = -(-width // panel)
    values = guarded(np.full((batch, key_heads, groups, capacity, panel), np.nan, np.float32))
    length, results = 0, []
    for q, k, v in steps:
        queries = q.shape[1]
        part = None if mask is None else np.ascontiguousarray(mask[..., length : length + queries, : length + queries])
        mask_batch, mask_head, mask_row = (0, 0, 0) if part is None else strides(part, 0, 1, 2)
        results.append(both(
            lib, "attention_cached", (batch, queries, heads, width), q=guarded(q), k=guarded(k), v=guarded(v),
            mask=None if part is None else guarded(part), sinks=None if sinks is None else guarded(sinks), keys=keys,
            values=values, place=np.array([length, capacity]), batch=batch, heads=heads, key_heads=key_heads,
            queries=queries, depth=depth, width=width, mask_batch=mask_batch, mask_head=mask_head, mask_row=mask_row,
            mask_columns=0 if part is None else part.shape[-1], causal=part is None, scale=0.3,
        ))  # fmt: skip
        length += queries
    rows = keys.swapaxes(-1, -2).reshape(batch, key_heads, capacity, depth)
    columns = values.swapaxes(-1, -2).reshape(batch, key_heads, groups * panel, capacity)
    assert np.isnan(rows[:, :, length:]).all() and np.isfinite(rows[:, :, :length]).all()
    assert np.isnan(columns[..., length:]).all() and np.isnan(columns[:, :, width:]).all()
    assert np.isfinite(columns[:, :, :width, :length]).all()
    return np.concatenate(results, 1)


@pytest.mark.parametrize("lengths", [(1, 1, 1), (40, 1, 7, 1), (3, 70, 2)])
@pytest.mark.parametrize(
    "batch, heads, key_heads, depth, width", [(1, 4, 2, 16, 16), (2, 3, 3, 5, 7), (1, 8, 1, 32, 32)]
)
def test_calls_go_on_where_the_last_one_ended(lib, lengths, batch, heads, key_heads, depth, width):
    total = sum(lengths)
    q, k = numbers(batch, total, heads, depth), numbers(batch, total, key_heads, depth, seed=1)
    v = numbers(batch, total, key_heads, width, seed=2)
    cuts = np.cumsum(lengths)[:-1]
    steps = [
        [np.ascontiguousarray(x) for x in step] for step in zip(*(np.split(x, cuts, 1) for x in (q, k, v)), strict=True)
    ]
    whole = [x.swapaxes(1, 2) for x in (q, k, v)]
    causal = np.tri(total, dtype=bool)
    close(cached(lib, steps, capacity=128), expected(*whole, allowed=causal))
    mask = np.where(causal, numbers(batch, 1, total, total, seed=3), np.float32(-np.inf))
    sinks = numbers(heads, seed=4)
    close(cached(lib, steps, mask, sinks, capacity=128), with_sinks(*whole, sinks, mask))


def test_many_kept_keys_are_read_in_parts(lib):
    q, k, v = numbers(1, 3000, 4, 16), numbers(1, 3000, 2, 16, seed=1), numbers(1, 3000, 2, 16, seed=2)
    steps = [[np.ascontiguousarray(x[:, a:b]) for x in (q, k, v)] for a, b in ((0, 2999), (2999, 3000))]
    y = cached(lib, steps, capacity=4096)[:, -1:]
    close(y, expected(*(x.swapaxes(1, 2) for x in (q[:, -1:], k, v))))


@pytest.mark.parametrize("queries, keys", [(1, 40), (3, 9), (70, 300)])
def test_masks_that_replace_scores(lib, queries, keys):
    """Whatever the score is, NaN too; fillers are scores like others."""
    q, k, v = numbers(1, 2, queries, 16), numbers(1, 2, keys, 16, seed=1), numbers(1, 2, keys, 16, seed=2)
    mask = np.where(numbers(1, 1, queries, keys, seed=3) > 0.5, np.float32(-0.5), np.float32(0))
    mask[..., 3] = -np.inf
    scores = np.where(mask == 0, 0.3 * q.astype(np.float64) @ k.swapaxes(-1, -2), mask)
    k[:, :, 3] = np.nan
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    want = (weights / weights.sum(-1, keepdims=True) @ v).swapaxes(1, 2)
    close(run(lib, q, k, v, mask, replaces=True), want)
