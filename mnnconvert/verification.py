"""Proves files against each other: opens the engines, makes up inputs, applies gates."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mnnconvert.errors import ConversionError, UsageError, unreadable
from mnnconvert.feeding import made_up, read_feeds
from mnnconvert.frameworks import SUFFIXES
from mnnconvert.ir import Graph, Shape
from mnnconvert.ir.types import merge
from mnnconvert.options import ConversionOptions
from mnnconvert.runtime_ref.session import Session, load
from mnnconvert.schema.reader import read_model
from mnnconvert.sources import inputs_of_script
from mnnconvert.verify.compare import Comparison, Tolerance
from mnnconvert.verify.engines import Engine, OnnxRuntimeEngine, Outputs, SessionEngine, TensorInfo
from mnnconvert.verify.first_call import at_first_call
from mnnconvert.verify.gates import SIZE, GateResult, evaluate, read_gates
from mnnconvert.verify.layers import IntermediateEngine, LayerwiseResult
from mnnconvert.verify.litert_engine import LiteRtEngine
from mnnconvert.verify.localise import Localiser, require_values
from mnnconvert.verify.mnn_engine import MnnEngine
from mnnconvert.verify.opencv_engine import OpenCvEngine
from mnnconvert.verify.recorded import recorded_case
from mnnconvert.verify.scores import Score, load_function, score
from mnnconvert.verify.tensorflow_engine import TensorFlowEngine
from mnnconvert.verify.torch_engine import TorchEngine
from mnnconvert.verify.verification import VerificationResult, first_accepted, verify_engines

if TYPE_CHECKING:
    from mnnconvert.bisection import Bisection

Feeds = Mapping[str, Any]
ANY_ERROR = sys.float_info.max  # measured, not judged
ENGINES: dict[str, Callable[..., Engine]] = {
    "ONNX": OnnxRuntimeEngine, "TFLITE": LiteRtEngine, "TF": TensorFlowEngine, "TORCH": TorchEngine,
    "CAFFE": OpenCvEngine,
    "MNN": lambda path, **_: SessionEngine(load(path)),
}  # fmt: skip


def open_source(
    path: Path,
    framework: str = "",
    *,
    threads: int = 1,
    optimize: bool = False,
    chosen: Mapping[str, Any] | None = None,
) -> Engine:
    """onnxruntime for ONNX, LiteRT for TFLite, TensorFlow and torch for their own, OpenCV for Caffe, ours for MNN.

    `source-engine-missing` for anything else. Where the framework is not given, the suffix tells it. `optimize` lets
    the engine be as fast as it can. `chosen` is what else tells the model: the `prototxt` of Caffe weights, the
    `signature` of a SavedModel, the `inputs` (InputOptions) of a TorchScript.
    """
    try:
        path.stat()
    except OSError as error:
        raise unreadable(path, error) from error
    open_engine = ENGINES.get(framework or ("TF" if path.is_dir() else SUFFIXES.get(path.suffix.lower(), "")))
    if open_engine is None:
        raise ConversionError.of(
            "source-engine-missing",
            f"no engine here runs '{path.name}'",
            hint="an .onnx, .tflite, .pb, .keras, .pt, .pt2, .caffemodel or .mnn file, or a SavedModel folder",
            file=path,
        )
    return open_engine(path, threads=threads, optimize=optimize, **(chosen or {}))


@dataclass(frozen=True)
class Request:
    """What is asked of one verification; see `mnnconvert.verify`.

    With `tolerance` None gates alone judge, if there are any. `layers_if_told` compares layers where the engine of the
    source tells the values inside. `chosen` is that of `open_source`. `options` are those of the conversion, for a
    bisection that does it again.
    """

    source: Path
    mnn: Path
    inputs: Any = None
    gates: Path | None = None
    tolerance: float | None = None
    engine: str | None = None
    seed: int = 0
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    runs: int | None = None
    per_layer: bool = False
    layers_if_told: bool = False
    bisect: bool = False
    repro: Path | None = None
    chosen: Mapping[str, str] = field(default_factory=dict)
    options: ConversionOptions | None = None
    progress: Callable[[str, float], None] = lambda stage, fraction: None


def verify_files(request: Request) -> VerificationResult:
    """See `mnnconvert.verify`."""
    return _Verification(request).run()


class _Verification:
    """One verification; `feeds` are those of the run to look into: the first that missed, else the first."""

    def __init__(self, request: Request):
        self.request = request
        self.rules = read_gates(request.gates) if request.gates is not None else []
        self.folder = Path(request.gates).parent if request.gates is not None else Path()
        judged = request.tolerance
        if judged is None:
            judged = ANY_ERROR if self.rules else ConversionOptions.tolerance
        self.tolerance = Tolerance(judged)
        framework = request.options.framework or "" if request.options else ""
        self.candidate = open_candidate(request.mnn, request.engine)
        values = request.options.input_value if request.options else ()
        self.script = inputs_of_script(request.source, request.mnn, values)
        chosen = {**request.chosen, **({} if self.script is None else {"inputs": self.script})}
        self.reference = at_first_call(open_source(request.source, framework, chosen=chosen), self.candidate)
        self.feeds: Feeds = {}
        self.missed = False
        self.functions = {r.function: load_function(r.function, self.folder) for r in self.rules if r.function}

    def run(self) -> VerificationResult:
        result, results = self._measure()
        missed = tuple(r for r in results if not r.passed)
        result = replace(result, gates=tuple(results), missed_gates=missed)
        request = self.request
        told = request.layers_if_told and isinstance(self.reference, IntermediateEngine)
        if request.per_layer or request.repro is not None or told:
            result = replace(result, layers=result.layers or self._layers())
        if request.bisect:
            result = replace(result, bisection=self._bisection())
        if request.repro is not None and result.layers is not None:
            result = replace(result, repro=self._repro(request.repro, result.layers))
        return result

    def _measure(self) -> tuple[VerificationResult, list[GateResult]]:
        """The runs on the inputs of the request, and all gates; those with data of their own are run on these."""
        result, scores = self._runs(self.request.inputs, self.tolerance, self.functions)
        own = [rule for rule in self.rules if not rule.data]
        if any(rule.layer for rule in own):
            result = replace(result, layers=self._layers())
        comparisons = [run.comparison for run in result.runs if run.comparison]
        layers = result.layers.layers if result.layers is not None else ()
        results = evaluate(own, comparisons, layers, self._bytes(), scores)
        for data in dict.fromkeys(rule.data for rule in self.rules if rule.data):
            results += self._gates_on(data)
        return result, results

    def _bytes(self) -> int | None:
        return size_of(self.request.mnn) if any(rule.metric == SIZE for rule in self.rules) else None

    def _gates_on(self, data: str) -> list[GateResult]:
        rules = [rule for rule in self.rules if rule.data == data]
        functions = {rule.function: self.functions[rule.function] for rule in rules if rule.function}
        measured, scores = self._runs(self.folder / data, Tolerance(ANY_ERROR), functions)
        layers = self._layers().layers if any(rule.layer for rule in rules) else ()
        broken = [p for run in measured.runs for p in run.problems]
        if broken:
            raise ConversionError(broken)
        comparisons = [run.comparison for run in measured.runs if run.comparison]
        return evaluate(rules, comparisons, layers, self._bytes(), scores)

    def _runs(
        self, inputs: Any, tolerance: Tolerance, functions: Mapping[str, Score]
    ) -> tuple[VerificationResult, dict[str, float]]:
        """The comparison of all runs, and the worst value of each function over them."""
        uppers = {rule.function: rule.upper for rule in self.rules}
        scores: dict[str, float] = {}
        kept = False

        def observe(feeds: Feeds, got: Outputs, want: Outputs, comparison: Comparison) -> None:
            nonlocal kept
            for name, function in functions.items():
                value = score(function, name, want, got)
                worse = max if uppers[name] else min
                scores[name] = value if name not in scores else worse(scores[name], value)
            if not kept or (not comparison.passed and not self.missed):
                self.feeds, kept = feeds, True
                self.missed = not comparison.passed

        request = self.request
        choices = choose_feeds(self.reference, self.candidate, inputs, request.seed, request.shapes, request.runs)

        def progress(done: int, count: int) -> None:
            request.progress("verify", done / count)

        result = verify_engines(self.reference, self.candidate, choices, tolerance, progress, observe)
        return result, scores

    def _localiser(self) -> Localiser:
        peer = self.candidate.run_values if isinstance(self.candidate, MnnEngine) else None
        reference, graph = require_values(self.reference), read_model(self.request.mnn)
        tolerance = Tolerance(self.request.tolerance or ConversionOptions.tolerance)
        return Localiser(reference, graph, tolerance, peer=peer, progress=self.request.progress)

    def _layers(self) -> LayerwiseResult:
        return self._localiser().run(self._looked_into())

    def _looked_into(self) -> Feeds:
        """The feeds of the run to look into. Where the file could not be run, nothing was compared: the first ones."""
        if not self.feeds:
            request = self.request
            choices = choose_feeds(
                self.reference, self.candidate, request.inputs, request.seed, request.shapes, request.runs
            )[0]
            alternatives = [choices] if isinstance(choices, Mapping) else choices
            self.feeds, _, _ = first_accepted(self.reference, alternatives)
        return self.feeds

    def _bisection(self) -> Bisection:
        from mnnconvert.bisection import Bisector

        request = self.request
        files = {"model_file": str(request.source), "mnn_model": str(request.mnn)}
        options = request.options or ConversionOptions.from_keywords(**files, **request.chosen, verify="never")
        if self.script is not None:
            types, values = (
                tuple(f"{n}:{v}" for n, v in said.items()) for said in (self.script.types, self.script.values)
            )
            shapes = {n: tuple(d for d in s if isinstance(d, int)) for n, s in self.script.shapes.items()}
            options = replace(options, input_shape=shapes, input_type=types, input_value=values)
        tolerance = Tolerance(request.tolerance or ConversionOptions.tolerance)
        return Bisector(self.reference, options, request.mnn, tolerance, request.progress).run(self._looked_into())

    def _repro(self, folder: Path, layers: LayerwiseResult) -> dict[str, str]:
        from mnnconvert.reproduction import write_layer

        layer = layers.first_bad or layers.worst
        return {} if layer is None else write_layer(self._localiser(), self._looked_into(), layer, folder)


def size_of(mnn: Path) -> int:
    """Bytes of a file with its external weights."""
    weights = Path(f"{mnn}.weight")
    return mnn.stat().st_size + (weights.stat().st_size if weights.is_file() else 0)


def open_candidate(mnn: Path, engine: str | None) -> Engine:
    """What runs the MNN file: our executor, its OpenCL backend for "opencl", or MNN's own runtime for "mnn"."""
    if engine not in (None, "mnnconvert", "mnn", "opencl"):
        raise UsageError.of("unsupported-backend", f"there is no engine '{engine}'", hint="mnnconvert, opencl or mnn")
    if engine == "opencl":
        return SessionEngine(load(mnn, "opencl"), "mnnconvert opencl")
    return MnnEngine(mnn) if engine == "mnn" else SessionEngine(load(mnn))


