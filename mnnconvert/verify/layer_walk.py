"""One walk over the layers of a converted file beside those of its source: what both hold, and how far it is apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.ir import CodedTensor, Graph, HalfTensor, Node, Value
from mnnconvert.ops.steps import on_codes
from mnnconvert.runtime_ref.session import Session
from mnnconvert.schema.shapes import infer_shapes
from mnnconvert.verify.compare import OutputVerdict, Tolerance, compare_outputs
from mnnconvert.verify.correspondence import CHANNELS_LAST, Match, correspond, moved_order, to_file, to_source
from mnnconvert.verify.cut import cut, nodes_between
from mnnconvert.verify.engines import Feeds, Outputs
from mnnconvert.verify.layers import IntermediateEngine, LayerReport, SourceLayer, names_of
from mnnconvert.verify.metrics import ArrayComparison, compare_arrays, kind_of
from mnnconvert.verify.ties import PICKING, tie

SLICE_BYTES = 48_000_000  # of values that are compared together; about four times as much is held
UNKNOWN_BYTES = 1_000_000
MOVING = ("Reshape", "Squeeze", "Unsqueeze", "Permute", "ConvertTensor", "Identity", "FloatToInt8", "Int8ToFloat")
EXACT = "exact"  # the order of values that were not moved
NARROW = ("int8", "uint8")

Progress = Callable[[str, float], None]
Arrays = dict[Value, np.ndarray]


@dataclass(frozen=True)
class Plan:
    """What is compared: a converted `graph` with the model of `reference`.

    `peer` gives values of the same file by their names there, as a third column (MNN's own runtime). A layer is beyond
    `tolerance` or not; `slice_bytes` of values are compared together.
    """

    reference: IntermediateEngine
    graph: Graph
    tolerance: Tolerance
    name: str = "mnnconvert"
    peer: Callable[[Feeds, Sequence[str]], Outputs] | None = None
    progress: Progress = lambda stage, fraction: None
    slice_bytes: int = SLICE_BYTES


@dataclass(frozen=True)
class LayerAlone:
    """One layer as a graph, with its inputs in the form of the file; `source` are the same in the form of the source.

    `expected` is what the source makes of them, `got` what the file does, both in the form of the source.
    """

    graph: Graph
    feeds: Outputs
    source: Outputs
    expected: np.ndarray
    got: np.ndarray


class LayerWalk:
    """One comparison: the values of the file that later slices need, and the shapes of those seen."""

    def __init__(self, plan: Plan, feeds: Feeds, layers: Sequence[SourceLayer]):
        self.plan, self.graph = plan, plan.graph
        self.feeds = dict(feeds)
        self.notes: list[str] = []
        self.matches = correspond(self.graph, names_of(layers))
        self.by_value = {m.value: m for m in self.matches}
        self.known: set[Value] = set(self.by_value) | set(self.graph.inputs)
        self.origins = _Origins(layers, [m.source for m in self.matches])
        self.live: Arrays = {v: np.asarray(feeds[v.name]) for v in self.graph.inputs if v.name in feeds}
        self.done: set[Node] = set()
        self.shapes: dict[Value, tuple[int, ...]] = {v: a.shape for v, a in self.live.items()}
        self.channels_last = self.graph.source in CHANNELS_LAST

    def rows(self) -> Iterator[LayerReport]:
        """The layers, slice by slice."""
        compared = 0
        for matches in self._slices():
            wanted = dict.fromkeys(m.source for m in matches)
            wanted |= dict.fromkeys(self._source(v) for m in matches for v in self._frontier(m))
            want = self.plan.reference.run_values(self.feeds, list(wanted))
            got = self._advance([m.value for m in matches])
            peer = self._peer([m.value for m in matches])
            for match in matches:
                row = self._row(match, got, want, peer)
                if row is not None:
                    yield row
            compared += len(matches)
            self.plan.progress("layers", compared / len(self.matches))
            if len(got) < len(matches):
                return  # the file cannot be run any further

    def alone(self, name: str) -> LayerAlone | None:
        """A layer by itself, of those that were walked over; None where the source does not tell what it reads."""
        match = next(m for m in self.matches if m.source == name)
        before = {v: self._source(v) for v in self._frontier(match)}
        want = self.plan.reference.run_values(self.feeds, list(dict.fromkeys([name, *before.values()])))
        given = self.given(match, want)
        if given is None:
            return None
        expected = want[name]
        got = self._execute(given, [match.value])[match.value]
        order = self._order(match, got.shape, expected.shape) or EXACT
        part = cut(self.graph, set(given), [match.value])
        for value in part.inputs:
            value.spec.shape = next(a.shape for v, a in given.items() if v.name == value.name)
        feeds = {v.name: array for v, array in given.items()}
        source = {s: want[s] for s in before.values()}
        return LayerAlone(part, feeds, source, expected, _arranged(got, order, expected.shape))

    def _slices(self) -> Iterator[list[Match]]:
        sizes, held, part = self._sizes(), 0, list[Match]()
        for match in self.matches:
            size = sizes.get(match.value.name, UNKNOWN_BYTES)
            if part and held + size > self.plan.slice_bytes:
                yield part
                held, part = 0, []
            part.append(match)
            held += size
        if part:
            yield part

    def _sizes(self) -> dict[str, int]:
        """Bytes of the values of the file at the sizes of these inputs, as far as the shape rules tell."""
        whole = cut(self.graph, self.graph.inputs, [v for _, v in self.graph.outputs])
        for value in whole.inputs:
            if value.name in self.feeds:
                value.spec.shape = tuple(np.shape(self.feeds[value.name]))
        try:
            infer_shapes(whole, {name: g for each in whole.graphs() for name, g in each.subgraphs.items()})
        except ConversionError:
            return {}  # the run will say what is wrong
        known = ((v, v.shape) for n in whole.nodes for v in n.outputs if v.shape is not None)
        return {v.name: int(np.prod([d if isinstance(d, int) else 1 for d in s])) * v.dtype.itemsize for v, s in known}

    def _frontier(self, match: Match) -> list[Value]:
        """The values with a source value, and the inputs, that a layer is computed from."""
        nodes = self._nodes(match)
        made = {v for node in nodes for v in node.outputs}
        return list(dict.fromkeys(v for node in nodes for v in node.inputs if v not in made and not v.is_constant))

    def _nodes(self, match: Match) -> list[Node]:
        """The nodes of a layer, in the order of computation."""
        return nodes_between(self.graph, self.known - {match.value}, [match.value])

    def _source(self, value: Value) -> str:
        return self.by_value[value].source if value in self.by_value else value.name

    def _advance(self, values: Sequence[Value]) -> Arrays:
        """Values of the file, computed from those that the slices before left; fewer where it fails on one."""
        given = set(self.live)
        fresh = set(nodes_between(self.graph, given, values))
        after = self.done | fresh
        at_hand = [v for node in after for v in node.outputs if v in given or node in fresh]
        carried = [v for v in at_hand if any(user not in after for user in v.users)]
        asked = list(dict.fromkeys([*values, *carried]))
        try:
            arrays = self._execute(self.live, asked)
        except ConversionError as error:
            return self._advance_singly(values, error)
        self.done = after
        self.live = {v: arrays[v] for v in carried} | {v: a for v, a in self.live.items() if v in self.graph.inputs}
        self.shapes |= {v: arrays[v].shape for v in values}
        return {v: arrays[v] for v in values}

    def _advance_singly(self, values: Sequence[Value], error: ConversionError) -> Arrays:
        """What can be computed before a node that fails."""
        self.notes.append(f"{self.plan.name} stops: {error.diagnostics[0].message}")
        arrays: Arrays = {}
        for value in values:
            try:
                arrays |= self._execute(self.live, [value])
            except ConversionError:
                break
        self.shapes |= {v: a.shape for v, a in arrays.items()}
        return arrays

    def _execute(self, given: Arrays, values: Sequence[Value]) -> Arrays:
        at_hand = {v: given[v] for v in values if v in given}
        missing = [v for v in values if v not in given]
        if not missing:
            return at_hand
        part = cut(self.graph, set(given), missing)
        by_name = {v.name: array for v, array in given.items()}
        for value in part.inputs:
            if value.name in by_name:
                value.spec.shape, value.spec.content = tuple(by_name[value.name].shape), None
        results = Session(part).run({v.name: by_name[v.name] for v in part.inputs if v.name in by_name})
        return at_hand | {v: results[v.name] for v in missing}

    def _peer(self, values: Sequence[Value]) -> Outputs:
        if self.plan.peer is None:
            return {}
        try:
            return self.plan.peer(self.feeds, [v.name for v in values])
        except ConversionError as error:
            note = f"MNN's own runtime does not tell some values: {error.diagnostics[0].message}"
            self.notes += [note] if note not in self.notes else []
            return {}

    def _row(self, match: Match, got: Arrays, want: Outputs, peer: Outputs) -> LayerReport | None:
        """The report on one layer; None where the source does not tell its value, or in no form to compare."""
        value, expected = match.value, want.get(match.source)
        if expected is None:
            return None
        if value not in got:
            return self._failed(match, expected)
        order = self._order(match, got[value].shape, expected.shape)
        if order is None or not _comparable(got[value].dtype, expected.dtype):
            return None
        total = self._compared(got[value], expected, order, value)
        own = self._own(match, expected, order, want)
        theirs = peer.get(value.name)
        lossy = self._lossy(match)
        judged = total if own is None else own
        nodes = self._nodes(match)
        node = _principal(nodes)
        return LayerReport(
            name=match.source,
            node=node.name,
            op=node.op.kind,
            nodes=tuple(n.name for n in nodes),
            origin=self.origins.of(match.source),
            shape=expected.shape,
            dtype=str(expected.dtype),
            total=_measured(total),
            own=None if own is None else _measured(own),
            peer=None if theirs is None else compare_arrays(_arranged(theirs, order, expected.shape), expected),
            lossy=lossy,
            first_nan=_first_nan(got[value], expected, order),
            reason=self._reason(match, judged, want) if not (lossy and judged.numeric) else "",
        )

    def _reason(self, match: Match, judged: OutputVerdict, want: Outputs) -> str:
        """Why a layer is bad; with the equal values where it took another of them than the source."""
        if not judged.reason:
            return ""
        at_hand = [want[name] for name in map(self._source, self._frontier(match)) if name in want]
        why = tie(self.origins.makers[match.source].op, at_hand, _measured(judged))
        return f"{judged.reason}; {why}" if why else judged.reason

    def _failed(self, match: Match, expected: np.ndarray) -> LayerReport:
        nodes = self._nodes(match)
        node = _principal(nodes)
        nothing = ArrayComparison((), expected.shape, "none", str(expected.dtype))
        reason = f"{self.plan.name} could not compute it: {self.notes[-1]}"
        origin = self.origins.of(match.source)
        names = tuple(n.name for n in nodes)
        return LayerReport(match.source, node.name, node.op.kind, origin, expected.shape, str(expected.dtype), nothing,
                           nodes=names, reason=reason)  # fmt: skip

    def _order(self, match: Match, file: tuple[int, ...], source: tuple[int, ...]) -> str | None:
        if not match.moved:
            return EXACT
        return moved_order(file, source, self.channels_last)

    def _compared(self, got: np.ndarray, want: np.ndarray, order: str, value: Value) -> OutputVerdict:
        got = _arranged(got, order, want.shape)
        steps = {"": value.steps.scale} if value.steps is not None else {}
        return compare_outputs({"": got}, {"": want}, self.plan.tolerance, exact_kinds=False, steps=steps).outputs[0]

    def _own(self, match: Match, expected: np.ndarray, order: str, want: Outputs) -> OutputVerdict | None:
        """The layer on the values of the source; None where one of them is not at hand in the form of the file."""
        given = self.given(match, want)
        if given is None:
            return None
        try:
            got = self._execute(given, [match.value])[match.value]
        except ConversionError:
            return None
        return self._compared(got, expected, order, match.value)

    def given(self, match: Match, want: Outputs) -> Arrays | None:
        """What a layer is computed from, as the source has it and in the form of the file."""
        given: Arrays = {}
        for value in self._frontier(match):
            array, shape = want.get(self._source(value)), self.shapes.get(value)
            if array is None or shape is None or not _comparable(value.dtype, array.dtype):
                return None
            before = self.by_value.get(value)
            order = EXACT if before is None else self._order(before, shape, array.shape)
            if order is None:
                return None
            given[value] = array if order == EXACT else to_file(array, order, shape)
        return given

    def _lossy(self, match: Match) -> bool:
        nodes = self._nodes(match)
        return any(on_codes(n) or any(isinstance(v.tensor, CodedTensor | HalfTensor) for v in n.inputs) for n in nodes)


class _Origins:
    """The source nodes that a layer covers: those between its source value and the values of other layers."""

    def __init__(self, layers: Sequence[SourceLayer], matched: Iterable[str]):
        self.makers = {name: layer for layer in layers for name in layer.outputs if name}
        self.matched = set(matched)

    def of(self, name: str) -> tuple[str, ...]:
        found: dict[SourceLayer, None] = {}
        open_names = [name]
        while open_names:
            layer = self.makers.get(open_names.pop(0))
            if layer is not None and layer not in found:
                found[layer] = None
                open_names += [n for n in layer.inputs if n not in self.matched]
        return tuple(f"{layer.op} {layer.node}" for layer in found)


def _principal(nodes: Sequence[Node]) -> Node:
    """The node that computes: one that picks, else the last that does more than to move or to convert."""
    picking = [node for node in nodes if node.op.kind in PICKING]
    return next((node for node in reversed(picking or nodes) if node.op.kind not in MOVING), nodes[-1])


def _comparable(ours: np.dtype, theirs: np.dtype) -> bool:
    """Whether two types can hold the same quantity: codes may be numbers, or codes of another zero, on one side."""
    kinds = kind_of(ours), kind_of(theirs)
    if "float" in kinds or "text" in kinds:
        return kinds[0] == kinds[1]
    return str(ours) == str(theirs) or not {str(ours), str(theirs)} & set(NARROW) or "bool" in kinds


def _arranged(array: np.ndarray, order: str, shape: tuple[int, ...]) -> np.ndarray:
    """A value of the file in the form of the source; as it is where the two have not as many elements."""
    return array if order == EXACT or array.size != math.prod(shape) else to_source(array, order, shape)


def _measured(verdict: OutputVerdict) -> ArrayComparison:
    assert verdict.measured is not None  # both sides were there
    return verdict.measured


def _first_nan(got: np.ndarray, want: np.ndarray, order: str) -> tuple[int, ...] | None:
    """Where the file has a NaN or infinity and the source a number."""
    got = _arranged(got, order, want.shape)
    if kind_of(got.dtype) != "float" or got.shape != want.shape:
        return None
    found = ~np.isfinite(got) & np.isfinite(want.astype(np.float64))
    return tuple(int(i) for i in np.unravel_index(int(found.argmax()), found.shape)) if found.any() else None
