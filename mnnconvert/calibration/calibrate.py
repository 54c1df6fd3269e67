"""From a float file and samples to an int8 file: observe, choose steps, code weights, write, and compare."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from mnnconvert.calibration.collect import Collector, Progress, counted, key_of
from mnnconvert.calibration.config import Config, read_config
from mnnconvert.calibration.report import Agreement, LayerReport, QuantizationReport, decibels
from mnnconvert.calibration.samples import open_samples
from mnnconvert.calibration.sensitivity import Operands, Sensitivity, operands_of, restore
from mnnconvert.errors import ConversionError, Diagnostic, UsageError
from mnnconvert.ir import CodedTensor, CodedWeights, Graph, Node, Tensor, Value
from mnnconvert.ir.types import I8, Steps
from mnnconvert.ops.convolution import Convolution
from mnnconvert.option_types import did_you_mean
from mnnconvert.passes.settle_steps import SettleSteps
from mnnconvert.quantizers.apply import naming
from mnnconvert.quantizers.channels import code_channels
from mnnconvert.quantizers.equalize import equalize
from mnnconvert.quantizers.int8 import (
    Int8Plan,
    bias_of,
    matrix_of,
    plan_int8,
    set_constant,
    simulate,
)
from mnnconvert.quantizers.observers import Observations
from mnnconvert.quantizers.plan import plan_weights
from mnnconvert.quantizers.recipe import Recipe, Setting
from mnnconvert.quantizers.rounding import bias_shift, descend
from mnnconvert.quantizers.scaling import scale_channels
from mnnconvert.quantizers.thresholds import choose_steps, rounded
from mnnconvert.quantizers.windows import WindowMoments
from mnnconvert.runtime_ref.session import Session
from mnnconvert.schema.files import refuse_same, staged
from mnnconvert.schema.reader import read_model
from mnnconvert.schema.writer import write_model
from mnnconvert.verify.engines import SessionEngine
from mnnconvert.weights import prepare

VERIFIED = 16  # samples on which the written file is compared
SMOOTHED = 32  # samples by which scales of channels are chosen
TRIED = 12  # samples on which the noise of layers is measured
MOMENTS_BYTES = 1 << 30  # products of windows that are held at a time
WIDEST = 8192  # columns of a weight beyond which its codes stay the nearest ones
WEIGHTS_CODED_FIRST = ("KL", "ADMM")
"""Methods that, as in MNN's tool, observe a model whose weights are coded already."""