def choose_feeds(
    reference: Engine,
    candidate: Engine,
    inputs: Any,
    seed: int,
    shapes: Mapping[str, Sequence[int]] | None = None,
    runs: int | None = None,
) -> Sequence[Feeds | Iterable[Feeds]]:
    """The given arrays, those at a path (`feeding.read_feeds`), or seeded random ones: see `feeding.made_up`."""
    infos = common_inputs(reference, candidate)
    if inputs is None:
        return made_up(infos, seed, shapes or {}, runs)
    return [inputs] if isinstance(inputs, Mapping) else read_feeds(Path(inputs), infos)


def common_inputs(reference: Engine, candidate: Engine) -> list[TensorInfo]:
    """The inputs of the reference, with the sizes that the candidate fixes, and its types where only it knows them."""
    fixed = {info.name: info.shape for info in candidate.inputs}
    kinds = {info.name: info.dtype for info in candidate.inputs}
    return [
        replace(
            info, shape=_common_shape(info.shape, fixed.get(info.name, ())), dtype=info.dtype or kinds.get(info.name)
        )
        for info in reference.inputs
    ]


def _common_shape(shape: Shape | None, fixed: Shape | None) -> Shape | None:
    """onnxruntime shows an unknown rank as no axes at all."""
    return None if shape == () and fixed is None else merge(shape, fixed)


