"""Random trees over the whole schema, and the few helpers that the tests of this folder share."""

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np

from mnnconvert.schema.base import Table
from mnnconvert.schema.flatbuffer import write
from mnnconvert.schema.plan import Column, columns
from mnnconvert.schema.tables import TABLES

TEXTS = ["", "x", "conv/weight:0", "größe", '層\n\t"quoted" \\', "\0\x7f", "nan", "long " * 50]
FLOATS = [0.0, -1.5, 0.1, 1e-38, 3.4e38, float("inf"), float("-inf"), float("nan"), 16777217.0]
LENGTHS = [0, 1, 2, 3, 7, 100, 5000]


def to_bytes(root: Table) -> bytes:
    """The FlatBuffer of `root`."""
    stream = io.BytesIO()
    assert write(root, stream) == len(stream.getvalue())
    return stream.getvalue()


def random_tree(seed: int, kind: type[Table] | None = None) -> Table:
    """A table of `kind` (else of any kind), about half of whose fields are set, four levels deep at most."""
    source = random.Random(seed)
    return _table(source, kind or source.choice(list(TABLES.values())), 4)


def _table(source: random.Random, kind: type[Table], depth: int) -> Table:
    table = kind()
    for column in columns(kind):
        if column.kind != "tag" and source.random() < 0.5:
            setattr(table, column.name, _value(source, column, depth))
    return table


def _value(source: random.Random, column: Column, depth: int) -> Any:
    if column.kind == "scalar":
        return _scalar(source, column.packer.format[1])
    if column.kind == "enum":
        return source.choice([*column.members.values(), 99])
    if column.kind == "string":
        return source.choice(TEXTS)
    if column.kind == "strings":
        return source.choices(TEXTS, k=source.choice(LENGTHS[:4]))
    if column.kind == "scalars":
        return _vector(source, column.dtype)
    if depth == 0:
        return column.default
    if column.kind == "union":
        return _table(source, source.choice(list(column.members.values())), depth - 1)
    assert column.table is not None
    if column.kind == "table":
        return _table(source, column.table, depth - 1)
    return [_table(source, column.table, depth - 1) for _ in range(source.choice(LENGTHS[:4]))]


def _scalar(source: random.Random, code: str) -> Any:
    if code == "f":
        return source.choice(FLOATS)
    if code == "?":
        return source.random() < 0.5
    limits = {"b": (-128, 127), "B": (0, 255), "i": (-(2**31), 2**31 - 1), "I": (0, 2**32 - 1)}[code]
    return source.choice([*limits, source.randint(*limits), 0, 1])


def _vector(source: random.Random, dtype: np.dtype[Any]) -> np.ndarray:
    count = source.choice(LENGTHS)
    if dtype.kind == "f" and source.random() < 0.3:
        return np.array(source.choices(FLOATS, k=count), dtype)
    data = np.frombuffer(source.randbytes(count * dtype.itemsize), dtype)
    if dtype.kind == "b":
        return np.frombuffer(data, "u1") % 2 == 1
    return np.where(np.isnan(data), np.float32(1), data) if dtype.kind == "f" else data
