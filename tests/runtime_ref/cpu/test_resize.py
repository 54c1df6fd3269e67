"""Resizing by weighted taps against the numpy definition, plain and blocked."""

import numpy as np
import pytest
from kernels import both, guarded

from mnnconvert.ops.resample import CUBIC, LINEAR, Interp
from mnnconvert.runtime_ref.resize import taps

RULES = ["AlignCorners", "HalfPixels", "PytorchHalfPixels", "TensorflowHalfPixels", "Asymmetric"]
SIZES = [
    ((4, 5), (8, 10)),
    ((5, 7), (3, 17)),
    ((1, 1), (4, 63)),
    ((9, 40), (9, 20)),
    ((6, 6), (13, 6)),
    ((3, 3), (1, 1)),
]


def resized(lib, x, out, kind, rule, unit):
    """x [planes, height, width(, unit)] with the scales out / in."""
    planes, height, width = x.shape[:3]
    op = Interp(resize_type=kind, rule=rule)
    (rows, row_weights), (columns, column_weights) = (
        taps(op, n, m, m / n) if m != n or rule == "TensorflowHalfPixels" else (np.zeros((0, m), np.int32),) * 2
        for n, m in zip((height, width), out, strict=True)
    )
    tables = {"rows": rows.T, "row_weights": row_weights.T, "columns": columns, "column_weights": column_weights}
    tables = {name: guarded(np.ascontiguousarray(table)) for name, table in tables.items()}
    return both(lib, "resize", (planes, *out, *x.shape[3:]), x=x, planes=planes, height=height, width=width,
                out_height=out[0], out_width=out[1], row_taps=len(rows), column_taps=len(columns), unit=unit,
                **tables)  # fmt: skip


@pytest.mark.parametrize("kind", [LINEAR, CUBIC])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("size", "out"), SIZES)
def test_plain(lib, rng, kind, rule, size, out):
    x = guarded(rng.standard_normal((1, 3, *size)).astype(np.float32))
    want = Interp(resize_type=kind, rule=rule, out_height=out[0], out_width=out[1]).ref(x.astype(np.float32))
    y = resized(lib, x[0], out, kind, rule, 1)
    assert np.abs(y - want[0]).max() <= 2e-6 * np.abs(want).max()


@pytest.mark.parametrize("kind", [LINEAR, CUBIC])
@pytest.mark.parametrize(("size", "out"), SIZES)
def test_blocked(lib, rng, kind, size, out):
    x = rng.standard_normal((1, 2 * lib.lanes, *size)).astype(np.float32)
    want = Interp(resize_type=kind, rule="HalfPixels", out_height=out[0], out_width=out[1]).ref(x)
    blocked = guarded(x.reshape(2, lib.lanes, *size).transpose(0, 2, 3, 1))
    y = resized(lib, blocked, out, kind, "HalfPixels", lib.lanes)
    y = y.transpose(0, 3, 1, 2).reshape(want.shape)
    assert np.abs(y - want).max() <= 2e-6 * np.abs(want).max()


def test_many_rows_are_shared_by_threads(lib, rng):
    x = guarded(rng.standard_normal((1, 5, 40, 50)).astype(np.float32))
    want = Interp(rule="HalfPixels", out_height=100, out_width=120).ref(x)
    y = resized(lib, x[0], (100, 120), LINEAR, "HalfPixels", 1)
    assert np.abs(y - want[0]).max() <= 2e-6 * np.abs(want).max()


def test_not_a_number_and_infinity_go_where_arithmetic_sends_them(lib):
    x = np.zeros((1, 1, 4, 4), np.float32)
    x[0, 0, 1, 2], x[0, 0, 3, 0] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        want = Interp(rule="HalfPixels", out_height=7, out_width=9).ref(x)
    np.testing.assert_array_equal(
        np.isfinite(resized(lib, x[0], (7, 9), LINEAR, "HalfPixels", 1)), np.isfinite(want[0])
    )