def verify_graph(reference: Engine, graph: Graph, inputs: Any, tolerance: float, seed: int) -> VerificationResult:
    """A graph in memory, run by our executor, against a source engine."""
    candidate = SessionEngine(Session(graph))
    reference = at_first_call(reference, candidate)
    return verify_engines(reference, candidate, choose_feeds(reference, candidate, inputs, seed), Tolerance(tolerance))


def blame(
    reference: Engine, graph: Graph, options: ConversionOptions, progress: Callable[[str, float], None]
) -> list[str]:
    """The first bad layer of a graph that missed, for people; nothing where the engine cannot tell values."""
    if not isinstance(reference, IntermediateEngine):
        return []
    candidate = SessionEngine(Session(graph))
    choices = choose_feeds(reference, candidate, options.inputs, options.seed)[0]
    try:
        feeds, _, _ = first_accepted(reference, [choices] if isinstance(choices, Mapping) else choices)
        localiser = Localiser(reference, graph, Tolerance(options.tolerance), progress=progress)
        return localiser.run(feeds).verdict()
    except ConversionError as error:
        return [f"its layers could not be compared: {error.diagnostics[0].message}"]


def check_recorded(session: Session, folder: Path, threshold: float) -> list[str]:
    """What differs by more than `threshold` of the largest expected value; shapes are compared by element count."""
    feeds, expected = recorded_case(folder)
    typed = {i.name: feeds[i.name].astype(i.dtype) for i in session.inputs if i.name in feeds}
    got = session.run(typed)
    problems = []
    for name, want in expected.items():
        if name not in got:
            problems.append(f"the model has no output '{name}'")
        elif got[name].size != want.size:
            problems.append(f"'{name}' has {got[name].size} elements instead of {want.size}")
        else:
            error = float(np.abs(got[name].reshape(-1).astype(np.float64) - want).max(initial=0))
            largest = float(np.abs(want).max(initial=0))
            if not error <= threshold * largest:
                problems.append(
                    f"'{name}' is off by {error:.3g} (largest value {largest:.3g}, allowed {threshold:g} of it)"
                )
    return problems
