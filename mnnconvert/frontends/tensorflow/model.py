"""A GraphDef as plain records: nodes by name, attributes read when they are asked for, functions as graphs.

The numbers of the fields are those of the published message definitions (graph, node_def, attr_value, tensor,
tensor_shape, function, op_def).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mnnconvert.errors import ConversionError, unreadable
from mnnconvert.frontends.tensorflow.wire import Message, bad, fields
from mnnconvert.ir.tensor import MappedFile

DATA_TYPES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 7: "string", 8: "complex64",
    9: "int64", 10: "bool", 11: "qint8", 12: "quint8", 13: "qint32", 14: "bfloat16", 15: "qint16", 16: "quint16",
    17: "uint16", 18: "complex128", 19: "float16", 20: "resource", 21: "variant", 22: "uint32", 23: "uint64",
    24: "float8_e5m2", 25: "float8_e4m3fn", 29: "int4", 30: "uint4",
}  # fmt: skip
STORED = {"qint8": "int8", "quint8": "uint8", "qint32": "int32", "qint16": "int16", "quint16": "uint16"}
LISTS = {  # element type -> field of TensorProto that lists its numbers, and how they are stored there
    "float32": (5, "<f4"), "float64": (6, "<f8"), "int32": (7, ""), "uint8": (7, ""), "int16": (7, ""),
    "int8": (7, ""), "uint16": (7, ""), "int64": (10, ""), "bool": (11, ""), "float16": (13, ""),
    "bfloat16": (13, ""), "complex64": (9, "<f4"), "complex128": (12, "<f8"), "uint32": (16, ""), "uint64": (17, ""),
    "int4": (7, ""), "uint4": (7, ""),
}  # fmt: skip
BITS = ("float16", "bfloat16")  # listed as the integers that have their bits
CHECKPOINT = (".meta", ".index")
OPEN = -1
MOST_ELEMENTS = 1 << 31  # of a constant that is told by one number


def type_name(number: int) -> str:
    """The element type with this number; that of a reference is the type that it refers to."""
    return DATA_TYPES.get(number % 100, f"type {number}")


@dataclass(frozen=True)
class SourceTensor:
    """A constant: its type, shape, and the message that holds its numbers."""

    type: str
    shape: tuple[int, ...]
    proto: Message

    def array(self) -> np.ndarray:
        """Its numbers, as a view of the file where they are stored as bytes; strings as objects."""
        count = math.prod(self.shape)
        if count > MOST_ELEMENTS:
            raise bad(f"a constant has the sizes {list(self.shape)}")
        if self.type == "string":
            return np.array(self._filled([bytes(v) for v in self.proto.views(8)], count, b""), object)
        if self.type not in LISTS and self.type not in STORED:
            raise ConversionError.of("unsupported-type", f"a constant of {self.type} is not supported")
        kind = STORED.get(self.type, self.type)
        content = self.proto.views(4)
        if content and len(content[-1]):
            return _of_bytes(content[-1], kind, self.shape)
        return _listed(self.proto, kind, count).reshape(self.shape)

    def _filled(self, values: list[Any], count: int, default: Any) -> list[Any]:
        return (values + [values[-1] if values else default] * count)[:count]


def _dtype(kind: str) -> np.dtype:
    import ml_dtypes

    found: Any = getattr(ml_dtypes, kind, kind)
    return np.dtype(found)


def _of_bytes(content: memoryview, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    dtype = _dtype(kind)
    if len(content) != dtype.itemsize * math.prod(shape):
        raise bad(f"a constant of {list(shape)} {kind} holds {len(content)} bytes")
    return np.frombuffer(content, dtype).reshape(shape)


def _listed(proto: Message, kind: str, count: int) -> np.ndarray:
    """Numbers that are listed; the last one stands for all that are missing, zero where there is none."""
    number, stored = LISTS[kind]
    if stored:
        values = proto.numbers(number, stored)
        values = values.view(kind) if kind.startswith("complex") else values
    elif kind in BITS:
        values = np.array(proto.ints(number), np.uint16).view(_dtype(kind))
    else:
        whole = np.array(proto.ints(number), object)
        values = (whole & 0xFFFFFFFFFFFFFFFF).astype(np.uint64).astype(_dtype(kind)) if len(whole) else np.zeros(0)
    if len(values) >= count:
        return values[:count].astype(_dtype(kind), copy=False)
    last = values[-1] if len(values) else 0
    made = np.full(count, last, _dtype(kind))
    made[: len(values)] = values
    return made


def read_tensor(proto: Message) -> SourceTensor:
    shape = read_shape(proto.message(2))
    if shape is None or min(shape, default=0) < 0:
        raise bad("a constant has open sizes")
    return SourceTensor(type_name(proto.integer(1)), shape, proto)


def read_shape(proto: Message | None) -> tuple[int, ...] | None:
    """Sizes, an open one as -1; None for an unknown rank."""
    if proto is None:
        return ()
    if proto.integer(3):
        return None
    return tuple(dim.integer(1) for dim in proto.messages(2))


def _value(proto: Message) -> Any:
    """An AttrValue as what it holds: bytes, int, float, bool, type name, shape, tensor, function name, or a list."""
    for number, (_, read) in KINDS.items():
        if proto.has(number):
            return read(proto, number)
    listed = proto.message(1)
    if listed is None:
        return None
    return next((values(listed, n) for n, (values, _) in KINDS.items() if listed.has(9 if n == 10 else n)), [])


KINDS: dict[int, tuple[Any, Any]] = {  # field -> how to read it as a list, and as one value
    2: (lambda m, n: [bytes(v) for v in m.views(n)], Message.data),
    3: (Message.ints, Message.integer),
    4: (lambda m, n: m.numbers(n, "<f4").tolist(), Message.real),
    5: (lambda m, n: [bool(v) for v in m.ints(n)], lambda m, n: bool(m.integer(n))),
    6: (lambda m, n: [type_name(v) for v in m.ints(n)], lambda m, n: type_name(m.integer(n))),
    7: (lambda m, n: [read_shape(v) for v in m.messages(n)], lambda m, n: read_shape(m.message(n))),
    8: (lambda m, n: [read_tensor(v) for v in m.messages(n)], lambda m, n: read_tensor(m.message(n) or m)),
    10: (lambda m, n: [v.text(1) for v in m.messages(9)], lambda m, n: (m.message(n) or m).text(1)),
}


def _attributes(entries: Sequence[memoryview]) -> dict[str, memoryview]:
    found = {}
    for entry in entries:
        pair = Message(entry)
        found[pair.text(1)] = (pair.views(2) or [memoryview(b"")])[-1]
    return found


@dataclass(frozen=True)
class SourceNode:
    """A node: operands as `name`, `name:port`, `name:result:index` (in functions) or `^name`, which is no operand."""

    name: str
    op: str
    inputs: tuple[str, ...]
    attributes: dict[str, memoryview] = field(default_factory=dict)

    @cached_property
    def operands(self) -> tuple[str, ...]:
        return tuple(i for i in self.inputs if not i.startswith("^"))

    def has(self, name: str) -> bool:
        return name in self.attributes

    def attribute(self, name: str, default: Any = None) -> Any:
        """What an attribute holds; `default` where it is not there."""
        view = self.attributes.get(name)
        return default if view is None else _value(Message(view))

    def text(self, name: str, default: str = "") -> str:
        value = self.attribute(name, default)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


@dataclass(frozen=True)
class SourceGraph:
    """Nodes by name. A function has arguments, which are operands without a node, and what each result refers to."""

    name: str
    nodes: dict[str, SourceNode]
    arguments: tuple[str, ...] = ()
    results: tuple[str, ...] = ()


@dataclass(frozen=True)
class SourceModel:
    """A whole model. Ports are (name for the user, name of the node or `node:port`)."""

    graph: SourceGraph
    functions: dict[str, SourceGraph]
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]


def read_node(view: memoryview) -> SourceNode:
    proto = Message(view)
    return SourceNode(proto.text(1), proto.text(2), tuple(proto.texts(3)), _attributes(proto.views(5)))


def _nodes(views: Sequence[memoryview]) -> dict[str, SourceNode]:
    nodes: dict[str, SourceNode] = {}
    for view in views:
        node = read_node(view)
        if node.name in nodes:
            raise bad(f"two nodes are called '{node.name}'")
        nodes[node.name] = node
    return nodes


def _function(proto: Message) -> SourceGraph:
    signature = proto.message(1)
    if signature is None:
        raise bad("a function has no signature")
    arguments = tuple(arg.text(1) for arg in signature.messages(2))
    ret = {pair.text(1): pair.text(2) for pair in proto.messages(4)}
    names = [arg.text(1) for arg in signature.messages(3)]
    if any(name not in ret for name in names):
        raise bad(f"the function '{signature.text(1)}' does not say what its results are")
    return SourceGraph(signature.text(1), _nodes(proto.views(3)), arguments, tuple(ret[name] for name in names))


def parse(content: memoryview, name: str = "main") -> tuple[SourceGraph, dict[str, SourceGraph]]:
    """The graph and the functions of a GraphDef."""
    proto = Message(content)
    if not proto.has(1):
        raise bad("there is no node in it")
    library = proto.message(2)
    functions = [_function(f) for f in library.messages(1)] if library is not None else []
    return SourceGraph(name, _nodes(proto.views(1))), {f.name: f for f in functions}


def is_graph_def(head: bytes) -> bool:
    """Whether the first bytes of a file look like those of a GraphDef: a first field that is a node with a name."""
    try:
        number, _, _ = next(fields(memoryview(head + bytes(1 << 20))[: 1 << 20]), (0, 0, 0))
    except ConversionError:
        return False
    return number == 1


def load_frozen(path: Path) -> SourceModel:
    """The model of a frozen GraphDef file: inputs are its placeholders, outputs the nodes that nobody reads."""
    from mnnconvert.frontends.tensorflow.ports import ports

    if (path.suffix or path.name).lower() in CHECKPOINT:
        raise ConversionError.of(
            "bad-tensorflow-file",
            f"'{path}' is part of a checkpoint, which does not say what the outputs of its network are", file=path,
            hint="import it (tf.compat.v1.train.import_meta_graph), restore the variables, and save a SavedModel, "
            "or freeze it",
        )  # fmt: skip
    try:
        content = memoryview(MappedFile.of(path)) if path.stat().st_size else memoryview(b"")
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        graph, functions = parse(content)
    except ConversionError as error:
        reason = error.diagnostics[0].message
        raise ConversionError.of(
            "bad-tensorflow-file", f"'{path}' is no GraphDef: {reason}", file=path,
            hint="-f TF takes a frozen .pb file in binary form, a SavedModel folder or a Keras file",
        ) from error  # fmt: skip
    inputs, outputs = ports(graph)
    return SourceModel(graph, functions, inputs, outputs)
