"""Parse the subset of the FlatBuffers schema language that `mnn.fbs` uses.

The subset: line comments, `namespace`, `root_type`, `enum NAME : TYPE { A = 1, }`, `union NAME { A = 1, }` and
`table NAME { field: type = default (id: n); }`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from mnnconvert.schema.base import Field

INTEGERS = ("byte", "ubyte", "short", "ushort", "int", "uint", "long", "ulong")
SCALARS = ("bool", *INTEGERS, "float", "double")


@dataclass(frozen=True)
class Enum:
    """Named integers and the scalar type that stores them."""

    name: str
    storage: str
    members: dict[str, int]


@dataclass(frozen=True)
class Union:
    """The tables that a union field may hold, by tag; tag 0 is "none" and not listed."""

    name: str
    members: dict[str, int]


@dataclass(frozen=True)
class TableDef:
    """A table and its fields in slot order. A union field has the slot of its table; its tag has the one before."""

    name: str
    fields: tuple[Field, ...]


@dataclass
class Schema:
    """Everything an IDL text defines, in its order."""

    enums: dict[str, Enum] = field(default_factory=dict)
    unions: dict[str, Union] = field(default_factory=dict)
    tables: dict[str, TableDef] = field(default_factory=dict)
    root: str = ""


def parse(text: str) -> Schema:
    """The schema that `text` describes; ValueError with the offending word and line otherwise."""
    schema = Schema()
    words = _Words(text)
    for keyword in words:
        if keyword == "namespace":
            words.until(";")
        elif keyword == "root_type":
            schema.root = words.until(";")[0]
        elif keyword == "enum":
            enum = _enum(words)
            schema.enums[enum.name] = enum
        elif keyword == "union":
            union = Union(next(words), _members(words))
            schema.unions[union.name] = union
        elif keyword == "table":
            table = _table(words, schema)
            schema.tables[table.name] = table
        else:
            words.fail(f"unknown declaration {keyword!r}")
    _check_types(schema)
    return schema


class _Words(Iterator[str]):
    """The words and punctuation of an IDL text, without comments."""

    def __init__(self, text: str):
        bare = re.sub(r"//[^\n]*", "", text)
        self._matches = re.finditer(r"-?[\w.]+|[^\w\s]", bare)
        self._text = bare
        self._at = 0

    def __next__(self) -> str:
        match = next(self._matches)
        self._at = match.start()
        return match[0]

    def expect(self, word: str) -> None:
        found = next(self, "end of text")
        if found != word:
            self.fail(f"expected {word!r}, found {found!r}")

    def until(self, end: str) -> list[str]:
        """The words before `end`, which is consumed."""
        found = list(iter(lambda: next(self, end), end))
        return found or self.fail(f"nothing before {end!r}")

    def fail(self, message: str) -> NoReturn:
        raise ValueError(f"line {self._text.count(chr(10), 0, self._at) + 1}: {message}")


def _enum(words: _Words) -> Enum:
    name = next(words)
    words.expect(":")
    storage = next(words)
    if storage not in INTEGERS:
        words.fail(f"enum {name} cannot be stored as {storage!r}")
    return Enum(name, storage, _members(words))


def _members(words: _Words) -> dict[str, int]:
    """`{ A = 1, B = 2, }`."""
    members: dict[str, int] = {}
    words.expect("{")
    for name in iter(lambda: next(words), "}"):
        words.expect("=")
        members[name] = int(next(words))
        words.expect(",")
    return members


def _table(words: _Words, schema: Schema) -> TableDef:
    name = next(words)
    fields: list[Field] = []
    words.expect("{")
    for field_name in iter(lambda: next(words), "}"):
        fields.append(_field(field_name, words, schema))
    after = 0
    for item in fields:
        if item.slot != after + (item.type in schema.unions):
            words.fail(f"the ids of table {name} are not 0, 1, 2... at {item.name}")
        after = item.slot + 1
    return TableDef(name, tuple(fields))


def _field(name: str, words: _Words, schema: Schema) -> Field:
    """`name: type = default (id: n, key);`."""
    words.expect(":")
    kind = next(words)
    if kind == "[":
        kind = f"[{next(words)}]"
        words.expect("]")
    word, default = next(words), ""
    if word == "=":
        default, word = next(words), next(words)
    if word != "(":
        words.fail(f"field {name} has no id")
    attributes = words.until(";")
    if attributes[:2] != ["id", ":"] or attributes[-1] != ")":
        words.fail(f"field {name} has no id")
    return Field(name, int(attributes[2]), kind, _default(kind, default, schema))


def _default(kind: str, text: str, schema: Schema) -> bool | int | float | None:
    if kind in schema.enums:
        return schema.enums[kind].members[text] if text else 0
    if kind == "bool":
        return text == "true"
    if kind in INTEGERS:
        return int(text or 0)
    return float(text or 0.0) if kind in ("float", "double") else None


def _check_types(schema: Schema) -> None:
    known = {"string", *SCALARS, *schema.enums, *schema.unions, *schema.tables}
    used = {item.type.strip("[]") for table in schema.tables.values() for item in table.fields}
    held = {member for union in schema.unions.values() for member in union.members}
    if unknown := (used - known) | (held - set(schema.tables)):
        raise ValueError(f"undefined types: {', '.join(sorted(unknown))}")
