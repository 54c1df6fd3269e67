"""Tensors are a protocol: element type, shape, an array on demand, and "write yourself to this stream".

A weight is never copied to be loaded and never held twice: data in files stay there until they are asked for, a cast
or a transpose is done when the result is written, and coded weights are decoded by whoever needs numbers.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, NamedTuple, NoReturn, Protocol, runtime_checkable

import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.ir.coded import CodedForm, CodedWeights, gathered
from mnnconvert.ir.types import F32

CHUNK = 16 << 20  # bytes moved at a time when data are streamed
BAND = 256  # bytes: a few lines of the cache
BANDS_AT_ONCE = 4  # of rows that are transposed before their pages are let go
SAMPLED = 16  # elements looked at before two tensors are compared
SAMPLE = 4096  # bytes looked at on either end before a whole tensor is hashed


@runtime_checkable
class Tensor(Protocol):
    """A constant array, wherever its data are."""

    @property
    def dtype(self) -> np.dtype: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...
    def numpy(self) -> np.ndarray: ...
    def write_to(self, stream: BinaryIO) -> None: ...


class _Sized:
    """What follows from element type and shape."""

    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize


class Stamp(NamedTuple):
    """Which file this is, and in which state: device and number, bytes, time of the last change in nanoseconds."""

    device: int
    number: int
    size: int
    changed: int

    @classmethod
    def of(cls, file: Path | int) -> Stamp | None:
        """The stamp of the file that has this name now, or this descriptor; None where there is none."""
        try:
            found = os.stat(file)
        except OSError:
            return None
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _refuse_changed(path: Path) -> NoReturn:
    raise ConversionError.of("file-changed", f"'{path}' was changed while it was in use")


class MappedFile(mmap.mmap):
    """A file that is mapped into memory to be read.

    A file that is deleted, or replaced by another one of its name, stays mapped as it was. One that is written to in
    place shows what was written, and a page that it has no longer would end the process.
    """

    path: Path
    stamp: Stamp | None

    @classmethod
    def of(cls, path: Path) -> MappedFile:
        """The mapping of a file that is not empty. Raises OSError."""
        with path.open("rb") as file:
            stamp = Stamp.of(file.fileno())
            mapped = cls(file.fileno(), 0, access=mmap.ACCESS_READ)
        mapped.path, mapped.stamp = path.absolute(), stamp
        return mapped

    def check(self) -> None:
        """Raises `file-changed` where the file was written to since it was mapped."""
        now = Stamp.of(self.path)
        if now is not None and self.stamp is not None and now[:2] == self.stamp[:2] and now != self.stamp:
            _refuse_changed(self.path)


def check_mapped(array: np.ndarray) -> None:
    """Raises `file-changed` where an array lies in a mapped file that was written to since; see `MappedFile`."""
    mapped = _mapping_of(array)
    if isinstance(mapped, MappedFile):
        mapped.check()


@dataclass(eq=False, slots=True)
class ArrayTensor(_Sized):
    """A tensor in memory."""

    array: np.ndarray

    @property
    def dtype(self) -> np.dtype:  # type: ignore[override]
        return self.array.dtype

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(self.array.shape)

    def numpy(self) -> np.ndarray:
        check_mapped(self.array)
        return self.array

    def write_to(self, stream: BinaryIO) -> None:
        write_array(self.numpy(), stream)


@dataclass(eq=False)
class FileTensor(_Sized):
    """A tensor whose little-endian data lie in a file; read when asked for, streamed when written.

    Reading raises `unreadable-file`, `truncated-file`, or `file-changed` where it is not the file that it was.
    """

    path: Path
    offset: int
    dtype: np.dtype
    shape: tuple[int, ...]
    stamp: Stamp | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.stamp = Stamp.of(self.path)

    def _check(self) -> None:
        if Stamp.of(self.path) != self.stamp:
            _refuse_changed(self.path)

    def numpy(self) -> np.ndarray:
        return self.read(0, self.size).reshape(self.shape)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Elements start..stop in row order."""
        self._check()
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset + start * self.dtype.itemsize)
                array = np.fromfile(file, self.dtype, stop - start)
        except OSError as error:
            raise ConversionError.of("unreadable-file", f"cannot read '{self.path}': {error.strerror}") from error
        if array.size != stop - start:
            raise ConversionError.of("truncated-file", f"'{self.path}' ended while {self.nbytes} bytes were read")
        return array

    def write_to(self, stream: BinaryIO) -> None:
        self._check()
        with self.path.open("rb") as file:
            file.seek(self.offset)
            left = self.nbytes
            while left:
                chunk = file.read(min(CHUNK, left))
                if not chunk:
                    raise ConversionError.of("truncated-file", f"'{self.path}' ended {left} bytes too early")
                stream.write(chunk)
                left -= len(chunk)

    def memmap(self) -> np.ndarray:
        """The data mapped into memory, for those who walk over them in pieces."""
        self._check()
        return np.memmap(self.path, self.dtype, "r", self.offset, self.shape) if self.size else self.numpy()


