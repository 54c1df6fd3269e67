"""Cases on which converters went wrong in public, through the command line: blocks, degenerate weights, coverage."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_cases import model

import mnnconvert
from mnnconvert.cli.main import main
from mnnconvert.ir import CodedTensor
from mnnconvert.schema.reader import read_model
from mnnconvert.verify.mnn_engine import MnnEngine


def rand(*shape, seed=1, spread=1.0):
    return (spread * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def product(tmp_path, weight):
    rows, columns = weight.shape
    x = rand(2, rows, seed=2)
    proto, _ = model(f"(float[2,{rows}] x) => (float[2,{columns}] y) {{ y = MatMul(x, w) }}", {"x": x, "w": weight})
    onnx.save(proto, tmp_path / "m.onnx")
    return x


def convert(tmp_path, capsys, *options):
    """The JSON document of a conversion of m.onnx to m.mnn."""
    words = ["--modelFile", str(tmp_path / "m.onnx"), "--MNNModel", str(tmp_path / "m.mnn"), "--json", *options]
    assert main(words) == 0
    return json.loads(capsys.readouterr().out)


def outputs(tmp_path, x):
    """y of our executor, which the released runtime must agree with."""
    y = mnnconvert.load(tmp_path / "m.mnn").run({"x": x})["y"]
    if MnnEngine.available():
        with MnnEngine(tmp_path / "m.mnn") as engine:
            np.testing.assert_allclose(engine.run({"x": x})["y"], y, rtol=1e-5, atol=1e-5)
    return y


@pytest.mark.parametrize(
    ("channels", "block", "kept"),
    [(72, 32, 24), (72, 24, 24), (40, 10, 10), (60, 12, 12), (63, 9, 9), (64, 20, 16), (72, 8, 8), (96, 16, 16)],
)
def test_blocks_that_divide_the_channels_are_kept_and_others_become_finer(channels, block, kept, tmp_path, capsys):
    weight = rand(channels, 16)
    x = product(tmp_path, weight)
    document = convert(tmp_path, capsys, "--weightQuantBits", "4", "--weightQuantBlock", str(block))
    (layer,) = document["layers"]
    assert layer["block"] == kept
    noted = [d["message"] for d in document["diagnostics"] if d["reference"] == "smaller-block"]
    assert bool(noted) == (kept != block)
    want = x @ weight
    assert np.abs(outputs(tmp_path, x) - want).max() < 0.15 * np.abs(want).max()


@pytest.mark.parametrize("bits", ["4", "8"])
@pytest.mark.parametrize("mode", [(), ("--weightQuantAsymmetric=0",)], ids=["asymmetric", "symmetric"])
def test_degenerate_columns(bits, mode, tmp_path, capsys):
    weight = np.zeros((64, 4), np.float32)
    weight[:, 1], weight[32:, 2], weight[:, 3] = 0.25, 0.5, 1e-30
    x = product(tmp_path, weight)
    document = convert(tmp_path, capsys, "--weightQuantBits", bits, "--weightQuantBlock", "32", *mode)
    (stored,) = [n.inputs[1].tensor for n in read_model(tmp_path / "m.mnn").nodes if n.op.kind == "Convolution"]
    read = stored.numpy().reshape(4, 64)
    assert np.isfinite(read).all() and not read[0].any()
    np.testing.assert_allclose(read[1], 0.25, rtol=2.0**-23)
    assert np.isfinite(document["layers"][0]["error"]) and np.isfinite(outputs(tmp_path, x)).all()


def test_every_weight_is_in_the_table_with_what_became_of_it(tmp_path, capsys):
    text = """(float[5,2,64] x) => (float[5,2,8] g, float[5,1,2,8] r) {
        q8 = DequantizeLinear <axis=1> (q, s)
        m = MatMul (x, q8)
        f = Reshape (m, to)
        h = Gemm <transB=1> (f, b, c)
        g = Reshape (h, back)
        r, rh, rc = LSTM <hidden_size=8> (x, w, u)
    }"""
    arrays = {
        "x": rand(5, 2, 64), "s": np.full(16, 0.01, np.float32), "b": rand(8, 16), "c": rand(8), "w": rand(1, 32, 64),
        "u": rand(1, 32, 8), "to": np.array([10, 16]), "back": np.array([5, 2, 8]),
        "q": helper.make_tensor("q", TensorProto.INT8, (64, 16), np.arange(-512, 512).astype(np.int8).tolist()),
    }  # fmt: skip
    onnx.save(model(text, arrays)[0], tmp_path / "m.onnx")
    document = convert(tmp_path, capsys, "--weightQuantBits", "8")
    kept, coded, *skipped = sorted(document["layers"], key=lambda x: (x["op"] == "LSTM", not x["reason"]))
    assert (kept["reason"], kept["method"]) == ("coded in the source already", "as in the source")
    assert (coded["reason"], coded["bits"]) == ("", 8)
    assert skipped and all(x["reason"] == "weights of LSTM have no coded form" for x in skipped)
    overhead = document["target_bytes"] - document["weights"]["bytes_after"]
    assert 0 < overhead < 8000


def test_a_shared_weight_is_coded_once_and_counted_once(tmp_path, capsys):
    weight, x = rand(256, 256, spread=0.1), rand(2, 256, seed=2)
    text = "(float[2,256] x) => (float[2,256] y) { a = MatMul(x, w) b = Relu(a) y = MatMul(b, w) }"
    onnx.save(model(text, {"x": x, "w": weight})[0], tmp_path / "m.onnx")
    document = convert(tmp_path, capsys, "--weightQuantBits", "8")
    assert len(document["layers"]) == 2
    assert document["weights"] == {"bytes_before": 4 * 256 * 256, "bytes_after": 256 * 256 + 256 * 8}
    first, second = (n.inputs[1].tensor for n in read_model(tmp_path / "m.mnn").nodes if n.op.kind == "Convolution")
    assert isinstance(first, CodedTensor) and np.array_equal(first.numpy(), second.numpy())
    assert document["target_bytes"] < 75_000


def test_quality_at_four_bits(tmp_path, capsys):
    """Gaussian weights of deviation 0.1 on a signal of about 1.6: each step in method and block has to gain."""
    weight = rand(256, 256, spread=0.1)
    x = product(tmp_path, weight)
    errors = {}
    for name, options in {
        "channel": ("--quantMethod", "rtn"), "block": ("--weightQuantBlock", "32", "--quantMethod", "rtn"),
        "hqq": ("--weightQuantBlock", "32", "--hqq"), "default": ("--weightQuantBlock", "32"),
    }.items():  # fmt: skip
        document = convert(tmp_path, capsys, "--weightQuantBits", "4", *options)
        errors[name] = document["layers"][0]["error"], np.square(outputs(tmp_path, x) - x @ weight).mean() ** 0.5
    order = [errors[name] for name in ("channel", "block", "hqq", "default")]
    assert order == sorted(order, reverse=True)
    assert errors["default"][1] < 0.12


def test_requantizing_keeps_the_integers_or_says_that_it_rounds_again(tmp_path):
    product(tmp_path, rand(64, 32))
    mnnconvert.convert(tmp_path / "m.onnx", tmp_path / "a.mnn", weight_bits=4, weight_block=32)
    again = mnnconvert.convert(tmp_path / "a.mnn", tmp_path / "b.mnn", weight_bits=4, weight_block=32)
    fewer = mnnconvert.convert(tmp_path / "a.mnn", tmp_path / "c.mnn", weight_bits=3)
    codes = [
        next(n.inputs[1].tensor.coded.codes for n in read_model(tmp_path / f).nodes if n.op.kind == "Convolution")
        for f in ("a.mnn", "b.mnn")
    ]
    assert np.array_equal(*codes)
    assert [x.reason for x in again.layers] == ["coded in the source already"]
    assert "rounded-twice" in [d.reference for d in fewer.diagnostics] and not fewer.layers[0].reason


def test_data_are_read_from_a_folder_a_file_or_refused(tmp_path, capsys):
    weight = rand(64, 48, spread=0.1)
    product(tmp_path, weight)
    folder = tmp_path / "data"
    folder.mkdir()
    words = ["--modelFile", str(tmp_path / "m.onnx"), "--MNNModel", str(tmp_path / "m.mnn"), "--weightQuantBits", "4"]
    assert main([*words, "--data", str(folder)]) == 2 and "no .npz or .npy" in capsys.readouterr().err
    assert main([*words, "--data", str(tmp_path / "none")]) == 1 and "missing-file" in capsys.readouterr().err
    assert main([*words, "--quantMethod", "gptq"]) == 2 and "--data" in capsys.readouterr().err
    (folder / "bad.npz").write_bytes(b"no archive")
    assert main([*words, "--data", str(folder)]) == 1 and "bad-input" in capsys.readouterr().err
    (folder / "bad.npz").unlink()
    mixing = rand(64, 64, seed=3)
    for i in range(32):
        np.save(folder / f"{i}.npy", rand(2, 64, seed=10 + i) @ mixing)
    np.savez(tmp_path / "one.npz", z=rand(2, 64))
    assert main([*words, "--data", str(tmp_path / "one.npz")]) == 1 and "'z'" in capsys.readouterr().err
    losses = {}
    for method in ("rtn", "lsq", "gptq"):
        document = convert(tmp_path, capsys, "--weightQuantBits", "4", "--quantMethod", method, "--data", str(folder))
        (layer,) = document["layers"]
        assert layer["method"] == method and layer["sqnr"] == pytest.approx(-20 * np.log10(layer["weighted_error"]))
        losses[method] = layer["weighted_error"]
    assert losses["gptq"] < losses["lsq"] < losses["rtn"]
    assert convert(tmp_path, capsys, "--weightQuantBits", "4", "--data", str(folder))["layers"][0]["method"] == "gptq"
