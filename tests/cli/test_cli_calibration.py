"""Calibration from the command line: data files, gptq against rounding, scales, and what is refused."""

import json

import numpy as np
import onnx
import pytest
from onnx_cases import model

import mnnconvert
from mnnconvert.cli.main import main

TEXT = """(float[n,64] x) => (float[n,16] y) {
    a = MatMul(x, w1)
    b = Relu(a)
    y = MatMul(b, w2)
}"""
RNG = np.random.default_rng(2)
SPREAD = np.exp(1.5 * RNG.standard_normal(64)).astype(np.float32)
MIX = RNG.standard_normal((12, 64)).astype(np.float32)


def inputs(count):
    """Correlated channels of very different power."""
    latent = RNG.standard_normal((count, 12)).astype(np.float32)
    return (latent @ MIX + 0.3 * RNG.standard_normal((count, 64)).astype(np.float32)) * SPREAD


@pytest.fixture
def folder(tmp_path):
    arrays = {"w1": RNG.standard_normal((64, 96)), "w2": RNG.standard_normal((96, 16))}
    proto, _ = model(TEXT, {k: (v / np.sqrt(len(v))).astype(np.float32) for k, v in arrays.items()})
    onnx.save(proto, tmp_path / "m.onnx")
    (tmp_path / "data").mkdir()
    for number in range(4):
        np.savez(tmp_path / f"data/{number}.npz", x=inputs(100))
    np.save(tmp_path / "x.npy", inputs(400))
    return tmp_path


def convert(folder, *words, target="o.mnn"):
    words = ("--modelFile", str(folder / "m.onnx"), "--MNNModel", str(folder / target), *words)
    return main(["-f", "ONNX", *words, "--weightQuantBits", "3", "--weightQuantBlock", "32"])


def error(folder, target="o.mnn"):
    x = inputs(200)
    exact = (np.maximum(x @ weight(folder, "w1"), 0)) @ weight(folder, "w2")
    return np.linalg.norm(mnnconvert.load(folder / target).run({"x": x})["y"] - exact) / np.linalg.norm(exact)


def weight(folder, name):
    proto = onnx.load(folder / "m.onnx")
    return next(onnx.numpy_helper.to_array(t) for t in proto.graph.initializer if t.name == name)


def test_data_make_codes_better(folder, capsys):
    assert convert(folder, "--quantMethod", "rtn", "--quiet") == 0
    rounded = error(folder)
    capsys.readouterr()
    assert convert(folder, "--quantMethod", "gptq", "--data", str(folder / "data"), "--json") == 0
    assert error(folder) < 0.6 * rounded
    layers = json.loads(capsys.readouterr().out)["layers"]
    assert [x["method"] for x in layers] == ["gptq", "gptq"]
    assert all(x["sqnr"] > 15 and 0 < x["weighted_error"] < 0.2 for x in layers)


def test_one_array_is_enough_for_one_input(folder):
    assert convert(folder, "--data", str(folder / "x.npy")) == 0
    assert convert(folder, "--data", str(folder / "data"), target="b.mnn") == 0
    assert error(folder) == pytest.approx(error(folder, "b.mnn"), rel=0.3)


@pytest.mark.parametrize("kind", ["awq", "smooth"])
def test_scales_are_folded_and_the_float_graph_is_still_proved(folder, kind):
    arguments = {"weight_bits": 3, "weight_block": 32, "quant_method": "rtn", "data": str(folder / "data")}
    report = mnnconvert.convert(folder / "m.onnx", folder / "o.mnn", quant_scaling=kind, **arguments)
    assert report.verification.passed
    assert any("scales" in note for layer in report.layers for note in layer.notes)


@pytest.mark.parametrize(
    ("words", "reference"),
    [
        (("--data", "nowhere"), "missing-file"),
        (("--data", "n" * 5000), "unreadable-file"),
        (("--compressionParamsFile", "n" * 5000), "unwritable-output"),
        (("--testdir", "n" * 5000), "unreadable-file"),
        (("--data", "nan.npy", "--quantMethod", "rtn"), "non-finite-activation"),
        (("--data", "nan.npy", "--quantScaling", "awq"), "non-finite-activation"),
        (("--data", "huge.npy"), "non-finite-activation"),
        (("--data", "x.npy", "--saveRecipe", "{folder}/x.npy"), "overwrite"),
        (("--data", "empty"), "bad-input"),
        (("--data", "broken.npz"), "bad-input"),
        (("--data", "broken.npy"), "bad-input"),
        (("--data", "wrong.npy"), "bad-input"),
        (("--quantMethod", "gptq"), "missing-data"),
        (("--quantScaling", "awq"), "--data"),
    ],
)
def test_bad_data_are_refused_by_name(folder, words, reference, capsys):
    (folder / "empty").mkdir()
    for name in ("broken.npz", "broken.npy"):
        (folder / name).write_bytes(b"no numbers")
    np.save(folder / "wrong.npy", np.zeros((3, 5), np.float32))
    np.save(folder / "nan.npy", np.full((300, 64), np.nan, np.float32))
    np.save(folder / "huge.npy", np.full((300, 64), 3e38, np.float32))
    words = [w.replace("{folder}", str(folder)) for w in words]
    given = [str(folder / w) if words[i - 1] == "--data" and i else w for i, w in enumerate(words)]
    assert convert(folder, *given) != 0
    assert reference in capsys.readouterr().err
    assert not (folder / "o.mnn").exists()
