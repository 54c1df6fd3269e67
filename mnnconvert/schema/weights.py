"""Constants in a file: blobs, weights inside op tables, coded and half weights, and the external weight file.

The external file is a plain concatenation without header or padding; tables refer to it by byte offset and sizes
in an `external` vector, whose layout differs by table (see `ExternalFile.place`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.ir import (
    F16,
    F32,
    ArrayTensor,
    CodedLater,
    CodedTensor,
    FileTensor,
    HalfTensor,
    LazyTensor,
    ReshapedTensor,
    Tensor,
)
from mnnconvert.ir.tensor import row_blocks, write_array
from mnnconvert.schema import codec, flatbuffer, tables
from mnnconvert.schema.base import Table
from mnnconvert.schema.content import Content

BF16 = np.dtype(ml_dtypes.bfloat16)
VECTORS = {"float32": "float32s", "int32": "int32s", "uint8": "uint8s", "int8": "int8s"}
BLOB_TYPES = {"float32": tables.DataType.DT_FLOAT, "int32": tables.DataType.DT_INT32,
              "uint8": tables.DataType.DT_UINT8, "int8": tables.DataType.DT_INT8}  # fmt: skip
DATA_TYPES: dict[int, np.dtype] = {
    tables.DataType.DT_FLOAT: F32, tables.DataType.DT_INT32: np.dtype("int32"), tables.DataType.DT_HALF: F16,
    tables.DataType.DT_UINT8: np.dtype("uint8"), tables.DataType.DT_QUINT8: np.dtype("uint8"),
    tables.DataType.DT_INT8: np.dtype("int8"), tables.DataType.DT_QINT8: np.dtype("int8"),
    tables.DataType.DT_BFLOAT16: BF16, tables.DataType.DT_QINT32: np.dtype("int32"),
}  # fmt: skip
EXTERNAL_ELEMENTS = 1024  # constants up to this many elements stay inside the model file


def in_memory(vector: Any) -> np.ndarray:
    """The vector of a table that was read: those are arrays, never payloads."""
    return np.asarray(vector)


class ExternalFile:
    """Collects what goes to the external weight file. Equal parts are one part, and what follows one another in one
    place is not stored again for those who want it alone."""

    def __init__(self) -> None:
        self.size = 0
        self._asked: dict[tuple[int, ...], list[np.ndarray]] = {}  # by the numbers of parts
        self._parts: list[Content] = []
        self._numbers: dict[int, int] = {}  # of parts, by identity
        self._alike: dict[int, list[int]] = {}  # numbers of parts, by bytes
        self._order: list[int] = []

    def place(self, *parts: Any) -> np.ndarray:
        """[offset, bytes of each part ...] for parts that follow one another; the offset is known after `settle`."""
        numbers = tuple(self._number(part) for part in parts)
        place = np.array([-1, *(part.nbytes for part in parts)], np.int64)
        self._asked.setdefault(numbers, []).append(place)
        return place

    def _number(self, part: Any) -> int:
        if id(part) not in self._numbers:
            content = Content(part, part.nbytes)
            peers = self._alike.setdefault(content.nbytes, [])
            number = next((n for n in peers if self._parts[n].equals(content)), len(self._parts))
            if number == len(self._parts):
                peers.append(number)
            self._parts.append(content)  # also that of an equal one, which keeps its identity valid
            self._numbers[id(part)] = number
        return self._numbers[id(part)]

    def settle(self) -> None:
        """Decide where everything goes, in the order in which it was asked for."""
        inside: dict[int, tuple[int, ...]] = {}  # what parts alone are found in
        for numbers in self._asked:
            for number in numbers if len(numbers) > 1 else ():
                inside.setdefault(number, numbers)
        starts: dict[tuple[int, ...], int] = {}
        for numbers in self._asked:
            whole = inside.get(numbers[0], numbers) if len(numbers) == 1 else numbers
            if whole not in starts:
                starts[whole] = self.size
                self._order += whole
                self.size += self._bytes(whole)
            before = whole[: whole.index(numbers[0])] if whole != numbers else ()
            for place in self._asked[numbers]:
                place[0] = starts[whole] + self._bytes(before)

    def _bytes(self, numbers: tuple[int, ...]) -> int:
        return sum(self._parts[number].nbytes for number in numbers)

    def write(self, stream: BinaryIO, progress: Callable[[float], None] | None = None) -> None:
        """Stream all parts in order."""
        written = 0
        for number in self._order:
            written += self._parts[number].nbytes
            if progress is not None:
                progress(written / self.size)
            self._parts[number].write_to(stream)


class WeightStore:
    """Turns tensors into what tables hold; a tensor that several ops use becomes one vector in the file."""

    def __init__(self, external: ExternalFile | None = None):
        self.external = external
        self._vectors: dict[int, Any] = {}
        self._codings: dict[int, _Coding] = {}
        self._alive: list[Tensor] = []  # keeps the ids above valid

    def vector(self, tensor: Tensor) -> Any:
        """The array of a tensor in memory, flat; a coded one as float32; any other tensor is its own payload."""
        if isinstance(tensor, CodedTensor | CodedLater | HalfTensor):
            if id(tensor) not in self._vectors:
                self._alive.append(tensor)
                self._vectors[id(tensor)] = LazyTensor(tensor, lambda a: a, F32, tuple(tensor.shape))
            return self._vectors[id(tensor)]
        if isinstance(tensor, ReshapedTensor):
            return self.vector(tensor.source)
        if not isinstance(tensor, ArrayTensor):
            return tensor
        if id(tensor.array) not in self._vectors:
            self._alive.append(tensor)
            self._vectors[id(tensor.array)] = np.ascontiguousarray(tensor.array).reshape(-1)
        return self._vectors[id(tensor.array)]

    def _bytes(self, tensor: Tensor) -> Any:
        """What `vector` gives, as bytes."""
        data = self.vector(tensor)
        return data.view(np.uint8) if isinstance(data, np.ndarray) else data

    def blob(self, tensor: Tensor) -> tables.Blob:
        """The table of a constant. Halves stay inside the model file, as the runtime wants them."""
        dims = np.array(tensor.shape, np.int32)
        if isinstance(tensor, HalfTensor):
            return tables.Blob(dims=dims, dataType=tables.DataType.DT_HALF, uint8s=self._bytes(tensor.stored))
        name = str(tensor.dtype)
        if name not in VECTORS:
            raise ConversionError.of("unwritable-type", f"a constant of {name} cannot be written to an MNN file")
        blob = tables.Blob(dims=dims, dataType=BLOB_TYPES[name])
        if self.external is not None and math.prod(tensor.shape) > EXTERNAL_ELEMENTS:
            blob.external = self.external.place(self.vector(tensor))
        elif tensor.nbytes:
            setattr(blob, VECTORS[name], self.vector(tensor))
        return blob

    def embed(self, table: Table, names: Sequence[str], tensors: Sequence[Tensor]) -> None:
        """Store constant operands inside an op's table, or in the external file where the table can refer to it."""
        first = tensors[0]
        if isinstance(table, tables.Convolution2D) and _has_coding(first, table):
            self._embed_coded(table, self._coding(first), tensors[1])  # type: ignore[arg-type]
        elif self.external is not None and _takes_external(table, names):
            table.external = self.external.place(*(self.vector(t) for t in tensors))  # type: ignore[attr-defined]
        else:
            for name, tensor in zip(names, tensors, strict=True):
                inner, field_name = _holder(table, name)
                setattr(inner, field_name, self.vector(tensor))

    def _coding(self, tensor: CodedTensor | CodedLater | HalfTensor) -> _Coding:
        if id(tensor) not in self._codings:
            self._alive.append(tensor)
            if self._defers(tensor):
                self._codings[id(tensor)] = _deferred(tensor)  # type: ignore[arg-type]
                return self._codings[id(tensor)]
            if isinstance(tensor, CodedLater):
                tensor = CodedTensor(tensor.make(), tensor.shape)
            assert isinstance(tensor, CodedTensor)
            self._codings[id(tensor)] = _Coding.of(codec.encode(tensor.coded))
        return self._codings[id(tensor)]

    def _defers(self, tensor: CodedTensor | CodedLater | HalfTensor) -> bool:
        """Whether codes are computed when they are written. Inside the model file only what is long is written late,
        and the numbers of codes are known after these."""
        if self.external is not None or isinstance(tensor, HalfTensor):
            return not isinstance(tensor, CodedTensor)
        return isinstance(tensor, CodedLater) and tensor.form.nbytes_numbers >= flatbuffer.LONG

    def _embed_coded(self, table: tables.Convolution2D, coding: _Coding, bias: Tensor) -> None:
        """`external` of a coded weight: [offset, buffer, alpha, bias, index] bytes."""
        table.quanParameter = quan = tables.IDSTQuan(**coding.scalars)
        if self.external is not None:
            parts = coding.buffer, coding.alpha, self.vector(bias), _NOTHING
            table.external = self.external.place(*parts)
            return
        quan.buffer = coding.buffer
        if quan.scaleStorage == tables.ScaleStorageType.FP16:
            quan.alphaFp16 = coding.alpha
        elif coding.alpha.nbytes:
            quan.alpha = coding.alpha
        table.bias = self.vector(bias)


