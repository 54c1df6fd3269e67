"""compress: sizes are kept, no uniform setting of the size is better, what is predicted is what is measured."""

import itertools
import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mnnconvert
from mnnconvert.cli.main import main
from mnnconvert.compression import goal_of, read_size
from mnnconvert.errors import GateError, MnnConvertError

WIDTHS = (64, 128, 96, 128, 64, 10)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A perceptron whose layers differ in scale and in how heavy the tails of their weights are."""
    rng = np.random.default_rng(3)
    nodes, weights, last = [], [], "x"
    for i, (n, m) in enumerate(itertools.pairwise(WIDTHS)):
        scale = (1, 0.3, 2, 0.5, 1)[i] / np.sqrt(n)
        tails = (
            rng.standard_t(4, (n, m)).astype(np.float32) if i % 2 else rng.standard_normal((n, m)).astype(np.float32)
        )
        weights += [numpy_helper.from_array(tails * np.float32(scale), f"w{i}"),
                    numpy_helper.from_array(rng.normal(0, 0.1, m).astype(np.float32), f"b{i}")]  # fmt: skip
        nodes += [helper.make_node("MatMul", [last, f"w{i}"], [f"m{i}"], f"layer{i}"),
                  helper.make_node("Add", [f"m{i}", f"b{i}"], [f"a{i}"]),
                  helper.make_node("Relu", [f"a{i}"], [f"r{i}"])]  # fmt: skip
        last = f"r{i}"
    nodes[-1].output[0] = "y"
    graph = helper.make_graph(
        nodes, "mlp", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDTHS[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", WIDTHS[-1]])], weights,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("compress") / "mlp.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    samples = path.with_name("samples")
    samples.mkdir()
    for i in range(3):
        np.savez(samples / f"{i}.npz", x=rng.standard_normal((64, WIDTHS[0])).astype(np.float32))
    return path


def compress(source, tmp_path, **goal):
    return mnnconvert.compress(source, tmp_path / "m.mnn", data=source.with_name("samples"), **goal)


def test_sizes_are_kept_and_uniform_settings_are_not_better(source, tmp_path):
    predicted, measured = [], []
    for size in (22_000, 30_000, 45_000):
        found = compress(source, tmp_path, max_size=size)
        assert 0.98 * size < (tmp_path / "m.mnn").stat().st_size <= size
        assert found.size <= size
        assert all(found.measured <= error for _, bytes_, error in found.uniform if bytes_ <= size)
        predicted.append(found.predicted)
        measured.append(found.measured)
    assert predicted == sorted(predicted, reverse=True)
    assert measured == sorted(measured, reverse=True)
    assert 0.3 < np.median(np.divide(predicted, measured)) < 3


def test_average_bits_are_kept(source, tmp_path):
    assert 4.3 < compress(source, tmp_path, avg_bits=4.5).average_bits <= 4.5


@pytest.mark.parametrize("metric", ["cosine", "error"])
def test_a_drop_is_kept_and_used(metric, source, tmp_path):
    found = {allowed: compress(source, tmp_path, max_drop=f"{metric}={allowed}") for allowed in (0.05, 0.01)}
    assert all(result.drop[metric] <= allowed for allowed, result in found.items())
    assert found[0.05].size < found[0.01].size < source.stat().st_size


def test_what_the_written_file_loses_is_measured(source, tmp_path, monkeypatch):
    found = compress(source, tmp_path, max_drop="error=0.05")
    x = np.load(source.with_name("samples") / "0.npz")["x"]
    exact, got = (mnnconvert.load(p).run({"x": x})["y"] for p in (_float(source, tmp_path), tmp_path / "m.mnn"))
    assert found.written["error"] == pytest.approx(np.linalg.norm(got - exact) / np.linalg.norm(exact), rel=0.3)
    assert found.written["error"] < found.drop["error"]
    assert not found.conversion.diagnostics
    monkeypatch.setattr("mnnconvert.compression.METHOD_WITH_DATA", "rtn")  # which loses more than the search measured
    before = (tmp_path / "m.mnn").read_bytes()
    with pytest.raises(GateError, match="goal-missed"):
        compress(source, tmp_path, max_drop="error=0.05")
    assert (tmp_path / "m.mnn").read_bytes() == before


def test_without_data_the_file_loses_what_the_search_measured(source, tmp_path):
    found = mnnconvert.compress(source, tmp_path / "m.mnn", avg_bits=4)
    assert found.written["error"] == pytest.approx(found.drop["error"], rel=1e-3)


def _float(source, tmp_path):
    mnnconvert.convert(source, tmp_path / "float.mnn", verify="never")
    return tmp_path / "float.mnn"


def test_the_recipe_gives_the_same_file_again(source, tmp_path):
    data = str(source.with_name("samples"))
    words = ["compress", str(source), str(tmp_path / "a.mnn"), "--max-size", "30kB", "--data", data, "--json"]
    assert main(words) == 0
    recipe = tmp_path / "a.mnn.recipe.toml"
    assert main(["--modelFile", str(source), "--MNNModel", str(tmp_path / "b.mnn"), "--recipe", str(recipe),
                 "--data", data]) == 0  # fmt: skip
    assert (tmp_path / "a.mnn").read_bytes() == (tmp_path / "b.mnn").read_bytes()


def test_the_command_says_what_it_chose(source, tmp_path, capsys):
    assert main(["compress", str(source), str(tmp_path / "m.mnn"), "--avg-bits", "5", "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["compression"]["average_bits"] <= 5
    assert len(document["layers"]) == len(WIDTHS) - 1
    assert "bits per weight" in captured.err


@pytest.mark.parametrize("target", [[], ["m.mnn"]])
def test_a_plan_writes_nothing(target, source, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["compress", str(source), *target, "--max-size", "30kB", "--plan"]) == 0
    told = capsys.readouterr().out
    assert "relative error" in told and "Recipe" not in told
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("goal", "reference"),
    [
        ({"max_size": 5000}, "budget-too-small"),
        ({"max_size": "much"}, "bad-option-value"),
        ({"max_size": "9" * 400}, "bad-option-value"),
        ({"max_drop": "cosine"}, "bad-option-value"),
        ({"max_drop": "cosine=."}, "bad-option-value"),
        ({"max_drop": "cosine=1.2.3"}, "bad-option-value"),
        ({"avg_bits": float("nan")}, "out-of-range"),
        ({"avg_bits": 0.5}, "out-of-range"),
        ({"avg_bits": 4, "weight_bits": 4}, "option-without-effect"),
        ({"avg_bits": 4, "quant_method": "rtn"}, "option-without-effect"),
        ({"max_drop": "taste=0.1"}, "bad-option-value"),
        ({}, "missing-option"),
        ({"max_size": 1, "avg_bits": 3.0}, "contradictory-options"),
    ],
)
def test_goals_that_cannot_be_met_are_named(goal, reference, source, tmp_path):
    with pytest.raises(MnnConvertError) as caught:
        compress(source, tmp_path, **goal)
    assert caught.value.diagnostics[0].reference == reference
    assert not (tmp_path / "m.mnn").exists()


def test_a_model_without_weights_is_named(tmp_path):
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])])  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    with pytest.raises(MnnConvertError, match="no weights"):
        mnnconvert.compress(tmp_path / "m.onnx", tmp_path / "m.mnn", avg_bits=4)


@pytest.mark.parametrize(
    "before", [{"weight_bits": 4, "quant_rule": ("name=a3*,skip",)}, {"weight_bits": 8}, {"fp16": True}]
)
def test_weights_that_were_stored_in_few_bits_count_as_they_are(before, source, tmp_path):
    mnnconvert.convert(source, tmp_path / "before.mnn", **before)
    for goal in ({"avg_bits": 8}, {"max_drop": "error=0.5"}):
        found = mnnconvert.compress(tmp_path / "before.mnn", tmp_path / "m.mnn", **goal)
        assert found.size == (tmp_path / "m.mnn").stat().st_size <= (tmp_path / "before.mnn").stat().st_size
    kept = [layer for layer in found.conversion.layers if "leaves it" in layer.reason]
    assert all(layer.precision == "4 bit" for layer in kept) and bool(kept) == (before.get("weight_bits") == 4)


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A table of 512 kB and a product that reads its rows."""
    rng = np.random.default_rng(5)
    weights = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32) * np.float32(0.2), n)
               for n, s in (("table", (2000, 64)), ("w", (64, 16)))]  # fmt: skip
    nodes = [helper.make_node("Gather", ["table", "ids"], ["e"]), helper.make_node("MatMul", ["e", "w"], ["y"])]
    graph = helper.make_graph(
        nodes, "words", [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", "s"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "s", 16])], weights,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("words") / "words.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize("goal", [{"avg_bits": 4.5}, {"max_drop": "error=0.2"}, {"max_size": "80kB"}])
def test_tables_are_within_the_goal(goal, words, tmp_path):
    found = mnnconvert.compress(words, tmp_path / "m.mnn", **goal)
    assert found.size - 3000 < (tmp_path / "m.mnn").stat().st_size <= found.size
    assert found.average_bits <= goal.get("avg_bits", 5) and found.drop["error"] <= 0.2


def test_the_size_that_a_refusal_names_is_enough(words, tmp_path):
    with pytest.raises(MnnConvertError) as caught:
        mnnconvert.compress(words, tmp_path / "m.mnn", max_size=70_000)
    named = int(caught.value.diagnostics[0].hint.split()[2])
    assert mnnconvert.compress(words, tmp_path / "m.mnn", max_size=named).size == named


def test_outputs_without_elements_judge_nothing(source, tmp_path):
    with pytest.raises(MnnConvertError, match="no elements"):
        mnnconvert.compress(source, tmp_path / "m.mnn", avg_bits=4, input_shape={"x": (0, WIDTHS[0])})


@pytest.mark.parametrize(("text", "size"), [("5MB", 5_000_000), ("4.5MiB", 4_718_592), ("800kB", 800_000), (77, 77)])
def test_sizes_are_read(text, size):
    assert read_size(text) == goal_of(text, None, None).max_size == size
