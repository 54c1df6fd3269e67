"""MNN's compression files: created, read in both forms, and understood as the released converter understands them."""

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx_cases import model

import mnnconvert
from mnnconvert.cli.main import main
from mnnconvert.errors import ConversionError
from mnnconvert.ir import CodedTensor
from mnnconvert.quantizers.compression_params import read_params
from mnnconvert.quantizers.recipe import Rule
from mnnconvert.schema.reader import read_model

RNG = np.random.default_rng(6)
NETWORK = """(float[2,64] x, float[1,4,6,6] z) => (float[2,48] y, float[1,8,6,6] c, float[1,4,6,6] d) {
    a = MatMul(x, w1)
    b = Relu(a)
    y = MatMul(b, w2)
    c = Conv <kernel_shape=[3,3], pads=[1,1,1,1]> (z, w3)
    d = Conv <kernel_shape=[3,3], pads=[1,1,1,1], group=4> (z, w4)
}"""
CONVERT = "import sys, _tools; sys.exit(not _tools.mnnconvert(['mnnconvert', *sys.argv[1:]]))"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    shapes = {"x": (2, 64), "z": (1, 4, 6, 6), "w1": (64, 32), "w2": (32, 48), "w3": (8, 4, 3, 3), "w4": (4, 1, 3, 3)}
    arrays = {k: RNG.standard_normal(s).astype(np.float32) for k, s in shapes.items()}
    path = tmp_path_factory.mktemp("params") / "m.onnx"
    onnx.save(model(NETWORK, arrays)[0], path)
    return path


def entry(name, bits=4, block=0, asymmetric=True, **more):
    return {
        "opName": name,
        "weight": [{"name": name, "bits": bits, "asymmetric": asymmetric, "blockSize": block}],
    } | more


def params(*layers):
    return {
        "version": "3.6.1",
        "algo": [{"type": "QUANTIZE", "quantParams": {"layer": list(layers)}}],
        "forGuide": True,
    }


def stored(path):
    """(bits, blocks, symmetric) of the weight of each convolution, by the start of its name."""
    found = {}
    for node in read_model(path).nodes:
        if node.op.kind.startswith("Convolution"):
            t = node.inputs[1].tensor
            kept = isinstance(t, CodedTensor)
            found[node.name[0]] = (t.coded.bits, t.coded.blocks, t.coded.minimum is None) if kept else None
    return found


def convert(source, target, file, **options):
    mnnconvert.convert(source, target, verify="never", compression_params_file=file, **options)
    return stored(target)


@pytest.mark.parametrize("name", ["p.json", "p.bin"])
def test_a_file_that_does_not_exist_is_made_and_gives_the_same_model(name, source, tmp_path):
    options = {"weight_bits": 4, "weight_block": 32, "quant_rule": ["name=d,skip", "name=c,bits=8,block=0,symmetric"]}
    first = convert(source, tmp_path / "a.mnn", tmp_path / name, **options)
    assert first == {"b": (4, 2, False), "y": (4, 1, False), "c": (8, 1, True), "d": None}
    assert ((tmp_path / name).read_bytes()[:1] == b"{") == name.endswith("json")
    convert(source, tmp_path / "b.mnn", tmp_path / name)
    assert (tmp_path / "a.mnn").read_bytes() == (tmp_path / "b.mnn").read_bytes()


def test_both_forms_say_the_same(source, tmp_path):
    for name in ("p.json", "p.bin"):
        convert(source, tmp_path / "m.mnn", tmp_path / name, weight_bits=4, weight_block=32)
    rules = read_params(tmp_path / "p.json")
    assert rules == read_params(tmp_path / "p.bin") and len(rules) == 4
    document = json.loads((tmp_path / "p.json").read_text())
    assert document["forGuide"] and document["algo"][0]["quantParams"]["layer"][0]["conv"] == {
        "inputChannel": 64, "outputChannel": 32, "kernelSize": [1, 1]}  # fmt: skip


def test_layers_in_the_file_are_stored_so_and_others_as_the_options_say(source, tmp_path):
    layers = entry("a__matmul_converted", 8), entry("y", 3, 16, False), entry("c", 0)
    (tmp_path / "p.json").write_text(json.dumps(params(*layers)))
    got = convert(source, tmp_path / "m.mnn", tmp_path / "p.json")
    assert got == {"b": (8, 1, False), "y": (3, 2, True), "c": None, "d": None}
    got = convert(source, tmp_path / "m.mnn", tmp_path / "p.json", weight_bits=5, quant_rule=["name=c,bits=6"])
    assert got == {"b": (8, 1, False), "y": (3, 2, True), "c": (6, 1, False), "d": (5, 1, False)}


