"""Opens an ONNX file and gives its graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mnnconvert.errors import ConversionError
from mnnconvert.ir import Graph, Shape


def read_onnx(path: Path, shapes: Mapping[str, Shape] | None = None, batch: int = 0) -> Graph:
    """The graph of an ONNX file. Weights in external files stay there until they are needed."""
    from mnnconvert.frontends.onnx.importer import Importer

    return Importer(load_proto(path), path.resolve().parent, shapes, batch).run()


def load_proto(path: Path) -> Any:
    """The ModelProto of a file, without its external data. Raises `missing-file`, `bad-onnx-file`."""
    from onnx import ModelProto

    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise ConversionError.of("missing-file", f"'{path}' does not exist", file=path) from error
    except OSError as error:
        raise ConversionError.of("unreadable-file", f"cannot read '{path}': {error.strerror}", file=path) from error
    model = ModelProto()
    if not data:
        raise ConversionError.of("bad-onnx-file", f"'{path}' is empty", file=path)
    try:
        model.ParseFromString(data)
    except Exception as error:
        offset = broken_at(data)
        raise ConversionError.of(
            "bad-onnx-file",
            f"'{path}' is not an ONNX model: its structure breaks at byte {offset}",
            file=path,
            offset=offset,
        ) from error
    if not model.HasField("graph") or not model.opset_import:
        missing = "graph" if not model.HasField("graph") else "opset"
        raise ConversionError.of(
            "bad-onnx-file", f"'{path}' is not an ONNX model: it has no {missing}", file=path, offset=0
        )
    if any(isinstance(text, bytes) for text in _texts(model)):
        raise ConversionError.of("bad-onnx-file", f"'{path}' holds names that are not UTF-8 text", file=path)
    return model


def _texts(message: Any) -> Iterator[str | bytes]:
    """All texts of a message, weights aside; protobuf gives what does not decode as bytes."""
    for field, value in message.ListFields():
        one = isinstance(value, str | bytes) or hasattr(value, "ListFields")
        if field.type == field.TYPE_STRING:
            yield from [value] if one else value
        elif field.type == field.TYPE_MESSAGE:
            for inner in [value] if one else value:
                if field.message_type.name == "TensorProto":
                    yield inner.name
                else:
                    yield from _texts(inner)


def broken_at(data: bytes) -> int:
    """Offset of the first top-level protobuf field that is not well formed (or cut off)."""
    position = 0
    while position < len(data):
        start = position
        tag, position = _varint(data, position)
        kind = tag & 7
        if position < 0 or kind in (3, 4, 6, 7) or tag >> 3 == 0:
            return start
        if kind == 2:
            length, position = _varint(data, position)
            position += length
        elif kind == 0:
            _, position = _varint(data, position)
        else:
            position += 8 if kind == 1 else 4
        if position < 0 or position > len(data):
            return start
    return start if data else 0


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A varint and the position behind it; (0, a large negative number) when it is cut off."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            break
        byte = data[position]
        value |= (byte & 127) << shift
        position += 1
        if byte < 128:
            return value, position
    return 0, -(2**62)
