"""A model layer by layer: what each computes, what it holds, and how its weights are stored and spread."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from mnnconvert.ir import CodedTensor, Graph, HalfTensor, Node, Tensor, Value
from mnnconvert.ir.tensor import row_blocks
from mnnconvert.ir.text import op_text
from mnnconvert.ir.types import Shape
from mnnconvert.ops.gather import Gather, GatherV2
from mnnconvert.ops.integer import ConvInt8
from mnnconvert.ops.steps import on_codes
from mnnconvert.quantizers.plan import holds_weight

BINS = 48
SAMPLED = 1 << 20  # numbers of a weight that a histogram counts at most


@dataclass(frozen=True)
class Weight:
    """How a constant is stored: `bits` per number in blocks of `block` columns (0: one per row), `bytes` with scales.

    `symmetric` is None where nothing was rounded; `scales` are the smallest and largest scale of codes.
    """

    shape: tuple[int, ...]
    bits: int
    block: int
    symmetric: bool | None
    bytes: int
    scales: tuple[float, float] | None
    tensor: Tensor = field(repr=False, compare=False)

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def stored(self) -> str:
        """`4 bit, block 64, asymmetric`, or the element type."""
        if self.symmetric is None:
            return "float16" if self.bits == 16 else str(self.tensor.dtype)
        block = f", block {self.block}" if self.block else ""
        return f"{self.bits} bit{block}, {'symmetric' if self.symmetric else 'asymmetric'}"


@dataclass(frozen=True)
class Layer:
    """One node. `parameters` and `bytes` are of the constants that it is the first to read, its `weight` among them.

    `graph` names the subgraph that it lies in, and is empty for the model itself.
    """

    name: str
    op: str
    text: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    dtype: str
    shape: Shape | None
    origin: tuple[str, ...]
    parameters: int
    bytes: int
    weight: Weight | None
    computes: str
    graph: str
    node: Node = field(repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Facts as JSON values; the weight as a dictionary, without its numbers."""
        data = {n: v for n, v in vars(self).items() if n not in ("node", "weight")}
        if self.weight is None:
            return data | {"weight": None}
        return data | {"weight": {n: v for n, v in vars(self.weight).items() if n != "tensor"}}


def layers_of(graph: Graph) -> list[Layer]:
    """Every node of a graph and of the graphs inside it, in order; what several share is counted with the first."""
    seen: set[int] = set()
    return [_layer(node, inner.name if inner is not graph else "", seen) for inner in graph.graphs()
            for node in inner.nodes]  # fmt: skip


def _layer(node: Node, inside: str, seen: set[int]) -> Layer:
    own = [v.tensor for v in node.inputs if v.tensor is not None and id(v.tensor) not in seen]
    seen.update(id(tensor) for tensor in own)
    result = node.outputs[0] if node.outputs else None
    return Layer(
        name=node.name, op=node.op.kind, text=op_text(node.op),
        inputs=tuple(v.name for v in node.inputs if v.tensor is None), outputs=tuple(v.name for v in node.outputs),
        dtype="" if result is None else str(result.dtype), shape=None if result is None else result.shape,
        origin=node.origin, parameters=sum(math.prod(t.shape) for t in own), bytes=sum(t.nbytes for t in own),
        weight=_weight(node), computes="int8" if isinstance(node.op, ConvInt8) or on_codes(node) else "float32",
        graph=inside, node=node,
    )  # fmt: skip


def weight_operand(node: Node) -> Value | None:
    """The constant matrix or table that a node is about; None where it has none."""
    if len(node.inputs) < 2:
        return None
    table, second = node.inputs[:2]
    if isinstance(node.op, Gather | GatherV2):
        matrix = table.tensor is not None and table.rank == 2 and (table.shape or (0, 1))[1] != 1
        return table if matrix else None  # a single column holds scales of codes
    held = getattr(node.op, "embedded", ()) or holds_weight(node)
    return second if held and second.tensor is not None else None