@pytest.mark.parametrize(
    ("text", "mentions"),
    [
        ('{"algo": [', "JSON"),
        ("\x08\xff\xff", "binary"),
        ('{"algo": 3}', "JSON"),
        ('{"other": 1}', "other"),
        (json.dumps({"algo": [{"type": "PRUNE"}]}), "pruning"),
        (json.dumps(params(entry("y", 9))), "9 bits"),
        (json.dumps(params(entry("y", 4, -2))), "-2"),
        (json.dumps(params({"opName": "y"})), "one weight"),
        (json.dumps(params(entry("", 4))), "no name"),
        (json.dumps(params(entry("y", input=[{"name": "x", "scales": [0.1]}]))), "activations"),
        (json.dumps(params({"opName": "y", "weight": [{"name": "y", "scales": [1.0]}]})), "scales"),
    ],
)
def test_bad_files_are_named(text, mentions, tmp_path):
    path = tmp_path / ("p.bin" if text[0] == "\x08" else "p.json")
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ConversionError, match="bad-compression-params") as caught:
        read_params(path)
    assert mentions in str(caught.value)


def test_the_file_is_only_made_by_a_conversion_that_codes_something(source, tmp_path, capsys):
    words = ["--modelFile", str(source), "--MNNModel", str(tmp_path / "m.mnn"), "--verify", "never"]
    assert main([*words, "--compressionParamsFile", str(tmp_path / "p.json")]) == 2
    assert "option-without-effect" in capsys.readouterr().err and not (tmp_path / "p.json").exists()
    assert main([*words, "--weightQuantBits", "4", "--compressionParamsFile", str(tmp_path)]) == 1
    assert main([*words, "--weightQuantBits", "4", "--compressionParamsFile", str(tmp_path / "no" / "p.json")]) == 1
    assert "unwritable-output" in capsys.readouterr().err


def test_names_with_wildcards_are_taken_as_they_are(tmp_path):
    (tmp_path / "p.json").write_text(json.dumps(params(entry("a[0]*"))))
    (rule,) = read_params(tmp_path / "p.json")
    assert rule.fits({"a[0]*"}, {"Convolution"}, 4) and not rule.fits({"a0x"}, {"Convolution"}, 4)
    assert isinstance(rule, Rule)


valid = [
    json.dumps(params(entry("y", 4, 32), entry("c", 0))).encode(),
    b'\n\x053.6.1\x12\n\x08\x00\x12\x06"\x04\x12\x02\n\x00',
]


@given(
    base=st.sampled_from(valid),
    cut=st.integers(0, 200),
    more=st.binary(max_size=20),
    name=st.sampled_from(["p.json", "p.bin"]),
)
def test_no_file_makes_it_crash(base, cut, more, name, tmp_path_factory):
    path = tmp_path_factory.mktemp("p") / name
    path.write_bytes(base[:cut] + more + base[cut + len(more) :])
    try:
        rules = read_params(path)
    except ConversionError as error:
        assert {d.reference for d in error.diagnostics} == {"bad-compression-params"}
    else:
        assert all(isinstance(r, Rule) for r in rules)


@pytest.mark.mnn
@pytest.mark.parametrize("options", [(), ("--weightQuantBits", "4", "--weightQuantBlock", "32")])
def test_the_released_converter_and_ours_agree_on_a_file(options, source, tmp_path):
    theirs = tmp_path / "theirs.mnn"
    made = tmp_path / "made.json"

    def released(*words):
        command = [sys.executable, "-c", CONVERT, "-f", "ONNX", "--modelFile", str(source), "--bizCode", "t"]
        subprocess.run([*command, "--MNNModel", str(theirs), *words], check=True, capture_output=True, timeout=90)

    released("--weightQuantBits", "4", "--weightQuantBlock", "32", "--compressionParamsFile", str(made))
    document = json.loads(made.read_text())
    layers = {x["opName"][0]: x for x in document["algo"][0]["quantParams"]["layer"]}
    layers["a"]["weight"][0] |= {"bits": 8, "blockSize": 0}
    layers["y"]["weight"][0]["asymmetric"] = False
    layers["c"]["weight"][0]["bits"] = 0
    layers["d"]["weight"][0]["blockSize"] = 0
    made.write_text(json.dumps(document))
    released(*options, "--compressionParamsFile", str(made))
    words = ["--modelFile", str(source), "--MNNModel", str(tmp_path / "ours.mnn"), "--verify", "never"]
    assert main([*words, *options, "--compressionParamsFile", str(made)]) == 0
    ours, released_form = stored(tmp_path / "ours.mnn"), stored(theirs)
    assert ours == {"b" if k == "a" else k: v for k, v in released_form.items()}


@pytest.mark.mnn
def test_the_released_converter_reads_our_binary_form(source, tmp_path):
    rules = ["name=y,bits=8,symmetric", "name=c,skip"]
    file = tmp_path / "p.bin"
    ours = convert(source, tmp_path / "ours.mnn", file, weight_bits=3, quant_rule=rules)
    document = file.read_bytes().replace(b"b__matmul_converted", b"a__matmul_converted")  # before the ReLU went in
    file.write_bytes(document)
    command = [sys.executable, "-c", CONVERT, "-f", "ONNX", "--modelFile", str(source), "--bizCode", "t"]
    words = ["--MNNModel", str(tmp_path / "theirs.mnn"), "--compressionParamsFile", str(file)]
    subprocess.run([*command, *words], check=True, capture_output=True, timeout=90)
    theirs = stored(tmp_path / "theirs.mnn")
    assert theirs["y"] == ours["y"] == (8, 1, True) and theirs["a"] == ours["b"] == (3, 1, False)
