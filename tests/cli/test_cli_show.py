"""`show`: what it says about real files, and the numbers of histograms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from caffe_cases import caffemodel, one
from model_files import network

import mnnconvert
from mnnconvert.cli.main import main
from mnnconvert.ir import ArrayTensor
from mnnconvert.layers import BINS, bounds, histogram, sample
from mnnconvert.schema import flatbuffer, tables
from mnnconvert.schema.reader import read_net


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m4.mnn"
    mnnconvert.convert(network(tmp_path / "m.onnx"), path, weight_bits=4, weight_block=32, verify="never")
    return path


def shown(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert main(["show", *map(str, words), "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_a_file_is_told_whole(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = shown(capsys, model)
    assert document["file_bytes"] == model.stat().st_size
    layers = {layer["name"]: layer for layer in document["layers"] if layer["weight"]}
    assert [(w["bits"], w["block"], w["symmetric"], w["elements"]) for w in document["weights"]] == [
        (4, 32, False, 64 * 64), (4, 32, False, 64 * 8),
    ]  # fmt: skip
    row = next(row for row in document["totals"] if row["op"] == "Convolution")
    assert row["count"] == 2
    assert row["bytes"] == sum(layer["bytes"] for layer in layers.values())
    assert sum(row["bytes"] for row in document["totals"]) < document["file_bytes"]


def test_text_has_operators_and_weights(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(model)]) == 0
    printed = capsys.readouterr()
    assert "layers, 4," in printed.out.splitlines()[0]  # 4096 + 512 numbers, and biases
    assert "Convolution" in printed.out and "asymmetric" in printed.out
    assert "Weights: 2 in 4 bits" in printed.err


def test_a_source_file_is_read_by_its_frontend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = shown(capsys, network(tmp_path / "m.onnx"))
    assert [layer["op"] for layer in document["layers"]] == ["MatMul", "ReLU", "MatMul"]
    assert [w["bits"] for w in document["weights"]] == [32, 32]
    assert document["totals"][0] == {"op": "MatMul", "count": 2, "parameters": 4608, "bytes": 4 * 4608}


def test_one_layer_with_its_histogram(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = shown(capsys, model)["weights"][0]["name"]
    document = shown(capsys, model, "--layer", name)
    (layer,) = document["layers"]
    spread = layer["histogram"]
    assert sum(spread["counts"]) == spread["counted"] == spread["elements"] == 4096
    assert (spread["low"], spread["high"]) == (document["weights"][0]["minimum"], document["weights"][0]["maximum"])
    assert main(["show", str(model), "--layer", name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:2] == ["weight", "64x64x1x1,"] and "4 bit, block 32" in line for line in lines)
    bars = [line for line in lines if line.rstrip()[-1:].isdigit() and "#" in line]
    assert len(bars) > 5 and max(line.count("#") for line in bars) == 40


def test_patterns_select_and_unknown_names_are_refused(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [weight["name"] for weight in shown(capsys, model)["weights"]]
    assert [layer["name"] for layer in shown(capsys, model, "--layer", "*_converted")["layers"]] == names
    both = shown(capsys, model, "--layer", names[1], "--layer", names[0])
    assert [layer["name"] for layer in both["layers"]] == names
    assert main(["show", str(model), "--layer", "nothing[*"]) == 2
    assert "error[unknown-layer]" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["absent.mnn", "noise.mnn", "noise.onnx", "noise.tflite", "noise.bin"])
def test_bad_files_are_diagnostics(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    if name != "absent.mnn":
        (tmp_path / name).write_bytes(b"not a model at all, whatever its name says")
    assert main(["show", str(tmp_path / name)]) in (1, 2)
    assert "error[" in capsys.readouterr().err


def test_what_tells_other_models_is_refused(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(model), "--prototxt", "net.prototxt"]) == 2
    assert main(["diff", str(model), str(model), "--signature", "serve"]) == 2
    assert capsys.readouterr().err.count("error[option-without-effect]") == 2


def test_caffe_weights_with_their_net(
    tmp_path: Path, rng: np.random.Generator, capsys: pytest.CaptureFixture[str]
) -> None:
    net, weights = tmp_path / "net.prototxt", tmp_path / "net.caffemodel"
    net.write_text(
        one("Convolution", "convolution_param { num_output: 5 kernel_size: 3 bias_term: false }", x=(1, 2, 8, 8))
    )
    weights.write_bytes(caffemodel({"y": [rng.standard_normal((5, 2, 3, 3)).astype(np.float32)]}))
    (layer,) = shown(capsys, weights, "--prototxt", net)["layers"]
    assert (layer["op"], layer["parameters"]) == ("Convolution", 90 + 5)  # and a bias of zeros


def test_histograms_count_every_number_once(rng: np.random.Generator) -> None:
    values = rng.standard_normal(5000).astype(np.float32)
    spread = histogram(values, 5000)
    expected, _ = np.histogram(values, BINS)
    assert spread.counts == tuple(expected)
    assert spread.mean == pytest.approx(values.mean(), abs=1e-6)
    wide = histogram(values, 5000, (-100.0, 100.0))
    assert (wide.low, wide.high, sum(wide.counts)) == (-100.0, 100.0, 5000)


def test_odd_numbers_are_told_apart() -> None:
    spread = histogram(np.array([0, 0, 1, np.nan, np.inf], np.float32), 5)
    assert (spread.zeros, spread.odd, sum(spread.counts)) == (2, 2, 3)
    assert sum(histogram(np.full(7, 3.0, np.float32), 7).counts) == 7
    assert sum(histogram(np.zeros(0, np.float32), 0).counts) == 0


@pytest.mark.parametrize("shape", [(1,), (), (5000,), (700, 30), (3, 2, 5, 5), (0, 4)])
@pytest.mark.parametrize("most", [1 << 20, 1000])
def test_samples_come_from_everywhere(rng: np.random.Generator, shape: tuple[int, ...], most: int) -> None:
    array = np.asarray(rng.standard_normal(shape), np.float32)
    taken = sample(ArrayTensor(array), most)
    if array.size <= most or array.ndim < 2:
        assert np.array_equal(np.sort(taken), np.sort(array.ravel()))
    else:
        step = -(-array.size // most)
        assert np.array_equal(taken, array[::step].ravel())


def test_bounds_are_those_of_the_decoded_numbers(rng: np.random.Generator) -> None:
    array = rng.standard_normal((6, 40)).astype(np.float32)
    assert bounds(ArrayTensor(array)) == (array.min(), array.max())


@pytest.mark.parametrize("seed", range(60))
def test_damaged_files_are_shown_or_refused(model: Path, capsys: pytest.CaptureFixture[str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = bytearray(model.read_bytes())
    for place in rng.integers(0, len(data), 40):
        data[place] = int(rng.integers(0, 256))
    damaged = model.with_name("damaged.mnn")
    damaged.write_bytes(data)
    page = str(model.with_name("page.html"))
    assert main(["show", str(damaged), "--layer", "*", "--html", page]) in (0, 1)
    assert main(["diff", str(model), str(damaged), "--run=0"]) in (0, 1)


def test_an_op_that_nobody_knows_is_shown(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = read_net(model)
    (op,) = [op for op in net.oplists or [] if op.name == "y"]
    op.type, op.main = tables.OpType.TfQuantizedConv2D, None
    strange = model.with_name("strange.mnn")
    with strange.open("wb") as stream:
        flatbuffer.write(net, stream)
    kinds = [layer["op"] for layer in shown(capsys, strange)["layers"]]
    assert "TfQuantizedConv2D" in kinds
    assert main(["diff", str(model), str(strange)]) == 0
    assert "op Reshape -> TfQuantizedConv2D" in capsys.readouterr().out


def test_parameters_of_another_kind_are_refused(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = read_net(model)
    (op,) = [op for op in net.oplists or [] if op.name == "y"]
    op.type = tables.OpType.Scale
    wrong = model.with_name("wrong.mnn")
    with wrong.open("wb") as stream:
        flatbuffer.write(net, stream)
    assert main(["show", str(wrong)]) == 1
    assert "error[bad-mnn-file]" in capsys.readouterr().err
