"""Finds the step of a conversion that changes the answer: reading the source, a pass, a weight, or writing the file.

The conversion is done again, and the graph is run after each step that changed something. Where the last graph still
agrees, the file is to blame: its nodes are held against that graph, and each of its weights is put back alone, to see
how much of the noise in the outputs is that one's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.ir import ArrayTensor, FileTensor, Graph, Node, Value
from mnnconvert.options import ConversionOptions
from mnnconvert.passes.base import Pass, Report
from mnnconvert.passes.pipeline import run_pipeline
from mnnconvert.quantizers.plan import holds_weight
from mnnconvert.runtime_ref.session import Session
from mnnconvert.schema.reader import read_model
from mnnconvert.schema.writer import write_model
from mnnconvert.sources import imported
from mnnconvert.verify.compare import Tolerance, compare_outputs
from mnnconvert.verify.engines import Engine, Feeds, Outputs, SessionEngine
from mnnconvert.verify.layers import IntermediateEngine, LayerwiseResult
from mnnconvert.verify.localise import Localiser
from mnnconvert.verify.metrics import plain

IMPORT, FILE = "import", "file"
MOST_WEIGHTS = 400  # that are put back one by one: each is a run of the model
WORST_SHOWN = 5

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Step:
    """A step of the conversion, the changes that it made, and the worst relative error of the outputs after it.

    `reason` says what misses the tolerance; it is empty while all outputs agree.
    """

    name: str
    changes: int
    error: float
    reason: str = ""

    def to_dict(self) -> dict[str, object]:
        return {name: plain(value) for name, value in asdict(self).items()}


@dataclass(frozen=True)
class WeightShare:
    """A weight of the file that is not that of the float graph: the noise (dB) it makes in the outputs by itself."""

    layer: str
    op: str
    sqnr: float

    def to_dict(self) -> dict[str, object]:
        return {name: plain(value) for name, value in asdict(self).items()}


@dataclass(frozen=True)
class Bisection:
    """Steps in order, up to the first whose outputs miss; `weights` from the one that costs most on.

    `culprit` is a step, "weight 'layer'" or "node 'name'"; empty where everything agrees. `layers` are those of the
    graph behind the step to blame.
    """

    steps: tuple[Step, ...]
    culprit: str
    detail: str = ""
    weights: tuple[WeightShare, ...] = ()
    layers: LayerwiseResult | None = field(default=None, repr=False)

    def to_dict(self) -> dict[str, object]:
        return {
            "culprit": self.culprit,
            "detail": self.detail,
            "steps": [step.to_dict() for step in self.steps],
            "weights": [weight.to_dict() for weight in self.weights],
            "layers": None if self.layers is None else self.layers.to_dict(),
        }

    def lines(self) -> list[str]:
        """The culprit and why, for people."""
        if not self.culprit:
            return [f"bisect: the answer is right after each of {len(self.steps)} steps, and in the file"]
        lines = [f"bisect: the answer changes with {self.culprit}", *([f"  {self.detail}"] if self.detail else [])]
        lines += [f"  {w.layer} ({w.op}) alone: {w.sqnr:.1f} dB" for w in self.weights[:WORST_SHOWN]]
        return lines + ([f"  {line}" for line in self.layers.verdict()] if self.layers is not None else [])


@dataclass(frozen=True)
class Bisector:
    """Bisects the conversion of `source`, as `options` have it, to the file `mnn`."""

    reference: Engine
    options: ConversionOptions
    mnn: Path
    tolerance: Tolerance
    progress: Progress = lambda stage, fraction: None

    def run(self, feeds: Feeds) -> Bisection:
        """Raises what reading the source, a pass or the source engine refuse."""
        return _Walk(self, feeds).run()


class _Walk:
    """One bisection; `steps` are those that were run."""

    def __init__(self, plan: Bisector, feeds: Feeds):
        self.plan, self.feeds = plan, feeds
        self.want = plan.reference.run(feeds)
        self.steps: list[Step] = []
        self.found: Bisection | None = None

    def run(self) -> Bisection:
        graph = imported(self.plan.options)
        self._look(graph, IMPORT, len(graph.nodes))
        if self.found is None:
            self._rewrite(graph)
        return self.found or self._file(graph)

    def _rewrite(self, graph: Graph) -> None:
        options = self.plan.options

        def look(graph: Graph, step: Pass, report: Report) -> None:
            if report.changes and self.found is None:
                self._look(graph, f"pass {step.name}", report.changes)

        run_pipeline(graph, level=options.optimize_level, target=options.target, disabled=options.disable_pass,
                     options=options.passes, hook=look)  # fmt: skip

    def _look(self, graph: Graph, name: str, changes: int) -> None:
        """Run the graph as it is now; the first that misses is found."""
        self.plan.progress(name, 0.0)
        error, reason = self._missed(graph)
        self.steps.append(Step(name, changes, error, reason))
        if reason:
            self.found = Bisection(tuple(self.steps), name, reason, layers=self._layers(graph))

    def _missed(self, graph: Graph) -> tuple[float, str]:
        """The worst relative error of the outputs, and why one of them misses the tolerance."""
        try:
            got = _run(graph, self.feeds)
        except ConversionError as error:
            return float("inf"), error.diagnostics[0].message
        comparison = compare_outputs(got, self.want, self.plan.tolerance, exact_kinds=False, steps=self._steps())
        worst = max((v.measured.max_rel or 0.0 for v in comparison.outputs if v.measured is not None), default=0.0)
        missed = comparison.failures
        return worst, f"{missed[0].name}: {missed[0].reason}" if missed else ""

    def _steps(self) -> dict[str, float]:
        return {info.name: info.step for info in self.plan.reference.outputs if info.step}

    def _layers(self, graph: Graph) -> LayerwiseResult | None:
        if not isinstance(self.plan.reference, IntermediateEngine):
            return None
        localiser = Localiser(self.plan.reference, graph, self.plan.tolerance, progress=self.plan.progress)
        return localiser.run(self.feeds)

    def _file(self, graph: Graph) -> Bisection:
        """What in the file differs from the graph that it should hold, which agrees."""
        file = read_model(self.plan.mnn)
        error, reason = self._missed(file)
        steps = (*self.steps, Step(FILE, 0, error, reason))
        if not reason:
            return Bisection(steps, "")
        graph = _written(graph)
        other = next(_differences(graph, file), "")
        if other:
            return Bisection(steps, f"node {other}", reason, layers=self._layers(file))
        weights = self._weights(graph, file)
        culprit = f"weight '{weights[0].layer}'" if weights else FILE
        return Bisection(steps, culprit, reason, tuple(weights), self._layers(file) if not weights else None)

    def _weights(self, graph: Graph, file: Graph) -> list[WeightShare]:
        """The weights that are not those of the float graph, from the one that makes most noise alone on."""
        theirs = _with_weights(file)
        pairs = [(n, theirs[name]) for name, n in _with_weights(graph).items() if name in theirs]
        changed = [(ours, node) for ours, node in pairs if not _same_constants(ours, node)][:MOST_WEIGHTS]
        clean, shares = _run(graph, self.feeds), []
        for number, (ours, node) in enumerate(changed, 1):
            with_it = _with_constants(ours, node)
            try:
                shares.append(WeightShare(node.name, node.op.kind, _noise(_run(graph, self.feeds), clean)))
            finally:
                with_it()
            self.plan.progress("weights", number / len(changed))
        return sorted(shares, key=lambda share: share.sqnr)


def _written(graph: Graph) -> Graph:
    """A graph as it is read back from a file, which brings attributes to one form."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "model.mnn")
        write_model(graph, path)
        read = read_model(path)
        for value in (v for each in read.graphs() for v in each.constants()):
            value.tensor = (
                ArrayTensor(value.tensor.numpy().copy()) if isinstance(value.tensor, FileTensor) else value.tensor
            )
        return read