@dataclass(eq=False)
class LazyTensor(_Sized):
    """An element-wise or layout change (cast, transpose, reshape) of another tensor, not yet done."""

    source: Tensor
    compute: Callable[[np.ndarray], np.ndarray]
    dtype: np.dtype
    shape: tuple[int, ...]

    def numpy(self) -> np.ndarray:
        return self.compute(self.source.numpy()).astype(self.dtype, copy=False).reshape(self.shape)

    def write_to(self, stream: BinaryIO) -> None:
        write_array(self.numpy(), stream)


@dataclass(eq=False)
class CastTensor(_Sized):
    """Another tensor in another element type, converted piece by piece."""

    source: Tensor
    dtype: np.dtype

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(self.source.shape)

    def numpy(self) -> np.ndarray:
        return self.source.numpy().astype(self.dtype)

    def write_to(self, stream: BinaryIO) -> None:
        for rows in row_blocks(self, self.shape[0] if self.shape else 1):
            write_array(rows, stream)


@dataclass(eq=False)
class TransposedMatrix(_Sized):
    """A matrix read column by column, so that not even its transpose is held whole."""

    source: Tensor

    @property
    def dtype(self) -> np.dtype:  # type: ignore[override]
        return self.source.dtype

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        rows, columns = self.source.shape
        return (columns, rows)

    def numpy(self) -> np.ndarray:
        return _transposed(self._matrix())

    def _matrix(self) -> np.ndarray:
        return self.source.memmap() if isinstance(self.source, FileTensor) else self.source.numpy()

    def row_blocks(self) -> Iterator[np.ndarray]:
        """The rows of the transpose, in blocks of a few megabytes."""
        matrix = self._matrix()
        step = max(1, CHUNK // max(1, matrix.shape[0] * matrix.itemsize))
        for start in range(0, matrix.shape[1], step):
            yield _transposed(matrix[:, start : start + step])

    def write_to(self, stream: BinaryIO) -> None:
        for block in self.row_blocks():
            write_array(block, stream)


def _transposed(matrix: np.ndarray) -> np.ndarray:
    """A contiguous transpose, made in bands of rows that fill lines of the cache: far faster than in one go."""
    result = np.empty(matrix.shape[::-1], matrix.dtype)
    band = max(1, BAND // matrix.itemsize)
    for start in range(0, matrix.shape[0], band):
        result[:, start : start + band] = matrix[start : start + band].T
        if start // band % BANDS_AT_ONCE == 0:
            _forget(matrix)
    _forget(matrix)
    return result


@dataclass(eq=False)
class ReshapedTensor(_Sized):
    """The same data under another shape."""

    source: Tensor
    shape: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype:  # type: ignore[override]
        return self.source.dtype

    def numpy(self) -> np.ndarray:
        return self.source.numpy().reshape(self.shape)

    def write_to(self, stream: BinaryIO) -> None:
        self.source.write_to(stream)


def transposed(matrix: Tensor) -> Tensor:
    """The transpose of a matrix as a view; that of a transpose is its source, and casts are done last."""
    if isinstance(matrix, CastTensor):
        return CastTensor(transposed(matrix.source), matrix.dtype)
    return matrix.source if isinstance(matrix, TransposedMatrix) else TransposedMatrix(matrix)


def reshaped(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The same data under another shape; coded weights stay coded."""
    if isinstance(tensor, ReshapedTensor):
        tensor = tensor.source
    if tuple(tensor.shape) == shape:
        return tensor
    if isinstance(tensor, CodedTensor):
        return CodedTensor(tensor.coded, shape)
    if isinstance(tensor, CodedLater):
        return replace(tensor, shape=shape)
    if isinstance(tensor, HalfTensor):
        return HalfTensor(reshaped(tensor.stored, shape))
    if isinstance(tensor, CastTensor):
        return CastTensor(reshaped(tensor.source, shape), tensor.dtype)
    return ReshapedTensor(tensor, shape)


def is_coded(tensor: Tensor | None) -> bool:
    """Whether a tensor is coded weights, or a view of them."""
    while isinstance(tensor, TransposedMatrix | ReshapedTensor):
        tensor = tensor.source
    return isinstance(tensor, CodedTensor)


def row_blocks(tensor: Tensor, rows: int) -> Iterator[np.ndarray]:
    """The data of a tensor as consecutive blocks of rows [k, size/rows], without holding more than needed."""
    if isinstance(tensor, ReshapedTensor):
        yield from row_blocks(tensor.source, rows)
    elif isinstance(tensor, TransposedMatrix) and tensor.shape[0] == rows:
        yield from tensor.row_blocks()
    elif isinstance(tensor, CodedLater):
        step = max(1, CHUNK // max(1, 4 * tensor.form.shape[1]))
        for coded in tensor.parts():
            count = coded.shape[0]
            yield from (coded.decode_rows(i, min(i + step, count)) for i in range(0, count, step))
    elif isinstance(tensor, CastTensor):
        yield from (block.astype(tensor.dtype) for block in row_blocks(tensor.source, rows))
    else:
        columns = math.prod(tensor.shape) // max(1, rows)
        step = max(1, CHUNK // max(1, columns * tensor.dtype.itemsize))
        array = None if isinstance(tensor, FileTensor) else tensor.numpy().reshape(rows, columns)
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            if isinstance(tensor, FileTensor):
                yield tensor.read(start * columns, stop * columns).reshape(-1, columns)
            elif array is not None:
                yield array[start:stop]


def _forget(array: np.ndarray) -> None:
    """Let go of the pages of a mapped file, which count as memory in use; the system reads them again when needed."""
    mapped = getattr(array, "_mmap", None)
    if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def release(tensor: Tensor) -> None:
    """Let go of the memory of a tensor whose data were copied elsewhere, if they are in a file from which they can be
    read again."""
    if isinstance(tensor, ReshapedTensor | TransposedMatrix):
        return release(tensor.source)
    if isinstance(tensor, HalfTensor):
        return release(tensor.stored)
    if isinstance(tensor, CodedTensor):
        tensor.coded.let_go()
    if isinstance(tensor, ArrayTensor):
        release_array(tensor.array)
    return None


def release_array(array: np.ndarray) -> None:
    """Let go of the pages of a mapped file in which an array lies; nothing else happens to other arrays."""
    mapped = _mapping_of(array)
    if mapped is None or not hasattr(mmap, "MADV_DONTNEED"):
        return
    start = array.__array_interface__["data"][0] - np.frombuffer(mapped, np.uint8).__array_interface__["data"][0]
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (start + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first:
        mapped.madvise(mmap.MADV_DONTNEED, first, last - first)


def _mapping_of(array: np.ndarray) -> mmap.mmap | None:
    """The read-only mapped file that an array is a view of."""
    base: object = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base if isinstance(base, mmap.mmap) and not array.flags.writeable else None


@dataclass(eq=False)
class HalfTensor(_Sized):
    """Numbers stored as float16; reads as float32."""

    stored: Tensor
    dtype: np.dtype = F32

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.stored.shape

    @property
    def nbytes(self) -> int:
        return self.stored.nbytes

    def numpy(self) -> np.ndarray:
        return self.stored.numpy().astype(F32)

    def write_to(self, stream: BinaryIO) -> None:
        write_array(self.numpy(), stream)


@dataclass(eq=False)
class CodedTensor(_Sized):
    """Weights kept as integer codes with scales; reads as float32."""

    coded: CodedWeights
    shape: tuple[int, ...]
    dtype: np.dtype = F32

    @property
    def nbytes(self) -> int:
        return self.coded.nbytes_encoded

    def numpy(self) -> np.ndarray:
        return self.coded.decode().reshape(self.shape)

    def write_to(self, stream: BinaryIO) -> None:
        write_array(self.numpy(), stream)


@dataclass(eq=False)
class CodedLater(_Sized):
    """Weights that are coded while they are written, so that those of a large model are never in memory together.

    `parts` gives the codes, as blocks of consecutive rows, in the form that is promised here; `source` is what they are
    made of. With `from_zero` the file stores the value of code 0 in place of the minimum, as those want it that read
    rows of the file themselves.
    """

    source: Tensor
    shape: tuple[int, ...]
    form: CodedForm
    parts: Callable[[], Iterator[CodedWeights]]
    from_zero: bool = False
    dtype: np.dtype = F32

    @property
    def nbytes(self) -> int:
        return self.form.nbytes_codes + self.form.nbytes_numbers

    def make(self) -> CodedWeights:
        """The codes of all rows."""
        return gathered(self.form, self.parts())

    def numpy(self) -> np.ndarray:
        return np.concatenate([part.decode() for part in self.parts()]).reshape(self.shape)

    def write_to(self, stream: BinaryIO) -> None:
        write_array(self.numpy(), stream)


def write_array(array: np.ndarray, stream: BinaryIO) -> None:
    """Write an array little-endian in row order, in pieces."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8)
    for start in range(0, flat.size, CHUNK):
        stream.write(flat[start : start + CHUNK].data)


class _Digest:
    """A write-only stream that keeps a digest of what it was given."""

    def __init__(self) -> None:
        self.hash = hashlib.blake2b(digest_size=16)

    def write(self, data: bytes) -> int:
        self.hash.update(data)
        return len(data)


def equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same type, shape and bytes; neither is held whole for it."""
    if one is other:
        return True
    samples = [picked(tensor, SAMPLED) for tensor in (one, other)]
    known = [x.tobytes() for x in samples if x is not None]
    return (len(known) < 2 or known[0] == known[1]) and content_digest(one) == content_digest(other)


def file_of(tensor: Tensor | None) -> Path | None:
    """The file in which the data of a tensor lie, or those of which it is made; None where they are in memory."""
    while tensor is not None and not isinstance(tensor, FileTensor):
        tensor = getattr(tensor, "source", None) or getattr(tensor, "stored", None)
    return None if tensor is None else tensor.path


def content_digest(tensor: Tensor) -> bytes:
    """A digest of element type, shape and data."""
    digest = _Digest()
    digest.write(f"{tensor.dtype}{tensor.shape}".encode())
    tensor.write_to(digest)  # type: ignore[arg-type]
    return digest.hash.digest()


def picked(data: object, count: int) -> np.ndarray | None:
    """`count` elements spread over the data in row order (all of fewer); None where they would have to be computed."""
    size = getattr(data, "size", 0)
    return _elements(data, np.linspace(0, size - 1, min(count, size)).astype(np.int64)) if size else None


def _elements(data: object, places: np.ndarray) -> np.ndarray | None:
    """The elements at these places in row order."""
    if isinstance(data, np.ndarray):
        return data[np.unravel_index(places, data.shape)]
    if isinstance(data, ArrayTensor):
        return _elements(data.array, places)
    if isinstance(data, FileTensor):
        return np.concatenate([data.read(place, place + 1) for place in places.tolist()])
    if isinstance(data, ReshapedTensor):
        return _elements(data.source, places)
    if isinstance(data, TransposedMatrix):
        row, column = np.divmod(places, data.shape[1])
        return _elements(data.source, column * data.shape[0] + row)
    if isinstance(data, CastTensor):
        found = _elements(data.source, places)
        return None if found is None else found.astype(data.dtype)
    return None


def fingerprint(tensor: Tensor) -> tuple[object, ...]:
    """A cheap key that equal tensors share: type, shape, and both ends of the data where those are at hand."""
    return (type(tensor).__name__, str(tensor.dtype), tuple(tensor.shape), _ends(tensor))


def _ends(tensor: Tensor) -> object:
    if isinstance(tensor, ArrayTensor):
        return _both_ends(tensor.array)
    if isinstance(tensor, CodedTensor):
        return _both_ends(tensor.coded.codes) + _both_ends(tensor.coded.scale)
    if isinstance(tensor, FileTensor):
        with tensor.path.open("rb") as file:
            file.seek(tensor.offset)
            head = file.read(min(SAMPLE, tensor.nbytes))
            file.seek(tensor.offset + max(0, tensor.nbytes - SAMPLE))
            return head + file.read(min(SAMPLE, tensor.nbytes))
    if isinstance(tensor, CodedLater):
        return tensor.form, fingerprint(tensor.source)
    source = getattr(tensor, "source", None) or getattr(tensor, "stored", None)
    return b"" if source is None else fingerprint(source)


def _both_ends(array: np.ndarray) -> bytes:
    if not array.flags.c_contiguous or not array.size:
        return b""
    flat = array.reshape(-1).view(np.uint8)
    return flat[:SAMPLE].tobytes() + flat[-SAMPLE:].tobytes()
