"""Graph -> MNN file. The file is built beside its target, read back, and only then given its name."""

from __future__ import annotations

import hashlib
import io
import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.ir import Graph, Node, Value
from mnnconvert.ir.tensor import MappedFile, fingerprint
from mnnconvert.ops.control import tell_apart
from mnnconvert.ops.layout import Opaque
from mnnconvert.schema import flatbuffer, tables
from mnnconvert.schema.files import staged
from mnnconvert.schema.forms import make_table, vector
from mnnconvert.schema.steps import describe_convolution, describe_value
from mnnconvert.schema.weights import BLOB_TYPES, ExternalFile, WeightStore

ENGINE_VERSION = "3.6.1"
INLINE_LIMIT = 2_000_000_000  # bytes; beyond it weights go to the external file by themselves
META_KEY = "mnnconvert"  # metadata entry with what the format has no field for


@dataclass(frozen=True)
class WrittenFile:
    """What was written: paths and sizes in bytes (`external` is 0 without an external weight file)."""

    path: Path
    size: int
    external_path: Path | None = None
    external_size: int = 0


class NetBuilder:
    """Turns a graph into the tables of a file."""

    def __init__(self, store: WeightStore):
        self.store = store
        self.graphs: dict[str, Graph] = {}

    def net(self, graph: Graph, biz_code: str = "") -> tables.Net:
        """The root table. Subgraphs are flattened into one list, found by name."""
        self.graphs = dict(_all_subgraphs(graph))
        tell_apart({"": graph, **self.graphs})
        scope = _Scope(self, graph)
        subgraphs = [self._subgraph(name, inner) for name, inner in _all_subgraphs(graph)]
        return tables.Net(
            bizCode=biz_code or None,
            extraTensorDescribe=scope.described(),
            extraInfo=tables.ExtraInfo(version=ENGINE_VERSION, buffer=_metadata(graph)),
            oplists=scope.ops,
            outputName=[name for name, _ in graph.outputs],
            sourceType=tables.NetSource[graph.source],
            tensorName=scope.names,
            subgraphs=subgraphs or None,
            mnn_uuid=_content_uuid(graph, biz_code),
        )

    def _subgraph(self, name: str, graph: Graph) -> tables.SubGraphProto:
        scope = _Scope(self, graph)
        return tables.SubGraphProto(
            name=name,
            extraTensorDescribe=scope.described(),
            inputs=np.array([scope.index[v] for v in graph.inputs], np.int32),
            outputs=np.array([scope.index[v] for _, v in graph.outputs], np.int32),
            tensors=scope.names,
            nodes=scope.ops,
        )


def _all_subgraphs(graph: Graph) -> Iterator[tuple[str, Graph]]:
    """Every graph that is run, inner ones first: the runtime finds only those that it has met."""
    for name, inner in graph.subgraphs.items():
        yield from _all_subgraphs(inner)
        yield name, inner


class _Scope:
    """One tensor-name table and its ops: the main graph or a subgraph."""

    def __init__(self, builder: NetBuilder, graph: Graph):
        self.store = builder.store
        self.graphs = builder.graphs
        self.names: list[str] = []
        self.index: dict[Value, int] = {}
        self.ops: list[tables.Op] = []
        for value in graph.inputs:
            self.ops.append(self._input(value))
        for node in graph.nodes:
            self._node(node)
        for _, value in graph.outputs:
            self._operand(value)

    def _tensor(self, value: Value) -> int:
        if value not in self.index:
            self.index[value] = len(self.names)
            self.names.append(value.name)
        return self.index[value]

    def described(self) -> list[tables.TensorDescribe] | None:
        """The steps of the tensors that an integer engine holds in codes."""
        entries = (describe_value(value, index) for value, index in self.index.items())
        return [entry for entry in entries if entry is not None] or None

    def _input(self, value: Value) -> tables.Op:
        dims = None if value.shape is None else vector("int", [d if isinstance(d, int) else -1 for d in value.shape])
        main = tables.Input(dims=dims, dtype=BLOB_TYPES[str(value.dtype)], dformat=tables.MNN_DATA_FORMAT.NCHW)
        return tables.Op(type=tables.OpType.Input, main=main, name=value.name, outputIndexes=self._indexes([value]))

    def _operand(self, value: Value) -> int:
        """The index of a value; a constant that is met for the first time gets its op."""
        if value.tensor is not None and value not in self.index:
            blob = self.store.blob(value.tensor)
            indexes = self._indexes([value])
            self.ops.append(tables.Op(type=tables.OpType.Const, main=blob, outputIndexes=indexes))
        return self._tensor(value)

    def _indexes(self, values: list[Value]) -> np.ndarray:
        return np.array([self._tensor(v) for v in values], np.int32)

    def _node(self, node: Node) -> None:
        op: Any = node.op
        if isinstance(op, Opaque):
            main, kind, layout_format = op.main, op.type, None
            inputs = node.inputs
        else:
            emission = op.emit(*(v.spec for v in node.inputs), **({"graphs": self.graphs} if op.subgraphs() else {}))
            main = None if emission.table is None else make_table(emission.table, emission.fields)
            kind, layout_format = tables.OpType[emission.type], emission.layout_format
            inputs = self._embed(node, main)
            describe_convolution(node, main)
        operands = [self._operand(v) for v in inputs]
        made = tables.Op(type=kind, main=main, name=node.name, outputIndexes=self._indexes(node.outputs))
        made.inputIndexes = np.array(operands, np.int32)
        if layout_format:
            made.defaultDimentionFormat = tables.MNN_DATA_FORMAT[layout_format]
        self.ops.append(made)

    def _embed(self, node: Node, main: Any) -> list[Value]:
        """Move constant operands into the table; the operands that remain."""
        op: Any = node.op
        names = op.embedded
        stored = node.inputs[1 : 1 + len(names)]
        if not names or len(stored) < len(names) or any(v.tensor is None for v in stored):
            return node.inputs
        self.store.embed(main, names, [v.tensor for v in stored if v.tensor is not None])
        return [node.inputs[0], *node.inputs[1 + len(names) :]]


