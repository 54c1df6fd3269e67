"""An equal form of a TFLite model that LiteRT computes exactly, call by call.

* Products of float activations with integer weights: LiteRT rounds the activations to 8 bits first. Here the weights
  are decoded instead, so that the model computes what its numbers say.
* What a detector leaves unset behind its last box is noted, to be read as zeros.
* Resource variables become inputs and outputs, under the names that the converted graph gives them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mnnconvert.frontends.tflite.model import ABSENT, SourceGraph, SourceModel, SourceTensor, load
from mnnconvert.frontends.tflite.state import SUFFIX, VARIABLE_OPS, state_name, variable_names
from mnnconvert.frontends.tflite.steps import RANGES, decoded
from mnnconvert.verify.engines import Change, TensorInfo

WEIGHTED = {  # operator: places of its weights
    "CONV_2D": (1,), "DEPTHWISE_CONV_2D": (1,), "FULLY_CONNECTED": (1,), "BATCH_MATMUL": (1,), "TRANSPOSE_CONV": (1,),
    "SVDF": (1, 2), "RNN": (1, 2), "UNIDIRECTIONAL_SEQUENCE_RNN": (1, 2), "LSTM": tuple(range(1, 18)),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": tuple(range(1, 18)), "BIDIRECTIONAL_SEQUENCE_LSTM": tuple(range(1, 35)),
    "BIDIRECTIONAL_SEQUENCE_RNN": tuple(range(1, 9)),
}  # fmt: skip
VIEWS = ("RESHAPE", "SQUEEZE", "EXPAND_DIMS", "TRANSPOSE")
DETECTOR = "TFLite_Detection_PostProcess"
DATA_AT = {"TRANSPOSE_CONV": 2}  # where the activations are not the first operand


@dataclass
class Twin:
    """The bytes to run, and the tensor index of every input and output with what it is called.

    `counted` are outputs of which only as many rows are set as another output says.
    """

    content: bytes
    inputs: list[tuple[TensorInfo, int]]
    outputs: list[tuple[TensorInfo, int]]
    notes: list[str] = field(default_factory=list)
    counted: dict[str, str] = field(default_factory=dict)


def twin_of(path: Path, exact: bool = True) -> Twin:
    """The file itself where it can stay as it is. Only if `exact`, integer weights of float models are decoded."""
    model = load(path)
    main = model.graphs[0]
    hybrid = [(g, o) for g in model.graphs for o in g.operators if exact and _hybrid(g, o)]
    states = variable_names(main)
    inputs = [(_info(n, main, i), i) for n, i in zip(model.input_names(), main.inputs, strict=True)]
    outputs = [(_info(n, main, i), i) for n, i in zip(model.output_names(), main.outputs, strict=True)]
    twin = Twin(path.read_bytes(), inputs, outputs)
    called = {i: info.name for info, i in outputs}
    for operator in main.operators:
        *rows, count = operator.outputs[:4] if operator.name == DETECTOR else (ABSENT,)
        if count in called:
            twin.counted |= {called[i]: called[count] for i in rows if i in called}
    for index in _variable_tensors(main):
        name = state_name(main.tensors[index], index)
        inputs.append((_info(name, main, index), index))
        outputs.append((_info(name + SUFFIX, main, index), index))
    if hybrid or states:
        _edit(twin, model, states, bool(hybrid))
    if hybrid:
        names = ", ".join(dict.fromkeys(o.name for _, o in hybrid))
        twin.notes.append(f"LiteRT ran {names} with decoded weights, as it would round the other operand to 8 bits")
    return twin


def _info(name: str, graph: SourceGraph, index: int) -> TensorInfo:
    tensor = graph.tensors[index]
    shape = tuple(f"{name}.{i}" if d < 0 else d for i, d in enumerate(tensor.shape or ()))
    step = 1.0 if tensor.quantized and tensor.type in RANGES else _step_of_floats(graph, index)
    return TensorInfo(name, np.dtype(tensor.type if tensor.type != "int4" else "int8"), shape, step)


def _step_of_floats(graph: SourceGraph, index: int) -> float:
    """The scale of the codes that floats are decoded from, be it before they are moved; 0 for others."""
    makers = {o.outputs[0]: o for o in graph.operators if o.outputs and o.inputs}
    for _ in range(len(makers)):
        if index in makers and makers[index].name in VIEWS:
            index = makers[index].inputs[0]
    if index not in makers or makers[index].name != "DEQUANTIZE":
        return 0.0
    source = graph.tensors[makers[index].inputs[0]]
    return float(source.scale[0]) if source.quantized and source.scale.size == 1 else 0.0


def _variable_tensors(graph: SourceGraph) -> list[int]:
    """Tensors that operators update in place, in the order in which they are read."""
    read = [i for o in graph.operators for i in o.inputs if i >= 0]
    return [i for i in dict.fromkeys(read) if graph.tensors[i].variable]


def _hybrid(graph: SourceGraph, operator: Any) -> bool:
    places = WEIGHTED.get(operator.name, ())
    at = DATA_AT.get(operator.name, 0)
    if operator.custom or at >= len(operator.inputs) or operator.inputs[at] < 0:
        return False
    return graph.tensors[operator.inputs[at]].type == "float32" and any(_coded(graph, operator, p) for p in places)


def _coded(graph: SourceGraph, operator: Any, place: int) -> bool:
    index = operator.inputs[place] if place < len(operator.inputs) else -1
    return index >= 0 and graph.tensors[index].quantized and graph.tensors[index].data is not None


def _edit(twin: Twin, model: SourceModel, states: dict[int, str], hybrid: bool) -> None:
    """Rewrite the tables of the file with LiteRT's own copy of the schema."""
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    tables = schema.ModelT.InitFromPackedBuf(bytearray(twin.content), 0)
    if hybrid:
        for graph, table in zip(model.graphs, tables.subgraphs, strict=True):
            _decode_weights(schema, tables, graph, table)
    if states:
        _open_variables(twin, model.graphs[0], tables.subgraphs[0], states)
        tables.signatureDefs = []
    builder = flatbuffers.Builder(len(twin.content))
    builder.Finish(tables.Pack(builder), b"TFL3")
    twin.content = bytes(builder.Output())


