"""Reader of SentencePiece models: a protobuf message with pieces, each of text, score and type, and settings."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mnnconvert.errors import ConversionError, unreadable

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
PIECES, SETTINGS = 1, 3  # numbers of fields
TEXT, SCORE, KIND = 1, 2, 3  # of a piece
SPACED = 3  # of the settings
VARINT, DOUBLE, BYTES, SINGLE = 0, 1, 2, 5  # wire types


class Piece(NamedTuple):
    """A token: its text, its score (larger is merged first) and its type."""

    text: str
    score: float = 0.0
    kind: int = NORMAL


def read_pieces(path: Path) -> tuple[list[Piece], bool]:
    """The vocabulary of a tokenizer.model, and whether texts get a space in front.

    Raises `missing-file`, `unreadable-file`, `bad-checkpoint`.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        fields = [(number, value) for number, value in _fields(data) if isinstance(value, bytes)]
        pieces = [_piece(value) for number, value in fields if number == PIECES]
        settings = [dict(_fields(value)).get(SPACED, 1) for number, value in fields if number == SETTINGS]
    except (IndexError, ValueError, struct.error) as error:
        raise ConversionError.of("bad-checkpoint", f"'{path}' is no SentencePiece model: {error}", file=path) from error
    if not pieces:
        raise ConversionError.of("bad-checkpoint", f"'{path}' has no pieces", file=path)
    return pieces, 0 not in settings


def _piece(data: bytes) -> Piece:
    found = dict(_fields(data))
    text, score, kind = found.get(TEXT, b""), found.get(SCORE, b"\0\0\0\0"), found.get(KIND, NORMAL)
    if not isinstance(text, bytes) or not isinstance(score, bytes) or not isinstance(kind, int):
        raise ValueError("a piece of other fields")
    return Piece(text.decode("utf-8"), struct.unpack("<f", score)[0], kind)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field numbers and values of a message: integers, or the bytes of anything else."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        wire = tag & 7
        if wire == VARINT:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if wire == BYTES:
            size, at = _varint(data, at)
        elif wire in (DOUBLE, SINGLE):
            size = 8 if wire == DOUBLE else 4
        else:
            raise ValueError(f"wire type {wire}")
        if at + size > len(data):
            raise ValueError("it ends in the middle of a field")
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        value |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return value, at
    raise ValueError("a number without end")
