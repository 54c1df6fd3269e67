"""Models with rounding steps are judged by how far the reference is from itself; wrong ones are missed all the same.

The net here quantises its activations at run time. A candidate that computes the same in another order is played by
onnxruntime on constants that are off in the last bits; the wrong ones compute something else as well.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import mnnconvert
from mnnconvert.conversion import Conversion
from mnnconvert.errors import ConversionError, GateError
from mnnconvert.options import ConversionOptions
from mnnconvert.verify import dispute, engines
from mnnconvert.verify.compare import Tolerance, compare_outputs
from mnnconvert.verify.dispute import scaled
from mnnconvert.verify.engines import OnnxRuntimeEngine
from mnnconvert.verify.verification import VerificationResult, verify_engines

pytest.importorskip("onnxruntime")

TOLERANCE = Tolerance()
LAYERS, ROWS, WIDTH = 12, 128, 128
FEEDS = {"x": np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)}


def layer(i: int, stepped: bool) -> str:
    """x -> relu(quantized(x) @ w * s + b), or the same without quantization."""
    product = (
        f"q{i}, a{i}, z{i} = DynamicQuantizeLinear(x{i}) p{i} = MatMulInteger(q{i}, w{i}, z{i}) f{i} = Cast<to=1>(p{i})"
        f" t{i} = Mul(a{i}, s{i}) m{i} = Mul(f{i}, t{i})"
        if stepped
        else f"f{i} = Cast<to=1>(w{i}) t{i} = Mul(f{i}, s{i}) m{i} = MatMul(x{i}, t{i})"
    )
    return f"{product} n{i} = Add(m{i}, b{i}) x{i + 1} = Relu(n{i})"


def net(onnx_file, stepped: bool, last: str = "y = Identity"):
    random = np.random.default_rng(1)
    arrays = {}
    for i in range(LAYERS):
        arrays[f"w{i}"] = random.integers(-127, 128, (WIDTH, WIDTH)).astype(np.int8)
        arrays[f"s{i}"] = np.float32(random.uniform(0.9, 1.1) / 64 / np.sqrt(WIDTH))
        arrays[f"b{i}"] = random.uniform(-0.3, 0.3, WIDTH).astype(np.float32)
    layers = " ".join(layer(i, stepped) for i in range(LAYERS))
    text = f"(float[n,{WIDTH}] x) => (float[n,{WIDTH}] y) {{ x0 = Identity(x) {layers} {last}(x{LAYERS}) }}"
    return onnx_file(text, **arrays)


def edited(path, edit: Callable[[onnx.GraphProto], None]):
    model = onnx.load(path)
    edit(model.graph)
    target = path.with_name("edited.onnx")
    onnx.save(model, target)
    return target


def constant(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[onnx.GraphProto], None]:
    def edit(graph: onnx.GraphProto) -> None:
        tensor = next(t for t in graph.initializer if t.name == name)
        array = change(numpy_helper.to_array(tensor)).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(array, name))

    return edit


def without_relu(graph: onnx.GraphProto) -> None:
    next(node for node in graph.node if node.output[0] == "x3").op_type = "Identity"


WRONG = {
    "a weight changed by 1 %": constant("s2", lambda a: a * 1.01),
    "the first weight changed by 1 %": constant("s0", lambda a: a * 1.01),
    "the last weight changed by 1 %": constant(f"s{LAYERS - 1}", lambda a: a * 1.01),
    "a bias dropped": constant("b3", np.zeros_like),
    "a Relu removed": without_relu,
}


def other_order(path, seed: int = 99) -> OnnxRuntimeEngine:
    """The same model as another implementation would compute it: last bits differ."""
    change = partial(scaled, random=np.random.default_rng(seed), relative=dispute.SHAKE)
    twin = OnnxRuntimeEngine(path).with_constants(change)
    assert twin is not None
    twin.name = "other"
    return twin


def in_doubt(path) -> OnnxRuntimeEngine:
    """The first of such implementations for which FEEDS hold a rounding in doubt."""
    want = OnnxRuntimeEngine(path).run(FEEDS)
    twins = (other_order(path, seed) for seed in range(50))
    return next(twin for twin in twins if not compare_outputs(twin.run(FEEDS), want, TOLERANCE).passed)


def verify(reference, candidate, feeds=FEEDS) -> VerificationResult:
    return verify_engines(reference, candidate, [feeds], TOLERANCE)


def test_the_models_own_steps_are_disputed(onnx_file):
    path = net(onnx_file, stepped=True)
    result = verify(OnnxRuntimeEngine(path), in_doubt(path))
    (run,) = result.runs
    assert run.comparison is not None
    (verdict,) = run.comparison.outputs
    assert result.passed and verdict.verdict == "disputed" and verdict.reason.startswith("off by")
    assert verdict.spread is not None and verdict.spread.moved >= dispute.MOVED
    assert result.lines()[0].startswith("other agrees with onnxruntime on 1 run, 1 of them disputed")
    assert f"onnxruntime {verdict.spread}" in result.lines()[2]
    facts = json.loads(json.dumps(result.to_dict()))["runs"][0]
    assert facts["comparison"]["outputs"][0]["verdict"] == "disputed"
    assert facts["comparison"]["outputs"][0]["spread"]["trials"] == dispute.TRIALS
    assert any("where no rounding is in doubt" in note for note in facts["notes"])


@pytest.mark.parametrize("stepped", [True, False])
@pytest.mark.parametrize("edit", WRONG.values(), ids=WRONG)
def test_a_wrong_conversion_is_missed(onnx_file, edit, stepped):
    path = net(onnx_file, stepped)
    result = verify(OnnxRuntimeEngine(path), other_order(edited(path, edit)))
    assert not result.passed and result.disputes() == []


def test_the_ordinary_net_agrees_with_its_twin(onnx_file):
    """What the wrong ones above are missed for is their error, not the twin."""
    path = net(onnx_file, stepped=False)
    assert verify(OnnxRuntimeEngine(path), other_order(path)).disputes() == []
    assert verify(OnnxRuntimeEngine(path), other_order(path)).passed


def test_a_wrong_file_is_missed_by_the_command(onnx_file, tmp_path):
    path = net(onnx_file, stepped=True)
    mnnconvert.convert(edited(path, WRONG["a bias dropped"]), tmp_path / "wrong.mnn", verify="never")
    assert not mnnconvert.verify(path, tmp_path / "wrong.mnn").passed
    mnnconvert.convert(path, tmp_path / "right.mnn", verify="never")
    assert mnnconvert.verify(path, tmp_path / "right.mnn").passed


def test_gates_stay_hard(onnx_file, tmp_path, monkeypatch):
    path = net(onnx_file, stepped=True)
    twin = in_doubt(path)
    monkeypatch.setattr("mnnconvert.verification.open_candidate", lambda mnn, engine: twin)
    (tmp_path / "gates.toml").write_text('[[gate]]\nmetric = "max_rel"\nbound = 1e-4\n')
    np.savez(tmp_path / "x.npz", **FEEDS)
    assert mnnconvert.verify(path, "any.mnn", inputs=tmp_path / "x.npz").passed
    gated = mnnconvert.verify(path, "any.mnn", inputs=tmp_path / "x.npz", gates=tmp_path / "gates.toml")
    assert not gated.passed and gated.missed_gates


def test_a_conversion_notes_what_is_disputed(onnx_file, tmp_path):
    path = net(onnx_file, stepped=True)
    conversion = Conversion(ConversionOptions(model_file=str(path), mnn_model=str(tmp_path / "m.mnn")))
    graph, conversion._engine = conversion._read(), OnnxRuntimeEngine(path)
    conversion._accept(verify(OnnxRuntimeEngine(path), in_doubt(path)), graph)
    (note,) = conversion.report.diagnostics
    assert note.reference == "disputed-outputs" and "run 1, y: off by" in note.message
    with pytest.raises(GateError):
        conversion._accept(verify(OnnxRuntimeEngine(path), other_order(edited(path, without_relu))), graph)


class Noisy:
    """y = x with an error of its own in every run, of which it gets the number: a model without a steady answer."""

    name, exact_kinds, notes = "noisy", True, ()
    outputs = inputs = (engines.TensorInfo("x", np.dtype("float32"), ("n",)),)

    def __init__(self, error: Callable[[int, np.ndarray], object], twin: Noisy | None = None):
        self.error, self.twin, self.runs = error, twin, 0

    def run(self, feeds):
        error = self.error(self.runs, feeds["x"])
        self.runs += 1
        return {"x": (feeds["x"] + error).astype(np.float32)}

    def with_constants(self, change):
        return self.twin


def steady(run, x):
    return 0 * x


def normal(size: float, seed: int = 0):
    return lambda run, x: size * np.random.default_rng([seed, run]).standard_normal(x.shape)


def sometimes(run, x):
    """An error of a hundredth, but none in every third run."""
    return normal(0.01, seed=7)(run, x) * (run % 3 != 2)


def verdict(error, spread, size: int = 100):
    """Of a candidate with this error, where shaken runs of the reference have that one."""
    feeds = {"x": np.linspace(1, 0.1, size).astype(np.float32)}
    return verify(Noisy(steady, Noisy(spread)), Noisy(error), feeds).runs[0].comparison.outputs[0].verdict


@pytest.mark.parametrize(
    "error, spread, expected",
    [
        pytest.param(sometimes, normal(0.01), "disputed", id="as far from itself"),
        pytest.param(normal(0.01, seed=7), normal(0.01), "missed", id="never the same answer"),
        pytest.param(sometimes, normal(1e-4), "missed", id="steady reference"),
        pytest.param(sometimes, normal(0.002), "missed", id="beyond three times the spread"),
        pytest.param(sometimes, lambda run, x: 0.02 * np.eye(1, x.size)[0], "missed", id="noise everywhere"),
        pytest.param(lambda run, x: x * np.nan, normal(0.01), "missed", id="NaN"),
        pytest.param(sometimes, lambda run, x: normal(0.01)(run, x) * (run == 3), "missed", id="one accident"),
        pytest.param(sometimes, lambda run, x: np.nan if run == 3 else 0.01, "missed", id="NaN of the reference"),
    ],
)
def test_the_rules_one_by_one(error, spread, expected):
    assert verdict(error, spread) == expected


def test_agreement_of_few_elements_has_to_be_close(monkeypatch):
    """One number within a thousandth is found among many tries; it proves nothing."""
    assert verdict(lambda run, x: 0.004 * np.cos(run), normal(0.01), size=1) == "missed"
    assert verdict(lambda run, x: 0.004 * (run == 0), normal(0.01), size=1) == "disputed"
    monkeypatch.setattr(dispute, "FINE", 1.0)
    assert verdict(lambda run, x: 0.004 * np.cos(run), normal(0.01), size=1) == "disputed"


class Refuses(Noisy):
    def run(self, feeds):
        raise ConversionError.of("source-engine-failed", "no")


@pytest.mark.parametrize("twin", [None, Refuses(steady)])
def test_references_that_cannot_be_shaken_leave_the_miss(twin):
    feeds = {"x": np.linspace(0.1, 1, 100).astype(np.float32)}
    assert not verify(Noisy(steady, twin), Noisy(sometimes), feeds).passed


def test_shaking_leaves_whole_numbers_and_types():
    array = np.array([0.0, 2.0, np.inf, 0.3], np.float32)
    shaken = scaled(array, np.random.default_rng(0), 1e-6)
    assert shaken.dtype == np.float32 and (shaken[:3] == array[:3]).all()
    assert shaken[3] != array[3] and abs(shaken[3] / array[3] - 1) < 1.1e-6
    assert scaled(np.float32(0.3), np.random.default_rng(0), 1e-6).shape == ()
    ids = np.arange(5)
    assert scaled(ids, np.random.default_rng(0), 1e-6) is ids


def test_variants_move_floats_or_rearrange_the_rest():
    x, ids = FEEDS["x"], np.arange(20)
    variant = next(dispute._variants({"x": x, "i": ids}))
    assert (variant["i"] == ids).all() and 0 < np.abs(variant["x"] / x - 1).max() <= 0.0101
    variant = next(dispute._variants({"i": ids.reshape(4, 5)}))
    assert variant["i"].shape == (4, 5) and sorted(variant["i"].reshape(-1)) == ids.tolist()
    assert (variant["i"].reshape(-1) != ids).any()


def test_a_twin_replaces_float_initializers_only(onnx_file):
    text = "(float[2] x, float[2] v) => (float[2] y) { a = Add(x, w) b = Cast<to=1>(i) c = Add(a, b) y = Mul(c, v) }"
    path = onnx_file(text, w=np.ones(2, np.float32), v=np.ones(2, np.float32), i=np.array([10, 20]))
    engine = OnnxRuntimeEngine(path)
    twin = engine.with_constants(lambda array: array * np.float32(3))
    x = {"x": np.zeros(2, np.float32)}
    assert engine.run(x)["y"].tolist() == [11, 21] and twin.run(x)["y"].tolist() == [39, 69]


def test_external_initializers_are_not_read(onnx_file, tmp_path):
    model = onnx.load(onnx_file("(float[4] x) => (float[4] y) { y = Add(x, w) }", w=np.ones(4, np.float32)))
    path = tmp_path / "external.onnx"
    onnx.save(model, path, save_as_external_data=True, size_threshold=0)
    twin = OnnxRuntimeEngine(path).with_constants(lambda array: array * np.float32(3))
    assert twin.run({"x": np.zeros(4, np.float32)})["y"].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("limit", [10, 1000])
def test_large_models_have_no_twin(onnx_file, monkeypatch, limit):
    path = onnx_file("(float[400] x) => (float[400] y) { y = Add(x, w) }", w=np.ones(400, np.float32))
    monkeypatch.setattr(engines, "TWIN_BYTES", limit)
    assert OnnxRuntimeEngine(path).with_constants(np.abs) is None


def test_integers_count_what_differs():
    got, want = {"y": np.array([1, 2, 3])}, {"y": np.array([1, 2, 4])}
    bad = compare_outputs(got, want, TOLERANCE).outputs[0]
    assert bad.numeric and bad.verdict == "missed"
    spread = dispute._spread("y", [{"y": np.array([1, 2, 5])}] * 3 + [want] * 5, want, TOLERANCE)
    assert spread is not None and (spread.moved, spread.error, spread.sqnr) == (3, 1.0, None)
    assert dispute._covers(spread, bad)
