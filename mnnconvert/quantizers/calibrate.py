"""Sequential calibration: layer after layer is coded with the inputs that the layers coded before it leave it.

The graph is cut into stages: stage k holds what can be computed once the layers of the stages before are coded. All
samples walk through one stage, once with float weights and once with codes; then the layers that stand at its end are
coded, and what nobody will read any more is dropped. So every op runs once per sample and path, and only the values
between two stages are kept, whatever the number of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mnnconvert.ir import Graph, Node, Tensor, Value
from mnnconvert.quantizers.activations import KEPT_BYTES, ActivationStore
from mnnconvert.quantizers.apply import code_layer, naming, share
from mnnconvert.quantizers.plan import LayerPlan
from mnnconvert.quantizers.recipe import Setting
from mnnconvert.quantizers.statistics import Moments, Statistics, is_measurable, layer_rows, window_key

Arrays = Mapping[str, np.ndarray]
Run = Callable[[Arrays], Arrays]
Prepare = Callable[[Graph], Run]
"""Makes a graph ready to run: the runner takes its inputs by name and returns its outputs by name."""
Progress = Callable[[float], None]
Visit = Callable[[Sequence[LayerPlan], "Seen | None"], None]

FLOAT, CODED = "float", "coded"
FEWEST_ROWS = 4  # a layer that saw fewer rows than columns / 4 tells too little for error compensation
MEASURED_ROWS = 256  # rows on which the outputs of a layer are compared
WITH_DATA = ("lsq", "gptq")


def calibrate(
    graph: Graph,
    layers: Sequence[LayerPlan],
    samples: Sequence[Arrays],
    prepare: Prepare,
    progress: Progress | None = None,
    limit: int = KEPT_BYTES,
) -> None:
    """Code the weights of `layers` as their plans say, with the inputs that `samples` bring them.

    `samples` are feeds of the whole graph; sizes may differ between them. gptq gets the moments of the inputs of the
    coded model and their products with those of the float model, lsq the mean squares. Layers whose rows do not all
    see the same inputs (groups, transposed convolutions, graphs inside the graph) are coded without data, and so are
    those that no sample reaches; a layer that saw fewer rows than a quarter of its columns is coded with lsq instead of
    gptq: `notes` of the plan say so. `sqnr` and `weighted_error` are measured on outputs of the layer against those in
    the float model. Activations beyond `limit` bytes lie in temporary files.
    """
    with ActivationStore(limit) as store:
        _Calibration(graph, layers, samples, prepare, store).run(progress or (lambda fraction: None))


def observe(
    graph: Graph,
    layers: Sequence[LayerPlan],
    samples: Sequence[Arrays],
    prepare: Prepare,
    visit: Visit,
    limit: int = KEPT_BYTES,
) -> None:
    """Tell `visit` what the layers see in the float model; those that read the same rows together. Nothing is coded."""
    with ActivationStore(limit) as store:
        _Calibration(graph, layers, samples, prepare, store, visit).run(lambda fraction: None)


@dataclass
class _Stage:
    """Nodes to run, the values they take from before and leave for later, and the layers to code after them."""

    nodes: list[Node] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    layers: list[LayerPlan] = field(default_factory=list)
    dropped: list[Value] = field(default_factory=list)


class _Calibration:
    """The state of one walk. Sample `i` of value `v` lies in the store under (i, v, path).

    Layers are coded as it comes by; with `visit` they stay, and it is told what they see in the float model.
    """

    def __init__(
        self,
        graph: Graph,
        layers: Sequence[LayerPlan],
        samples: Sequence[Arrays],
        prepare: Prepare,
        store: ActivationStore,
        visit: Visit | None = None,
    ):
        self.graph, self.samples, self.prepare, self.store = graph, samples, prepare, store
        self.visit = visit or self._code_group
        changed = [x for x in layers if x.changed]
        own = set(graph.nodes)
        self.inner = [x for x in changed if x.node not in own]
        self.plans = {x.node: x for x in changed if x.node in own}
        self.original: dict[Node, Tensor] = {}
        self.done: dict[tuple[Tensor, Setting], LayerPlan] = {}
        self.depth = _depths(graph, set(self.plans))
        self.gram = visit is None
        self.both_paths = self.gram and any(x.setting.method == "gptq" for x in self.plans.values())

    def run(self, progress: Progress) -> None:
        stages = _stages(self.graph, list(self.plans.values()), self.depth)
        for i, sample in enumerate(self.samples):
            for value in self.graph.inputs:
                self.store.put((i, value, FLOAT), np.asarray(sample[value.name]))
        total, coded = max(1, len(self.plans)), 0
        for stage in stages:
            self._run_stage(stage)
            for group in _by_input(stage.layers):
                self.visit(group, self._statistics(group))
                coded += len(group)
                progress(coded / total)
            self._drop(stage)
        self.visit(self.inner, None)

    def _code_group(self, group: Sequence[LayerPlan], seen: Seen | None) -> None:
        for layer in group:
            self._code(layer, seen)

    def _run_stage(self, stage: _Stage) -> None:
        if not stage.nodes:
            return
        for path in self._paths(stage.outputs):
            run = self.prepare(_subgraph(self.graph, stage, self.original if path == FLOAT else {}))
            for i in range(len(self.samples)):
                results = run({v.name: self._read(i, v, path) for v in stage.inputs})
                for value in stage.outputs:
                    if path in self._paths([value]):
                        self.store.put((i, value, path), results[value.name])

    def _paths(self, values: Iterable[Value]) -> tuple[str, ...]:
        """Paths on which values have to be computed. What lies before all layers is the same on both."""
        coded = any(self.depth[v] for v in values)
        return ((FLOAT, CODED) if self.both_paths else (CODED,)) if coded else (FLOAT,)

    def _read(self, sample: int, value: Value, path: str) -> np.ndarray:
        return self.store.get((sample, value, path if self.depth[value] and self.both_paths else self._only(value)))

    def _only(self, value: Value) -> str:
        return CODED if self.depth[value] else FLOAT

    def _statistics(self, group: Sequence[LayerPlan]) -> Seen | None:
        """What the layers of a group, which read the same rows, see; None when nothing can be said."""
        node = group[0].node
        if not is_measurable(node):
            return None
        gram = self.gram and any(x.setting.method == "gptq" for x in group if not x.half)
        value = node.inputs[0]
        cross = gram and self.depth[value] > 0
        moments, kept = Moments(group[0].columns, gram, cross), _Rows(len(self.samples))
        for i in range(len(self.samples)):
            coded = layer_rows(node, self._read(i, value, CODED))
            if not cross:
                for rows in coded:
                    moments.add(rows)
                    kept.add(rows, rows)
                continue
            for rows, exact in zip(coded, layer_rows(node, self._read(i, value, FLOAT)), strict=True):
                moments.add(rows, exact)
                kept.add(rows, exact)
        with naming(node.name):
            return Seen(moments.statistics(), *kept.arrays()) if kept.count else None

    def _code(self, layer: LayerPlan, seen: Seen | None) -> None:
        source = layer.weight.tensor
        assert source is not None
        self.original[layer.node] = source
        statistics = self._usable(layer, seen)
        first = self.done.setdefault((source, layer.resolved), layer)
        if first is layer:
            code_layer(layer, statistics)
        else:
            share(first, layer)
        if seen is not None:
            _measure(layer, source, seen)

    def _usable(self, layer: LayerPlan, seen: Seen | None) -> Statistics | None:
        """The statistics, where there are enough; else another method takes the place of one that needs more."""
        needs = layer.setting.method if not layer.half and layer.setting.method in WITH_DATA else ""
        if not needs:
            return None
        if seen is None:
            layer.notes.append(f"coded without data: {self._why_unseen(layer.node)}")
            _fall_back(layer)
            return None
        if needs == "gptq" and seen.statistics.samples * FEWEST_ROWS < layer.columns:
            layer.notes.append(f"lsq instead of gptq: {seen.statistics.samples} rows for {layer.columns} columns")
            _fall_back(layer)
        return seen.statistics

    def _why_unseen(self, node: Node) -> str:
        if node not in self.plans:
            return "it lies in a graph inside the graph"
        return "no sample reaches it" if is_measurable(node) else "its rows see different inputs"

    def _drop(self, stage: _Stage) -> None:
        for value in stage.dropped:
            for i in range(len(self.samples)):
                for path in (FLOAT, CODED):
                    if (i, value, path) in self.store:
                        self.store.drop((i, value, path))


@dataclass(frozen=True)
class Seen:
    """Statistics of the inputs of a layer, and some rows of the coded and of the float model."""

    statistics: Statistics
    rows: np.ndarray
    exact: np.ndarray


class _Rows:
    """Keeps up to `MEASURED_ROWS` rows, spread over all samples."""

    def __init__(self, samples: int):
        self.per_piece = max(1, MEASURED_ROWS // max(1, samples))
        self.count = 0
        self._rows: list[np.ndarray] = []
        self._exact: list[np.ndarray] = []

    def add(self, rows: np.ndarray, exact: np.ndarray) -> None:
        if self.count < MEASURED_ROWS and len(rows):
            chosen = np.linspace(0, len(rows) - 1, min(len(rows), self.per_piece)).astype(int)
            self._rows.append(rows[chosen])
            self._exact.append(exact[chosen])
            self.count += len(chosen)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        if not self._rows:
            return np.empty((0, 0), np.float32), np.empty((0, 0), np.float32)
        return np.concatenate(self._rows), np.concatenate(self._exact)


def _fall_back(layer: LayerPlan) -> None:
    if layer.setting.method == "gptq":
        layer.setting = replace(layer.setting, method="lsq")
        layer.method = "lsq"


def _measure(layer: LayerPlan, source: Tensor, seen: Seen) -> None:
    """Error of the outputs W^ x^ of a layer against those of the float model, W x."""
    assert layer.weight.tensor is not None
    with np.errstate(over="ignore", invalid="ignore"):  # outputs beyond float32 leave nothing to compare
        exact = seen.exact @ source.numpy().reshape(layer.rows, -1).T
        noise = exact - seen.rows @ layer.weight.tensor.numpy().reshape(layer.rows, -1).T
        power, lost = (float(np.square(a, dtype=np.float64).sum()) for a in (exact, noise))
    if power > 0 and np.isfinite(power + lost):
        layer.weighted_error = float(np.sqrt(lost / power))
        layer.sqnr = float(10 * np.log10(power / lost)) if lost > 0 else None


def _depths(graph: Graph, layers: set[Node]) -> dict[Value, int]:
    """How many layers lie before each value of a graph, on the longest way from the inputs."""
    depth: dict[Value, int] = dict.fromkeys(graph.inputs, 0)
    for node in graph.nodes:
        deepest = max((depth[v] for v in node.inputs if not v.is_constant), default=0)
        depth.update(dict.fromkeys(node.outputs, deepest + (node in layers)))
    return depth


def _stages(graph: Graph, layers: Sequence[LayerPlan], depth: Mapping[Value, int]) -> list[_Stage]:
    """The stages up to the last layer. A layer is coded after the stage of its input, and runs in the next one."""
    by_node = {x.node: x for x in layers}
    position = {node: max((depth[v] for v in node.outputs), default=0) for node in graph.nodes}
    count = 1 + max((position[node] - 1 for node in by_node), default=-1)
    stages = [_Stage() for _ in range(count)]
    needed = _needed(graph, by_node)
    made = dict.fromkeys(graph.inputs, 0)
    last: dict[Value, int] = {}
    for node in needed:
        at = position[node]
        if node in by_node:
            stages[at - 1].layers.append(by_node[node])
        if at < count:
            stages[at].nodes.append(node)
        made.update(dict.fromkeys(node.outputs, at))
        for value in node.inputs:
            if not value.is_constant:
                last[value] = max(last.get(value, 0), at)
    for value, at in last.items():
        if made[value] < at and value.producer is not None and made[value] < count:
            stages[made[value]].outputs.append(value)
        if at < count:
            stages[at].dropped.append(value)
    for number, stage in enumerate(stages):
        read = dict.fromkeys(v for n in stage.nodes for v in n.inputs if not v.is_constant)
        stage.inputs = [v for v in read if made[v] < number or v.producer is None]
    return stages


def _needed(graph: Graph, layers: Mapping[Node, LayerPlan]) -> list[Node]:
    """The layers and all nodes that lead to one, in order."""
    wanted: set[Node] = set()
    for node in reversed(graph.nodes):
        if node in layers or any(user in wanted for v in node.outputs for user in v.users):
            wanted.add(node)
    return [n for n in graph.nodes if n in wanted]


def _by_input(layers: Iterable[LayerPlan]) -> Iterator[list[LayerPlan]]:
    """Layers in groups that see the same rows."""
    groups: dict[object, list[LayerPlan]] = {}
    for layer in layers:
        key = (layer.node.inputs[0], window_key(layer.node)) if is_measurable(layer.node) else layer.node
        groups.setdefault(key, []).append(layer)
    yield from groups.values()


def _subgraph(graph: Graph, stage: _Stage, weights: Mapping[Node, Tensor]) -> Graph:
    """The nodes of a stage as a graph of their own; `weights` are what some nodes read as their second operand."""
    copies: dict[Value, Value] = {}

    def copy(value: Value) -> Value:
        if value not in copies:
            copies[value] = Value(value.name, value.spec, value.tensor)
        return copies[value]

    part = Graph(graph.name, [copy(v) for v in stage.inputs], subgraphs=graph.subgraphs, source=graph.source)
    for node in stage.nodes:
        operands = [copy(v) for v in node.inputs]
        if node in weights:
            operands[1] = Value(f"{operands[1].name}/{node.name}", operands[1].spec, weights[node])
        part.nodes.append(Node(node.op, operands, [copy(v) for v in node.outputs], node.name, ()))
    part.outputs = [(v.name, copy(v)) for v in stage.outputs]
    return part
