"""Matrix products against float64: every shape of tile, every way of reading operands, batches and epilogues."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from kernels import both, guard, guarded

from mnnconvert.runtime_ref.cpu import library

Library = library.Library

IDENTITY, CLIP, GELU = 0, 1, 5
ROW_MAJOR, TRANSPOSED = "row-major", "transposed"


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def stored(matrix: np.ndarray, order: str) -> tuple[np.ndarray, dict[str, int]]:
    """Matrices [..., rows, columns] as they lie in memory, between NaNs, and their two strides."""
    rows, columns = matrix.shape[-2:]
    if order == TRANSPOSED:
        return guarded(np.ascontiguousarray(np.swapaxes(matrix, -1, -2))), {"row": 1, "column": rows}
    return guarded(matrix), {"row": columns, "column": 1}


def packed(lib: Library, b: np.ndarray, order: str = ROW_MAJOR, threads: int = 1) -> np.ndarray:
    """Matrices [batch, k, n] in panels."""
    batch, k, n = b.shape
    memory, strides = stored(b, order)
    panel = 2 * lib.lanes
    panels, check = guard((batch, math.ceil(n / panel), k, panel))
    lib.call("gemm_pack_b", lib.pool(threads), b=memory, packed=panels, batch=batch, k=k, n=n, outer=k * n, **strides)
    check()
    return panels


def multiply(lib: Library, a: np.ndarray, b: np.ndarray, *, orders: tuple[str, str] = (ROW_MAJOR, ROW_MAJOR),
             pack: bool = False, bias: np.ndarray | None = None, residual: np.ndarray | None = None,
             activation: int = IDENTITY, low: float = 0.0, high: float = 0.0) -> np.ndarray:  # fmt: skip
    """a [m, k] b [k, n] by the kernel."""
    (m, k), n = a.shape, b.shape[1]
    left, a_strides = stored(a, orders[0])
    right, b_strides = stored(b, orders[1])
    params = dict.fromkeys(("a_outer", "a_inner", "b_outer", "b_inner", "y_outer", "y_inner"), 0)
    params |= {f"a_{name}": value for name, value in a_strides.items()}
    params |= {f"b_{name}": value for name, value in b_strides.items()}
    if pack:
        right = guarded(packed(lib, b[None], orders[1]))
    return both(lib, "gemm_f32", (m, n), a=left, b=right, bias=None if bias is None else guarded(bias),
                residual=None if residual is None else guarded(residual), m=m, n=n, k=k, outer=1, inner=1, y_row=n,
                packed=int(pack), activation=activation, low=low, high=high, **params)  # fmt: skip


def assert_close(y: np.ndarray, want: np.ndarray, bound: float = 2e-6) -> None:
    assert np.abs(y - want).max(initial=0) <= bound * np.abs(want).max(initial=0)


SIZES = [*range(1, 16), 17, 29, 31, 63]


@pytest.mark.parametrize("orders", [(ROW_MAJOR, ROW_MAJOR), (TRANSPOSED, ROW_MAJOR), (ROW_MAJOR, TRANSPOSED)])
@pytest.mark.parametrize("pack", [False, True])
def test_rows_and_columns_of_every_size(lib: Library, orders: tuple[str, str], pack: bool) -> None:
    for m in SIZES:
        for n in (1, 3, 5, lib.lanes, 17, 33, 63, 8 * lib.lanes + 1):
            a, b = numbers(m, 19), numbers(19, n, seed=1)
            assert_close(multiply(lib, a, b, orders=orders, pack=pack), a.astype(np.float64) @ b)


@pytest.mark.parametrize("orders", [(ROW_MAJOR, ROW_MAJOR), (TRANSPOSED, TRANSPOSED)])
@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("m, k, n", [(1, 2049, 70), (3, 1000, 200), (4, 300, 1500), (5, 1030, 260), (40, 770, 96),
                                     (20, 129, 1100), (700, 100, 130), (64, 4096, 64)])  # fmt: skip
def test_sums_longer_than_a_block(lib: Library, m: int, k: int, n: int, orders: tuple[str, str], pack: bool) -> None:
    a, b, bias, residual = numbers(m, k), numbers(k, n, seed=1), numbers(n, seed=2), numbers(m, n, seed=3)
    y = multiply(lib, a, b, orders=orders, pack=pack, bias=bias, residual=residual, activation=CLIP, high=np.inf)
    assert_close(y, np.maximum(a.astype(np.float64) @ b + bias + residual, 0))


@pytest.mark.parametrize("m, n", [(1, 5), (1, 200), (7, 37), (30, 64)])
@pytest.mark.parametrize("order", [ROW_MAJOR, TRANSPOSED])
def test_activations_see_the_whole_sum(lib: Library, m: int, n: int, order: str) -> None:
    a, b, bias, residual = numbers(m, 500), numbers(500, n, seed=1) / 20, numbers(n, seed=2), numbers(m, n, seed=3)
    x = a.astype(np.float64) @ b + bias + residual
    given: dict[str, Any] = {"orders": (ROW_MAJOR, order), "bias": bias, "residual": residual}
    assert_close(multiply(lib, a, b, activation=CLIP, low=-0.5, high=1.5, **given), np.clip(x, -0.5, 1.5))
    gelu = 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    assert_close(multiply(lib, a, b, activation=GELU, **given), gelu)
    assert_close(multiply(lib, a, b, bias=bias), a.astype(np.float64) @ b + bias)
    assert_close(multiply(lib, a, b, residual=residual), a.astype(np.float64) @ b + residual)


def test_a_row_does_not_depend_on_the_rows_beside_it(lib: Library) -> None:
    a, b = numbers(67, 900), numbers(900, 41, seed=1)
    whole = multiply(lib, a, b, pack=True)
    for first, last in ((0, 1), (5, 7), (20, 33), (1, 67)):
        assert multiply(lib, a[first:last], b, pack=True).tobytes() == whole[first:last].tobytes()


def test_heads_between_transposes(lib: Library) -> None:
    """[batch, rows, heads, size] times [batch, columns, heads, size]^T, and back to [batch, rows, heads, size]."""
    batch, rows, columns, heads, size = 2, 21, 13, 3, 5
    q, k = numbers(batch, rows, heads, size), numbers(batch, columns, heads, size, seed=1)
    shared = {"outer": batch, "inner": heads, "bias": None, "residual": None, "packed": 0, "activation": IDENTITY,
              "low": 0.0, "high": 0.0, "a_inner": size, "b_inner": size, "a_outer": rows * heads * size,
              "b_outer": columns * heads * size, "a_row": heads * size, "a_column": 1}  # fmt: skip
    scores = both(lib, "gemm_f32", (batch, heads, rows, columns), a=guarded(q), b=guarded(k), m=rows, n=columns, k=size,
                  b_row=1, b_column=heads * size, y_row=columns, y_outer=heads * rows * columns, y_inner=rows * columns,
                  **shared)  # fmt: skip
    want = np.einsum("brhs,bchs->bhrc", q.astype(np.float64), k)
    assert_close(scores, want)
    shared |= {"a_row": columns, "a_inner": rows * columns, "a_outer": heads * rows * columns}
    y = both(lib, "gemm_f32", (batch, rows, heads, size), a=guarded(scores), b=guarded(k), m=rows, n=size, k=columns,
             b_row=heads * size, b_column=1, y_row=heads * size, y_outer=rows * heads * size, y_inner=size,
             **shared)  # fmt: skip
    assert_close(y, np.einsum("bhrc,bchs->brhs", want, k))


def test_repeated_and_packed_batches(lib: Library) -> None:
    a, b, bias = numbers(5, 1, 9, 30), numbers(1, 4, 30, 21, seed=1), numbers(21, seed=2)
    panels = packed(lib, b[0], threads=2)
    assert packed(lib, b[0], TRANSPOSED).tobytes() == panels.tobytes()
    y = both(lib, "gemm_f32", (5, 4, 9, 21), a=guarded(a), b=panels, bias=bias, residual=None, m=9, n=21, k=30, outer=5,
             inner=4, a_row=30, a_column=1, b_row=0, b_column=0, y_row=21, a_outer=270, a_inner=0, b_outer=0,
             b_inner=panels[0].size, y_outer=4 * 9 * 21, y_inner=9 * 21, packed=1, activation=IDENTITY, low=0.0,
             high=0.0)  # fmt: skip
    assert_close(y, a.astype(np.float64) @ b + bias)


def test_the_result_may_take_the_place_of_the_residual(lib: Library) -> None:
    a, b, x = numbers(20, 1000), numbers(1000, 50, seed=1), numbers(20, 50, seed=2)
    want = multiply(lib, a, b, residual=x)
    y = x.copy()
    zeros: dict[str, Any] = dict.fromkeys(
        ("a_outer", "a_inner", "b_outer", "b_inner", "y_outer", "y_inner", "packed", "activation"), 0
    )
    lib.call("gemm_f32", a=a, b=b, y=y, bias=None, residual=y, m=20, n=50, k=1000, outer=1, inner=1, a_row=1000,
             a_column=1, b_row=50, b_column=1, y_row=50, low=0.0, high=0.0, **zeros)  # fmt: skip
    assert y.tobytes() == want.tobytes()


def test_empty_products(lib: Library) -> None:
    bias = numbers(6)
    assert multiply(lib, numbers(0, 4), numbers(4, 6)).shape == (0, 6)
    assert multiply(lib, numbers(4, 4), numbers(4, 0)).shape == (4, 0)
    for pack in (False, True):
        y = multiply(lib, numbers(3, 0), numbers(0, 6), bias=bias, pack=pack)
        assert (y == np.broadcast_to(bias, (3, 6))).all()


@pytest.mark.parametrize("pack", [False, True])
def test_infinities_and_nan_go_where_they_belong(lib: Library, pack: bool) -> None:
    a, b = numbers(7, 40), numbers(40, 35, seed=1)
    a[2, 3], b[5, 34] = np.inf, np.nan
    with np.errstate(invalid="ignore"):
        want = a.astype(np.float64) @ b
    y = multiply(lib, a, b, pack=pack)
    assert (np.isnan(y) == np.isnan(want)).all()
    assert (np.isinf(y) == np.isinf(want)).all()
