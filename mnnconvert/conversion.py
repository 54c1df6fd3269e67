"""One conversion from end to end: read, rewrite, quantize, write, prove, and only then put the file in its place."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnnconvert.errors import ConversionError, Diagnostic, GateError, UsageError
from mnnconvert.frameworks import SOURCE_ENGINES
from mnnconvert.ir import Graph, to_text
from mnnconvert.options import ConversionOptions
from mnnconvert.sources import bytes_on_disk, guess_framework, imported, plugins, torch_inputs, without_collection

if TYPE_CHECKING:
    from mnnconvert.passes.base import Report
    from mnnconvert.quantizers.plan import LayerPlan
    from mnnconvert.quantizers.recipe import Recipe
    from mnnconvert.verify.engines import Engine
    from mnnconvert.verify.verification import VerificationResult

AUTO_VERIFY_BYTES = 500_000_000  # beyond this `--verify auto` leaves the proof, which loads the model twice, out


@dataclass
class ConversionReport:
    """What went in, what was done, what came out, and the proof.

    Sizes are in bytes; `layers` says what each weight became; `verification` is that of the written file (of the float
    graph for quantized weights, whose own error stands in `quantized`); None where it was not asked for.
    """

    source: str
    target: str | None
    framework: str
    diagnostics: list[Diagnostic] = field(default_factory=list)
    passes: list[Report] = field(default_factory=list)
    layers: list[LayerPlan] = field(default_factory=list)
    source_bytes: int = 0
    target_bytes: int = 0
    external_bytes: int = 0
    nodes_before: int = 0
    nodes_after: int = 0
    verification: VerificationResult | None = None
    quantized: VerificationResult | None = None
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        plain = {
            name: getattr(self, name)
            for name in ("source", "target", "framework", "source_bytes", "target_bytes", "external_bytes",
                         "nodes_before", "nodes_after", "seconds")
        }  # fmt: skip
        from mnnconvert.quantizers.plan import total

        before, after = total(self.layers)
        return plain | {
            "weights": {"bytes_before": before, "bytes_after": after},
            "diagnostics": [d.to_dict() for d in self.diagnostics],
            "passes": [p.to_dict() for p in self.passes],
            "layers": [layer.to_dict() for layer in self.layers],
            "verification": None if self.verification is None else self.verification.to_dict(),
            "quantized": None if self.quantized is None else self.quantized.to_dict(),
        }


class Conversion:
    """The steps of one conversion; each leaves its mark on the report."""

    def __init__(
        self,
        options: ConversionOptions,
        progress: Callable[[str, float], None] | None = None,
        choose: Callable[[Graph], Recipe] | None = None,
        judge: Callable[[Path], None] | None = None,
    ):
        self.options = options
        self.choose = choose  # decides on the weights when it has seen the graph; the options do where it is None
        self.judge = judge  # looks at the written file before it gets its name, and raises where it must not have it
        self.progress = progress or (lambda stage, fraction: None)
        self.source = Path(options.model_file or "")
        self.framework = options.framework or guess_framework(self.source)
        self.report = ConversionReport(str(self.source), options.mnn_model, self.framework)
        self.recipe: Recipe  # read before the model is
        self._found_params = False  # whether the compression file was there before
        self._engine: Engine | None = None  # of the source, opened once for both proofs

    def run(self) -> ConversionReport:
        """Convert (or, with `plan`, only say what would be done)."""
        started = time.perf_counter()
        with without_collection():
            self._convert()
        self.report.seconds = time.perf_counter() - started
        if self.options.html is not None:
            self._write_page(Path(self.options.html))
        return self.report

    def _write_page(self, path: Path) -> None:
        from mnnconvert.report import write_page
        from mnnconvert.report.gather import of_conversion

        self.progress("report", 0.0)
        write_page(of_conversion(self.options, self.report), path)

    def _convert(self) -> None:
        from mnnconvert.weights import recipe_of

        params = self.options.compression_params_file
        self._found_params = params is not None and os.path.exists(params)  # `Path.exists` raises for some names
        recipe = self.recipe = recipe_of(self.options)
        graph = self._read()
        self._rewrite(graph)
        if not self.options.plan:
            self._check_target()
        if self.choose is not None:
            recipe = self.recipe = self.choose(graph)
        layers = self._plan(graph, recipe)
        if self.options.plan:
            self._predict(layers)
        else:
            self._scale_channels(graph, layers)
            self._float_proof(graph, recipe)
            self._quantize(graph, layers, recipe)
            self._write(graph)
            self._save_recipe()

    def note(self, reference: str, message: str, hint: str = "") -> None:
        self.report.diagnostics.append(Diagnostic(reference, message, hint=hint))

    def _read(self) -> Graph:
        self.progress("read", 0.0)
        graph = imported(self.options, self.note)
        self.report.source_bytes = bytes_on_disk(self.source, graph)
        self.report.nodes_before = sum(len(g.nodes) for g in graph.graphs())
        return graph

    def _rewrite(self, graph: Graph) -> None:
        from mnnconvert.passes.pipeline import run_pipeline
        from mnnconvert.weights import blocks_of

        self.progress("rewrite", 0.0)
        self.report.passes = run_pipeline(
            graph,
            level=self.options.optimize_level,
            target=self.options.target,
            disabled=self.options.disable_pass,
            options=self.options.passes | {"block": blocks_of(self.recipe)},
            hook=self._after_pass if self.options.dump_pass or self.options.debug else None,
        )
        self.report.nodes_after = sum(len(g.nodes) for g in graph.graphs())
        self._note_attention()

    def _note_attention(self) -> None:
        """Say what --transformerFuse left in pieces, and why."""
        done = [r for r in self.report.passes if r.name == "fuse-attention"]
        for note in (note for report in done for note in report.notes):
            self.note("keys-kept", note, "mnnconvert.load(FILE, kv_cache=True) makes a session that remembers them")
        left = Counter(miss.partition("': ")[2] or miss for report in done for miss in report.misses)
        reasons = "; ".join(
            f"{reason} ({count} times)" if count > 1 else reason for reason, count in left.most_common(3)
        )
        if left:
            self.note(
                "attention-not-fused", f"attention stays in separate operators: {reasons}", "--dumpPass names each"
            )
        elif done and not done[0].changes:
            self.note("attention-not-fused", "the model has no attention that --transformerFuse could fuse")

    def _after_pass(self, graph: Graph, step: Any, report: Report) -> None:
        from mnnconvert.ir import verify

        verify(graph, step.name)
        if self.options.dump_pass:
            print(f"# {step.name}: {report.changes} changes", file=sys.stderr)
            for line in (*report.notes, *report.misses):
                print(f"#   {line}", file=sys.stderr)
            if report.changes:
                print(to_text(graph), file=sys.stderr)

    def _plan(self, graph: Graph, recipe: Recipe) -> list[LayerPlan]:
        from mnnconvert.quantizers.plan import plan_weights

        self.report.layers = plan_weights(graph, recipe)
        self._note_rounded_twice()
        smaller = [x for x in self.report.layers if x.changed and x.block_channels not in (0, x.setting.block)]
        if smaller:
            sizes = ", ".join(sorted({str(x.setting.block) for x in smaller}))
            self.note(
                "smaller-block",
                f"{len(smaller)} layers have channels that {sizes} does not divide: they have the largest "
                "block below it that does, with scales in half precision",
            )
        return self.report.layers

    def _note_rounded_twice(self) -> None:
        from mnnconvert.ir import CodedTensor, HalfTensor

        tensors = [x.weight.tensor for x in self.report.layers if x.changed and not x.half]
        stored = {id(t) for t in tensors if isinstance(t, CodedTensor | HalfTensor)}
        if stored:
            self.note(
                "rounded-twice",
                f"{len(stored)} weights of '{self.source.name}' were rounded before and are rounded again",
                "convert from the float model where you have it",
            )

    def _predict(self, layers: list[LayerPlan]) -> None:
        """Say what error the codes will make, from some rows of each weight."""
        from mnnconvert.quantizers.apply import predict

        for i, layer in enumerate(layers):
            if layer.changed and not layer.half:
                layer.predicted = predict(layer)
            self.progress("estimate", (i + 1) / len(layers))

    def _check_target(self) -> None:
        """Find out that nothing can be written before the work, not after it."""
        from mnnconvert.schema.files import refuse_same, staged

        pages = [] if self.options.html is None else [Path(self.options.html)]
        targets = [Path(self.options.mnn_model or ""), *self._recipe_files(), *pages]
        if len({os.path.realpath(t) for t in targets}) < len(targets):  # `Path.resolve` raises on loops of links
            raise UsageError.of("contradictory-options", f"two files would be written as '{targets[-1]}'")
        for target in targets:
            for source in self._sources():
                refuse_same(source, target)
            with staged(target):
                pass

    def _sources(self) -> list[Path]:
        """What is read; the recipe may be written again as the one that was used."""
        options = self.options
        named = (options.data, options.inputs, options.input_config_file, options.prototxt)
        return [self.source, *(Path(name) for name in named if name is not None)]

    def _recipe_files(self) -> list[Path]:
        """What is written beside the model: the recipe, and the compression file where it does not exist yet."""
        recipe, params = self.options.save_recipe, self.options.compression_params_file
        made = [] if params is None or self._found_params else [Path(params)]
        return made if recipe is None else [*made, Path(recipe)]

    def _float_proof(self, graph: Graph, recipe: Recipe) -> None:
        """With quantized weights, the float graph is what has to agree with the source."""
        if not recipe.changes_weights:
            return
        reference = self._reference(graph)
        if reference is None:
            return
        from mnnconvert.verification import verify_graph

        self.progress("verify", 0.0)
        options = self.options
        result = self._attempt(lambda: verify_graph(reference, graph, options.inputs, options.tolerance, options.seed))
        if result is not None:
            self._accept(result, graph)

    def _reference(self, graph: Graph) -> Engine | None:
        """The source engine, or None with a note why there is no proof."""
        if self.options.verify == "never":
            return None
        demanded = self.options.verify == "always"
        foreign = plugins(graph)
        if foreign and not demanded:
            self.note("not-verified", f"onnxruntime does not know {', '.join(foreign)}, so the file was not proved")
            return None
        size = sum(v.tensor.nbytes for g in graph.graphs() for v in g.constants() if v.tensor is not None)
        package, engine, extra = SOURCE_ENGINES.get(self.framework, ("", "", ""))
        if package and find_spec(package) is None and not demanded:
            self.note(
                "not-verified",
                f"{engine} is not installed, so the file was not proved",
                f"pip install 'mnnconvert[{extra}]'",
            )
            return None
        if size > AUTO_VERIFY_BYTES and not demanded:
            self.note(
                "not-verified",
                f"the model holds {size / 1e9:.1f} GB, so the file was not proved",
                "--verify always proves it",
            )
            return None
        from mnnconvert.verification import open_source

        chosen: dict[str, Any] = dict(self.options.chosen)
        if self.framework == "TORCH":
            chosen["inputs"] = torch_inputs(self.options)
        try:
            self._engine = open_source(self.source, self.framework, chosen=chosen)
        except ConversionError as error:
            if demanded or self.framework != "CAFFE":
                raise
            reason = error.diagnostics[0]  # OpenCV lacks layers, and departs from Caffe in others
            self.note("not-verified", f"{reason.message}, so the file was not proved", reason.hint)
        return self._engine

    def _attempt(self, proof: Callable[[], VerificationResult]) -> VerificationResult | None:
        """The result of a proof; None with a note where the source engine takes none of the inputs we can make up."""
        try:
            return proof()
        except ConversionError as error:
            ours_to_guess = self.options.verify == "auto" and self.options.inputs is None
            if not ours_to_guess or any(d.reference != "source-engine-failed" for d in error.diagnostics):
                raise
            what, hint = "the source engine takes none of the made-up inputs", "give real ones with --inputs FILE.npz"
            if self.framework == "CAFFE":  # it finds out only now which layers it lacks
                what, hint = error.diagnostics[0].message, ""
            self.note("not-verified", f"{what}, so the file was not proved", hint)
            return None

    def _accept(self, result: VerificationResult, graph: Graph) -> None:
        """Keep a proof, or stop with what missed, and the layer that is to blame: nothing is written then."""
        self.report.verification = result
        if not result.passed:
            from mnnconvert.verification import blame

            assert self._engine is not None  # which has made the result
            lines = [*result.lines(), *blame(self._engine, graph, self.options, self.progress)]
            raise GateError.of("verification-missed", lines[0], hint="\n  ".join(lines[1:]), file=self.source)
        disputes = result.disputes()
        if disputes:
            self.note(
                "disputed-outputs",
                f"the rounding steps of the model decide on some outputs: {'; '.join(disputes)}",
                "mnnconvert explain disputed-outputs says what was proved instead",
            )

    def _quantize(self, graph: Graph, layers: list[LayerPlan], recipe: Recipe) -> None:
        from mnnconvert.quantizers.apply import apply_plan, flush_denormals, halve_constants
        from mnnconvert.quantizers.embedding import expand_tables

        if self.options.align_denormalized_value:
            flush_denormals(graph)
        tables, others = [x for x in layers if x.is_table], [x for x in layers if not x.is_table]
        progress = partial(self.progress, "quantize")
        apply_plan(tables, progress)
        if self.options.data is None:
            apply_plan(others, progress, later=True)
        else:
            self._calibrate(graph, others, Path(self.options.data))
        expand_tables(graph, tables)
        if recipe.half:
            halve_constants(graph)

    def _calibrate(self, graph: Graph, layers: list[LayerPlan], data: Path) -> None:
        """Code layer after layer with the inputs that the data bring them."""
        from mnnconvert.quantizers.calibrate import calibrate
        from mnnconvert.weights import prepare, read_samples

        calibrate(graph, layers, read_samples(data, graph), prepare, partial(self.progress, "calibrate"))

    def _scale_channels(self, graph: Graph, layers: list[LayerPlan]) -> None:
        """Fold the scales that --quantScaling asks for; before the float proof, which so covers them."""
        kind, data = self.options.quant_scaling, self.options.data
        if kind is None or data is None:
            return
        from mnnconvert.quantizers.scaling import scale_channels
        from mnnconvert.weights import prepare, read_samples

        own = [x for x in layers if not x.is_table]
        scale_channels(graph, own, read_samples(Path(data), graph), prepare, kind, partial(self.progress, "scale"))

    def _save_recipe(self) -> None:
        from mnnconvert.weights import save_params, save_recipe

        params = self.options.compression_params_file
        for path in self._recipe_files():
            if params is not None and path == Path(params):
                save_params(self.report.layers, path)
            else:
                save_recipe(self.recipe, self.report.layers, path)

    def _write(self, graph: Graph) -> None:
        from mnnconvert.schema.files import staged
        from mnnconvert.schema.writer import write_model

        self.progress("write", 0.0)
        target = Path(self.options.mnn_model or "")
        with staged(target) as path:
            written = write_model(
                graph, path, external=self.options.save_external_data, biz_code=self.options.biz_code or ""
            )
            self.report.target_bytes, self.report.external_bytes = written.size, written.external_size
            if written.external_size and not self.options.save_external_data:
                self.note("external-weights", f"the model is larger than 2 GB: its weights are in '{target}.weight'")
            self._prove(graph, path)
            self._check_recorded(path)
            if self.judge is not None:
                self.judge(path)

    def _prove(self, graph: Graph, path: Path) -> None:
        """Run the written file against the source: it has to agree, or with coded weights to run and tell its error."""
        reference = self._reference_for_file(graph)
        if reference is None:
            return
        from mnnconvert.runtime_ref.session import load
        from mnnconvert.verification import ANY_ERROR, choose_feeds
        from mnnconvert.verify.compare import Tolerance
        from mnnconvert.verify.engines import SessionEngine
        from mnnconvert.verify.first_call import at_first_call
        from mnnconvert.verify.verification import verify_engines

        self.progress("verify", 0.5)
        quantized = self.recipe.changes_weights
        tolerance = Tolerance(ANY_ERROR if quantized else self.options.tolerance)
        candidate = SessionEngine(load(path))
        reference = at_first_call(reference, candidate)
        feeds = choose_feeds(reference, candidate, self.options.inputs, self.options.seed)
        result = self._attempt(lambda: verify_engines(reference, candidate, feeds, tolerance))
        if result is None:
            return
        if not quantized:
            self._accept(result, graph)
            return
        self.report.quantized = result
        broken = [p for run in result.runs for p in run.problems]
        if broken:
            raise ConversionError(broken)

    def _reference_for_file(self, graph: Graph) -> Engine | None:
        noted = [d for d in self.report.diagnostics if d.reference == "not-verified"]
        return None if noted else self._engine or self._reference(graph)

    def _check_recorded(self, path: Path) -> None:
        if self.options.testdir is None:
            return
        from mnnconvert.runtime_ref.session import load
        from mnnconvert.verification import check_recorded

        problems = check_recorded(load(path), Path(self.options.testdir), self.options.thredhold)
        if problems:
            raise GateError(
                Diagnostic("verification-missed", p, {"testdir": str(self.options.testdir)}) for p in problems
            )


def prepare_source(options: ConversionOptions) -> tuple[Graph, ConversionReport]:
    """The float graph that a conversion with these options quantizes or writes, and what the passes did."""
    conversion = Conversion(options)
    with without_collection():
        from mnnconvert.weights import recipe_of

        conversion.recipe = recipe_of(options)
        graph = conversion._read()
        conversion._rewrite(graph)
    return graph, conversion.report
