"""Rotary embeddings: every size, strides, tables that repeat, neighbours and halves; against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from kernels import both, guarded


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def steps(view):
    """Strides in floats of all axes but the last."""
    return [stride // 4 if size > 1 else 0 for size, stride in zip(view.shape[:-1], view.strides[:-1], strict=True)]


def run(lib, x, cos, sin, pairs, neighbours=False, mixed=False, whole_angles=False, step=1):
    """y like x [a, b, c, size], which may be a view of an array with its axes in another order."""
    tables = [np.broadcast_to(t, (*x.shape[:-1], t.shape[-1])) for t in (cos, sin)]
    size = x.shape[-1]
    views = {"x": x, "cos": tables[0], "sin": tables[1], "y": np.empty(x.shape, np.float32)}
    strides = {f"{name}{i}": s for name, view in views.items() for i, s in enumerate(steps(view))}
    joined = not neighbours or mixed
    return both(
        lib, "rotary", x.shape, x=guarded(x if x.base is None else x.base), cos=guarded(cos), sin=guarded(sin),
        n0=x.shape[0], n1=x.shape[1], n2=x.shape[2], **strides, pairs=pairs, x_pair=1 if neighbours else pairs,
        x_step=1 + neighbours, step=step, y_pair=pairs if joined else 1, y_step=1 if joined else 2,
        second=1 if step == 2 else pairs if whole_angles else 0, rest=size - 2 * pairs,
    )  # fmt: skip


def expected(x, cos, sin, pairs, neighbours=False, mixed=False, whole_angles=False):
    x, cos, sin = (a.astype(np.float64) for a in (x, cos, sin))
    turned = x[..., : 2 * pairs]
    u, v = (turned[..., ::2], turned[..., 1::2]) if neighbours else (turned[..., :pairs], turned[..., pairs:])
    late = slice(pairs, None) if whole_angles else slice(None, pairs)
    first = u * cos[..., :pairs] - v * sin[..., :pairs]
    second = v * cos[..., late] + u * sin[..., late]
    joined = np.concatenate([first, second], -1)
    if neighbours and not mixed:
        joined = np.stack([first, second], -1).reshape(joined.shape)
    return np.concatenate([joined, x[..., 2 * pairs :]], -1)


@pytest.mark.parametrize("pairs, rest", [(1, 0), (3, 0), (8, 5), (17, 1), (32, 0), (63, 2)])
@pytest.mark.parametrize(
    "form", [{}, {"neighbours": True}, {"neighbours": True, "mixed": True}, {"whole_angles": True}]
)
def test_sizes(lib, pairs, rest, form):
    x = numbers(2, 3, 5, 2 * pairs + rest)
    angles = pairs * (1 + form.get("whole_angles", False))
    cos, sin = numbers(2, 1, 5, angles, seed=1), numbers(2, 1, 5, angles, seed=2)
    want = expected(x, cos, sin, pairs, **form)
    assert np.abs(run(lib, x, cos, sin, pairs, **form) - want).max() <= 1e-6 * np.abs(want).max()


def test_heads_side_by_side(lib):
    x = numbers(2, 5, 3, 16).transpose(0, 2, 1, 3)
    cos, sin = numbers(5, 8, seed=1), numbers(5, 8, seed=2)
    want = expected(x, cos, sin, 8)
    assert np.abs(run(lib, x, cos, sin, 8) - want).max() <= 1e-6 * np.abs(want).max()


def test_many_rows_and_none(lib):
    x, cos, sin = numbers(4, 8, 100, 64), numbers(1, 1, 100, 32, seed=1), numbers(1, 1, 100, 32, seed=2)
    want = expected(x, cos, sin, 32)
    assert np.abs(run(lib, x, cos, sin, 32) - want).max() <= 1e-6 * np.abs(want).max()
    assert run(lib, x[:0].copy(), cos, sin, 32).size == 0


def test_nan_stays_in_its_pair(lib):
    x, cos, sin = numbers(1, 1, 2, 16), numbers(2, 8, seed=1), numbers(2, 8, seed=2)
    x[0, 0, 1, 3] = np.nan
    spoiled = np.isnan(run(lib, x, cos, sin, 8))
    assert spoiled[0, 0, 1, [3, 11]].all() and spoiled.sum() == 2


def test_angles_of_neighbours_side_by_side(lib):
    x, cos, sin = numbers(2, 3, 5, 16), numbers(5, 16, seed=1), numbers(5, 16, seed=2)
    u, v = x[..., ::2], x[..., 1::2]
    first = u * cos[:, ::2] - v * sin[:, ::2]
    second = v * cos[:, 1::2] + u * sin[:, 1::2]
    want = np.stack([first, second], -1).reshape(x.shape)
    y = run(lib, x, cos, sin, 8, neighbours=True, step=2)
    assert np.abs(y - want).max() <= 1e-6 * np.abs(want).max()