def _metadata(graph: Graph) -> np.ndarray | None:
    """The metadata of the graph as a FlatBuffer of its own, with what the format cannot say under our key."""
    extra: dict[str, Any] = {}
    if graph.source_types:
        extra["types"] = graph.source_types
    symbols = {v.name: list(v.shape) for v in graph.inputs if v.shape and _has_named_size(v)}
    if symbols:
        extra["shapes"] = symbols
    pairs = dict(graph.metadata)
    if extra:
        pairs[META_KEY] = json.dumps(extra, sort_keys=True, separators=(",", ":"))
    if not pairs:
        return None
    attributes = [tables.Attribute(key=key, s=text) for key, text in pairs.items()]
    sink = io.BytesIO()
    flatbuffer.write(tables.Extra(type="Meta", engine="MNN", attr=attributes), sink)
    return np.frombuffer(sink.getvalue(), np.int8)


def _has_named_size(value: Value) -> bool:
    """Whether a symbol has a name that the reader would not give it by itself (`input.axis`)."""
    return any(isinstance(d, str) and d != f"{value.name}.{i}" for i, d in enumerate(value.shape or ()))


def _content_uuid(graph: Graph, biz_code: str) -> str:
    """A UUID that follows from what is written: the same model and options give the same file."""
    digest = hashlib.blake2b(digest_size=16)
    for inner in graph.graphs():
        for node in inner.nodes:
            digest.update(repr((node.name, node.op, [v.name for v in node.inputs])).encode())
        steps = [(v.name, v.steps) for v in inner.values() if v.steps is not None]
        digest.update(repr(steps).encode() if steps else b"")
        for value in inner.constants():
            if value.tensor is not None:
                digest.update(repr(fingerprint(value.tensor)).encode())
    digest.update(repr((graph.outputs, graph.metadata, biz_code)).encode())
    return str(uuid.UUID(bytes=digest.digest(), version=4))


def write_model(
    graph: Graph,
    target: Path,
    *,
    external: bool = False,
    biz_code: str = "",
    progress: Callable[[float], None] | None = None,
) -> WrittenFile:
    """Write `graph` to `target` (and `target`.weight with `external`, or when the file would pass 2 GB).

    The files appear under their names only when they are complete and have been read back; `progress` is told which
    fraction of the external weights is written. Raises
    `unwritable-output` when the folder or the disk refuses; nothing is left behind then.
    """
    files = ExternalFile() if external else None
    net = NetBuilder(WeightStore(files)).net(graph, biz_code)
    if files is not None:
        files.settle()
    if files is None and flatbuffer.layout_size(net) > INLINE_LIMIT:
        return write_model(graph, target, external=True, biz_code=biz_code, progress=progress)
    with staged(target) as path:
        weights = path.with_name(f"{path.name}.weight") if files is not None and files.size else None
        with path.open("wb", buffering=1 << 20) as stream:
            size = flatbuffer.write(net, stream)
        if files is not None and weights is not None:
            with weights.open("wb", buffering=1 << 20) as stream:
                files.write(stream, progress)
        flatbuffer.read(map_file(path), tables.Net)
    if weights is None:
        return WrittenFile(target, size)
    return WrittenFile(target, size, Path(f"{target}.weight"), files.size if files is not None else 0)


def map_file(path: Path) -> memoryview:
    """The bytes of a file, mapped into memory."""
    try:
        if path.stat().st_size == 0:
            raise ConversionError.of("bad-mnn-file", f"'{path}' is empty", file=path)
        return memoryview(MappedFile.of(path))
    except FileNotFoundError as error:
        raise ConversionError.of("missing-file", f"'{path}' does not exist", file=path) from error
    except OSError as error:
        raise ConversionError.of("unreadable-file", f"cannot read '{path}': {error.strerror}", file=path) from error
