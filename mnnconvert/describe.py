"""What is inside an MNN file."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mnnconvert.ir import CodedTensor, Graph, HalfTensor, Node, Tensor, Value
from mnnconvert.ir.types import Shape
from mnnconvert.ops.integer import ConvInt8
from mnnconvert.ops.steps import on_codes
from mnnconvert.schema import tables
from mnnconvert.schema.reader import graph_of, read_net
from mnnconvert.schema.weights import WeightSource


@dataclass
class ModelInfo:
    """Inputs, outputs, origin, op counts and weights of a file; sizes in bytes."""

    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    version: str
    framework: str
    metadata: dict[str, str]
    op_counts: dict[str, int]
    weights: list[dict[str, Any]] = field(default_factory=list)
    file_bytes: int = 0
    external_bytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def describe(path: Path) -> ModelInfo:
    """Read a file and describe it; weights are looked at one by one."""
    net = read_net(path)
    external = Path(f"{path}.weight")
    graph = graph_of(net, WeightSource(external))
    formats = _formats(net)
    return ModelInfo(
        inputs=[_value(graph, v.name, v, formats.get(v.name, "")) for v in graph.inputs],
        outputs=[_value(graph, name, v, "") for name, v in graph.outputs],
        version=(net.extraInfo.version if net.extraInfo is not None else None) or "before 2.0.0",
        framework=graph.source,
        metadata=graph.metadata | ({"bizCode": net.bizCode} if net.bizCode else {}),
        op_counts=dict(Counter(_op_name(op) for op in _all_ops(net))),
        weights=list(_weights(graph)),
        file_bytes=path.stat().st_size,
        external_bytes=external.stat().st_size if external.is_file() else 0,
    )


def _all_ops(net: tables.Net) -> list[tables.Op]:
    return [*(net.oplists or []), *(op for sub in net.subgraphs or [] for op in sub.nodes or [])]


def _op_name(op: tables.Op) -> str:
    return op.type.name if isinstance(op.type, tables.OpType) else f"OpType {op.type}"


def _formats(net: tables.Net) -> dict[str, str]:
    return {
        op.name or "": tables.MNN_DATA_FORMAT(op.main.dformat).name
        for op in net.oplists or []
        if isinstance(op.main, tables.Input) and op.main.dformat in list(tables.MNN_DATA_FORMAT)
    }


def _value(graph: Graph, name: str, value: Value, layout: str) -> dict[str, Any]:
    return {
        "name": name,
        "dtype": graph.source_types.get(name, str(value.dtype)),
        "shape": _plain(value.shape, _placeholders(graph)),
        "format": layout,
    }


def _plain(shape: Shape | None, placeholders: set[str]) -> list[int | str | None] | None:
    """The sizes; None for an open one without a name of its own."""
    return None if shape is None else [None if d in placeholders else d for d in shape]


def _placeholders(graph: Graph) -> set[str]:
    """The names that the reader gives to sizes without one."""
    return {f"{v.name}.{i}" for v in graph.inputs for i in range(v.rank or 0)}


def _weights(graph: Graph) -> Any:
    seen: set[int] = set()
    for inner in graph.graphs():
        for node in inner.nodes:
            if not getattr(node.op, "embedded", ()) or len(node.inputs) < 2:
                continue
            tensor = node.inputs[1].tensor
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                yield {
                    "name": node.name, "op": node.op.kind, "computes": _computes(node), **_encoding(tensor),
                    **_range(tensor),
                }  # fmt: skip


def _computes(node: Node) -> str:
    """The element type of what a layer multiplies its weights with."""
    return "int8" if isinstance(node.op, ConvInt8) or on_codes(node) else "float32"


def _encoding(tensor: Tensor) -> dict[str, Any]:
    if isinstance(tensor, CodedTensor):
        coded = tensor.coded
        block = coded.block if coded.blocks > 1 else 0
        return {"bits": coded.bits, "block": block, "symmetric": coded.minimum is None, "bytes": tensor.nbytes}
    bits = 16 if isinstance(tensor, HalfTensor) else 8 * tensor.dtype.itemsize
    return {"bits": bits, "block": 0, "symmetric": True, "bytes": tensor.nbytes}


def _range(tensor: Tensor) -> dict[str, float]:
    if isinstance(tensor, CodedTensor):
        parts = [
            tensor.coded.decode_rows(i, min(i + 256, tensor.coded.shape[0]))
            for i in range(0, tensor.coded.shape[0], 256)
        ]
        return {"minimum": float(min(p.min() for p in parts)), "maximum": float(max(p.max() for p in parts))}
    array = tensor.numpy()
    return (
        {"minimum": float(np.min(array)), "maximum": float(np.max(array))}
        if array.size
        else {"minimum": 0.0, "maximum": 0.0}
    )
