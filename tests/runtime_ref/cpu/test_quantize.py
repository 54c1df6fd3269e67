"""The kernels of the quantizers: bounds, threads and odd sizes, bit for bit what the quantizers compute with numpy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from kernels import guard, guarded

from mnnconvert.quantizers import blocks, compiled, hqq, lsq
from mnnconvert.quantizers.blocks import Form, Grids
from mnnconvert.runtime_ref.cpu.library import Library

F = np.float32
SIZES = [(1, 1, 1), (3, 5, 5), (5, 34, 17), (17, 63, 21), (9, 64, 32), (33, 1030, 103)]  # rows, columns, block


@pytest.fixture(autouse=True)
def numpy_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "kernels", lambda: None)


def twice(lib: Library, name: str, results: dict[str, tuple], **values: Any) -> Iterator[np.ndarray]:
    """The results of a kernel, with one thread and with two; nothing is written beside them."""
    seen = []
    for threads in (1, 2):
        made = {key: guard(*shape) for key, shape in results.items()}
        for key, (array, _) in made.items():
            array[...] = values.get(key, 0)
        lib.call(name, lib.pool(threads), **values | {key: array for key, (array, _) in made.items()})
        for _, check in made.values():
            check()
        seen.append([array for array, _ in made.values()])
    for one, two in zip(*seen, strict=True):
        assert one.tobytes() == two.tobytes(), "one and two threads differ"
    return iter(seen[0])


def tile(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return guarded((np.random.default_rng(seed).standard_t(3, (rows, columns)) * 0.02).astype(F))


@pytest.mark.parametrize(("rows", "columns", "block"), SIZES)
def test_extremes(lib: Library, rows: int, columns: int, block: int) -> None:
    w, shape = tile(rows, columns), ((rows, columns // block), F)
    sizes = {"rows": rows, "columns": columns, "block": block}
    low, high = twice(lib, "block_extremes", {"low": shape, "high": shape}, w=w, **sizes)
    wanted = blocks._extremes(w, block)
    np.testing.assert_array_equal((low, high), wanted)
    w[rows // 2, columns - 1] = np.nan
    low, high = twice(lib, "block_extremes", {"low": shape, "high": shape}, w=w, **sizes)
    assert np.isnan(low[rows // 2, -1]) and np.isnan(low).sum() == 1


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [2, 4, 7, 8])
@pytest.mark.parametrize(("rows", "columns", "block"), SIZES)
def test_codes_and_errors(lib: Library, rows: int, columns: int, block: int, bits: int, symmetric: bool) -> None:
    w, rng = tile(rows, columns), np.random.default_rng(1)
    h = guarded(rng.lognormal(0, 1, columns).astype(F))
    form = Form(bits, block, symmetric, full=symmetric)
    count = (rows, columns // block)
    scale = guarded((rng.uniform(0, 0.1, (2, *count)) * rng.choice([-1, 0, 1, 1], (2, *count))).astype(F))
    scale = scale if symmetric else np.abs(scale)
    minimum = None if symmetric else guarded(rng.uniform(-0.1, 0, (2, *count)).astype(F))
    grids = [Grids(scale[i], None if minimum is None else minimum[i]) for i in (0, 1)]
    sizes = {"rows": rows, "columns": columns, "block": block, "lowest": form.lowest, "highest": form.highest}
    (codes,) = twice(lib, "block_codes", {"codes": ((rows, columns), np.int8)}, w=w, scale=scale[0],
                     minimum=grids[0].minimum, **sizes)  # fmt: skip
    np.testing.assert_array_equal(codes, blocks.nearest_codes(w, grids[0], form))
    (errors,) = twice(lib, "block_errors", {"errors": ((2, *count), np.float64)}, w=w, h=h, scale=scale,
                      minimum=minimum, grids=2, **sizes)  # fmt: skip
    np.testing.assert_array_equal(errors, blocks.errors(w, grids, form, h))


@pytest.mark.parametrize(("rows", "columns", "block"), SIZES)
def test_offsets_of_hqq(lib: Library, rows: int, columns: int, block: int) -> None:
    w, form = tile(rows, columns), Form(4, block)
    low, high = blocks._extremes(w, block)
    scale, inverse = hqq._steps(low, high, form)
    shape = ((rows, columns // block), F)
    sizes = {"rows": rows, "columns": columns, "block": block, "top": 15, "iterations": 20}
    zero, largest = twice(lib, "hqq_zero", {"zero": shape, "largest": shape}, w=w, scale=scale, inverse=inverse,
                          **sizes | {"zero": -low * inverse})  # fmt: skip
    calm = largest < hqq.SHRINK_FROM
    assert calm.any()
    np.testing.assert_array_equal(zero[calm], hqq._zero(w, scale, inverse, -low * inverse, form)[calm])


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("rows", "columns", "block"), SIZES)
def test_least_squares_grids(lib: Library, rows: int, columns: int, block: int, bits: int, symmetric: bool) -> None:
    w, rng = tile(rows, columns), np.random.default_rng(2)
    h = guarded(np.where(rng.random(columns) < 0.2, 0, rng.lognormal(0, 1, columns)).astype(F) + F(columns < 6))
    form = Form(bits, block, symmetric, full=symmetric)
    shape = ((rows, columns // block), F)
    middle = guarded(
        (rng.standard_normal(shape[0]) * 0 if symmetric else rng.standard_normal(shape[0]) * 0.01).astype(F)
    )
    unit, starts = guarded(rng.uniform(0.01, 0.03, shape[0]).astype(F)), lsq.starts(form)
    centre = F(-form.lowest if symmetric else form.top / 2)
    sizes = {"rows": rows, "columns": columns, "block": block, "top": form.top, "symmetric": symmetric}
    scale, origin = twice(lib, "fit_grids", {"scale": shape, "origin": shape}, w=w, h=h, middle=middle, unit=unit,
                          starts=starts, count=len(starts), rounds=lsq.ROUNDS, centre=centre, **sizes)  # fmt: skip
    wanted = lsq._search(w, h, middle, unit, starts, centre, form)
    np.testing.assert_array_equal((scale, origin), wanted)
