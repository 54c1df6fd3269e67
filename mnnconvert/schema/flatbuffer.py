"""Read and write FlatBuffers of the schema's tables, without the FlatBuffers library.

The writer streams: it lays out everything that is small (tables, strings, short vectors) in memory, puts the long
vectors behind it, and then writes strictly forward, so that memory never holds more than one long vector. Equal
strings and equal vectors are stored once, so the bytes depend on the content alone.

The reader trusts nothing: each offset and length is checked before it is used. Both follow the FlatBuffers
internals document (https://flatbuffers.dev/internals/).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO
from mmap import mmap
from typing import Any, BinaryIO, NoReturn, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from mnnconvert.errors import ConversionError
from mnnconvert.schema.base import Payload, Table
from mnnconvert.schema.content import Content, write_payload
from mnnconvert.schema.plan import MAX_DEPTH, OFFSET, Column, columns
from mnnconvert.schema.tables import Net

T = TypeVar("T", bound=Table)

MAX_BYTES = 2**31 - 1  # table-to-vtable distances are signed 32-bit numbers
LONG = 4096  # bytes from which a vector stands at the end of the file and is streamed


def write(root: Table, stream: BinaryIO) -> int:
    """Write `root` as a FlatBuffer and return the number of bytes.

    Raises ConversionError `file-too-large` beyond 2 GiB - 1, `value-out-of-range` when a scalar does not fit its
    field and `nested-too-deep` beyond 64 levels, all before the first byte is written. TypeError when a vector is
    neither a numpy array of the schema's element type nor a `Payload`, or a table is not of the field's class.
    """
    layout = _Layout(root)
    if layout.size > MAX_BYTES:
        raise _too_large(layout.size)
    stream.write(layout.head)
    at = len(layout.head)
    for vector, start in zip(layout.long, layout.starts, strict=True):
        stream.write(bytes(start - at) + OFFSET.pack(vector.nbytes // vector.itemsize))
        vector.write_to(stream)
        at = start + OFFSET.size + vector.nbytes
    return layout.size


def layout_size(root: Table) -> int:
    """The number of bytes that a file of `root` takes, also where that is more than `write` accepts."""
    return _Layout(root).size


@dataclass
class _LongVector(Content):
    """A vector at the end of the file and the places that refer to it."""

    itemsize: int
    references: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class _Shape:
    """The vtable and inline order of all instances of a table that have the same columns present."""

    vtable: bytes
    packer: struct.Struct
    offsets: list[int]  # of the present columns, in slot order
    order: list[int]  # indices of the present columns, in the order they are packed


def _shape(present: Sequence[Column]) -> _Shape:
    """Wide columns first, so that no padding is needed between them."""
    order = sorted(range(len(present)), key=lambda i: -present[i].size)
    offsets, end = [0] * len(present), 4
    for i in order:
        offsets[i], end = end, end + present[i].size
    slots = [0] * (present[-1].slot + 1 if present else 0)
    for column, offset in zip(present, offsets, strict=True):
        slots[column.slot] = offset
    vtable = struct.pack(f"<{2 + len(slots)}H", 4 + 2 * len(slots), end, *slots)
    packer = struct.Struct("<i" + "".join(present[i].packer.format[1:] for i in order))
    return _Shape(vtable, packer, offsets, order)


class _Layout:
    """Where everything goes: `head` holds the tables and all short data, `long` the vectors after it."""

    def __init__(self, root: Table) -> None:
        self.head = bytearray(OFFSET.size)
        self.long: list[_LongVector] = []
        self.starts: list[int] = []
        self._shapes: dict[tuple[Column, ...], _Shape] = {}
        self._vtables: dict[bytes, int] = {}
        self._short: dict[tuple[int, bytes], list[int]] = {}
        self._long_by_id: dict[tuple[int, int], _LongVector] = {}
        self._long_by_size: dict[tuple[int, int], list[_LongVector]] = {}
        self._refer(0, self._table(root, 1))
        self._place_short()
        self.size = self._place_long()

    def _refer(self, at: int, target: int) -> None:
        OFFSET.pack_into(self.head, at, target - at)

    def _align(self, alignment: int) -> int:
        self.head += bytes(-len(self.head) % alignment)
        return len(self.head)

    def _table(self, table: Table, depth: int) -> int:
        """Append a table and all that it holds; returns its position."""
        if depth > MAX_DEPTH:
            raise ConversionError.of("nested-too-deep", f"The model nests tables deeper than {MAX_DEPTH} levels.")
        present, values = [], []
        for column in columns(type(table)):
            value = getattr(table, column.name)
            if value not in column.absent if column.packer is not OFFSET else value is not None:
                present.append(column)
                values.append(value)
        shape = self._shape_of(tuple(present))
        vtable = self._vtable(shape.vtable)
        position = self._align(4)
        inline = [_inline(column, value) for column, value in zip(present, values, strict=True)]
        try:
            self.head += shape.packer.pack(position - vtable, *[inline[i] for i in shape.order])
        except (struct.error, OverflowError) as error:
            raise _unfit(table, present, inline) from error
        for column, value, offset in zip(present, values, shape.offsets, strict=True):
            if column.packer is OFFSET:
                self._child(table, column, value, position + offset, depth)
        return position

    def _shape_of(self, present: tuple[Column, ...]) -> _Shape:
        shape = self._shapes.get(present)
        if shape is None:
            shape = self._shapes[present] = _shape(present)
        return shape

    def _vtable(self, vtable: bytes) -> int:
        position = self._vtables.get(vtable)
        if position is None:
            position = self._vtables[vtable] = self._align(2)
            self.head += vtable
        return position

    def _child(self, table: Table, column: Column, value: Any, at: int, depth: int) -> None:
        """Append what a column refers to, or note that `at` refers to it."""
        if column.kind == "string":
            self._string(value, at)
        elif column.kind == "scalars":
            self._scalars(table, column, value, at)
        elif column.kind in ("table", "union"):
            _check_kind(table, column, value)
            self._refer(at, self._table(value, depth + 1))
        else:
            first = self._offsets(len(value), at)
            for i, item in enumerate(value):
                if column.kind == "strings":
                    self._string(item, first + 4 * i)
                else:
                    _check_kind(table, column, item)
                    self._refer(first + 4 * i, self._table(item, depth + 1))

    def _offsets(self, count: int, at: int) -> int:
        """Append a vector of `count` offsets, still zero; returns the position of the first."""
        position = self._align(4)
        self._refer(at, position)
        self.head += OFFSET.pack(count) + bytes(4 * count)
        return position + 4

    def _string(self, text: str, at: int) -> None:
        data = text.encode()
        self._short.setdefault((4, OFFSET.pack(len(data)) + data + b"\0"), []).append(at)

    def _scalars(self, table: Table, column: Column, value: NDArray[Any] | Payload, at: int) -> None:
        if isinstance(value, np.ndarray):
            if value.dtype != column.dtype:
                raise TypeError(f"{type(table).__name__}.{column.name} holds {column.dtype}, not {value.dtype}")
        elif not hasattr(value, "write_to"):
            raise TypeError(f"{type(table).__name__}.{column.name} is neither an array nor a Payload: {value!r:.60}")
        itemsize = column.dtype.itemsize
        if value.nbytes >= LONG:
            self._long_vector(value, itemsize).references.append(at)
        else:
            data = OFFSET.pack(value.nbytes // itemsize) + _content(value)
            self._short.setdefault((itemsize, data), []).append(at)

    def _long_vector(self, value: NDArray[Any] | Payload, itemsize: int) -> _LongVector:
        """The entry of this vector, shared with an equal one."""
        known = self._long_by_id.get((id(value), itemsize))
        if known is None:
            vector = _LongVector(value, value.nbytes, itemsize)
            peers = self._long_by_size.setdefault((itemsize, vector.nbytes), [])
            known = next((peer for peer in peers if peer.equals(vector)), vector)
            if known is vector:
                peers.append(vector)
                self.long.append(vector)
            self._long_by_id[id(value), itemsize] = known
        return known

    def _place_short(self) -> None:
        for (itemsize, data), references in self._short.items():
            self.head += bytes(_gap(len(self.head), itemsize))
            for at in references:
                self._refer(at, len(self.head))
            self.head += data

    def _place_long(self) -> int:
        """Positions of the long vectors; returns the size of the file."""
        end = len(self.head)
        for vector in self.long:
            self.starts.append(end + _gap(end, vector.itemsize))
            end = self.starts[-1] + OFFSET.size + vector.nbytes
        if end > MAX_BYTES:
            return end  # offsets may not hold it
        for vector, start in zip(self.long, self.starts, strict=True):
            for at in vector.references:
                self._refer(at, start)
        return end


def _too_large(size: int) -> ConversionError:
    return ConversionError.of(
        "file-too-large",
        f"The model needs {size:,} bytes, and an MNN file cannot have more than {MAX_BYTES:,}.",
        hint="store the weights in an external file, or with fewer bits",
    )


def _content(value: NDArray[Any] | Payload) -> bytes:
    """The bytes of a short vector."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    stream = BytesIO()
    write_payload(value, stream)
    return stream.getvalue()


