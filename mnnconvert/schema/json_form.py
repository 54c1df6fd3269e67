"""The JSON form of a model: what MNN's own converter writes and reads with `--JsonFile`, without loss of precision.

Names are those of the schema, enums are strings, and a union `main` has its table's name in `main_type`. Floats are
the shortest text that gives the same single-precision number back; NaN and infinities are the bare words `nan`, `inf`
and `-inf`, which MNN's converter prints but does not read. What is absent in the JSON has its default.
"""

from __future__ import annotations

import io
import json
import re
import struct
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TextIO, TypeVar

import numpy as np
from numpy.typing import NDArray

from mnnconvert.errors import ConversionError
from mnnconvert.schema.base import Payload, Table
from mnnconvert.schema.plan import MAX_DEPTH, Column, columns

T = TypeVar("T", bound=Table)

CHUNK = 1 << 16  # elements of a vector that are turned into text at once
_BARE_WORDS = re.compile(r'"(?:[^"\\]|\\.)*"|[-+]?\b(?:nan|inf|infinity)\b', re.IGNORECASE)


def to_json(root: Table, stream: TextIO) -> None:
    """Write `root` as JSON text, with the defaults of its scalars spelled out."""
    for piece in _table_text(root, "\n"):
        stream.write(piece)
    stream.write("\n")


def _table_text(table: Table, newline: str) -> Iterator[str]:
    """`newline` is the line break with the indentation of the enclosing line."""
    inner = newline + "  "
    separator = "{" + inner
    for column in columns(type(table)):
        value = getattr(table, column.name)
        if value is None:
            continue
        key = column.name + "_type" if column.kind == "tag" else column.name
        yield f'{separator}"{key}": '
        yield from _value_text(column, value, inner)
        separator = "," + inner
    yield "{}" if separator.startswith("{") else newline + "}"


def _value_text(column: Column, value: Any, newline: str) -> Iterator[str]:
    if column.kind == "scalar":
        yield _scalar_text(value, column)
    elif column.kind == "enum":
        yield _enum_text(value, column)
    elif column.kind == "tag":
        yield f'"{type(value).__name__}"'
    elif column.kind == "string":
        yield json.dumps(value, ensure_ascii=False)
    elif column.kind in ("table", "union"):
        yield from _table_text(value, newline)
    elif column.kind == "strings":
        yield json.dumps(value, ensure_ascii=False)
    elif column.kind == "scalars":
        yield from _vector_text(value, column)
    else:
        yield from _tables_text(value, newline)


def _tables_text(tables: list[Table], newline: str) -> Iterator[str]:
    separator = "["
    for table in tables:
        yield separator + newline + "  "
        yield from _table_text(table, newline + "  ")
        separator = ","
    yield newline + "]" if tables else "[]"


def _scalar_text(value: Any, column: Column) -> str:
    if column.packer.format == "<?":
        return "true" if value else "false"
    return str(np.float32(value)) if column.packer.format == "<f" else str(int(value))


def _enum_text(value: int, column: Column) -> str:
    member = column.members.get(int(value))
    return str(int(value)) if member is None else f'"{member.name}"'


def _vector_text(value: NDArray[Any] | Payload, column: Column) -> Iterator[str]:
    array = _elements(value, column)
    separator = "["
    for start in range(0, array.size, CHUNK):
        yield separator + _chunk_text(array[start : start + CHUNK], column)
        separator = ", "
    yield "]" if array.size else "[]"


def _elements(value: NDArray[Any] | Payload, column: Column) -> NDArray[Any]:
    """The elements of a vector in one dimension; a payload is brought into memory."""
    if isinstance(value, np.ndarray):
        return value.reshape(-1)
    stream = io.BytesIO()
    value.write_to(stream)
    return np.frombuffer(stream.getbuffer(), column.dtype)


def _chunk_text(array: NDArray[Any], column: Column) -> str:
    if column.enum is not None:
        return ", ".join(_enum_text(number, column) for number in array.tolist())
    if array.dtype.kind == "f":
        return ", ".join(map(str, array))  # numpy prints a single-precision number as short as it can be
    text = str(array.tolist())[1:-1]
    return text.lower() if array.dtype.kind == "b" else text


def from_json(source: str | TextIO, root: type[T]) -> T:
    """The tree that JSON text describes, with its scalar vectors as arrays.

    Accepts what MNN's converter writes. Raises ConversionError `bad-json-model`, with the path of the offending value,
    for text that is not JSON, unknown fields, wrong types and numbers that do not fit.
    """
    try:
        document = _parse(source if isinstance(source, str) else source.read())
    except (ValueError, RecursionError) as error:
        raise ConversionError.of("bad-json-model", f"The text is not JSON: {error}.") from error
    return _table(document, root, "", 1)


