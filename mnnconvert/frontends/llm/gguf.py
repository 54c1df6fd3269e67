"""Reader of GGUF files, versions 2 and 3: metadata, and tensors as floats or as blocks of codes.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Sizes are stored innermost axis first; here shapes
have rows first, as everywhere. Everything is little-endian; big-endian files are refused.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import ml_dtypes
import numpy as np

from mnnconvert.errors import ConversionError, unreadable
from mnnconvert.frontends.llm.gguf_blocks import BLOCKS, coded
from mnnconvert.ir import FileTensor, Tensor
from mnnconvert.ir.tensor import MappedFile

MAGIC = b"GGUF"
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
TEXT, ARRAY = 8, 9
FLOATS = {0: np.dtype("<f4"), 1: np.dtype("<f2"), 28: np.dtype("<f8"), 30: np.dtype(ml_dtypes.bfloat16)}
MOST_AXES = 4
MOST_NESTING = 4


@dataclass(frozen=True)
class Entry:
    """Where a tensor lies: rows-first shape, number of its type, first byte in the file."""

    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass
class GgufFile:
    """Metadata and tensors of a file."""

    path: Path
    metadata: dict[str, Any] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)

    def tensor(self, name: str) -> Tensor:
        """A tensor: floats stay in the file, blocks of codes are taken over as they are when they are written.

        Raises `bad-checkpoint` where it lies outside the file, `llm-unsupported` for a type that is not known.
        """
        entry = self.entries[name]
        if entry.kind in FLOATS:
            tensor = FileTensor(self.path, entry.offset, FLOATS[entry.kind], entry.shape)
            self._check(name, tensor)
            return tensor
        block = BLOCKS.get(entry.kind)
        if block is None:
            known = ", ".join(("F32", "F16", "BF16", *(b.name for b in BLOCKS.values())))
            problem = f"'{name}' has the GGUF type {entry.kind}, which is not known here"
            raise ConversionError.of("llm-unsupported", problem, hint=f"{known} are", file=self.path)
        if len(entry.shape) != 2 or entry.shape[1] % block.size:
            self._bad(f"'{name}' of {list(entry.shape)} is not made of {block.name} blocks")
        rows, columns = entry.shape
        raw = FileTensor(self.path, entry.offset, np.dtype("u1"), (rows, columns // block.size * block.nbytes))
        self._check(name, raw)
        return coded(raw, block, entry.shape)

    def _check(self, name: str, tensor: FileTensor) -> None:
        if tensor.offset + tensor.nbytes > self.path.stat().st_size:
            self._bad(f"'{name}' lies outside of it")

    def _bad(self, what: str) -> NoReturn:
        raise ConversionError.of("bad-checkpoint", f"'{self.path}' cannot be used: {what}", file=self.path)


def read_gguf(path: Path) -> GgufFile:
    """The file's metadata and the places of its tensors. Raises `missing-file`, `unreadable-file`, `bad-checkpoint`."""
    try:
        if path.stat().st_size < struct.calcsize("<4sIQQ"):
            raise ConversionError.of("bad-checkpoint", f"'{path}' is too short for a GGUF file", file=path)
        mapped = MappedFile.of(path)
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        return _Reader(path, mapped).read()
    except (struct.error, UnicodeDecodeError, OverflowError, IndexError, KeyError) as error:
        raise ConversionError.of("bad-checkpoint", f"'{path}' is damaged: {error}", file=path) from error
    finally:
        mapped.close()


class _Reader:
    """Walks over the head of a file."""

    def __init__(self, path: Path, data: mmap.mmap):
        self.file, self.data, self.at = GgufFile(path), data, 0

    def read(self) -> GgufFile:
        magic, version = self.data[:4], struct.unpack_from("<I", self.data, 4)[0]
        if magic != MAGIC or version not in (2, 3):
            self.file._bad(f"it is no little-endian GGUF file of version 2 or 3 (it begins with {magic!r}, {version})")
        tensors, pairs = struct.unpack_from("<QQ", self.data, 8)
        self.at = 24
        for _ in range(pairs):
            name = self._text()
            self.file.metadata[name] = self._value(self._take("<I"))
        found = [self._entry() for _ in range(tensors)]
        align = self.file.metadata.get("general.alignment", 32)
        if not isinstance(align, int) or align < 1:
            self.file._bad(f"an alignment of {align!r}")
        start = -(-self.at // align) * align
        self.file.entries = {name: Entry(e.shape, e.kind, start + e.offset) for name, e in found}
        return self.file

    def _take(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def _text(self) -> str:
        size = self._take("<Q")
        if size > len(self.data) - self.at:
            self.file._bad(f"a text of {size} bytes")
        self.at += size
        return self.data[self.at - size : self.at].decode()

    def _value(self, kind: int, depth: int = 0) -> Any:
        if kind == TEXT:
            return self._text()
        if kind != ARRAY:
            return self._take(SCALARS[kind])
        inner, count = self._take("<I"), self._take("<Q")
        if count > len(self.data) - self.at or depth > MOST_NESTING:
            self.file._bad(f"a list of {count} elements")
        if inner in SCALARS:
            values = np.frombuffer(self.data, SCALARS[inner], count, self.at) if count else np.empty(0)
            self.at += count * struct.calcsize(SCALARS[inner])
            return values.tolist()
        return [self._value(inner, depth + 1) for _ in range(count)]

    def _entry(self) -> tuple[str, Entry]:
        name, axes = self._text(), self._take("<I")
        if axes > MOST_AXES:
            self.file._bad(f"'{name}' has {axes} axes")
        sizes = tuple(self._take("<Q") for _ in range(axes))
        if math.prod(sizes) > 1 << 40:
            self.file._bad(f"'{name}' has {math.prod(sizes)} elements")
        return name, Entry(sizes[::-1], self._take("<I"), self._take("<Q"))