def _decode_weights(schema: Any, tables: Any, graph: SourceGraph, table: Any) -> None:
    made: dict[int, int] = {}
    for operator, edited in zip(graph.operators, table.operators, strict=True):
        if not _hybrid(graph, operator):
            continue
        for place in WEIGHTED[operator.name]:
            if not _coded(graph, operator, place):
                continue
            index = operator.inputs[place]
            if index not in made:
                made[index] = _float_tensor(schema, tables, table, graph.tensors[index])
            edited.inputs[place] = made[index]


def _float_tensor(schema: Any, tables: Any, table: Any, source: SourceTensor) -> int:
    buffer, tensor = schema.BufferT(), schema.TensorT()
    buffer.data = decoded(source).view(np.uint8).reshape(-1)
    tables.buffers.append(buffer)
    tensor.shape, tensor.type = list(source.shape or ()), schema.TensorType.FLOAT32
    tensor.buffer, tensor.name = len(tables.buffers) - 1, f"{source.name}/decoded"
    table.tensors.append(tensor)
    return len(table.tensors) - 1


def _open_variables(twin: Twin, graph: SourceGraph, table: Any, states: dict[int, str]) -> None:
    """Reads become inputs, or what was assigned before them; the last assignments become outputs."""
    fed: dict[str, int] = {}
    held: dict[str, int] = {}
    same: dict[int, int] = {}
    kept = []
    resolve: Callable[[int], int] = lambda i: same.get(i, i)  # noqa: E731
    for operator, edited in zip(graph.operators, table.operators, strict=True):
        if operator.name not in VARIABLE_OPS:
            edited.inputs = [resolve(int(i)) for i in edited.inputs]
            kept.append(edited)
        elif operator.name == "READ_VARIABLE":
            name = states[operator.inputs[0]]
            if name not in held:
                fed[name] = held[name] = operator.outputs[0]
            same[operator.outputs[0]] = held[name]
        elif operator.name == "ASSIGN_VARIABLE":
            held[states[operator.inputs[0]]] = resolve(operator.inputs[1])
    table.operators = kept
    twin.inputs += [(_info(name, graph, i), i) for name, i in fed.items()]
    ends = [(name, i) for name, i in held.items() if fed.get(name) != i]
    twin.outputs = [(info, resolve(i)) for info, i in twin.outputs]
    twin.outputs += [(_info(name + SUFFIX, graph, i), i) for name, i in ends]
    table.inputs = [i for _, i in twin.inputs]
    table.outputs = [i for _, i in twin.outputs]


def with_constants(content: bytes, change: Change) -> bytes:
    """A model with `change` applied to its float32 constants, and to its float16 ones, which become float32."""
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    tables = schema.ModelT.InitFromPackedBuf(bytearray(content), 0)
    shared: dict[int, int] = {}  # a buffer -> the one with its changed numbers
    for table in tables.subgraphs:
        table.operators = [o for o in table.operators if not _widened(schema, tables, table, o)]
        for tensor in table.tensors:
            if tensor.type == schema.TensorType.FLOAT32 and tensor.buffer not in shared:
                shared[tensor.buffer] = _changed(schema, tables, tensor.buffer, change)
            if tensor.type == schema.TensorType.FLOAT32:
                tensor.buffer = shared[tensor.buffer]
    builder = flatbuffers.Builder(len(content))
    builder.Finish(tables.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _changed(schema: Any, tables: Any, index: int, change: Change) -> int:
    """A buffer with the changed numbers of another one; the same where that is empty."""
    data = tables.buffers[index].data
    if data is None or not len(data):
        return index
    buffer = schema.BufferT()
    numbers = np.asarray(data, np.uint8).view(np.float32)
    buffer.data = np.asarray(change(numbers), np.float32).view(np.uint8)
    tables.buffers.append(buffer)
    return len(tables.buffers) - 1


def _widened(schema: Any, tables: Any, table: Any, operator: Any) -> bool:
    """Whether an operator only made float32 of a float16 constant; its result is that constant now."""
    code = tables.operatorCodes[operator.opcodeIndex]
    if max(code.builtinCode, code.deprecatedBuiltinCode) != schema.BuiltinOperator.DEQUANTIZE:
        return False
    source, result = (table.tensors[places[0]] for places in (operator.inputs, operator.outputs))
    data = tables.buffers[source.buffer].data
    if source.type != schema.TensorType.FLOAT16 or data is None or not len(data):
        return False
    buffer = schema.BufferT()
    buffer.data = np.asarray(data, np.uint8).view(np.float16).astype(np.float32).view(np.uint8)
    tables.buffers.append(buffer)
    result.buffer = len(tables.buffers) - 1
    return True