def _has_coding(tensor: Tensor, table: tables.Convolution2D) -> bool:
    """Whether a table can hold a tensor as it is coded: it takes scales per output channel."""
    if isinstance(tensor, CodedTensor | CodedLater):
        rows = tensor.form.shape[0] if isinstance(tensor, CodedLater) else tensor.coded.shape[0]
        return table.common is not None and rows == table.common.outputCount
    return isinstance(tensor, HalfTensor)


def _takes_external(table: Table, names: Sequence[str]) -> bool:
    """Whether the runtime looks for the operands of a table in the external file."""
    nested = any("." in name for name in names)
    return hasattr(table, "external") and not isinstance(table, tables.Convolution3D) and not nested


def _holder(table: Any, name: str) -> tuple[Any, str]:
    """The table that holds a field, for a dotted name one inside another, and the name of the field there."""
    *inner, last = name.split(".")
    for each in inner:
        table = getattr(table, each)
    return table, last


_NOTHING = np.empty(0, np.uint8)


@dataclass
class _Coding:
    """A coded weight as it stands in `IDSTQuan`: two vectors and the scalars."""

    buffer: Any
    alpha: Any
    scalars: dict[str, Any]

    @classmethod
    def of(cls, fields: codec.IDSTFields) -> _Coding:
        alpha = fields.alphaFp16 if fields.alphaFp16 is not None else fields.alpha
        buffer = fields.buffer.view(np.int8)
        return cls(buffer, alpha if alpha is not None else _NOTHING, _scalars(fields))