def _gap(position: int, itemsize: int) -> int:
    """Padding before a vector: its length is 4-aligned and its elements, right behind, are aligned to their size."""
    return -(position + OFFSET.size) % max(itemsize, OFFSET.size)


def _inline(column: Column, value: Any) -> Any:
    """What stands inside the table: the scalar, the tag, or a zero where an offset will be."""
    if column.kind == "tag":
        return column.tags.get(type(value), 0)
    return 0 if column.packer is OFFSET else value


def _check_kind(table: Table, column: Column, value: Any) -> None:
    """A table of another class would be laid out by its own slots and read back as something else."""
    if type(value) is not column.table and type(value) not in column.members.values():
        raise TypeError(f"{type(table).__name__}.{column.name} cannot hold a {type(value).__name__}")


def _unfit(table: Table, present: Sequence[Column], values: Sequence[Any]) -> Exception:
    """Names the scalar that its field cannot hold."""
    for column, value in zip(present, values, strict=True):
        try:
            column.packer.pack(value)
        except (struct.error, OverflowError):
            where = f"{type(table).__name__}.{column.name}"
            return ConversionError.of("value-out-of-range", f"The value {value!r} does not fit the field {where}.")
    raise AssertionError("all values fit")


@overload
def read(buffer: bytes | bytearray | memoryview | mmap) -> Net: ...
@overload
def read(buffer: bytes | bytearray | memoryview | mmap, root: type[T]) -> T: ...
def read(buffer: bytes | bytearray | memoryview | mmap, root: type[Table] = Net) -> Table:
    """The tree of tables in `buffer`, whose scalar vectors are read-only arrays that view it without a copy.

    Raises ConversionError `bad-mnn-file`, with the byte offset, when the buffer is not a well-formed `root`.
    """
    return _Reader(memoryview(buffer).cast("B")).table(0, root, 1)