class Calibration:
    """One quantization; each step leaves its mark on the graph and on the report."""

    def __init__(self, source: Path, target: Path, config: Config, resume: bool, progress: Progress):
        self.source, self.target, self.config = source, target, config
        self.external = Path(f"{source}.weight")  # where it exists, the weights of the result go into one, too
        self.progress = progress
        self.floats: dict[str, Operands] = {}
        self.graph = read_model(source)
        self.samples = open_samples(config, SessionEngine(Session(self.graph)).inputs)
        self.plan = _plan(self.graph, config)
        self.state = target.with_name(f"{target.name}.state.npz") if resume else None
        self.report = QuantizationReport(str(source), str(target), config.feature_quantize_method, config.min_sqnr)
        self.report.samples, self.report.skipped = len(self.samples), self.plan.skipped

    def run(self) -> QuantizationReport:
        started = time.perf_counter()
        with staged(self.target) as path:
            self._quantize()
            self._write(path)
            self._keep_floats(path)
            exact = self._in_floats(path)
            SettleSteps().run(self.graph)  # last: what it leaves to the steps is lost on layers that go back to floats
            self._write(path)
            self._compare(path, exact)
        if self.state is not None:
            self.state.unlink(missing_ok=True)
        self.report.source_bytes = sum(f.stat().st_size for f in (self.source, self.external) if os.path.exists(f))
        self.report.seconds = time.perf_counter() - started
        return self.report

    def _quantize(self) -> None:
        """Give the graph its steps, codes and biases."""
        if self.config.smooth:
            self.report.smoothed = self._smooth()
        if self.config.equalize:
            self.report.pairs = equalize(self.graph, self.plan.layers)
        self.floats = {node.name: operands_of(node) for node in self.plan.layers}
        coded = {node: self._code(node) for node in self.plan.layers}
        self.plan.set_steps(self._choose(self._observe(coded)))
        self._replace(*self._correct(coded))

    def _smooth(self) -> int:
        """Fold the scales of SmoothQuant; returns how many groups of layers have some."""
        every = plan_weights(self.graph, Recipe(Setting(8, symmetric=True)))
        layers = [x for x in every if x.node in self.plan.layers]
        progress = partial(self.progress, "smooth")
        return len(scale_channels(self.graph, layers, list(self._some(SMOOTHED)), prepare, "smooth", progress))

    def _in_floats(self, path: Path) -> Graph:
        """The written graph with the float weights, as they were scaled, and without steps."""
        graph = read_model(path)
        restore(graph, self.floats, self.floats.keys())
        return graph

    def _write(self, path: Path) -> None:
        for file in (path, Path(f"{path}.weight")):
            file.unlink(missing_ok=True)  # a graph that was read from it goes on with what it was
        written = write_model(self.graph, path, external=os.path.exists(self.external))
        self.report.target_bytes = written.size + written.external_size

    def _keep_floats(self, path: Path) -> None:
        """Where the outputs are worse than `min_sqnr`, the layers that cost most run in floats again."""
        feeds = list(self._some(TRIED))
        if not (self.config.min_sqnr and feeds):
            return
        source = Session(read_model(self.source))
        names = [name for name, value in source.graph.outputs if value.dtype.kind == "f"]
        sensitivity = Sensitivity(path, self.floats, feeds, [source.run(f, names) for f in feeds])
        limit = 10 ** (-self.config.min_sqnr / 10)
        worst = sensitivity.worst(limit, lambda fraction: self.progress("sensitivity of layers", fraction))
        if worst:
            restore(self.graph, self.floats, {*worst, *self.config.skip_quant_op_names})
            self._write(path)
            reason = f"it costs most of the accuracy (min_sqnr {self.config.min_sqnr:g} dB)"
            self.report.skipped += [(name, reason) for name in worst]

    def _code(self, node: Node) -> CodedWeights:
        with naming(node.name):
            return code_channels(matrix_of(node), self.config.weight_quantize_method, self.config.weight_clamp)

    def _observe(self, coded: dict[Node, CodedWeights]) -> dict[str, Observations]:
        method = self.config.feature_quantize_method
        floats = {node: _weight(node) for node in coded}
        if method in WEIGHTS_CODED_FIRST:
            self._replace(coded, {})
        key = key_of(self.source, self.samples) if self.state is not None else ""
        collector = Collector(
            self.graph, self.plan.observed, self.samples, self.config.activation_bits, self.progress, self.state, key
        )
        seen = collector.run(second_pass=method == "KL")
        for node, tensor in floats.items():
            set_constant(node, 1, tensor)
        return seen

    def _choose(self, seen: dict[str, Observations]) -> dict[Value, Steps]:
        return {value: self._steps(value, seen[value.name]) for value in self.plan.observed}

    def _steps(self, value: Value, seen: Observations) -> Steps:
        """By the configured method; KL leaves the inputs of the model at their maximum."""
        config = self.config
        if config.feature_quantize_method == "KL" and value in self.graph.inputs:
            seen.plane = 0
        dtype = np.dtype("int16") if config.activation_bits == 16 else I8
        return choose_steps(seen, config.feature_quantize_method, config.feature_clamp, dtype, config.percentile)

    def _correct(self, coded: dict[Node, CodedWeights]) -> tuple[dict[Node, CodedWeights], dict[Node, np.ndarray]]:
        """Codes and biases that make up for what rounding does to the outputs of the layers."""
        adaptive = self.config.weight_rounding == "adaptive"
        biases: dict[Node, np.ndarray] = {}
        if not (adaptive or self.config.bias_correction):
            return coded, biases
        session = Session(self.graph)
        for nodes in _portions(self.plan.layers, adaptive):
            for node, (exact, held) in self._moments(session, nodes, adaptive).items():
                weights = matrix_of(node)
                if held.wants_products:
                    coded[node] = _descended(weights, coded[node], held, self.config.weight_clamp)
                if self.config.bias_correction:
                    decoded = coded[node].decode().astype(np.float64)
                    biases[node] = bias_of(node) + bias_shift(weights, decoded, exact.mean, held.mean)
        return coded, biases

    def _moments(
        self, session: Session, nodes: Sequence[Node], adaptive: bool
    ) -> dict[Node, tuple[WindowMoments, WindowMoments]]:
        """What the windows of these layers are like, exactly and held in steps."""
        made = {node: (_moments_of(node, False), _moments_of(node, adaptive)) for node in nodes}
        names = sorted({node.inputs[0].name for node in nodes})
        for _, feeds in counted(self.samples, 0, "windows", self.progress):
            arrays = session.run(feeds, names)
            for node, (exact, held) in made.items():
                value = node.inputs[0]
                assert value.steps is not None  # every operand of a layer was given steps
                exact.add(arrays[value.name])
                held.add(rounded(arrays[value.name], value.steps))
        return made

    def _replace(self, coded: dict[Node, CodedWeights], biases: dict[Node, np.ndarray]) -> None:
        for node, weights in coded.items():
            set_constant(node, 1, CodedTensor(weights, tuple(_weight(node).shape)))
        for node, bias in biases.items():
            set_constant(node, 2, bias)

    def _compare(self, path: Path, exact: Graph) -> None:
        """Run the written file: outputs beside those of the source, layers, simulated, beside those of `exact`."""
        floats, written = read_model(self.source), read_model(path)
        self.report.layers = self._layer_reports(written, matrices={n.name: matrix_of(n) for n in _layers(exact)})
        final = Session(read_model(path))
        held = {value.name: after.name for value, after in simulate(written).items()}
        names = [x.output_name for x in self.report.layers]
        source, scaled, simulated = Session(floats), Session(exact), Session(written)
        outputs = {name: Agreement() for name, value in floats.outputs if value.dtype.kind == "f"}
        for feeds in self._some(VERIFIED):
            want = source.run(feeds, list(outputs)) | scaled.run(feeds, names)
            got = simulated.run(feeds, [held[name] for name in names])
            for layer in self.report.layers:
                layer.add(got[held[layer.output_name]], want[layer.output_name])
            for name, array in final.run(feeds).items():
                if name in outputs:
                    outputs[name].add(array, want[name])
            self.report.verified += 1
        self.report.outputs = outputs

    def _some(self, count: int) -> Iterator[dict[str, np.ndarray]]:
        """Samples to compare on, evenly spread."""
        numbers = sorted({int(i) for i in np.linspace(0, len(self.samples) - 1, count)})
        for done, number in enumerate(numbers, 1):
            yield self.samples[number]
            self.progress("compare", done / len(numbers))

    def _layer_reports(self, written: Graph, matrices: dict[str, np.ndarray]) -> list[LayerReport]:
        found = []
        planned = {node.name for node in self.plan.layers} - {name for name, _ in self.report.skipped}
        for node in _layers(written):
            operand, result = node.inputs[0].steps, node.output.steps
            if node.name in planned and operand is not None and result is not None:
                found.append(self._layer_report(node, matrices[node.name], operand, result))
        return found

    def _layer_report(self, node: Node, exact: np.ndarray, operand: Steps, result: Steps) -> LayerReport:
        noise = float(np.square(exact - matrix_of(node)).sum())
        method = self.config.weight_quantize_method
        if self.config.weight_rounding == "adaptive" and exact.shape[1] <= WIDEST:
            method += ", adaptive rounding"
        return LayerReport(
            node.name, node.op.kind, node.output.name, method, decibels(float(np.square(exact).sum()), noise),
            operand, result, self.config.bias_correction,
        )  # fmt: skip