@dataclass(eq=False)
class _Part:
    """Bytes that are made when they are written, of elements `like` those of a tensor, or of codes."""

    nbytes: int
    write_to: Callable[[BinaryIO], None]
    like: Tensor | None = None

    @property
    def made_once(self) -> bool:
        return self.like is None


def _deferred(tensor: CodedLater | HalfTensor) -> _Coding:
    """A coding whose parts are computed one after the other while the file is written."""
    if isinstance(tensor, HalfTensor):
        fields = codec.IDSTFields(type=codec.HALF, buffer=_NOTHING)
        return _Coding(_Part(tensor.nbytes, partial(_write_half, tensor), tensor.stored), _NOTHING, _scalars(fields))
    made = _Made(tensor)
    parts = _Part(tensor.form.nbytes_codes, made.write_codes), _Part(tensor.form.nbytes_numbers, made.write_numbers)
    return _Coding(*parts, _scalars(codec.described(tensor.form, tensor.from_zero)))


class _Made:
    """Codes that are computed, packed and written some rows at a time; their numbers stay until they follow."""

    def __init__(self, tensor: CodedLater):
        self.tensor = tensor
        self.numbers: list[np.ndarray] = []

    def write_codes(self, stream: BinaryIO) -> None:
        write_array(codec.header(self.tensor.form), stream)
        for piece in codec.packed(self._codes(), self.tensor.form.bits):
            write_array(piece, stream)

    def _codes(self) -> Iterator[np.ndarray]:
        self.numbers = []
        for part in self.tensor.parts():
            self.numbers.append(codec.numbers(part, self.tensor.from_zero))
            yield part.codes

    def write_numbers(self, stream: BinaryIO) -> None:
        if not self.numbers:
            raise RuntimeError("the numbers of codes are known when these have been written")
        while self.numbers:
            write_array(self.numbers.pop(0), stream)


