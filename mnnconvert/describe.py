"""What is inside a model file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mnnconvert.ir import Graph, Value
from mnnconvert.ir.types import Shape
from mnnconvert.layers import Layer, bounds, layers_of
from mnnconvert.schema import tables
from mnnconvert.schema.reader import graph_of, read_net
from mnnconvert.schema.weights import WeightSource
from mnnconvert.sources import bytes_on_disk, check_told, guess_framework, read_source


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
    """Read a `.mnn` file and describe it; weights are looked at one by one."""
    return _written(path)[0]


def look_into(
    path: Path, framework: str | None = None, chosen: Mapping[str, str] | None = None
) -> tuple[ModelInfo, Graph]:
    """A model file of any framework that can be read, described, and its graph; `chosen` as for `read_source`.

    Raises ConversionError.
    """
    framework = framework or guess_framework(path)
    check_told(chosen or {}, [framework])
    if framework == "MNN":
        return _written(path)
    graph = read_source(path, framework, chosen)
    info = ModelInfo(
        inputs=[_value(graph, v.name, v, "") for v in graph.inputs],
        outputs=[_value(graph, name, v, "") for name, v in graph.outputs],
        version="", framework=framework, metadata=graph.metadata,
        op_counts=dict(Counter(node.op.kind for inner in graph.graphs() for node in inner.nodes)),
        weights=list(_weights(graph)), file_bytes=bytes_on_disk(path, graph),
    )  # fmt: skip
    return info, graph


def _written(path: Path) -> tuple[ModelInfo, Graph]:
    net = read_net(path)
    external = Path(f"{path}.weight")
    graph = graph_of(net, WeightSource(external))
    formats = _formats(net)
    info = ModelInfo(
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
    return info, graph


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


def _weights(graph: Graph) -> Iterator[dict[str, Any]]:
    """A row for each weight; one that several layers share stands with the first."""
    seen: set[int] = set()
    for layer in layers_of(graph):
        weight = layer.weight
        if weight is not None and id(weight.tensor) not in seen:
            seen.add(id(weight.tensor))
            yield weight_row(layer)


def weight_row(layer: Layer) -> dict[str, Any]:
    """How a layer stores its weight, and between which numbers it lies."""
    weight = layer.weight
    assert weight is not None  # of layers that have one
    low, high = bounds(weight.tensor)
    return {
        "name": layer.name, "op": layer.op, "computes": layer.computes, "bits": weight.bits, "block": weight.block,
        "symmetric": weight.symmetric, "bytes": weight.bytes, "minimum": low, "maximum": high,
        "elements": weight.elements, "scales": weight.scales,
    }  # fmt: skip
