"""Arrays in and out of commands: `.npy` and `.npz` files, made-up inputs, and file names that are safe to write."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mnnconvert.errors import ConversionError, MnnConvertError, UsageError

if TYPE_CHECKING:
    from mnnconvert.verify.engines import TensorInfo

LONGEST_NAME = 100


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


def _bad(path: str, error: Exception) -> MnnConvertError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return ConversionError.of("bad-input", "This is no file of arrays.", file=path, reason=reason, hint=_HOW)


def complete(feeds: dict[str, np.ndarray], inputs: Sequence[TensorInfo], seed: int) -> tuple[dict, list[str]]:
    """`feeds` with made-up arrays for the inputs it lacks, and the names of those.

    Sizes that share a name with a size of a given array take its value.
    """
    absent = [info.name for info in inputs if info.name not in feeds]
    if not absent:
        return feeds, absent
    from mnnconvert.verify.inputs import generate

    made_up = generate(inputs, seed, _known_sizes(feeds, inputs))
    return feeds | {name: made_up[name] for name in absent}, absent


def _known_sizes(feeds: dict[str, np.ndarray], inputs: Sequence[TensorInfo]) -> dict[str, int]:
    given = [(info.shape or (), feeds[info.name].shape) for info in inputs if info.name in feeds]
    return {
        declared: size
        for declarations, sizes in given
        for declared, size in zip(declarations, sizes, strict=False)
        if isinstance(declared, str)
    }


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