def _run(graph: Graph, feeds: Feeds) -> Outputs:
    wanted = {value.name for value in graph.inputs}
    return SessionEngine(Session(graph)).run({name: array for name, array in feeds.items() if name in wanted})


def _noise(got: Outputs, want: Outputs) -> float:
    """Signal to noise in dB over all float outputs; infinite for equal ones."""
    floats = [(got[n].astype(np.float64), w.astype(np.float64)) for n, w in want.items() if w.dtype.kind == "f"]
    signal = sum(float(np.square(w).sum()) for _, w in floats)
    noise = sum(float(np.square(g - w).sum()) for g, w in floats)
    if noise == 0:
        return float("inf")
    return 10 * float(np.log10(signal / noise)) if signal and np.isfinite(noise) else float("-inf")


def _with_weights(graph: Graph) -> dict[str, Node]:
    return {node.name: node for node in graph.nodes if holds_weight(node)}


def _same_constants(ours: Node, theirs: Node) -> bool:
    pairs = [(a, b) for a, b in zip(ours.inputs, theirs.inputs, strict=False) if a.is_constant and b.is_constant]
    return all(_equal(a, b) for a, b in pairs)


def _equal(a: Value, b: Value) -> bool:
    one, other = (v.tensor.numpy() if v.tensor is not None else None for v in (a, b))
    return one is not None and other is not None and np.array_equal(one, other)


def _with_constants(ours: Node, theirs: Node) -> Callable[[], None]:
    """Give a node the constants of another; what is returned takes them back."""
    places = [i for i, (a, b) in enumerate(zip(ours.inputs, theirs.inputs, strict=False))
              if a.is_constant and b.is_constant]  # fmt: skip
    before = [ours.inputs[i] for i in places]
    for place in places:
        ours.replace_input(place, theirs.inputs[place])

    def restore() -> None:
        for place, value in zip(places, before, strict=True):
            ours.replace_input(place, value)

    return restore


def _differences(graph: Graph, file: Graph) -> Iterator[str]:
    """Nodes of the file that have other attributes or operands than those of their name in the graph."""
    ours = {node.name: node for node in graph.nodes}
    for node in file.nodes:
        twin = ours.get(node.name)
        if twin is None or type(twin.op) is not type(node.op):
            continue
        now, before = ({name: _plain(value) for name, value in vars(n.op).items()} for n in (node, twin))
        changed = [name for name in before if before[name] != now[name]]
        if changed:
            name = changed[0]
            yield f"'{node.name}' ({node.op.kind}), whose {name} is {now[name]} in the file instead of {before[name]}"
        reads = [[v.name for v in n.inputs if not v.is_constant] for n in (node, twin)]
        if reads[0] != reads[1]:
            yield f"'{node.name}' ({node.op.kind}), which reads {', '.join(reads[0])} instead of {', '.join(reads[1])}"


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else list(value) if isinstance(value, tuple) else value
