"""How each table lies in a FlatBuffer: the columns that the writer, the reader and the JSON form follow."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from struct import Struct
from typing import Any, Literal

import numpy as np

from mnnconvert.schema.base import Field, Table
from mnnconvert.schema.tables import ENUMS, STORAGE, TABLES, UNIONS

Kind = Literal["scalar", "enum", "tag", "string", "table", "union", "scalars", "strings", "tables"]

# Scalars of eight bytes exist only as elements of vectors, so a table never needs more than 4-byte alignment.
CODES = {"bool": "?", "byte": "b", "ubyte": "B", "short": "h", "ushort": "H", "int": "i", "uint": "I", "float": "f"}
LONG_CODES = {"long": "q", "ulong": "Q", "double": "d"}
DTYPES = {name: np.dtype("<" + code) for name, code in (CODES | LONG_CODES).items()}
MAX_DEPTH = 64  # of nested tables, the bound of the FlatBuffers verifier that MNN runs on load
OFFSET = Struct("<I")


@dataclass(frozen=True, eq=False)
class Column:
    """One vtable slot of a table: where it stands, how its value is stored, and what it refers to."""

    name: str
    slot: int
    kind: Kind
    packer: Struct = OFFSET
    default: Any = None
    absent: tuple[Any, ...] = (None,)  # the values that need not be written
    enum: type[IntEnum] | None = None
    members: dict[int, Any] = field(default_factory=dict)  # enum members, or the tables of a union, by number
    tags: dict[type[Table], int] = field(default_factory=dict)
    dtype: np.dtype[Any] = DTYPES["ubyte"]  # the elements of a vector of scalars
    table: type[Table] | None = None

    @property
    def size(self) -> int:
        """Bytes inside the table: those of the scalar, or of an offset."""
        return self.packer.size


@cache
def columns(table: type[Table]) -> tuple[Column, ...]:
    """The vtable slots of a table in order; a union gives two, its tag and its table."""
    found: list[Column] = []
    for item in table.FIELDS:
        if item.type in UNIONS:
            tags = {member: tag for tag, member in UNIONS[item.type].items()}
            found.append(Column(item.name, item.slot - 1, "tag", Struct("<B"), tags=tags))
        found.append(_column(item))
    return tuple(found)


def _column(item: Field) -> Column:
    name, slot, kind, default = item
    if kind in CODES:
        absent = (default, float(np.float32(default))) if kind == "float" else (default,)
        return Column(name, slot, "scalar", Struct("<" + CODES[kind]), default, absent)
    if kind in ENUMS:
        storage = Struct("<" + CODES[STORAGE[kind]])
        return Column(name, slot, "enum", storage, default, (default,), enum=ENUMS[kind], members=_numbers(kind))
    if kind == "string":
        return Column(name, slot, "string")
    if kind in UNIONS:
        return Column(name, slot, "union", members=UNIONS[kind])
    if kind in TABLES:
        return Column(name, slot, "table", table=TABLES[kind])
    return _vector(name, slot, kind.strip("[]"))


def _vector(name: str, slot: int, element: str) -> Column:
    if element == "string":
        return Column(name, slot, "strings")
    if element in TABLES:
        return Column(name, slot, "tables", table=TABLES[element])
    if element in ENUMS:
        dtype = DTYPES[STORAGE[element]]
        return Column(name, slot, "scalars", dtype=dtype, enum=ENUMS[element], members=_numbers(element))
    return Column(name, slot, "scalars", dtype=DTYPES[element])


def _numbers(enum: str) -> dict[int, Any]:
    return {int(member): member for member in ENUMS[enum]}
