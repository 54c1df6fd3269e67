"""What the tests of the compiled kernels share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from mnnconvert.runtime_ref import memory
from mnnconvert.runtime_ref.cpu import library

GUARD = 64  # bytes
MARK = 0xA5
NAN = 0xFF  # as floats


@pytest.fixture(params=library.runnable_levels())
def lib(request: pytest.FixtureRequest) -> library.Library:
    """The library of every level that runs here, one after the other."""
    return library.load(request.param)


def _between_guards(shape: Sequence[int], dtype: Any, mark: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An array, and the bytes before and after it; all bytes are `mark`."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = memory.aligned((size + 2 * GUARD,), np.uint8)
    raw[...] = mark
    return raw[GUARD : GUARD + size].view(dtype).reshape(shape), raw[:GUARD], raw[GUARD + size :]


def guard(shape: Sequence[int], dtype: Any = np.float32) -> tuple[np.ndarray, Callable[[], None]]:
    """An array for a result, filled with marks, and a function that asserts that nothing was written beside it."""
    array, before, after = _between_guards(shape, dtype, MARK)

    def check() -> None:
        assert (before == MARK).all(), "written before the array"
        assert (after == MARK).all(), "written after the array"

    return array, check


def guarded(array: np.ndarray) -> np.ndarray:
    """A copy of an operand; floats beside it are NaN."""
    copy, _, _ = _between_guards(array.shape, array.dtype, NAN)
    copy[...] = array
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