def _weight(node: Node) -> Weight | None:
    value = weight_operand(node)
    return None if value is None or value.tensor is None else stored_weight(value.tensor)


def stored_weight(tensor: Tensor) -> Weight:
    """How a tensor is stored."""
    shape = tuple(tensor.shape)
    if isinstance(tensor, CodedTensor):
        coded = tensor.coded
        block = coded.block if coded.blocks > 1 else 0
        scales = float(coded.scale.min()), float(coded.scale.max())
        return Weight(shape, coded.bits, block, coded.minimum is None, tensor.nbytes, scales, tensor)
    bits = 16 if isinstance(tensor, HalfTensor) else 8 * tensor.dtype.itemsize
    return Weight(shape, bits, 0, None, tensor.nbytes, None, tensor)


def numbers(tensor: Tensor) -> Iterator[np.ndarray]:
    """The numbers of a tensor as pieces of float rows, without holding all of them."""
    if isinstance(tensor, CodedTensor):
        rows = tensor.coded.shape[0]
        step = max(1, (1 << 20) // tensor.coded.shape[1])
        yield from (tensor.coded.decode_rows(i, min(i + step, rows)) for i in range(0, rows, step))
    elif math.prod(tensor.shape):
        yield from row_blocks(tensor, tensor.shape[0] if len(tensor.shape) > 1 else 1)


def bounds(tensor: Tensor) -> tuple[float, float]:
    """Smallest and largest number; zeros for an empty tensor."""
    parts = [(float(p.min()), float(p.max())) for p in numbers(tensor)]
    return (min(p[0] for p in parts), max(p[1] for p in parts)) if parts else (0.0, 0.0)


@dataclass(frozen=True)
class Histogram:
    """How many numbers lie in each of equally wide bins from `low` to `high`; of `elements`, `counted` were looked at.

    What is not finite is in no bin, but in `odd`.
    """

    low: float
    high: float
    counts: tuple[int, ...]
    mean: float
    deviation: float
    zeros: int
    odd: int
    counted: int
    elements: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def sample(tensor: Tensor, most: int = SAMPLED) -> np.ndarray:
    """The numbers of a tensor, flat and as float32: all, or those of rows at equal distances, at most about `most`."""
    size = math.prod(tensor.shape)
    rows = tensor.coded.shape[0] if isinstance(tensor, CodedTensor) else tensor.shape[0] if tensor.shape else 1
    step = max(1, math.ceil(size / most))
    if step == 1 or rows < 2 * step:
        step = 1
    start, parts = 0, []
    for part in numbers(tensor):
        flat = part.reshape(-1, part.shape[-1]) if part.ndim > 1 else part[None]
        parts.append(np.asarray(flat[-start % step :: step], np.float32).ravel())
        start += len(flat)
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def histogram(values: np.ndarray, elements: int, span: tuple[float, float] | None = None) -> Histogram:
    """Of flat numbers that were looked at, out of `elements`; `span` widens the bins to be those of another one."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    if span is not None:
        low, high = min(low, span[0]), max(high, span[1])
    counts, _ = np.histogram(finite, BINS, (low, high) if high > low else (low - 0.5, low + 0.5))
    exact = finite.astype(np.float64)
    return Histogram(
        low, high, tuple(int(c) for c in counts), float(exact.mean()) if exact.size else 0.0,
        float(exact.std()) if exact.size else 0.0, int(np.count_nonzero(finite == 0)), int(values.size - finite.size),
        int(values.size), elements,
    )  # fmt: skip


def totals(layers: Iterable[Layer]) -> list[dict[str, Any]]:
    """For each kind of op: how often, its parameters and their bytes; the heaviest first."""
    rows: dict[str, dict[str, Any]] = {}
    for layer in layers:
        row = rows.setdefault(layer.op, {"op": layer.op, "count": 0, "parameters": 0, "bytes": 0})
        row["count"] += 1
        row["parameters"] += layer.parameters
        row["bytes"] += layer.bytes
    return sorted(rows.values(), key=lambda row: (-row["bytes"], -row["count"], row["op"]))
