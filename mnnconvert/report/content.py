"""What a report tells, gathered from files and results; `page` draws it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

import numpy as np

from mnnconvert.describe import ModelInfo, look_into
from mnnconvert.difference import numeric_change
from mnnconvert.errors import Diagnostic
from mnnconvert.ir import Graph, Node, Tensor
from mnnconvert.layers import Histogram, Layer, Weight, histogram, layers_of, sample, stored_weight, weight_operand
from mnnconvert.ops.matmul import CONVERTED
from mnnconvert.passes.base import Report
from mnnconvert.verify.layers import LayerReport, LayerwiseResult
from mnnconvert.verify.verification import VerificationResult

LEVELS = (60.0, 40.0, 30.0, 20.0)  # dB: errors of 0.1, 1, 3 and 10 % of the signal
UNMEASURED = len(LEVELS) + 1


@dataclass(frozen=True)
class Spread:
    """How the numbers of a weight are spread; `before` they were rounded, on the same bins, with the `sqnr` in dB."""

    after: Histogram
    before: Histogram | None = None
    sqnr: float | None = None


@dataclass(frozen=True)
class Row:
    """One layer. `error` is of the value that it, perhaps with others around it, stands for; `leads` where it makes it.

    `before` is the weight in the float model.
    """

    layer: Layer
    spread: Spread | None = None
    before: Weight | None = None
    error: LayerReport | None = None
    leads: bool = False

    @property
    def own(self) -> float | None:
        """SQNR in dB of the layer on exact inputs; that of the whole run where it cannot be run alone."""
        return None if self.error is None else self.error.judged.sqnr

    @property
    def level(self) -> int:
        """0 (exact) to 4 (bad) by LEVELS: of the result, else of the weight; UNMEASURED where nothing is known."""
        if self.error is not None:
            return len(LEVELS) if self.error.reason else level_of(self.own)
        return level_of(None if self.spread is None else self.spread.sqnr)

    @property
    def bytes_before(self) -> int:
        """Of the constants, with the weight as it was before."""
        if self.before is None or self.layer.weight is None or not self.layer.bytes:
            return self.layer.bytes
        return self.layer.bytes - self.layer.weight.bytes + self.before.bytes


def level_of(sqnr: float | None) -> int:
    """The class of an error: 0 (60 dB and more), then down to 40, 30, 20 and below; UNMEASURED for None."""
    return UNMEASURED if sqnr is None else sum(sqnr < bound for bound in LEVELS)


@dataclass(frozen=True)
class Flow:
    """One graph as items in topological order: inputs, `layers` rows from row `first` on, outputs.

    `sizes` are the items that only compute with sizes: integers of rank 0 or 1 that do not leave the graph.
    """

    name: str
    first: int
    inputs: tuple[str, ...]
    layers: int
    outputs: tuple[str, ...]
    edges: tuple[tuple[int, int], ...]
    sizes: frozenset[int]

    @property
    def count(self) -> int:
        return len(self.inputs) + self.layers + len(self.outputs)


@dataclass(frozen=True)
class Content:
    """All that a page says. What was not asked for is None or empty; sizes are in bytes.

    `proof` is the verification of the file (of the float graph where weights were compressed, whose own error is in
    `quantized`); `layerwise` is the comparison of single layers.
    """

    path: str
    info: ModelInfo
    rows: tuple[Row, ...]
    flows: tuple[Flow, ...]
    source: str = ""
    source_bytes: int = 0
    source_nodes: int = 0
    proof: VerificationResult | None = None
    quantized: VerificationResult | None = None
    layerwise: LayerwiseResult | None = None
    passes: tuple[Report, ...] = ()
    notes: tuple[Diagnostic, ...] = ()

    @property
    def measured(self) -> VerificationResult | None:
        """What the file itself was measured by."""
        return self.quantized or self.proof


def of_model(path: Path, framework: str | None = None, chosen: Mapping[str, str] | None = None) -> Content:
    """One model by itself; see `look_into`. Raises ConversionError for what cannot be read."""
    info, graph = look_into(path, framework, chosen)
    rows = tuple(Row(layer, _spread(layer.weight, None)) for layer in layers_of(graph))
    return Content(str(path), info, rows, tuple(flows_of(graph)))


def with_source(content: Content, source: str, before: Graph, nodes: int, size: int) -> Content:
    """The same with the weights of the float graph that the file was made from, brought together by the layers' names.

    `nodes` and `size` are those of the source.
    """
    weights = {node.name: value.tensor for graph in before.graphs() for node in graph.nodes
               if (value := weight_operand(node)) is not None}  # fmt: skip
    rows = tuple(_with_before(row, weights.get(row.layer.name)) for row in content.rows)
    return replace(content, rows=rows, source=source, source_nodes=nodes, source_bytes=size)


def with_errors(content: Content, result: LayerwiseResult) -> Content:
    """The same with the errors of layers."""
    own = {report.node: report for report in result.layers}
    shared: dict[int, LayerReport] = {}
    for row in reversed(content.rows):  # readers come before what they read
        report = own.get(row.layer.name) or _following(row.layer.node, shared)
        if report is not None:
            shared[id(row.layer.node)] = report
    rows = [replace(r, error=shared.get(id(r.layer.node)), leads=r.layer.name in own) for r in content.rows]
    return replace(content, rows=tuple(rows), layerwise=result)


def _following(node: Node, shared: Mapping[int, LayerReport]) -> LayerReport | None:
    """The report of the one layer that a node is part of: that of its readers, where they agree."""
    found = {id(r): r for value in node.outputs for user in value.users if (r := shared.get(id(user))) is not None}
    return next(iter(found.values())) if len(found) == 1 else None


def _with_before(row: Row, before: Tensor | None) -> Row:
    weight = row.layer.weight
    if before is None or weight is None or tuple(before.shape) != weight.shape:
        return row
    old = stored_weight(before)
    if old.stored == weight.stored:
        return row
    return replace(row, before=old, spread=_spread(weight, before))


def _spread(weight: Weight | None, before: Tensor | None) -> Spread | None:
    if weight is None:
        return None
    values = sample(weight.tensor)
    if before is None:
        return Spread(histogram(values, weight.elements))
    old = sample(before)
    finite = np.concatenate([each[np.isfinite(each)] for each in (values, old)])
    both = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    sqnr, _ = numeric_change(before, weight.tensor)
    return Spread(histogram(values, weight.elements, both), histogram(old, weight.elements, both), sqnr)


def flows_of(graph: Graph) -> Iterator[Flow]:
    """The graph and those inside it, without empty ones."""
    first = 0
    for inner in graph.graphs():
        if inner.nodes:
            yield _flow(inner, inner.name if inner is not graph else "", first)
        first += len(inner.nodes)


def _flow(graph: Graph, name: str, first: int) -> Flow:
    number = {id(value): i for i, value in enumerate(graph.inputs)}
    edges: set[tuple[int, int]] = set()
    for i, node in enumerate(graph.nodes, len(graph.inputs)):
        edges |= {(number[id(v)], i) for v in node.inputs if id(v) in number}
        number |= {id(v): i for v in node.outputs}
    last = len(graph.inputs) + len(graph.nodes)
    edges |= {(number[id(v)], last + i) for i, (_, v) in enumerate(graph.outputs) if id(v) in number}
    leaving = graph.output_values
    sizes = {i for i, node in enumerate(graph.nodes, len(graph.inputs))
             if all(v.dtype.kind in "iu" and v.rank in (0, 1) and v not in leaving for v in node.outputs)}  # fmt: skip
    return Flow(
        name, first, tuple(v.name for v in graph.inputs), len(graph.nodes), tuple(name for name, _ in graph.outputs),
        tuple(sorted(edges)), frozenset(sizes),
    )  # fmt: skip


def common_prefix(names: Sequence[str]) -> str:
    """What most names begin with, up to a slash: the longest beginning that at least two thirds of them share."""
    prefix, needed = "", max(2, math.ceil(len(names) * 2 / 3))
    while True:
        longer = (n for n in names if n.startswith(prefix) and "/" in n[len(prefix) :])
        heads = Counter(n[: n.index("/", len(prefix)) + 1] for n in longer)
        best = heads.most_common(1)
        if not best or best[0][1] < needed:
            return prefix
        prefix = best[0][0]


def within(name: str, prefix: str) -> str:
    """A name without what it shares with `prefix`, up to a slash."""
    shared = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(name, prefix, strict=False))))
    return name[name.rfind("/", 0, shared) + 1 :] or name


def shorter(name: str, prefix: str) -> str:
    """A name for captions: also without what exporters and conversions append to every name."""
    rest = within(name, prefix).removesuffix(CONVERTED).removesuffix("_output_0")
    return rest or name
