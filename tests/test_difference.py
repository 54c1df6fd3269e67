"""Differences between two models: each variant of a network differs in one known thing, and that is what is found."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import network

import mnnconvert
from mnnconvert.cli.main import main
from mnnconvert.difference import ModelDifference, compare_files, compare_graphs, numeric_change
from mnnconvert.ir import ArrayTensor
from mnnconvert.sources import read_source


def converted(folder: Path, file: str, keywords: dict[str, Any] | None = None, **variant: Any) -> Path:
    path = folder / f"{file}.mnn"
    mnnconvert.convert(network(folder / f"{file}.onnx", **variant), path, verify="never", **(keywords or {}))
    return path


def between(folder: Path, keywords: dict[str, Any] | None = None, **variant: Any) -> ModelDifference:
    return compare_files(converted(folder, "a"), converted(folder, "b", keywords, **variant))


def test_a_model_is_equal_to_itself(tmp_path: Path) -> None:
    found = between(tmp_path)
    assert found.equal and not found.layers and not found.operators and found.same > 0
    assert found.outputs is not None and found.outputs.passed


def test_a_scaled_weight_is_one_change_with_its_size(tmp_path: Path) -> None:
    found = between(tmp_path, scale=1.1)
    (change,) = found.layers
    assert (change.kind, change.facts) == ("changed", ())
    (weight,) = change.weights
    assert weight.sqnr == pytest.approx(20.0, abs=1e-4)  # 0.1 of every number
    assert found.moved and not found.equal


def test_fewer_bits_are_told_for_every_weight(tmp_path: Path) -> None:
    found = between(tmp_path, {"weight_bits": 4, "weight_block": 32})
    assert [(c.kind, [w.after for w in c.weights]) for c in found.layers] == [
        ("changed", ["4 bit, block 32, asymmetric"]), ("changed", ["4 bit, block 32, asymmetric"]),
    ]  # fmt: skip
    for change in found.layers:
        weight = change.weights[0]
        assert weight.sqnr is not None and 15 < weight.sqnr < 30
        assert weight.bytes_after < weight.bytes_before / 4


def test_another_activation_is_found(tmp_path: Path) -> None:
    found = between(tmp_path, activation="Sigmoid")
    assert found.operators["Unary"] == (0, 1)
    assert {c.kind for c in found.layers} & {"added", "changed"}
    assert found.moved


def test_a_layer_of_another_name_is_the_same_layer(tmp_path: Path) -> None:
    found = between(tmp_path, name="renamed")
    assert found.equal, found.layers


def test_other_outputs_are_told(tmp_path: Path) -> None:
    found = between(tmp_path, head=16)
    assert any(line.startswith("output y float32") and "-> float32" in line for line in found.interface)
    assert found.moved and any(w.sqnr is None for c in found.layers for w in c.weights)


def test_source_and_file_answer_the_same_though_layers_differ(tmp_path: Path) -> None:
    file = converted(tmp_path, "a")
    found = compare_files(tmp_path / "a.onnx", file)
    assert found.outputs is not None
    largest = [v.measured.max_rel for run in found.outputs.runs for v in run.comparison.outputs if v.measured]
    assert max(largest) < 1e-5
    weights = [w for change in found.layers for w in change.weights if w.operand == 1]
    assert weights and all(w.sqnr == math.inf for w in weights)  # a transpose loses nothing


def test_models_with_other_inputs_are_compared_but_not_run(tmp_path: Path) -> None:
    found = compare_files(network(tmp_path / "a.onnx"), _other_input(tmp_path / "b.onnx"))
    assert found.outputs is None and "['x'] and ['z']" in found.notes[0]
    assert found.interface[:2] == ("input x is gone", "input z is new")


def _other_input(path: Path) -> Path:
    import onnx

    model = onnx.load(network(path))
    model.graph.input[0].name = model.graph.node[0].input[0] = "z"
    onnx.save(model, path)
    return path


def test_rewiring_alone_is_a_change(tmp_path: Path) -> None:
    import onnx

    text = '<ir_version: 8, opset_import: ["": 17]> m (float[2] a, float[2] b) => (float[2] y) {{ y = Sub({}) }}'
    graphs = []
    for i, order in enumerate(("a, b", "b, a")):
        onnx.save(onnx.parser.parse_model(text.format(order)), tmp_path / f"{i}.onnx")
        graphs.append(read_source(tmp_path / f"{i}.onnx"))
    (change,) = compare_graphs(*graphs).layers
    assert change.facts == ("inputs a, b -> b, a",)


def test_numeric_change_by_hand(rng: np.random.Generator) -> None:
    a = rng.standard_normal((3, 4)).astype(np.float32)
    assert numeric_change(ArrayTensor(a), ArrayTensor(a.T.copy())) == (math.inf, 0.0)
    sqnr, largest = numeric_change(ArrayTensor(a), ArrayTensor((a + 0.5)[..., None]))
    assert largest == pytest.approx(0.5, abs=1e-6)
    assert sqnr == pytest.approx(10 * math.log10(float((a.astype(float) ** 2).sum()) / (12 * 0.25)), abs=1e-3)
    assert numeric_change(ArrayTensor(a), ArrayTensor(a[:2])) == (None, None)
    zero = np.zeros((2, 2), np.float32)
    assert numeric_change(ArrayTensor(zero), ArrayTensor(zero + 1)) == (-math.inf, 1.0)


def test_exit_codes_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = str(converted(tmp_path, "a")), str(converted(tmp_path, "b", {"weight_bits": 8}))
    assert main(["diff", a, a, "--fail-on-change"]) == 0
    assert "No difference" in capsys.readouterr().out
    assert main(["diff", a, b]) == 0
    assert "2 changed; outputs differ" in capsys.readouterr().out
    assert main(["diff", a, b, "--fail-on-change", "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert (document["ok"], document["equal"], len(document["layers"])) == (False, False, 2)
    assert main(["diff", a, b, "--run=0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outputs"] is None
    assert main(["diff", a]) == 2
    assert main(["diff", a, "absent.mnn"]) == 1
    assert main(["diff", a, b, "--inputs", "absent.npz"]) == 1


def test_given_inputs_are_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = converted(tmp_path, "a"), converted(tmp_path, "b", scale=2.0)
    np.savez(tmp_path / "zero.npz", x=np.zeros((1, 64), np.float32))
    assert main(["diff", str(a), str(b), "--inputs", str(tmp_path / "zero.npz"), "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["outputs"]["runs"]
    assert run["comparison"]["outputs"][0]["measured"]["wrong"] == 0
