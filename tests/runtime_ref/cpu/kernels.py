"""What the tests of the compiled kernels share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from mnnconvert.runtime_ref.cpu import library

GUARD = 64  # bytes
MARK = 0xA5


@pytest.fixture(params=library.runnable_levels())
def lib(request: pytest.FixtureRequest) -> library.Library:
    """The library of every level that runs here, one after the other."""
    return library.load(request.param)


def guard(shape: Sequence[int], dtype: Any = np.float32) -> tuple[np.ndarray, Callable[[], None]]:
    """An array filled with marks, between guard bytes; and a function that asserts that these are still there."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = library.aligned((size + 2 * GUARD,), np.uint8)
    raw[...] = MARK

    def check() -> None:
        assert (raw[:GUARD] == MARK).all(), "written before the array"
        assert (raw[GUARD + size :] == MARK).all(), "written after the array"

    return raw[GUARD : GUARD + size].view(dtype).reshape(shape), check


def guarded(array: np.ndarray) -> np.ndarray:
    """A copy of an operand between guard bytes, which are NaN where they are read as floats."""
    copy, _ = guard(array.shape, array.dtype)
    copy[...] = array
    raw = copy.base
    while isinstance(raw.base, np.ndarray) and raw.nbytes < copy.nbytes + 2 * GUARD:
        raw = raw.base
    raw[:GUARD] = 0xFF
    raw[GUARD + copy.nbytes : GUARD + copy.nbytes + GUARD] = 0xFF
    return copy


def both(lib: library.Library, name: str, shape: Sequence[int], dtype: Any = np.float32, **values: Any) -> np.ndarray:
    """The result `y` of a kernel; asserts that it is the same for one and for two threads and within its bounds."""
    results = []
    for threads in (1, 2):
        y, check = guard(shape, dtype)
        lib.call(name, lib.pool(threads), y=y, **values)
        check()
        results.append(y)
    assert results[0].tobytes() == results[1].tobytes(), "one and two threads differ"
    return results[0]
