"""Small TFLite models built table by table, and the check that our graph computes what LiteRT computes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
import pytest
from graphs import run_graph, through_file
from onnx_cases import assert_equal

from mnnconvert.errors import ConversionError
from mnnconvert.frontends.tflite.importer import Importer
from mnnconvert.frontends.tflite.model import parse
from mnnconvert.ir import Graph, verify
from mnnconvert.passes.pipeline import run_pipeline
from mnnconvert.schema.writer import write_model
from mnnconvert.verify.litert_engine import LiteRtEngine
from mnnconvert.verify.mnn_engine import MnnEngine

schema: Any = pytest.importorskip("ai_edge_litert.schema_py_generated", reason="needs LiteRT (make setup)")

VERSIONS = {"BROADCAST_TO": 2}  # the oldest that LiteRT has, where that is not 1
STORED = {"bool": np.bool_, "string": np.uint8}


@dataclass
class T:
    """A tensor: its shape and type (-1 is an open size), its steps, and its content where it is a constant."""

    shape: tuple[int, ...] = ()
    type: str = "float32"
    scale: Any = None
    zero: Any = 0
    axis: int = 0
    data: Any = None
    name: str = ""
    variable: bool = False
    sparsity: Any = None


def const(values: Any, type: str = "", **more: Any) -> T:
    """A constant in the type of its values (int32 for plain integers)."""
    array = np.asarray(values)
    kind = type or {"int64": "int32", "float64": "float32"}.get(str(array.dtype), str(array.dtype))
    return T(array.shape, kind, data=array, **more)


@dataclass
class Op:
    """An operator: its name, operands and results by index, and the options table with its fields."""

    name: str
    inputs: list[int]
    outputs: list[int]
    options: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    custom: bytes = b""


@dataclass
class G:
    """A subgraph."""

    tensors: list[T]
    ops: list[Op]
    inputs: list[int]
    outputs: list[int]


def build(*graphs: G, signature: tuple[dict[str, int], dict[str, int]] | None = None) -> bytes:
    """The bytes of a model file."""
    model = schema.ModelT()
    model.version, model.description = 3, b""
    model.buffers, model.operatorCodes, model.subgraphs = [schema.BufferT()], [], []
    codes: dict[str, int] = {}
    for graph in graphs:
        table = schema.SubGraphT()
        table.tensors = [_tensor(model, t, i) for i, t in enumerate(graph.tensors)]
        table.inputs, table.outputs = graph.inputs, graph.outputs
        table.operators = [_operator(model, codes, op) for op in graph.ops]
        model.subgraphs.append(table)
    if signature is not None:
        model.signatureDefs = [_signature(*signature)]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _signature(inputs: dict[str, int], outputs: dict[str, int]) -> Any:
    made = schema.SignatureDefT()
    made.signatureKey, made.subgraphIndex = "serving_default", 0
    for name, ports in (("inputs", inputs), ("outputs", outputs)):
        maps = []
        for key, index in ports.items():
            entry = schema.TensorMapT()
            entry.name, entry.tensorIndex = key, index
            maps.append(entry)
        setattr(made, name, maps)
    return made


def _tensor(model: Any, source: T, index: int) -> Any:
    made = schema.TensorT()
    made.name = source.name or f"t{index}"
    made.type = getattr(schema.TensorType, source.type.upper())
    made.shape = [max(1, d) if d < 0 else d for d in source.shape]
    made.isVariable = source.variable
    if any(d < 0 for d in source.shape):
        made.shapeSignature = list(source.shape)
    made.buffer = 0
    if source.data is not None:
        buffer = schema.BufferT()
        buffer.data = _bytes(source)
        model.buffers.append(buffer)
        made.buffer = len(model.buffers) - 1
    made.sparsity = source.sparsity
    if source.scale is not None:
        steps = schema.QuantizationParametersT()
        steps.scale = np.atleast_1d(np.asarray(source.scale, np.float32))
        steps.zeroPoint = np.broadcast_to(np.asarray(source.zero, np.int64), steps.scale.shape).copy()
        steps.quantizedDimension = source.axis
        made.quantization = steps
    return made


def _bytes(source: T) -> np.ndarray:
    array = np.asarray(source.data)
    if source.type == "int4":
        flat = array.reshape(-1).astype(np.int8)
        flat = np.append(flat, np.zeros(flat.size % 2, np.int8)).view(np.uint8) & 15
        return flat[::2] | (flat[1::2] << 4)
    array = np.ascontiguousarray(array.astype(STORED.get(source.type, source.type)))
    return array.reshape(-1).view(np.uint8)


def _operator(model: Any, codes: dict[str, int], source: Op) -> Any:
    made = schema.OperatorT()
    if source.name not in codes:
        code = schema.OperatorCodeT()
        number = getattr(schema.BuiltinOperator, source.name, schema.BuiltinOperator.CUSTOM)
        code.builtinCode, code.deprecatedBuiltinCode, code.version = (
            number,
            min(number, 127),
            VERSIONS.get(source.name, 1),
        )
        if number == schema.BuiltinOperator.CUSTOM:
            code.customCode = source.name
        model.operatorCodes.append(code)
        codes[source.name] = len(model.operatorCodes) - 1
    made.opcodeIndex, made.inputs, made.outputs = codes[source.name], source.inputs, source.outputs
    if source.options:
        union = "builtinOptions" if hasattr(schema.BuiltinOptions, source.options) else "builtinOptions2"
        enum = schema.BuiltinOptions if union == "builtinOptions" else schema.BuiltinOptions2
        table = getattr(schema, f"{source.options}T")()
        for key, value in source.fields.items():
            assert hasattr(table, key), f"{source.options} has no {key}"
            setattr(table, key, value)
        setattr(made, f"{union}Type", getattr(enum, source.options))
        setattr(made, union, table)
    if source.custom:
        made.customOptions = np.frombuffer(source.custom, np.uint8)
    return made


def one(name: str, tensors: list[T], results: list[T], options: str = "", custom: bytes = b"", **fields: Any) -> bytes:
    """A model of one operator whose operands that are no constants are the inputs."""
    fed = [i for i, t in enumerate(tensors) if t.data is None and not t.variable]
    made = list(range(len(tensors), len(tensors) + len(results)))
    op = Op(name, list(range(len(tensors))), made, options, fields, custom)
    return build(G([*tensors, *results], [op], fed, made))


def import_bytes(content: bytes) -> Graph:
    graph = Importer(parse(content)).run()
    verify(graph, "import")
    return graph


def litert_outputs(content: bytes, feeds: dict[str, np.ndarray], folder: Any) -> dict[str, np.ndarray]:
    path = folder / "model.tflite"
    path.write_bytes(content)
    return LiteRtEngine(path).run(feeds)


def feeds_for(content: bytes, seed: int = 0, low: float = -2.0, high: float = 2.0) -> dict[str, np.ndarray]:
    """Seeded inputs: floats in [low, high), integers in a small range, codes over all of theirs."""
    model = parse(content)
    random = np.random.default_rng(seed)
    feeds = {}
    for name, index in zip(model.input_names(), model.graphs[0].inputs, strict=True):
        tensor = model.graphs[0].tensors[index]
        shape = tuple(3 if d < 0 else d for d in tensor.shape or ())
        if tensor.quantized:
            limits = np.iinfo(tensor.type)
            feeds[name] = random.integers(limits.min, limits.max + 1, shape).astype(tensor.type)
        elif tensor.type in ("float32", "float16", "float64"):
            feeds[name] = random.uniform(low, high, shape).astype(tensor.type)
        elif tensor.type == "bool":
            feeds[name] = random.integers(0, 2, shape).astype(bool)
        else:
            feeds[name] = random.integers(max(-4, np.iinfo(tensor.type).min), 5, shape).astype(tensor.type)
    return feeds


def check(
    content: bytes, folder: Any, feeds: Any = None, *, rtol: float = 1e-5, atol: float = 1e-6, want: Any = None,
    steps: int = 1, peer: bool = False,
) -> None:  # fmt: skip
    """The imported graph computes what LiteRT (or `want`) gives, as it is, and after all passes and through a file.

    Codes of quantized results may differ by `steps`. With `peer` the released runtime has to agree as well.
    """
    feeds = feeds_for(content) if feeds is None else feeds
    expected = want if want is not None else litert_outputs(content, feeds, folder)
    model = parse(content)
    coded = {
        name for name, i in zip(model.output_names(), model.graphs[0].outputs, strict=True)
        if model.graphs[0].tensors[i].quantized
    }  # fmt: skip
    graph = import_bytes(content)
    results = [run_graph(graph, feeds)]
    run_pipeline(graph)
    results.append(run_graph(through_file(graph), feeds))
    if peer:
        results.append(peer_outputs(graph, feeds, folder))
    for got in results:
        for name, value in expected.items():
            if name in coded:
                assert got[name].shape == value.shape, f"{name}: {got[name].shape} instead of {value.shape}"
                apart = np.abs(got[name].astype(np.int64) - value.astype(np.int64))
                assert apart.max(initial=0) <= steps, f"{name}: {apart.max()} steps apart"
            else:
                assert_equal(got[name], value, rtol, atol, name)


def peer_outputs(graph: Graph, feeds: dict[str, np.ndarray], folder: Any) -> dict[str, np.ndarray]:
    """What the released runtime computes."""
    write_model(graph, folder / "peer.mnn")
    with MnnEngine(folder / "peer.mnn") as engine:
        return engine.run(feeds)


def refusal(content: bytes) -> list:
    """The diagnostics with which a model is refused."""
    try:
        Importer(parse(content)).run()
    except ConversionError as error:
        return error.diagnostics
    raise AssertionError("the model was not refused")
