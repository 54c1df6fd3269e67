"""MNN file -> graph. Nothing in the file is trusted: sizes, indices and lengths are checked before use."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import mnnconvert.ops  # noqa: F401  (registers the ops)
from mnnconvert.errors import ConversionError, MnnConvertError
from mnnconvert.ir import F32, ArrayTensor, CodedTensor, CodedWeights, FileTensor, Graph, HalfTensor, Node, Spec, Value
from mnnconvert.ir.tensor import release_array
from mnnconvert.ir.types import Shape
from mnnconvert.ops.base import READERS, Op
from mnnconvert.ops.layout import Opaque
from mnnconvert.ops.steps import spread_steps
from mnnconvert.schema import codec, flatbuffer, tables
from mnnconvert.schema.base import Table
from mnnconvert.schema.forms import Fields
from mnnconvert.schema.shapes import infer_shapes
from mnnconvert.schema.steps import read_value
from mnnconvert.schema.weights import DATA_TYPES, WeightSource, in_memory
from mnnconvert.schema.writer import META_KEY, map_file


def read_net(path: Path) -> tables.Net:
    """The root table of a file."""
    try:
        net = flatbuffer.read(map_file(path), tables.Net)
    except MnnConvertError as error:
        for diagnostic in error.diagnostics:
            diagnostic.context.setdefault("file", str(path))
        raise
    if net.oplists is None or net.tensorName is None:
        raise ConversionError.of("bad-mnn-file", f"'{path}' has no ops or no tensor names", file=path)
    return net


def read_model(path: Path) -> Graph:
    """The graph of a `.mnn` file; weights in `path`.weight are read when they are used."""
    net = read_net(path)
    beside = Path(f"{path}.weight")
    if not beside.exists():  # a link to a model finds the weights of that model
        beside = Path(f"{os.path.realpath(path)}.weight")
    return graph_of(net, WeightSource(beside))


def graph_of(net: tables.Net, weights: WeightSource) -> Graph:
    """The graph of tables that were read."""
    metadata = _metadata(net)
    types, shapes = _own_metadata(metadata.pop(META_KEY, "{}"))
    graph = Graph(metadata=metadata, source=_source_name(net.sourceType), source_types=types)
    scope = _Scope(graph, net.tensorName or [], weights)
    scope.read_ops(net.oplists or [])
    scope.read_steps(net.extraTensorDescribe or [])
    scope.restore_symbols(shapes)
    scope.set_outputs(net.outputName)
    for sub in net.subgraphs or []:
        graph.subgraphs[sub.name or ""] = _subgraph(sub, weights)
    infer_shapes(graph, graph.subgraphs)
    for each in graph.graphs():
        spread_steps(each)
    return graph


def _own_metadata(text: str) -> tuple[dict[str, str], dict[str, list[Any]]]:
    """Source types and symbolic shapes by name, as `writer` stores them under its own key."""
    try:
        extra = json.loads(text)
        types = {str(k): str(np.dtype(v)) for k, v in extra.get("types", {}).items()}
        shapes = {str(k): [d if isinstance(d, int) else str(d) for d in v] for k, v in extra.get("shapes", {}).items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ConversionError.of("bad-mnn-file", f"the metadata '{META_KEY}' cannot be read: {error}") from error
    return types, shapes


def _source_name(number: int) -> str:
    return tables.NetSource(number).name if number in list(tables.NetSource) else "ONNX"


def _metadata(net: tables.Net) -> dict[str, str]:
    """Metadata pairs; a buffer that is not one of ours in form is left unread."""
    buffer = b"" if net.extraInfo is None or net.extraInfo.buffer is None else in_memory(net.extraInfo.buffer).tobytes()
    if not buffer:
        return {}
    extra: Any = flatbuffer.read(buffer, tables.Extra)
    return {a.key: a.s or "" for a in extra.attr or [] if a.key}


def _subgraph(sub: tables.SubGraphProto, weights: WeightSource) -> Graph:
    graph = Graph(name=sub.name or "")
    scope = _Scope(graph, sub.tensors or [], weights)
    scope.read_ops(sub.nodes or [])
    scope.read_steps(sub.extraTensorDescribe or [])
    graph.inputs = scope.values_at(sub.inputs)
    outputs = scope.values_at(sub.outputs)
    graph.outputs = [(v.name, v) for v in outputs]
    return graph


class _Scope:
    """One tensor-name table and its ops."""

    def __init__(self, graph: Graph, names: Sequence[str], weights: WeightSource):
        self.graph = graph
        self.names = names
        self.weights = weights
        self.values: dict[int, Value] = {}

    def value(self, index: int) -> Value:
        """The value of a tensor index."""
        if not 0 <= index < len(self.names):
            raise ConversionError.of(
                "bad-mnn-file", f"tensor index {index} is outside the table of {len(self.names)} names"
            )
        if index not in self.values:
            self.values[index] = Value(self.names[index] or f"tensor_{index}", Spec(F32))
        return self.values[index]

    def values_at(self, indexes: Any) -> list[Value]:
        """The values of a vector of tensor indices."""
        return [] if indexes is None else [self.value(int(i)) for i in indexes]

    def read_ops(self, ops: Sequence[tables.Op]) -> None:
        """Inputs and constants become values, everything else nodes."""
        for op in ops:
            outputs = self.values_at(op.outputIndexes)
            if op.type == tables.OpType.Input:
                self._input(op, outputs)
            elif op.type in (tables.OpType.Const, tables.OpType.TrainableParam):
                self._constant(op, outputs)
            else:
                self._node(op, outputs)

    def read_steps(self, described: Sequence[tables.TensorDescribe]) -> None:
        """The steps of tensors that an integer engine holds in codes; other descriptions say nothing new."""
        for entry in described:
            read_value(self.value(entry.index), entry.quantInfo)

    def _input(self, op: tables.Op, outputs: list[Value]) -> None:
        main = op.main
        if not isinstance(main, tables.Input) or len(outputs) != 1:
            raise ConversionError.of("bad-mnn-file", f"the input '{op.name}' has no description")
        shape: Shape | None = None
        prefix = f"{self.graph.name}/" if self.graph.name else ""
        if main.dims is not None:
            shape = tuple(
                int(d) if d >= 0 else f"{prefix}{outputs[0].name}.{i}" for i, d in enumerate(np.asarray(main.dims))
            )
        dtype = DATA_TYPES.get(main.dtype, F32)
        outputs[0].spec = Spec(F32 if dtype.itemsize == 2 else dtype, shape)
        self.graph.inputs.append(outputs[0])

    def restore_symbols(self, shapes: dict[str, list[Any]]) -> None:
        """Give symbolic sizes the names they had in the source."""
        for value in self.graph.inputs:
            named = shapes.get(value.name)
            if named is not None and value.shape is not None and len(named) == len(value.shape):
                value.spec.shape = tuple(named)

    def _constant(self, op: tables.Op, outputs: list[Value]) -> None:
        if not isinstance(op.main, tables.Blob) or len(outputs) != 1:
            raise ConversionError.of("bad-mnn-file", f"the constant '{op.name}' has no data")
        outputs[0].tensor = tensor = self.weights.blob(op.main)
        small = isinstance(tensor, ArrayTensor) and tensor.array.size <= 64
        outputs[0].spec = Spec(tensor.dtype, tuple(tensor.shape), tensor.numpy() if small else None)

    def _node(self, op: tables.Op, outputs: list[Value]) -> None:
        inputs = self.values_at(op.inputIndexes)
        name = op.name or (outputs[0].name if outputs else "")
        kind = tables.OpType(op.type).name if op.type in list(tables.OpType) else f"OpType {op.type}"
        reader = READERS.get(kind)
        made: Any
        if reader is None or not reader.reads(_fields_of(op)):
            made = Opaque(int(op.type), kind, op.main, len(outputs))
        else:
            made = _parse(reader, kind, op, name).for_results(len(outputs))
            inputs = self._embedded(made, op, inputs, name)
        self.graph.nodes.append(Node(made, inputs, outputs, name, (name,)))

    def _embedded(self, made: Op, op: tables.Op, inputs: list[Value], name: str) -> list[Value]:
        """The operands, those stored in the table included."""
        if not made.embedded or len(inputs) > len(made.embedded) or op.main is None:
            return inputs
        if not inputs:
            raise ConversionError.of("bad-mnn-file", f"the op '{name}' has no operands")
        found = self.weights.embedded(op.main, made.embedded)
        if not found:
            return inputs
        counts = {key: _count(data) for key, data in found.items()}
        shapes = made.embedded_shapes(Fields(op.main), {key: counts.get(key, 0) for key in made.embedded})
        common = getattr(op.main, "common", None)
        rows = common.outputCount if common is not None else 0
        stored = []
        for key, shape in zip(made.embedded, shapes, strict=True):
            sizes = tuple(int(d) for d in shape if isinstance(d, int))
            tensor = self._stored(found.get(key), sizes, f"{name}.{key}", rows)
            stored.append(Value(f"{name}.{key}", Spec(tensor.dtype, sizes), tensor))
        return [inputs[0], *stored, *inputs[1:]]

    def _stored(self, data: Any, shape: tuple[int, ...], name: str, rows: int) -> Any:
        """The tensor of an operand; what several ops share in the file is one tensor."""
        key = (_place(data), shape, rows)
        if key not in self.weights.tensors:  # the data are kept too: their place must not be given to others
            self.weights.tensors[key] = _tensor_of(data, shape, name, rows), data
        return self.weights.tensors[key][0]

    def set_outputs(self, names: Sequence[str] | None) -> None:
        """The named outputs, or what is produced and never read."""
        by_name = {v.name: v for v in self.values.values()}
        if names:
            unknown = [n for n in names if n not in by_name]
            if unknown:
                raise ConversionError.of("bad-mnn-file", f"the output '{unknown[0]}' is no tensor of the file")
            self.graph.outputs = [(n, by_name[n]) for n in names]
            return
        results = [v for node in self.graph.nodes for v in node.outputs if not v.users]
        self.graph.outputs = [(v.name, v) for v in results]


def _fields_of(op: tables.Op) -> Any:
    return Fields(op.main) if isinstance(op.main, Table) else {}


def _parse(reader: type[Op], kind: str, op: tables.Op, name: str) -> Op:
    try:
        return reader.parse(kind, _fields_of(op))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ConversionError.of(
            "bad-mnn-file", f"the op '{name}' ({kind}) has parameters that do not fit: {error}"
        ) from error


def _count(data: Any) -> int:
    if isinstance(data, codec.IDSTFields):
        return codec.element_count(data)
    return int(data.size)


def _place(data: Any) -> object:
    """Where the data of an operand lie: equal for ops that refer to the same place."""
    if isinstance(data, FileTensor):
        return str(data.path), data.offset, str(data.dtype)
    return data.__array_interface__["data"][0] if isinstance(data, np.ndarray) else id(data)


def _tensor_of(data: Any, shape: tuple[int, ...], name: str, rows: int) -> Any:
    """A tensor of the given shape from what a table holds; a coding has one scale (or more) for each of `rows`."""
    count = math.prod(shape)
    if data is None:
        return ArrayTensor(np.zeros(shape, np.float32))
    if isinstance(data, codec.IDSTFields):
        return _coded_tensor(data, shape, rows)
    if data.size != count:
        raise ConversionError.of("bad-mnn-file", f"'{name}' holds {data.size} numbers instead of {count}")
    if isinstance(data, np.ndarray):
        return ArrayTensor(data.reshape(shape))
    data.shape = shape
    return data


def _coded_tensor(fields: codec.IDSTFields, shape: tuple[int, ...], rows: int) -> Any:
    if fields.type == 3:
        count = math.prod(shape)
        if fields.buffer.size != 2 * count:
            raise ConversionError.of(
                "bad-weight-coding", f"a half weight holds {fields.buffer.size} bytes instead of {2 * count}"
            )
        return HalfTensor(ArrayTensor(fields.buffer.view(np.float16).reshape(shape)))
    decoded = codec.decode(fields, rows, math.prod(shape) // max(rows, 1))
    if isinstance(decoded, CodedWeights):
        release_array(fields.buffer)
        return CodedTensor(decoded, shape)
    return ArrayTensor(np.asarray(decoded, np.float32).reshape(shape))
