"""The text form of a graph: one line per value and node, for people, diffs and golden files."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from mnnconvert.ir.graph import Graph, Node, Value
from mnnconvert.ir.tensor import CodedTensor
from mnnconvert.ir.types import format_shape

SHOWN = 8  # elements of a constant that are printed


def to_text(graph: Graph) -> str:
    """The whole graph, its subgraphs last."""
    return "\n".join(_lines(graph)) + "\n"


def _lines(graph: Graph, indent: str = "") -> Iterator[str]:
    yield f"{indent}graph {graph.name or '-'} ({', '.join(_typed(v) for v in graph.inputs)}) {{"
    for value in graph.constants():
        yield f"{indent}  const {_typed(value)} = {_content(value)}"
    for node in graph.nodes:
        yield f"{indent}  {node_text(node)}"
    outputs = (name if value.name == name else f"{name} = {value.name}" for name, value in graph.outputs)
    yield f"{indent}  return {', '.join(outputs)}"
    yield f"{indent}}}"
    for inner in graph.subgraphs.values():
        yield from _lines(inner, indent + "  ")


def node_text(node: Node) -> str:
    """`y: float32[1,8] = Softmax(axis=-1)(x)`."""
    results = ", ".join(_typed(v) for v in node.outputs)
    return f"{results} = {op_text(node.op)}({', '.join(v.name for v in node.inputs)})"


def op_text(op: object) -> str:
    """Kind and the attributes that are not at their default."""
    shown = [f"{f.name}={value!r}" for f, value in attributes(op) if value != f.default]
    return f"{getattr(op, 'kind', type(op).__name__)}<{', '.join(shown)}>" if shown else getattr(op, "kind", "")


def attributes(op: object) -> list[tuple[dataclasses.Field[object], object]]:
    """The attributes of an op with their values; an op that this package does not know has none to tell."""
    fields = dataclasses.fields(op) if dataclasses.is_dataclass(op) else ()
    return [(field, getattr(op, field.name)) for field in fields]


def _typed(value: Value) -> str:
    steps = value.steps
    stored = "" if steps is None else f" as {steps.dtype} * {steps.scale:g}{-steps.zero * steps.scale:+g}"
    return f"{value.name}: {value.dtype}{format_shape(value.shape)}{stored}"


def _content(value: Value) -> str:
    tensor = value.tensor
    if isinstance(tensor, CodedTensor):
        return f"<{tensor.coded.bits} bit, {tensor.nbytes} bytes>"
    if tensor is None or tensor.nbytes > 256:
        return f"<{tensor.nbytes if tensor else 0} bytes>"
    flat = tensor.numpy().reshape(-1)
    shown = [np.format_float_positional(x, trim="0") if flat.dtype.kind == "f" else str(x) for x in flat[:SHOWN]]
    return "{" + ", ".join(shown) + (", ..." if flat.size > SHOWN else "") + "}"
