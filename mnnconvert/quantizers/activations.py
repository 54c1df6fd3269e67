"""Activations of many samples, in memory up to a limit and in a temporary folder beyond it."""

from __future__ import annotations

import tempfile
from collections.abc import Hashable
from pathlib import Path
from types import TracebackType

import numpy as np

from mnnconvert.errors import ConversionError

KEPT_BYTES = 1 << 31


class ActivationStore:
    """Arrays by key. What would take the arrays in memory above `limit` bytes is written to files, read at each `get`.

    A context manager: its files are gone at the end. Raises `unwritable-output` where the folder takes no more.
    """

    def __init__(self, limit: int = KEPT_BYTES):
        self.limit = limit
        self.nbytes = 0
        self._arrays: dict[Hashable, np.ndarray | Path] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._written = 0

    def __enter__(self) -> ActivationStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._arrays.clear()
        if self._folder is not None:
            self._folder.cleanup()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._arrays

    def put(self, key: Hashable, array: np.ndarray) -> None:
        """Keep an array until it is dropped."""
        if self.nbytes + array.nbytes > self.limit:
            self._arrays[key] = self._spill(array)
        else:
            self._arrays[key] = array
            self.nbytes += array.nbytes

    def get(self, key: Hashable) -> np.ndarray:
        """The array of a key."""
        kept = self._arrays[key]
        return np.load(kept, allow_pickle=False) if isinstance(kept, Path) else kept

    def drop(self, key: Hashable) -> None:
        """Let go of an array."""
        kept = self._arrays.pop(key)
        if isinstance(kept, Path):
            kept.unlink()
        else:
            self.nbytes -= kept.nbytes

    def _spill(self, array: np.ndarray) -> Path:
        try:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="mnnconvert-")
            self._written += 1
            path = Path(self._folder.name) / f"{self._written}.npy"
            np.save(path, array, allow_pickle=False)
        except OSError as error:
            raise ConversionError.of(
                "unwritable-output",
                f"activations do not fit into the temporary folder: {error.strerror or error}",
                hint="set TMPDIR to a folder with more space, or give less data",
                folder=tempfile.gettempdir(),
            ) from error
        return path
