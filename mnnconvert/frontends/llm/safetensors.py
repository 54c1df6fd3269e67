"""Reader of safetensors files: a header of JSON, then the data of the tensors; one file, or several with an index.

Format: https://huggingface.co/docs/safetensors (8 bytes little-endian size, JSON object of name -> dtype, shape,
data_offsets relative to the end of the header). Data stay in the file until they are asked for.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NoReturn

import ml_dtypes
import numpy as np

from mnnconvert.errors import ConversionError, unreadable
from mnnconvert.ir import FileTensor

DTYPES = {
    "F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("<i8"), "I32": np.dtype("<i4"), "I16": np.dtype("<i2"), "I8": np.dtype("i1"),
    "U8": np.dtype("u1"), "BOOL": np.dtype("?"),
}  # fmt: skip
MOST_HEADER = 100_000_000  # bytes, the limit of the format
INDEX = "model.safetensors.index.json"


def read_safetensors(path: Path) -> dict[str, FileTensor]:
    """The tensors of a file by name. Raises `missing-file`, `unreadable-file`, `bad-checkpoint`."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, MOST_HEADER):
                _bad(path, f"its header of {length} bytes does not fit into it")
            header = json.loads(file.read(length))
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, RecursionError) as error:
        raise ConversionError.of("bad-checkpoint", f"'{path}' has no readable header: {error}", file=path) from error
    if not isinstance(header, dict):
        _bad(path, "its header is no JSON object")
    start = 8 + length
    return {name: _tensor(path, name, entry, start, size) for name, entry in header.items() if name != "__metadata__"}


def _tensor(path: Path, name: str, entry: Any, start: int, size: int) -> FileTensor:
    try:
        dtype, shape = DTYPES.get(entry["dtype"]), tuple(int(d) for d in entry["shape"])
        first, last = (int(n) for n in entry["data_offsets"])
    except (KeyError, TypeError, ValueError, OverflowError):
        _bad(path, f"the entry of '{name}' is damaged")
    if dtype is None:
        _bad(path, f"'{name}' has the type {entry['dtype']}, which is not known here")
    if min(shape, default=0) < 0 or not 0 <= first <= last <= size - start:
        _bad(path, f"'{name}' lies outside of it")
    if math.prod(shape) * dtype.itemsize != last - first:
        _bad(path, f"'{name}' of {list(shape)} {entry['dtype']} does not take {last - first} bytes")
    return FileTensor(path, start + first, dtype, shape)


def read_folder(folder: Path) -> dict[str, FileTensor]:
    """The tensors of a model folder: those of its index where it has one, else of all its safetensors files.

    Raises `bad-checkpoint` where there are none, or where the index names what is not there.
    """
    index = folder / INDEX
    if not index.is_file():
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            _bad(folder, "it holds no safetensors files")
        return {name: tensor for file in files for name, tensor in read_safetensors(file).items()}
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(f, str) and Path(f).name == f for f in places.values()):
        _bad(index, "it has no weight_map of file names")
    found = {file: read_safetensors(folder / file) for file in sorted(set(places.values()))}
    lost = next((name for name, file in places.items() if name not in found[file]), None)
    if lost is not None:
        _bad(index, f"'{lost}' is not in '{places[lost]}'")
    return {name: found[file][name] for name, file in places.items()}


def read_json(path: Path) -> dict[str, Any]:
    """The object of a JSON file. Raises `missing-file`, `unreadable-file`, `bad-checkpoint`."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, RecursionError) as error:
        raise ConversionError.of("bad-checkpoint", f"'{path}' is no JSON: {error}", file=path) from error
    if not isinstance(value, dict):
        _bad(path, "it is no JSON object")
    return value


def _bad(path: Path, what: str) -> NoReturn:
    raise ConversionError.of("bad-checkpoint", f"'{path}' cannot be used: {what}", file=path)