def _parse(text: str) -> Any:
    """JSON, or else JSON with the bare words of FlatBuffers for numbers that are not finite."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return json.loads(_BARE_WORDS.sub(_standard_word, text))


def _standard_word(match: re.Match[str]) -> str:
    word = match[0].lower()
    if word.startswith('"'):
        return match[0]
    if word.endswith("nan"):
        return "NaN"
    return "-Infinity" if word.startswith("-") else "Infinity"


def _fail(path: str, sentence: str) -> NoReturn:
    raise ConversionError.of("bad-json-model", f"{sentence}.", path=path or "(root)")


def _expect(value: Any, kind: type | tuple[type, ...], path: str, wanted: str) -> None:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        _fail(path, f"Expected {wanted}, found {_shown(value)}")


def _shown(value: Any) -> str:
    """A JSON value, short enough for a sentence."""
    kinds = {dict: "an object", list: "a list", type(None): "null"}
    return kinds.get(type(value)) or f"{json.dumps(value):.40}"


def _table(value: Any, kind: type[T], path: str, depth: int) -> T:
    _expect(value, dict, path, "an object")
    if depth > MAX_DEPTH:
        _fail(path, f"Objects are nested deeper than {MAX_DEPTH} levels")
    table, left = kind(), dict(value)
    for column in columns(kind):
        if column.kind == "tag":
            tag = left.pop(column.name + "_type", None)
        elif (item := left.pop(column.name, None)) is not None:
            where = _join(path, column.name)
            if column.kind == "union":
                setattr(table, column.name, _table(item, _member(tag, column, where), where, depth + 1))
            else:
                setattr(table, column.name, _READERS[column.kind](item, column, where, depth))
    for key in left:
        _fail(_join(path, key), f"The table {kind.__name__} has no such field")
    return table


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _member(tag: Any, column: Column, path: str) -> type[Table]:
    """The table that `main_type` tells, by name or by number."""
    member: type[Table]
    for number, member in column.members.items():
        if tag == member.__name__ or (type(tag) is int and tag == number):
            return member
    _fail(f"{path}_type", f"Expected the name of the table in {column.name!r}, found {_shown(tag)}")


def _scalar(value: Any, column: Column, path: str, depth: int) -> Any:
    form = column.packer.format
    if form == "<?":
        if value not in (0, 1):
            _fail(path, f"Expected true or false, found {_shown(value)}")
        return bool(value)
    if form == "<f":
        _expect(value, (int, float), path, "a number")
    else:
        _expect(value, int, path, "a whole number")
    return _fitting(value, column, path)


def _fitting(value: Any, column: Column, path: str) -> Any:
    """The value as the file holds it."""
    try:
        return column.packer.unpack(column.packer.pack(value))[0]
    except (struct.error, OverflowError):
        _fail(path, f"The number {_shown(value)} does not fit the field")


def _enum(value: Any, column: Column, path: str, depth: int) -> Any:
    if isinstance(value, str) and column.enum is not None:
        if value not in column.enum.__members__:
            _fail(path, f"{column.enum.__name__} has no member {_shown(value)}")
        return column.enum[value]
    _expect(value, int, path, "the name of an enum member or a whole number")
    number = _fitting(value, column, path)
    return column.members.get(number, number)


def _string(value: Any, column: Column, path: str, depth: int) -> Any:
    _expect(value, str, path, "a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        _fail(path, "The string holds half of a surrogate pair")
    return value


def _one_table(value: Any, column: Column, path: str, depth: int) -> Table:
    return _table(value, _held(column), path, depth + 1)


def _strings(value: Any, column: Column, path: str, depth: int) -> list[str]:
    _expect(value, list, path, "a list of strings")
    return [_string(item, column, f"{path}[{i}]", depth) for i, item in enumerate(value)]


def _tables(value: Any, column: Column, path: str, depth: int) -> list[Table]:
    _expect(value, list, path, "a list of objects")
    return [_table(item, _held(column), f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]


def _held(column: Column) -> type[Table]:
    assert column.table is not None
    return column.table


def _scalars(value: Any, column: Column, path: str, depth: int) -> NDArray[Any]:
    _expect(value, list, path, "a list of numbers")
    if column.enum is not None:
        numbers = column.enum.__members__
        value = [int(numbers[item]) if isinstance(item, str) and item in numbers else item for item in value]
    array = _as_array(value, column.dtype)
    if array is None:
        wrong = next(i for i, item in enumerate(value) if _as_array([item], column.dtype) is None)
        _fail(f"{path}[{wrong}]", f"{_shown(value[wrong])} is not an element of a {column.dtype} list")
    return array


def _as_array(values: list[Any], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """The values as an array of `dtype`, or None when one of them is of another kind or does not fit."""
    try:
        wide = np.array(values) if values else np.empty(0, dtype)
    except (ValueError, OverflowError):  # lists inside, or an integer beyond 64 bits
        return None
    if wide.ndim != 1 or wide.dtype.kind not in {"f": "iuf", "b": "biu"}.get(dtype.kind, "iu"):
        return None
    with np.errstate(over="ignore"):
        array = wide.astype(dtype)
    same = np.isinf(array) == np.isinf(wide) if dtype.kind == "f" else array == wide
    return array if same.all() else None


_READERS: dict[str, Callable[[Any, Column, str, int], Any]] = {
    "scalar": _scalar,
    "enum": _enum,
    "string": _string,
    "table": _one_table,
    "strings": _strings,
    "tables": _tables,
    "scalars": _scalars,
}