def _write_half(tensor: HalfTensor, stream: BinaryIO) -> None:
    for rows in row_blocks(tensor.stored, tensor.shape[0]):
        write_array(codec.encode_half(rows).buffer, stream)


def _scalars(fields: codec.IDSTFields) -> dict[str, Any]:
    return {name: getattr(fields, name) for name in _SCALARS}


_SCALARS = ("type", "aMaxOrBits", "aMin", "readType", "shapeInt32", "quantScale", "has_scaleInt", "scaleStorage")


class WeightSource:
    """Gives the tensors that tables of a read file refer to, inline or in the external weight file."""

    def __init__(self, path: Path | None):
        self.path = path
        self.tensors: dict[Any, tuple[Tensor, Any]] = {}  # what was made of which data, for those who share
        self._codings: dict[Any, dict[str, Any]] = {}

    def _external(self, offset: int, nbytes: int, dtype: np.dtype) -> np.ndarray:
        if nbytes < 0 or offset < 0 or nbytes % dtype.itemsize:
            raise ConversionError.of(
                "bad-mnn-file", f"an external reference of {nbytes} bytes at {offset} is not legal"
            )
        if self.path is None or not self.path.is_file():
            raise ConversionError.of("missing-external-data", f"the weight file '{self.path}' does not exist")
        if offset + nbytes > self.path.stat().st_size:
            raise ConversionError.of("bad-mnn-file", f"'{self.path}' has no {nbytes} bytes at {offset}")
        return FileTensor(self.path, offset, dtype, (nbytes // dtype.itemsize,)).numpy()

    def _file_tensor(self, offset: int, dtype: np.dtype, shape: tuple[int, ...]) -> Tensor:
        nbytes = math.prod(shape) * dtype.itemsize
        if self.path is None or not self.path.is_file():
            raise ConversionError.of("missing-external-data", f"the weight file '{self.path}' does not exist")
        if offset < 0 or offset + nbytes > self.path.stat().st_size:
            raise ConversionError.of("bad-mnn-file", f"'{self.path}' has no {nbytes} bytes at {offset}")
        return FileTensor(self.path, offset, dtype, shape)

    def blob(self, blob: tables.Blob) -> Tensor:
        """The tensor of a constant."""
        dtype = DATA_TYPES.get(blob.dataType)
        if dtype is None:
            raise ConversionError.of("bad-mnn-file", f"a constant of type {blob.dataType} is not readable")
        shape = tuple(int(d) for d in in_memory(blob.dims)) if blob.dims is not None else ()
        if any(d < 0 for d in shape):
            raise ConversionError.of("bad-mnn-file", f"a constant has the sizes {list(shape)}")
        tensor = self._blob_data(blob, dtype, shape)
        if dtype == F16:
            return HalfTensor(tensor)
        return LazyTensor(tensor, lambda a: a.astype(F32), F32, shape) if dtype == BF16 else tensor

    def _blob_data(self, blob: tables.Blob, dtype: np.dtype, shape: tuple[int, ...]) -> Tensor:
        external = None if blob.external is None else in_memory(blob.external)
        if external is not None and external.size >= 2:
            return self._file_tensor(int(external[0]), dtype, shape)
        data = blob.uint8s if dtype in (F16, BF16) else getattr(blob, VECTORS[str(dtype)])
        count = math.prod(shape)
        raw = np.empty(0, dtype) if data is None else np.asarray(data).view(dtype)
        if raw.size < count:
            raise ConversionError.of("bad-mnn-file", f"a constant of {list(shape)} holds {raw.size} elements")
        return ArrayTensor(raw[:count].reshape(shape))

    def embedded(self, table: Table, names: Sequence[str]) -> dict[str, Any]:
        """The vectors of operands stored in a table, by field name: an array, a tensor, or the fields of a coding."""
        external = getattr(table, "external", None)
        quan = getattr(table, "quanParameter", None)
        if any("." in name for name in names):
            return {name: v for name in names if (v := getattr(*_holder(table, name))) is not None and len(v)}
        if quan is not None:
            return self._coded(table, quan, external)
        if external is not None and len(external) >= len(names):
            return self._in_file(external, names)
        if not all(hasattr(table, name) for name in names):
            raise ConversionError.of(
                "bad-mnn-file", f"an op has the parameters of another kind: {type(table).__name__}"
            )
        return {name: v for name in names if (v := getattr(table, name)) is not None and len(v)}

    def _in_file(self, external: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
        offset, found = int(external[0]), {}
        for name, size in zip(names, external[1:], strict=False):
            if size:
                found[name] = self._file_tensor(offset, F32, (int(size) // 4,))
            offset += int(size)
        return found

    def _coded(self, table: Any, quan: Any, external: np.ndarray | None) -> dict[str, Any]:
        """The parts of a coded weight; the same object for tables that share one."""
        place = [_address(v) for v in (quan.buffer, quan.alpha, quan.alphaFp16, table.bias, quan.index)]
        key = (*place, *(() if external is None else external.tolist()), *(getattr(quan, name) for name in _SCALARS))
        if key not in self._codings:
            self._codings[key] = self._read_coded(table, quan, external)
        return self._codings[key]

    def _read_coded(self, table: Any, quan: Any, external: np.ndarray | None) -> dict[str, Any]:
        buffer, alpha, half, bias, index = quan.buffer, quan.alpha, quan.alphaFp16, table.bias, quan.index
        if external is not None and len(external) >= 5:
            offset, sizes = int(external[0]), [int(n) for n in external[1:5]]
            starts = [offset + sum(sizes[:i]) for i in range(4)]
            parts = [
                self._external(start, size, np.dtype(kind)) if size else None
                for start, size, kind in zip(starts, sizes, ("int8", "uint8", "float32", "uint32"), strict=True)
            ]
            buffer, bias, index = parts[0], parts[2], parts[3]
            if quan.scaleStorage == tables.ScaleStorageType.FP16:
                half = None if parts[1] is None else parts[1].view(np.uint16)
            else:
                alpha = None if parts[1] is None else parts[1].view(np.float32)
        fields = codec.IDSTFields(
            buffer=_NOTHING if buffer is None else np.asarray(buffer).view(np.uint8),
            alpha=alpha, alphaFp16=half, index=index, weightSize=quan.weightSize,
            **{name: getattr(quan, name) for name in _SCALARS},
        )  # fmt: skip
        return {"weight": fields} | ({} if bias is None else {"bias": bias})


def _address(vector: Any) -> int:
    """Where a vector of a read file lies in memory; 0 when there is none."""
    return 0 if vector is None else int(in_memory(vector).__array_interface__["data"][0])
