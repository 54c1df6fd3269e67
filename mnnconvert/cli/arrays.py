"""Arrays in and out of commands: `.npy` and `.npz` files, random inputs, and file names that are safe to write."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mnnconvert.errors import ConversionError, UsageError

LONGEST_NAME = 100


class Described(Protocol):
    """An input or output of a session: its shape holds integers, and names, None or -1 where a size is open."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> Any: ...
    @property
    def shape(self) -> Any: ...


def read_npz(path: str) -> dict[str, np.ndarray]:
    """All arrays of a `.npz` file by name; ConversionError `bad-input` when it is not one."""
    loaded = _load(path)
    if isinstance(loaded, np.ndarray):
        raise ConversionError.of("bad-input", "This file holds one array without a name.", file=path, hint=_HOW)
    try:
        return {name: loaded[name] for name in loaded.files}
    except _UNREADABLE as error:
        raise _bad(path, error) from None


def read_inputs(words: Iterable[str]) -> dict[str, np.ndarray]:
    """Arrays from the words of `--input`: `name=file.npy`, or a `.npz` file with all of them."""
    feeds: dict[str, np.ndarray] = {}
    for word in words:
        name, equals, path = word.partition("=")
        arrays = {name: read_npy(path)} if equals else read_npz(word)
        for twice in feeds.keys() & arrays.keys():
            raise UsageError.of("repeated-option", f"--input gives {twice!r} twice.", hint="Keep the one you mean.")
        feeds |= arrays
    return feeds


def read_npy(path: str) -> np.ndarray:
    """The array of a `.npy` file; ConversionError `bad-input` when it is not one."""
    loaded = _load(path)
    if not isinstance(loaded, np.ndarray):
        raise ConversionError.of("bad-input", "This file holds several arrays.", file=path, hint=_HOW)
    return loaded


_HOW = "Give --input NAME=FILE.npy for one array, --input FILE.npz for several."
_UNREADABLE = (ValueError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error)


def _load(path: str) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except OSError as error:
        raise ConversionError.of("missing-file", f"{error.strerror or error}.", file=path) from None
    except _UNREADABLE as error:
        raise _bad(path, error) from None


def _bad(path: str, error: Exception) -> ConversionError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    bad = ConversionError.of("bad-input", "This is no file of arrays.", file=path, reason=reason, hint=_HOW)
    assert isinstance(bad, ConversionError)
    return bad


def complete(feeds: dict[str, np.ndarray], inputs: Sequence[Described], seed: int) -> tuple[dict, list[str]]:
    """`feeds` with random arrays for the inputs it lacks, and the names of those.

    Floats are standard normal; integers and booleans are 0 or 1, which is a valid index almost everywhere.
    ConversionError `missing-input` when an input that was not given has an open size.
    """
    rng = np.random.default_rng(seed)
    absent = [value for value in inputs if value.name not in feeds]
    return feeds | {value.name: _random(value, rng) for value in absent}, [value.name for value in absent]


def _random(value: Described, rng: np.random.Generator) -> np.ndarray:
    sizes = value.shape
    if sizes is None or not all(isinstance(s, int | np.integer) and s >= 0 for s in sizes):
        raise ConversionError.of(
            "missing-input",
            f"Input {value.name!r} has an open size, so it cannot be filled with random values.",
            shape=sizes,
            hint=f"Give it with --input {value.name}=FILE.npy",
        )
    dtype = np.dtype(value.dtype)
    if dtype.kind == "f" or dtype.name == "bfloat16":
        return rng.standard_normal(tuple(sizes)).astype(dtype)
    return rng.integers(0, 2, tuple(sizes)).astype(dtype)


def safe_names(names: Iterable[str], suffix: str) -> dict[str, str]:
    """A file name for each value name: letters, digits, `._-` only, never hidden, no two the same on any system."""
    chosen: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        stem = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip(".")[:LONGEST_NAME] or "output"
        candidate, count = stem, 1
        while candidate.lower() in taken:
            count += 1
            candidate = f"{stem}-{count}"
        taken.add(candidate.lower())
        chosen[name] = candidate + suffix
    return chosen


def write_arrays(arrays: dict[str, np.ndarray], folder: str) -> dict[str, str]:
    """Write each array to `folder/NAME.npy`; the path of each. ConversionError `unwritable-output` when it fails."""
    paths = {name: str(Path(folder, file)) for name, file in safe_names(arrays, ".npy").items()}
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, path in paths.items():
            np.save(path, arrays[name], allow_pickle=False)
    except OSError as error:
        raise ConversionError.of("unwritable-output", f"{error.strerror or error}.", folder=folder) from None
    return paths
