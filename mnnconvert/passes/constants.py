"""Constants: results that are known are stored instead of computed, and equal ones are stored once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

import numpy as np

from mnnconvert.ir import (
    ArrayTensor,
    CastTensor,
    CodedTensor,
    FileTensor,
    Graph,
    Node,
    ReshapedTensor,
    Spec,
    Tensor,
    TransposedMatrix,
    Value,
)  # fmt: skip
from mnnconvert.ir.builder import coded_view, fold
from mnnconvert.ir.tensor import content_digest, fingerprint
from mnnconvert.passes.base import GraphPass, Notes, forward, unlink

SMALL = 64  # elements of a constant that its spec keeps at hand for shape rules


@dataclass(frozen=True)
class FoldConstants(GraphPass):
    """Replace nodes whose results are known by constants, unless these are much larger than what they are made from."""

    name = "fold-constants"

    def change(self, graph: Graph, notes: Notes) -> int:
        folded: set[Node] = set()
        for node in graph.nodes:
            view = coded_view(node.op, node.inputs, [v.spec for v in node.outputs])
            if view is not None:
                folded.add(node)
                node.output.tensor, node.output.producer = view, None
                continue
            contents = _contents(node)
            if contents is not None:
                folded.add(node)
                for value, content in zip(node.outputs, contents, strict=True):
                    _become_constant(value, content)
        unlink(graph, folded)
        return len(folded)


def _contents(node: Node) -> list[np.ndarray] | None:
    if not node.op.pure or node.op.subgraphs():
        return None
    known = [c for v in node.outputs if (c := v.spec.constant) is not None]
    return known if len(known) == len(node.outputs) else fold(node.op, node.inputs, [v.spec for v in node.outputs])


def _become_constant(value: Value, content: np.ndarray) -> None:
    content = np.asarray(content)
    value.tensor, value.producer = ArrayTensor(content), None
    value.spec = Spec(content.dtype, tuple(content.shape), content if content.size <= SMALL else None)


@dataclass(frozen=True)
class ShareConstants(GraphPass):
    """Keep one of constants that are equal in element type, shape and data; few are read whole for it."""

    name = "share-constants"

    def change(self, graph: Graph, notes: Notes) -> int:
        views = _duplicates(graph.constants(), _identity)
        forward(graph, views)
        plain = [v for v in graph.constants() if isinstance(v.tensor, ArrayTensor | FileTensor | CastTensor)]
        copies: dict[Value, Value] = {}
        for group in _alike(plain):
            copies |= _duplicates(group, content_digest)
        forward(graph, copies)
        return len(views) + len(copies)


def _alike(values: Iterable[Value]) -> list[list[Value]]:
    """Groups of constants that may be equal, so that few are read whole."""
    groups: dict[Hashable, list[Value]] = {}
    for value in values:
        if value.tensor is not None:
            groups.setdefault(fingerprint(value.tensor), []).append(value)
    return [g for g in groups.values() if len(g) > 1]


def _duplicates(values: Iterable[Value], key: Callable[[Tensor], Hashable]) -> dict[Value, Value]:
    first: dict[Hashable, Value] = {}
    return {v: kept for v in values if v.tensor is not None and (kept := first.setdefault(key(v.tensor), v)) is not v}


def _identity(tensor: Tensor) -> Hashable:
    """A key that tensors share only when they are views of the same data."""
    if isinstance(tensor, FileTensor):
        return "file", str(tensor.path), tensor.offset, str(tensor.dtype), tensor.shape
    if isinstance(tensor, TransposedMatrix):
        return "transposed", _identity(tensor.source)
    if isinstance(tensor, ReshapedTensor):
        return "reshaped", tensor.shape, _identity(tensor.source)
    if isinstance(tensor, CastTensor):
        return "cast", str(tensor.dtype), _identity(tensor.source)
    if isinstance(tensor, CodedTensor):
        return "coded", id(tensor.coded), tensor.shape
    return "tensor", id(tensor)
