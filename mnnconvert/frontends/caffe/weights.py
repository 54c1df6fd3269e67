"""The trained weights of a `.caffemodel`: the blobs of its layers by name, where they lie in the file.

The file is a protocol buffer, of which only the path to the blobs is read: no copy is made, no size is too large, and
what is damaged is told with its byte offset. Field numbers are those of Caffe's public `caffe.proto`.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mnnconvert.errors import ConversionError, unreadable
from mnnconvert.frontends.caffe.text import BAD
from mnnconvert.ir import ArrayTensor, HalfTensor, LazyTensor, Tensor
from mnnconvert.ir.tensor import MappedFile
from mnnconvert.ir.types import F32

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
LAYERS = {100: (1, 7), 2: (4, 6)}  # field of a net with layers -> their fields with name and blobs
OLDEST = 1, 1, 50  # in layers of form 2: the field with the layer of the first format, its name and blobs
OLD_SIZES = (1, 2, 3, 4)  # num, channels, height, width
DATA, SHAPE, DOUBLES, RAW_TYPE, RAW = 5, 7, 8, 10, 12
RAW_TYPES = {0: "<f8", 1: "<f4", 2: "<f2"}  # of NVIDIA's fork; it also names integers, which are no weights
LONGEST = 10  # bytes of a varint


@dataclass(frozen=True)
class Field:
    """A field of a message: its number, wire type, the bytes of its content, or the number it holds."""

    number: int
    wire: int
    content: memoryview
    value: int = 0


@dataclass
class Blob:
    """An array of a layer: its shape, in the old form of four sizes where `old`, and its numbers (any float type)."""

    shape: tuple[int, ...]
    numbers: np.ndarray
    old: bool

    def tensor(self, shape: tuple[int, ...]) -> Tensor:
        """The numbers as float32 in an equal shape."""
        array = self.numbers.reshape(shape)
        if array.dtype == np.float16:
            return HalfTensor(ArrayTensor(array))
        if array.dtype != F32:
            return LazyTensor(ArrayTensor(array), lambda a: a.astype(F32), F32, shape)
        return ArrayTensor(array)


@dataclass
class _Scan:
    """Reads messages of one file."""

    data: memoryview
    start: int = 0
    blobs: dict[str, list[Blob]] = field(default_factory=dict)

    def damaged(self, what: str, at: int) -> ConversionError:
        return ConversionError.of(BAD, f"the weights are damaged: {what} at byte {at}", offset=at)

    def fields(self, begin: int, end: int) -> Iterator[tuple[Field, int, int]]:
        """The fields between two offsets, with those of their content."""
        at = begin
        while at < end:
            key, first = self._varint(at, end)
            value, last = 0, first
            if key & 7 == VARINT:
                value, last = self._varint(first, end)
            elif key & 7 == BYTES:
                size, first = self._varint(first, end)
                last = first + size
            elif key & 7 in (FIXED32, FIXED64):
                last = first + (4 if key & 7 == FIXED32 else 8)
            else:
                raise self.damaged(f"a field of the unknown kind {key & 7}", at)
            if last > end or key >> 3 == 0:
                raise self.damaged("a field that goes beyond its message", at)
            yield Field(key >> 3, key & 7, self.data[first:last], value), first, last
            at = last

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        value = 0
        for i in range(LONGEST):
            if at + i >= end:
                raise self.damaged("the end of a message inside of a number", at)
            byte = self.data[at + i]
            value |= (byte & 127) << 7 * i
            if byte < 128:
                return value, at + i + 1
        raise self.damaged("a number of too many bytes", at)

    def net(self) -> None:
        """Collect the blobs of all layers."""
        for found, first, last in self.fields(0, len(self.data)):
            if found.number in LAYERS and found.wire == BYTES:
                self._layer(first, last, *LAYERS[found.number], oldest=found.number == 2)

    def _layer(self, begin: int, end: int, name_field: int, blob_field: int, oldest: bool = False) -> None:
        name, blobs = "", []
        for found, first, last in self.fields(begin, end):
            if found.wire != BYTES:
                continue
            if found.number == name_field:
                name = bytes(found.content).decode("utf-8", "replace")
            elif found.number == blob_field:
                blobs.append(self._blob(first, last))
            elif oldest and found.number == OLDEST[0]:
                self._layer(first, last, *OLDEST[1:])
        if blobs:
            self.blobs[name] = blobs

    def _blob(self, begin: int, end: int) -> Blob:
        old, shape = [0, 0, 0, 0], None
        parts: dict[int, list[memoryview]] = {DATA: [], DOUBLES: [], RAW: []}
        kind = 1
        for found, first, last in self.fields(begin, end):
            if found.number in OLD_SIZES:
                old[found.number - 1] = found.value
            elif found.number == SHAPE and found.wire == BYTES:
                shape = self._sizes(first, last)
            elif found.number == RAW_TYPE:
                kind = found.value
            elif found.number in parts and found.wire != VARINT:  # packed, or one number after the other
                parts[found.number].append(found.content)
        numbers = self._numbers(parts, kind, begin)
        sizes = tuple(old) if shape is None else shape
        if math.prod(sizes) != numbers.size:
            raise self.damaged(f"a blob of {list(sizes)} with {numbers.size} numbers", begin)
        return Blob(sizes, numbers, shape is None)

    def _sizes(self, begin: int, end: int) -> tuple[int, ...]:
        sizes: list[int] = []
        for found, first, last in self.fields(begin, end):
            if found.number == 1 and found.wire == VARINT:
                sizes.append(found.value)
            while found.number == 1 and found.wire == BYTES and first < last:
                size, first = self._varint(first, last)
                sizes.append(size)
        return tuple(sizes)

    def _numbers(self, parts: dict[int, list[memoryview]], kind: int, at: int) -> np.ndarray:
        for number, dtype in ((DATA, "<f4"), (DOUBLES, "<f8"), (RAW, RAW_TYPES.get(kind, ""))):
            pieces = parts[number]
            if not pieces:
                continue
            if not dtype:
                raise self.damaged(f"numbers of the unknown type {kind}", at)
            whole = pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
            if len(whole) % np.dtype(dtype).itemsize:
                raise self.damaged(f"{len(whole)} bytes of numbers", at)
            return np.frombuffer(whole, dtype)
        return np.empty(0, F32)


def read_weights(path: Path) -> dict[str, list[Blob]]:
    """The blobs of a file by the name of their layer. Raises `bad-caffe-file`, `missing-file`, `unreadable-file`."""
    try:
        data = MappedFile.of(path) if path.stat().st_size else b""
    except OSError as error:
        raise unreadable(path, error) from error
    _refuse_foreign(path, bytes(data[:512]))
    scan = _Scan(memoryview(data))
    try:
        scan.net()
    except ConversionError as error:
        raise ConversionError.of(
            BAD, error.diagnostics[0].message, hint="copy the file again, or check that it is one of Caffe", file=path
        ) from error
    if not scan.blobs:
        raise ConversionError.of(BAD, f"'{path}' holds no trained weights of Caffe layers", file=path)
    return scan.blobs


def parse_weights(content: bytes | mmap.mmap) -> dict[str, list[Blob]]:
    """As `read_weights`, of a file in memory."""
    scan = _Scan(memoryview(content))
    scan.net()
    return scan.blobs


def _refuse_foreign(path: Path, head: bytes) -> None:
    if head.startswith(b"\x89HDF"):
        raise ConversionError.of(
            BAD, f"'{path}' is HDF5", hint="save the weights as a .caffemodel (snapshot_format: BINARYPROTO)", file=path
        )
    if head and is_text(head) and b":" in head:
        raise ConversionError.of(
            BAD, f"'{path}' is text, not trained weights",
            hint="--modelFile takes the .caffemodel and --prototxt the .prototxt", file=path,
        )  # fmt: skip


def is_text(head: bytes) -> bool:
    """Whether these first bytes of a file are those of a text."""
    return not any(byte < 9 or 13 < byte < 32 for byte in head)