def calibrate(
    source: Path, target: Path, config: Path, resume: bool = False, progress: Progress | None = None
) -> QuantizationReport:
    """See `mnnconvert.quantize`."""
    for read in (source, config):
        refuse_same(read, target)
    quiet: Progress = lambda stage, fraction: None  # noqa: E731
    return Calibration(source, target, read_config(config), resume, progress or quiet).run()


def _plan(graph: Graph, config: Config) -> Int8Plan:
    """The plan, after every name to skip was found. Raises `unknown-layer`, `nothing-to-quantize`."""
    names = [node.name for node in _layers(graph)]
    known = {*names, *(node.output.name for node in _layers(graph))}
    problems = [
        Diagnostic(
            "unknown-layer",
            f"skip_quant_op_names names {name!r}, which is no convolution of the model",
            {"file": str(config.file)},
            did_you_mean(name, names) or "mnnconvert show FILE lists the layers.",
        )
        for name in config.skip_quant_op_names
        if name not in known
    ]
    if problems:
        raise UsageError(problems)
    plan = plan_int8(graph, config.skip_quant_op_names)
    if not plan.layers:
        raise ConversionError.of(
            "nothing-to-quantize",
            "the model has no convolution (or product with constant weights) left to run in integers",
            file=config.file,
        )
    return plan


def _layers(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes if isinstance(n.op, Convolution) and n.inputs[1].tensor is not None]


def _weight(node: Node) -> Tensor:
    tensor = node.inputs[1].tensor
    assert tensor is not None  # planned layers have constant weights
    return tensor


def _moments_of(node: Node, products: bool) -> WindowMoments:
    assert isinstance(node.op, Convolution)
    _, per_group, height, width = _weight(node).shape
    return WindowMoments(node.op, (height, width), products and per_group * height * width <= WIDEST)


def _portions(layers: Sequence[Node], products: bool) -> Iterator[list[Node]]:
    """The layers in portions whose products of windows fit into memory together."""
    portion: list[Node] = []
    held = 0
    for node in layers:
        _, per_group, height, width = _weight(node).shape
        columns = per_group * height * width
        size = 8 * columns**2 * getattr(node.op, "group", 1) if products and columns <= WIDEST else 0
        if portion and held + size > MOMENTS_BYTES:
            yield portion
            portion, held = [], 0
        portion.append(node)
        held += size
    yield portion


def _descended(weights: np.ndarray, coded: CodedWeights, held: WindowMoments, clamp: int) -> CodedWeights:
    """Codes with a smaller output error, group by group."""
    groups = len(held.second)
    rows = len(weights) // groups
    codes = coded.codes.astype(np.float64)
    scale = np.where(coded.scale[:, 0] > 0, coded.scale[:, 0], 1).astype(np.float64)
    for group, second in enumerate(held.second):
        part = slice(group * rows, (group + 1) * rows)
        codes[part] = descend(weights[part], codes[part], scale[part], second, clamp)
    return CodedWeights(codes.astype(np.int8), coded.scale, None, 8)
