"""Layers beside those of the source: what corresponds, whose fault an error is, and what is written of a bad layer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import mnnconvert
from mnnconvert.errors import GateError, UsageError
from mnnconvert.ir import ArrayTensor
from mnnconvert.ops.elementwise import Unary
from mnnconvert.ops.search import TopKV2
from mnnconvert.runtime_ref import session as sessions
from mnnconvert.runtime_ref.reference import ReferenceExecutor
from mnnconvert.schema.reader import read_model
from mnnconvert.schema.writer import write_model
from mnnconvert.verification import open_source
from mnnconvert.verify.compare import Tolerance
from mnnconvert.verify.correspondence import moved_order, to_file, to_source
from mnnconvert.verify.cut import cut
from mnnconvert.verify.engines import OnnxRuntimeEngine
from mnnconvert.verify.layers import IntermediateEngine, SourceLayer
from mnnconvert.verify.litert_engine import LiteRtEngine
from mnnconvert.verify.localise import Localiser, require_values
from mnnconvert.verify.metrics import compare_arrays
from mnnconvert.verify.second_opinion import opinion, sides
from mnnconvert.verify.ties import tie

NET = """(float[n,8] x) => (float[n,4] y) {
    a = MatMul(x, w1)
    b = Add(a, bias)
    c = Sigmoid(b)
    d = MatMul(c, w2)
    e = Tanh(d)
    f = Exp(e)
    y = Softmax(f)
}"""


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture
def net(onnx_file, tmp_path) -> tuple[Path, Path]:
    """A small model, and its conversion."""
    source = onnx_file(NET, w1=normal(8, 6), bias=normal(6, seed=1), w2=normal(6, 4, seed=2))
    mnn = tmp_path / "net.mnn"
    mnnconvert.convert(source, mnn, verify="never")
    return source, mnn


def edited(mnn: Path, edit) -> Path:
    """A copy of the file whose graph `edit` has changed."""
    graph = read_model(mnn)
    edit({node.name: node for node in graph.nodes})
    target = mnn.with_name("edited.mnn")
    write_model(graph, target)
    return target


def without_kernels(monkeypatch):
    monkeypatch.setattr(sessions, "_executor", lambda graph, *rest: (ReferenceExecutor(graph, rest[-1]), "reference"))


def test_every_layer_of_a_right_file_is_right(net):
    layers = mnnconvert.verify(*net, per_layer=True).layers
    assert [layer.name for layer in layers.layers][-4:] == ["d", "e", "f", "y"]
    assert layers.first_bad is None and layers.first_nan is None
    assert all(layer.own is not None and layer.own.sqnr > 100 for layer in layers.layers)


def test_what_is_inherited_is_nobody_elses_fault(net):
    """The sigmoid is wrong; everything after it is off, and is not to blame."""
    source, mnn = net

    def edit(nodes):
        nodes["c"].op = replace(nodes["c"].op, function="TANH")

    layers = mnnconvert.verify(source, edited(mnn, edit), per_layer=True).layers
    assert [layer.name for layer in layers.layers if layer.reason] == ["c"]
    after = {layer.name: layer for layer in layers.layers}
    assert after["d"].total.sqnr < 20 < 100 < after["d"].own.sqnr
    assert layers.first_bad.origin[0].startswith("Sigmoid ")
    assert "first bad layer: 'c'" in layers.verdict()[0]


def test_fused_nodes_are_the_last_value_they_cover(net):
    layers = mnnconvert.verify(*net, per_layer=True).layers
    first = layers.layers[0]
    assert (first.name, [origin.split()[0] for origin in first.origin]) == ("b", ["Add", "MatMul"])


def test_a_move_before_a_layer_is_not_the_layer(onnx_file, tmp_path):
    """Between two products the moves behind one and before the next vanish; one of that name stays before both."""
    text = "(float[n,8] x) => (float[n,4] y) { a = MatMul(x, w1)\n b = Add(a, bias)\n c = MatMul(b, w2)\n y = Tanh(c) }"
    source = onnx_file(text, w1=normal(8, 6), bias=normal(6, seed=1), w2=normal(6, 4, seed=2))
    mnnconvert.convert(source, tmp_path / "m.mnn", verify="never")
    layers = mnnconvert.verify(source, tmp_path / "m.mnn", per_layer=True).layers
    assert layers.first_bad is None, layers.verdict()
    assert [layer.op for layer in layers.layers if layer.name == "b"] == ["Convolution"]


def test_a_nan_is_seen_where_it_starts(net):
    source, mnn = net

    def edit(nodes):
        constant = next(node.inputs[2] for node in nodes.values() if len(node.inputs) > 2)
        content = constant.tensor.numpy().copy()
        content.reshape(-1)[0] = np.nan
        constant.tensor = ArrayTensor(content)

    layers = mnnconvert.verify(source, edited(mnn, edit), per_layer=True).layers
    assert layers.first_nan.name == layers.first_bad.name == "b"
    assert "NaN" in layers.first_bad.reason


def test_small_slices_say_the_same(net):
    source, mnn = net
    engine, feeds = require_values(open_source(source)), {"x": normal(3, 8, seed=5)}
    whole = Localiser(engine, read_model(mnn), Tolerance()).run(feeds)
    single = Localiser(engine, read_model(mnn), Tolerance(), slice_bytes=1).run(feeds)
    assert single.layers == whole.layers and len(whole.layers) >= 5


def test_another_file_is_a_source_too(net):
    _, mnn = net
    layers = mnnconvert.verify(mnn, mnn, per_layer=True).layers
    assert layers.first_bad is None and len(layers.layers) > 5


@pytest.mark.mnn
def test_the_runtime_of_mnn_is_a_third_column(net):
    layers = mnnconvert.verify(*net, per_layer=True, engine="mnn").layers
    assert all(layer.peer is not None and layer.peer.sqnr > 80 for layer in layers.layers), layers.notes


def test_a_tie_is_explained(onnx_file, tmp_path, monkeypatch):
    """The higher index of equal values: TopK is named, with the values that are equal."""
    source = onnx_file("""(float[1,8] x, float[1,8] table) => (float[1,5] v, int64[1,5] i, float[1,5] y) {
        k = Constant<value = int64[1] {5}>()
        v, i = TopK <axis=-1> (x, k)
        y = GatherElements <axis=1> (table, i)
    }""")
    x = np.array([[0.5, 0.9, 0.5, 0.9, 0.1, 0.5, 0.9, 0.2]], np.float32)
    feeds = {"x": x, "table": np.arange(8, dtype=np.float32)[None]}
    mnn = tmp_path / "ties.mnn"
    mnnconvert.convert(source, mnn, verify="never")
    assert mnnconvert.verify(source, mnn, inputs=feeds).passed

    def highest_first(self, x, k, axis=None):
        order = np.argsort(x, -1, kind="stable")[..., ::-1][..., : int(np.reshape(k, ()))]
        return np.take_along_axis(x, order, -1), order.astype(np.int32)

    monkeypatch.setattr(TopKV2, "ref", highest_first)
    result = mnnconvert.verify(source, mnn, inputs=feeds, per_layer=True)
    bad = result.layers.first_bad
    assert not result.passed
    assert (bad.name, bad.op, bad.origin) == ("i", "TopKV2", ("TopK v",))
    assert "a tie: places 0, 2, 5 all hold 0.5, and the source takes 0" in bad.reason


def test_names_with_odd_characters(onnx_file, tmp_path, monkeypatch):
    source = onnx_file("(float[2,3] x) => (float[2,3] y) { m = Relu(x)\n y = Neg(m) }")
    model = onnx.load(source)
    names = {"x": "onnx::in/0", "m": "/model.23/Split:0", "y": "out put,1"}
    for node in model.graph.node:
        node.name = f"/model.23/{node.op_type}:0"
        for field in (node.input, node.output):
            field[:] = [names[name] for name in field]
    for value in (*model.graph.input, *model.graph.output):
        value.name = names[value.name]
    onnx.save(model, source)
    mnn = tmp_path / "odd.mnn"
    mnnconvert.convert(source, mnn, verify="never")
    without_kernels(monkeypatch)
    honest = Unary.ref
    monkeypatch.setattr(
        Unary, "ref", lambda self, x: honest(self, x) + 1 if self.function == "NEG" else honest(self, x)
    )
    result = mnnconvert.verify(source, mnn, per_layer=True, repro=tmp_path / "layer")
    bad = result.layers.first_bad
    assert (bad.name, bad.origin) == ("out put,1", ("Neg /model.23/Neg:0",))
    assert np.load(tmp_path / "layer" / "inputs.npz").files == ["/model.23/Split:0"]


def test_one_layer_in_a_folder_can_be_run_again(net, tmp_path):
    source, mnn = net

    def edit(nodes):
        nodes["e"].op = replace(nodes["e"].op, function="SIGMOID")

    result = mnnconvert.verify(source, edited(mnn, edit), repro=tmp_path / "layer")
    folder = tmp_path / "layer"
    assert json.loads((folder / "layer.json").read_text())["name"] == "e"
    again = mnnconvert.verify(folder / "layer.onnx", folder / "layer.mnn", inputs=folder / "source_inputs.npz")
    assert not again.passed
    with np.load(folder / "expected.npz") as expected, np.load(folder / "got.npz") as got:
        assert compare_arrays(got["e"], expected["e"]).max_abs == again.runs[0].comparison.outputs[0].measured.max_abs
    assert set(result.repro) >= {"layer.mnn", "layer.onnx", "inputs.npz"}


def test_a_conversion_that_fails_names_the_layer(onnx_file, tmp_path, monkeypatch):
    source = onnx_file("(float[n,3] x) => (float[n,3] y) { m = Exp(x)\n k = Neg(m)\n y = Sin(k) }")
    without_kernels(monkeypatch)
    honest = Unary.ref
    monkeypatch.setattr(Unary, "ref", lambda self, x: honest(self, x) + (self.function == "NEG"))
    with pytest.raises(GateError) as error:
        mnnconvert.convert(source, tmp_path / "m.mnn")
    assert "first bad layer: 'k' (Unary" in error.value.diagnostics[0].hint
    assert not (tmp_path / "m.mnn").exists()


def test_engines_without_values_are_refused(net):
    class Whole:
        name = "whole"

    with pytest.raises(UsageError) as error:
        require_values(Whole())
    assert error.value.diagnostics[0].reference == "no-layer-values"


def test_engines_tell_their_values(net):
    source, mnn = net
    for engine in (OnnxRuntimeEngine(source), open_source(mnn)):
        assert isinstance(engine, IntermediateEngine)
        values = engine.run_values({"x": normal(2, 8)}, ["x", "c", "y"])
        assert sorted(values) == ["c", "x", "y"]
    assert [layer.op for layer in OnnxRuntimeEngine(source).layers()][:3] == ["MatMul", "Add", "Sigmoid"]
    assert {"layers", "run_values"} <= set(dir(LiteRtEngine))


def test_layers_with_graphs_inside_read_what_these_take_from_outside(onnx_file):
    source = onnx_file("""(bool c, float[2] x) => (float[2] y) {
        a = Neg(x)
        y = If (c) <then_branch = g1 () => (float[2] t) { t = Exp(a) },
                    else_branch = g2 () => (float[2] e) { e = Abs(a) }>
    }""")
    layers = OnnxRuntimeEngine(source).layers()
    assert layers[-1].inputs[0] == "c" and "a" in layers[-1].inputs


BRANCHES = """(bool c, float[2] x) => (float[2] y) {
    a = Neg(x)
    y = If (c) <
        then_branch = g1 () => (float[2] t) {
            yes = Constant<value = bool {1}>()
            i = If (yes) <then_branch = g3 () => (float[2] u) { u = Exp(a) }, else_branch = g4 () => (float[2] v)
                { v = Sin(a) }>
            t = Abs(i)
        },
        else_branch = g2 () => (float[2] e) { e = Cos(a) }
    >
}"""


@pytest.mark.parametrize(("taken", "inside"), [(True, {"i", "t"}), (False, {"e"})])
@pytest.mark.parametrize("source_is_mnn", [False, True])
def test_branches_that_are_taken_are_opened(onnx_file, tmp_path, taken, inside, source_is_mnn):
    source, mnn = onnx_file(BRANCHES), tmp_path / "m.mnn"
    mnnconvert.convert(source, mnn, verify="never")
    feeds = {"c": np.array(taken), "x": normal(2)}
    result = mnnconvert.verify(mnn if source_is_mnn else source, mnn, inputs=feeds, per_layer=True)
    assert result.passed and result.layers.first_bad is None
    names = {layer.name for layer in result.layers.layers}
    assert inside <= names and "a" in names and names.isdisjoint({"i", "t", "e", "v"} - inside)


@pytest.mark.parametrize(
    ("file", "source", "order"),
    [
        ((1, 3, 4, 5), (1, 4, 5, 3), "last"),
        ((1, 3, 1, 1), (1, 3), "same"),
        ((2, 3, 1, 7), (2, 7, 3), "last"),
        ((2, 3, 1, 7), (2, 3, 7), "same"),
        ((2, 3), (2, 4), None),
        ((2, 3, 4), (4, 3, 2), None),
    ],
)
def test_moved_values_are_brought_back(file, source, order):
    assert moved_order(file, source, channels_last=False) == order
    if order is not None:
        array = np.arange(np.prod(file)).reshape(file)
        assert (to_file(to_source(array, order, source), order, file) == array).all()


def test_channels_are_last_where_sizes_do_not_tell():
    assert moved_order((1, 4, 4, 4), (1, 4, 4, 4), channels_last=True) == "last"
    assert moved_order((1, 4, 4, 4), (1, 4, 4, 4), channels_last=False) == "same"


def test_a_part_of_a_graph_leaves_the_whole_as_it_is(net):
    graph = read_model(net[1])
    users = {value.name: len(value.users) for value in graph.values()}
    values = {value.name: value for value in graph.values()}
    part = cut(graph, {values["c"]}, [values["d"]])
    assert [value.name for value in part.inputs] == ["c"]
    assert {value.name: len(value.users) for value in graph.values()} == users


OPINION = "(float[2,3] x) => (float[2,3] y) { y = Exp(x) }"


def test_a_second_reference_is_heard(onnx_file, tmp_path, monkeypatch):
    """Where onnxruntime is off and the evaluator sides with the file, the miss is disputed, and both are shown."""
    source = onnx_file(OPINION)
    mnn = tmp_path / "m.mnn"
    mnnconvert.convert(source, mnn, verify="never")
    honest = OnnxRuntimeEngine._run
    monkeypatch.setattr(OnnxRuntimeEngine, "_run", lambda self, session, feeds: {
        name: array + 1 for name, array in honest(self, session, feeds).items()
    })  # fmt: skip
    result = mnnconvert.verify(source, mnn)
    (verdict,) = result.runs[0].comparison.outputs
    assert result.passed and verdict.verdict == "disputed"
    assert "ONNX's reference evaluator are 1 apart" in verdict.opinion
    assert "disputed" in "\n".join(result.lines())


def test_a_file_that_no_reference_sides_with_is_missed(onnx_file, tmp_path):
    source = onnx_file(OPINION)
    mnn = tmp_path / "m.mnn"
    mnnconvert.convert(onnx_file(OPINION.replace("Exp", "Abs")), mnn, verify="never")
    source = onnx_file(OPINION)
    assert not mnnconvert.verify(source, mnn).passed


def test_the_evaluator_is_not_asked_what_it_is_known_to_get_wrong(onnx_file):
    model = onnx.load(onnx_file("(float[2,3] x) => (float[2,3] y) { y = Softmax(x) }"))
    assert opinion(model, {"x": normal(2, 3)}) is None
    assert sides(np.ones(2), np.ones(2), np.ones(2), Tolerance()) == ""


@pytest.mark.parametrize(
    ("got", "want", "text"),
    [
        ([1, 1], [0, 1], "places 0, 1 all hold 1, and the source takes 0"),
        ([0, 2], [0, 1], ""),
        ([[1], [1]], [[0], [1]], "places 0, 1 all hold 1"),
        ([[1, 0], [1, 2]], [[0, 1], [1, 2]], "places 0, 1 all hold 1"),
        ([9, 1], [0, 1], "the source takes 0"),
    ],
)
def test_ties_are_only_seen_where_values_are_equal(got, want, text):
    x = np.array([[1.0, 1.0, 0.0], [0.0, 2.0, 1.0]], np.float32)
    seen = tie("ArgMax", [x], compare_arrays(np.array(got), np.array(want)))
    assert bool(seen) == bool(text) and text in seen
    assert tie("Add", [x], compare_arrays(np.array(got), np.array(want))) == ""


class Told:
    """An engine that tells made-up values."""

    name, exact_kinds, notes, inputs, outputs = "told", True, (), (), ()

    def __init__(self, values: dict[str, np.ndarray], layers: Sequence[SourceLayer]):
        self.values, self._layers = values, layers

    def run(self, feeds):
        return self.values

    def layers(self):
        return self._layers

    def run_values(self, feeds, names):
        return {name: self.values[name] for name in names if name in self.values}


def test_any_engine_with_values_can_be_compared(net):
    """The interface that other source engines implement is all that is needed."""
    source, mnn = net
    engine, feeds = OnnxRuntimeEngine(source), {"x": normal(2, 8)}
    names = ["a", "b", "c", "d", "e", "f", "y"]
    values = feeds | engine.run_values(feeds, names)
    result = Localiser(Told(values, engine.layers()), read_model(mnn), Tolerance()).run(feeds)
    assert result.reference == "told" and result.first_bad is None
    del values["c"]  # one that the engine does not tell
    result = Localiser(Told(values, engine.layers()), read_model(mnn), Tolerance()).run(feeds)
    assert "c" not in [layer.name for layer in result.layers]
    assert next(layer for layer in result.layers if layer.name == "d").own is None


def test_what_cannot_be_run_alone_is_not_blamed_for_what_it_may_inherit(net):
    source, mnn = net
    engine, feeds = OnnxRuntimeEngine(source), {"x": normal(2, 8)}
    values = feeds | engine.run_values(feeds, ["b", "d", "e", "f", "y"])
    for name in ("b", "d", "e"):
        values[name] = values[name] + np.float32(0.5)  # the source is said to be elsewhere, the file is not
    result = Localiser(Told(values, engine.layers()), read_model(mnn), Tolerance()).run(feeds)
    by_name = {layer.name: layer for layer in result.layers}
    assert by_name["d"].own is None and by_name["d"].total.max_abs > 0.1
    assert result.first_bad.name == "b" and not by_name["d"].reason
