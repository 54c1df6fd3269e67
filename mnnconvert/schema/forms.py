"""Between an op's form (names and plain values) and the tables of the schema, in both directions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.schema import tables
from mnnconvert.schema.base import Field, Table

VECTOR_TYPES = {
    "byte": np.int8, "ubyte": np.uint8, "short": np.int16, "ushort": np.uint16, "int": np.int32, "uint": np.uint32,
    "long": np.int64, "ulong": np.uint64, "float": np.float32, "double": np.float64,
    "int8": np.int8, "uint8": np.uint8, "int16": np.int16, "uint16": np.uint16, "int32": np.int32, "uint32": np.uint32,
    "int64": np.int64, "uint64": np.uint64, "float32": np.float32, "float64": np.float64,
}  # fmt: skip


@cache
def fields_of(table: type[Table]) -> dict[str, Field]:
    """The fields of a table by name."""
    return {field.name: field for field in table.FIELDS}


def make_table(name: str, contents: Mapping[str, Any]) -> Table:
    """A table of the schema from plain contents: enum members by name, nested tables as mappings, vectors as lists."""
    cls: type[Table] = getattr(tables, name)
    known = fields_of(cls)
    return cls(**{key: _to_schema(known[key].type, value) for key, value in contents.items()})


def _to_schema(kind: str, value: Any) -> Any:
    if value is None or isinstance(value, Table):
        return value
    if kind.startswith("["):
        inner = kind[1:-1]
        if inner in VECTOR_TYPES:
            return value if hasattr(value, "write_to") else vector(inner, value)
        return [_to_schema(inner, item) for item in value]
    if isinstance(value, str) and kind != "string":
        return _member(kind, value)
    return make_table(kind, value) if isinstance(value, Mapping) else value


def vector(kind: str, values: Any) -> Any:
    """Values as an array of the numbers of a vector field; `value-out-of-range` where one does not fit."""
    try:
        return np.asarray(values, VECTOR_TYPES[kind])
    except OverflowError as error:
        raise ConversionError.of("value-out-of-range", f"{error}: {values!r:.80}") from error


def _member(kind: str, name: str) -> Any:
    members = getattr(tables, kind)
    if name not in members.__members__:
        raise ConversionError.of("value-out-of-range", f"MNN has no '{name}' among its kinds of {kind}")
    return members[name]


class Fields(Mapping[str, Any]):
    """A table seen as an op form sees it: enum members by name, nested tables as mappings."""

    def __init__(self, table: Table):
        self.table = table

    def __getitem__(self, name: str) -> Any:
        value = getattr(self.table, name)
        if isinstance(value, Table):
            return Fields(value)
        if isinstance(value, IntEnum):
            return value.name
        if isinstance(value, list):
            return [Fields(item) if isinstance(item, Table) else item for item in value]
        if isinstance(value, int) and not isinstance(value, bool):
            self._reject_unnamed(name, value)
        return value

    def _reject_unnamed(self, name: str, value: int) -> None:
        kind = getattr(tables, fields_of(type(self.table))[name].type, None)
        if isinstance(kind, type) and issubclass(kind, IntEnum):
            raise ConversionError.of(
                "bad-mnn-file", f"{type(self.table).__name__}.{name} holds {value}, which {kind.__name__} does not have"
            )

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a field of the table; `default` where it is absent."""
        value = self[name]
        return default if value is None else value

    def __iter__(self) -> Iterator[str]:
        return iter(fields_of(type(self.table)))

    def __len__(self) -> int:
        return len(self.table.FIELDS)
