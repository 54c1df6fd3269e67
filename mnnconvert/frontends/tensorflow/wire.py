"""The wire format of protocol buffers, read without copying: what a GraphDef file is made of.

Only numbers and kinds of fields stand in a file; what they mean is said by whoever asks (`model.py`). Nothing in the
file is believed: what does not fit is one `bad-tensorflow-file`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from mnnconvert.errors import ConversionError

BAD = "bad-tensorflow-file"
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
Field = int | memoryview


def bad(message: str) -> ConversionError:
    """An error for a file that breaks the rules of its format; raise it."""
    return ConversionError.of(BAD, message)


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise bad("a number is cut off, or too long")


def fields(data: memoryview) -> Iterator[tuple[int, int, Field]]:
    """Number, kind and content of each field of a message: an integer, or the bytes it has."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, at = _varint(data, at)
            yield number, kind, value
            continue
        if kind == BYTES:
            length, at = _varint(data, at)
        elif kind in (FIXED32, FIXED64):
            length = 4 if kind == FIXED32 else 8
        else:
            raise bad(f"a field has the kind {kind}, which does not exist")
        if number == 0 or length > len(data) - at:
            raise bad("a field reaches beyond its message")
        yield number, kind, data[at : at + length]
        at += length


class Message:
    """The fields of one message by number."""

    def __init__(self, data: memoryview):
        self.found: dict[int, list[tuple[int, Field]]] = {}
        for number, kind, value in fields(data):
            self.found.setdefault(number, []).append((kind, value))

    def has(self, number: int) -> bool:
        return number in self.found

    def views(self, number: int) -> list[memoryview]:
        """All the contents of a field that is bytes, text or a message."""
        return [_view(value) for _, value in self.found.get(number, ())]

    def messages(self, number: int) -> list[Message]:
        return [Message(view) for view in self.views(number)]

    def message(self, number: int) -> Message | None:
        """The last one of a field counts."""
        found = self.views(number)
        return Message(found[-1]) if found else None

    def data(self, number: int) -> bytes:
        found = self.views(number)
        return bytes(found[-1]) if found else b""

    def text(self, number: int) -> str:
        return self.data(number).decode("utf-8", "replace")

    def texts(self, number: int) -> list[str]:
        return [bytes(view).decode("utf-8", "replace") for view in self.views(number)]

    def ints(self, number: int) -> list[int]:
        """Signed integers, packed or one by one."""
        values: list[int] = []
        for _, value in self.found.get(number, ()):
            if isinstance(value, int):
                values.append(value)
                continue
            at = 0
            while at < len(value):
                item, at = _varint(value, at)
                values.append(item)
        return [v - (1 << 64) if v >> 63 else v for v in values]

    def integer(self, number: int, default: int = 0) -> int:
        found = self.ints(number)
        return found[-1] if found else default

    def numbers(self, number: int, dtype: str) -> np.ndarray:
        """Floats of a fixed width, packed or one by one."""
        parts = [_view(value) for _, value in self.found.get(number, ())]
        joined = parts[0] if len(parts) == 1 else b"".join(parts)
        if len(joined) % np.dtype(dtype).itemsize:
            raise bad("a list of numbers ends within one")
        return np.frombuffer(joined, dtype)

    def real(self, number: int) -> float:
        found = self.views(number)
        if not found or len(found[-1]) != 4:
            return 0.0
        value: float = struct.unpack("<f", found[-1])[0]
        return value


def _view(value: Field) -> memoryview:
    if isinstance(value, int):
        raise bad("there is a number where a message should be")
    return value
