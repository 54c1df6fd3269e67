"""Arrays that begin at a multiple of the widest vector, and that the system backs with huge pages."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

ALIGNMENT = 64
SMALL, HUGE = 256 << 10, 4 << 20  # bytes


class _Slabs:
    """Memory for arrays that live about as long as each other, side by side in slabs of 32 MB.

    Numpy asks the system for huge pages for a slab, as it would not for an array of the size of most weights. Without,
    matrix products spend a quarter of their time on finding pages. A slab is let go with the last array in it.
    """

    SIZE = 32 << 20

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slab = np.empty(0, np.uint8)
        self._used = 0

    def take(self, nbytes: int) -> np.ndarray:
        """`nbytes` bytes that start at a multiple of 64."""
        if nbytes > self.SIZE // 4:
            return _alone(nbytes)
        with self._lock:
            if self._used + nbytes > len(self._slab):
                self._slab, self._used = _alone(self.SIZE), 0
            start = self._used
            self._used += -(-nbytes // ALIGNMENT) * ALIGNMENT
            return self._slab[start : start + nbytes]


_slabs = _Slabs()


def _alone(nbytes: int) -> np.ndarray:
    """`nbytes` bytes of their own; what is not small is asked for as 4 MB, from where on numpy wants huge pages."""
    raw = np.empty(max(nbytes + ALIGNMENT, HUGE if nbytes > SMALL else 0), np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]


def aligned(shape: Sequence[int], dtype: Any, kept: bool = True) -> np.ndarray:
    """An uninitialised array that starts at a multiple of 64 bytes; `kept` ones, as weights are, lie side by side."""
    dtype = np.dtype(dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    return (_slabs.take(nbytes) if kept else _alone(nbytes)).view(dtype).reshape(shape)


def aligned_copy(array: np.ndarray, kept: bool = True) -> np.ndarray:
    """A contiguous copy that starts at a multiple of 64 bytes; see `aligned`."""
    copy = aligned(array.shape, array.dtype, kept)
    copy[...] = array
    return copy