class _Reader:
    """Checks before it follows.

    `budget` bounds the work: the tables, strings and vectors of a tree do not overlap in an honest file, so together
    they cannot be larger than it. Twice the size leaves room for writers that share equal parts.
    """

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.size = len(data)
        self.budget = 2 * self.size
        self._strings: dict[int, str] = {}
        self._layouts: dict[tuple[type[Table], int], tuple[int, list[tuple[Column, int]]]] = {}

    def table(self, at: int, kind: type[T], depth: int) -> T:
        """The table that the offset at `at` refers to."""
        position = self._follow(at)
        if depth > MAX_DEPTH:
            self._fail(f"The file nests tables deeper than {MAX_DEPTH} levels", position)
        self._spend(4, position)
        (distance,) = struct.unpack_from("<i", self.data, position)
        key = kind, position - distance
        if key not in self._layouts:
            self._layouts[key] = self._layout(*key)
        size, present = self._layouts[key]
        if position + size > self.size:
            self._fail("A table reaches beyond the end of the file", position)
        table, tag = kind(), 0
        for column, offset in present:
            if column.kind == "tag":
                (tag,) = column.packer.unpack_from(self.data, position + offset)
            elif column.kind == "union":
                setattr(table, column.name, self._union(column, tag, position + offset, depth))
            else:
                setattr(table, column.name, self._value(column, position + offset, depth))
        return table

    def _layout(self, kind: type[Table], vtable: int) -> tuple[int, list[tuple[Column, int]]]:
        """The inline size that a vtable tells, and the columns it has with their offsets."""
        if vtable < 0 or vtable % 2 or vtable + 4 > self.size:
            self._fail("A table's vtable is outside of the file", max(vtable, 0))
        length, size = struct.unpack_from("<HH", self.data, vtable)
        if length < 4 or length % 2 or vtable + length > self.size or size < 4:
            self._fail("A vtable has an impossible length", vtable)
        slots = struct.unpack_from(f"<{length // 2 - 2}H", self.data, vtable + 4)
        present = [(column, slots[column.slot]) for column in columns(kind) if column.slot < len(slots)]
        present = [(column, offset) for column, offset in present if offset]
        for column, offset in present:
            if offset < 4 or offset + column.size > size or offset % column.size:
                self._fail(f"The field {kind.__name__}.{column.name} is outside of its table", vtable)
        return size, present

    def _union(self, column: Column, tag: int, at: int, depth: int) -> Table | None:
        if tag == 0:
            return None
        if tag not in column.members:
            self._fail(f"The parameters of an op are of the unknown kind {tag}", at)
        member: type[Table] = column.members[tag]
        return self.table(at, member, depth + 1)

    def _value(self, column: Column, at: int, depth: int) -> Any:
        if column.kind == "scalar":
            return column.packer.unpack_from(self.data, at)[0]
        if column.kind == "enum":
            (number,) = column.packer.unpack_from(self.data, at)
            return column.members.get(number, number)
        if column.kind == "string":
            return self._string(at)
        if column.kind == "scalars":
            return self._scalars(at, column)
        if column.table is not None and column.kind == "table":
            return self.table(at, column.table, depth + 1)
        first, count = self._vector(at, OFFSET.size)
        self._spend(OFFSET.size * count, first)
        places = range(first, first + OFFSET.size * count, OFFSET.size)
        if column.table is None:
            return [self._string(place) for place in places]
        return [self.table(place, column.table, depth + 1) for place in places]

    def _follow(self, at: int) -> int:
        """The position that the offset at `at` refers to; four bytes there are inside the file."""
        if at + 4 > self.size:
            self._fail("The file is too short", at)
        (offset,) = OFFSET.unpack_from(self.data, at)
        position: int = at + offset
        if offset < 4 or position % 4 or position + 4 > self.size:
            self._fail("An offset does not lead into the file", at)
        return position

    def _vector(self, at: int, itemsize: int) -> tuple[int, int]:
        """Position of the first element, and the number of elements, all of them inside the file."""
        position = self._follow(at)
        (count,) = OFFSET.unpack_from(self.data, position)
        if count * itemsize > self.size - position - 4:
            self._fail("A vector reaches beyond the end of the file", position)
        return position + 4, count

    def _scalars(self, at: int, column: Column) -> NDArray[Any]:
        first, count = self._vector(at, column.dtype.itemsize)
        if first % column.dtype.itemsize:
            self._fail("A vector's elements are not aligned to their size", first)
        array = np.frombuffer(self.data, column.dtype, count, first) if count else np.empty(0, column.dtype)
        array.flags.writeable = False
        return array

    def _string(self, at: int) -> str:
        first, count = self._vector(at, 1)
        if first not in self._strings:
            self._spend(count, first)
            if first + count >= self.size or self.data[first + count]:
                self._fail("A string does not end with a zero byte", first)
            try:
                self._strings[first] = str(self.data[first : first + count], "utf-8")
            except UnicodeDecodeError:
                self._fail("A string is not valid UTF-8", first)
        return self._strings[first]

    def _spend(self, amount: int, at: int) -> None:
        self.budget -= amount
        if self.budget < 0:
            self._fail("The parts of the file overlap", at)

    def _fail(self, sentence: str, at: int) -> NoReturn:
        raise ConversionError.of(
            "bad-mnn-file",
            f"{sentence}.",
            hint="the file is damaged, cut off, or not an MNN model",
            offset=at,
        )
