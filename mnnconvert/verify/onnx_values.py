"""Values inside an ONNX model: onnxruntime runs the nodes up to the last one asked for, with the values as outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from mnnconvert.verify.layers import SourceLayer
from mnnconvert.verify.onnx_repair import graphs_of

NO_LAYERS = ("Constant",)


def layers_of(graph: onnx.GraphProto) -> list[SourceLayer]:
    """The nodes of the main graph. What the graphs inside a node read from outside counts among its inputs."""
    return [
        SourceLayer(node.name or _first(node.output), node.op_type, tuple(_read(node)), tuple(node.output))
        for node in graph.node
        if node.op_type not in NO_LAYERS
    ]


def _first(names: Sequence[str]) -> str:
    return next((name for name in names if name), "")


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """Names that a node needs, those that its subgraphs take from around it included."""
    yield from node.input
    for attribute in node.attribute:
        for inner in (attribute.g, *attribute.graphs):
            own = {name for graph in graphs_of(inner) for n in graph.node for name in n.output}
            own |= {value.name for graph in graphs_of(inner) for value in (*graph.input, *graph.initializer)}
            yield from (name for n in inner.node for name in _read(n) if name not in own)


def reduced(model: onnx.ModelProto, names: Sequence[str]) -> bytes:
    """The model cut behind the last of the values `names`, which are its outputs. `model` is left as it was."""
    graph = model.graph
    nodes, outputs = list(graph.node), list(graph.output)
    wanted = set(names)
    stop = max((i + 1 for i, node in enumerate(nodes) if wanted & set(node.output)), default=0)
    try:
        _set(graph.node, nodes[:stop])
        _set(graph.output, [onnx.ValueInfoProto(name=name) for name in names])
        return model.SerializeToString()
    finally:
        _set(graph.node, nodes)
        _set(graph.output, outputs)


def _set(field: Any, items: Sequence[Any]) -> None:
    del field[:]
    field.extend(items)


def single(model: onnx.ModelProto, nodes: Sequence[str], feeds: dict[str, np.ndarray]) -> onnx.ModelProto:
    """The nodes that make the values `nodes`, as a model with the arrays `feeds` (and constants) as inputs."""
    wanted, kept = set(nodes), []
    for node in reversed(model.graph.node):
        if wanted & set(node.output):
            kept.append(node)
            wanted |= {name for name in _read(node) if name not in feeds}
    read = {name for node in kept for name in _read(node)} | set(nodes)
    graph = onnx.GraphProto(name=model.graph.name or "layer")
    graph.node.extend(kept[::-1])
    graph.initializer.extend(t for t in model.graph.initializer if t.name in read and t.name not in feeds)
    for name, array in feeds.items():
        if name in read:
            kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            graph.input.append(onnx.helper.make_tensor_value_info(name, kind, array.shape))
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in nodes)
    part = onnx.ModelProto(ir_version=model.ir_version, graph=graph)
    part.opset_import.extend(model.opset_import)
    part.functions.extend(model.functions)
    return part


def with_branches(model: onnx.ModelProto, taken: Mapping[str, bool]) -> onnx.ModelProto:
    """A copy in which the `If` nodes whose first result is in `taken` are the nodes of the branch they take."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if node.op_type != "If" or node.output[0] not in taken:
            nodes.append(node)
            continue
        name = "then_branch" if taken[node.output[0]] else "else_branch"
        branch = next(attribute.g for attribute in node.attribute if attribute.name == name)
        made.graph.initializer.extend(branch.initializer)
        nodes += branch.node
        nodes += [onnx.helper.make_node("Identity", [inner.name], [outer], name=f"{node.name}/{inner.name}")
                  for inner, outer in zip(branch.output, node.output, strict=True) if outer]  # fmt: skip
    _set(made.graph.node, nodes)
    return made
