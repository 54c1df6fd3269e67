"""Models larger than memory: weights pass through piece by piece, equal ones are stored once, and a conversion that is
killed at any moment leaves nothing under the final name, and nothing at all once another one ran."""

import json
import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from llm_cases import CONFIG, llama_weights, write_folder
from onnx import TensorProto, helper, numpy_helper
from peak_memory import PEAK, counted

import mnnconvert
from mnnconvert.ir import CodedTensor
from mnnconvert.quantizers import apply
from mnnconvert.schema import files, writer
from mnnconvert.schema.reader import read_model
from mnnconvert.verify.mnn_engine import MnnEngine

MOMENTS = 10
BITS = {"weight_quant_bits": 4, "weight_quant_block": 64}

KILLED = """
import hashlib, json, os, random, signal, sys, time
from pathlib import Path
from mnnconvert.cli.main import main

moments, folder, names, words = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3].split(","), sys.argv[4:]

def started():
    child = os.fork()
    if child == 0:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1), os.dup2(silent, 2)
        os._exit(main(words))
    return child

def finished():
    assert os.waitpid(started(), 0)[1] == 0

def digest(path):
    parts = [path] if path.is_file() else sorted(path.iterdir())
    return hashlib.sha256(b"".join(part.name.encode() + part.read_bytes() for part in parts)).hexdigest()

def found():
    return {name: digest(folder / name) for name in names if (folder / name).exists()}

import onnx, mnnconvert.conversion, mnnconvert.llm  # what a start costs is not what is to be killed
begun = time.perf_counter()
finished()
seconds, random, whole = time.perf_counter() - begun, random.Random(0), found()
after, left = [], []
for i in range(moments):
    for name in names:
        os.system(f"rm -rf '{folder / name}'")
    child = started()
    time.sleep(seconds * (i + random.random()) / moments)
    os.kill(child, signal.SIGKILL)
    killed = os.waitpid(child, 0)[1] == signal.SIGKILL
    after.append([killed, found()])
    left.append(sum(path.name.endswith(".tmp") for path in folder.iterdir()))
finished()
print(json.dumps({"after": after, "left": left, "files": sorted(os.listdir(folder)), "made": found(), "whole": whole}))
"""


def kill(folder, names, *words):
    """Kill a command at random moments; what there is after each, temporary folders too, and after a last whole run."""
    command = [sys.executable, "-c", KILLED, str(MOMENTS), str(folder), ",".join(names), *map(str, words)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


def products(path, count=10, size=1024, dtype=np.float16, seed=0):
    """`count` products with matrices of `size`, in external data."""
    rng = np.random.default_rng(seed)
    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"]) for i in range(count)]
    weights = [
        numpy_helper.from_array((rng.standard_normal((size, size), np.float32) / 32).astype(dtype), f"w{i}")
        for i in range(count)
    ]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return save(path, nodes, weights, ("x0", kind, ["n", size]), (f"x{count}", kind, None))


def save(path, nodes, weights, entry, result):
    """A model whose weights are in external data, with one input and one output."""
    ends = ([helper.make_tensor_value_info(*end)] for end in (entry, result))
    graph = helper.make_graph(nodes, "g", *ends, weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(proto, path, save_as_external_data=True, location=f"{path.stem}.bin", size_threshold=1024)
    return path


def assert_nothing_is_left(found, sources):
    assert any(killed and not names for killed, names in found["after"])
    assert all(
        names.items() <= found["whole"].items() for _, names in found["after"]
    )  # as it ended, they were complete
    assert any(found["left"])  # some were killed while there was something to clear up
    assert all(count <= 1 for count in found["left"])  # and the next one did so
    assert found["made"] == found["whole"] and found["files"] == sorted([*sources, *found["made"]])


@pytest.mark.parametrize("external", [False, True])
def test_a_killed_conversion_leaves_nothing(tmp_path, external):
    source = products(tmp_path / "m.onnx")
    words = [
        "--modelFile",
        source,
        "--MNNModel",
        tmp_path / "o.mnn",
        "--weightQuantBits",
        "4",
        "--weightQuantBlock",
        "64",
    ]
    names = ["o.mnn", "o.mnn.weight"] if external else ["o.mnn"]
    found = kill(tmp_path, names, *words, "--verify", "never", *(["--saveExternalData"] if external else []))
    assert_nothing_is_left(found, ["m.bin", "m.onnx"])


def test_a_killed_conversion_of_a_language_model_leaves_nothing(tmp_path):
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 8,
             "num_hidden_layers": 3, "vocab_size": 64}  # fmt: skip
    weights = {n: w.astype(np.float16) for n, w in llama_weights({**CONFIG, **sizes}).items()}
    source = write_folder(tmp_path / "source", weights, **sizes)
    words = ["llm", source, tmp_path / "made", "--quant_bit", "4", "--quant_block", "64", "--verify", "never"]
    assert_nothing_is_left(kill(tmp_path, ["made"], *words), ["source"])


@counted
@pytest.mark.parametrize("external", [False, True])
def test_codes_of_a_large_model_are_never_in_memory_together(tmp_path, external):
    code = (
        f"{PEAK}\nimport sys\nimport mnnconvert\n"
        "options = dict(weight_quant_bits=8, verify='never', quant_method='rtn')\n"
        "options |= dict(save_external_data=sys.argv[3] == 'True')\n"
        "mnnconvert.convert(sys.argv[1], 'small.mnn', **options)\n"
        "before = peak()\n"
        "mnnconvert.convert(sys.argv[2], 'large.mnn', **options)\n"
        "print(peak() - before)"
    )
    small, large = products(tmp_path / "small.onnx", 1), products(tmp_path / "large.onnx", 48)
    command = [sys.executable, "-c", code, str(small), str(large), str(external)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, cwd=tmp_path)
    codes = (tmp_path / "large.mnn").stat().st_size + (external and (tmp_path / "large.mnn.weight").stat().st_size)
    assert codes > 48e6
    assert int(said.stdout) * 1024 < codes / 3


def coded(path):
    """The codes of a file by layer."""
    tensors = {n.name: n.inputs[1].tensor for n in read_model(path).nodes if n.op.kind == "Convolution"}
    assert tensors and all(isinstance(t, CodedTensor) for t in tensors.values())
    return {name: tensor.coded for name, tensor in tensors.items()}


@pytest.mark.parametrize("options", [BITS, BITS | {"weight_quant_bits": 3, "weight_quant_asymmetric": False}], ids=str)
@pytest.mark.parametrize("external", [False, True])
def test_codes_that_are_written_late_are_those_that_were_computed_before(tmp_path, monkeypatch, external, options):
    source = products(tmp_path / "m.onnx", 2, 320, np.float32)
    options = options | {"save_external_data": external, "verify": "never"}
    late = mnnconvert.convert(source, tmp_path / "late.mnn", **options)
    monkeypatch.setattr(apply, "LARGE", 1 << 40)
    early = mnnconvert.convert(source, tmp_path / "early.mnn", **options)
    assert [x.error for x in late.layers] == [x.error for x in early.layers] and all(x.error for x in late.layers)
    assert late.target_bytes == early.target_bytes and late.external_bytes == early.external_bytes
    expected = coded(tmp_path / "early.mnn")
    for name, found in coded(tmp_path / "late.mnn").items():
        np.testing.assert_array_equal(found.codes, expected[name].codes)
        np.testing.assert_array_equal(found.scale, expected[name].scale)
        np.testing.assert_array_equal(found.minimum, expected[name].minimum)


def test_codes_beyond_the_limit_of_a_model_file_go_to_an_external_one(tmp_path, monkeypatch):
    source = products(tmp_path / "m.onnx", 2, 320, np.float32)
    mnnconvert.convert(source, tmp_path / "whole.mnn", **BITS)
    monkeypatch.setattr(writer, "INLINE_LIMIT", 50_000)
    report = mnnconvert.convert(source, tmp_path / "o.mnn", **BITS)
    assert "external-weights" in [d.reference for d in report.diagnostics]
    assert report.external_bytes > 100_000 > report.target_bytes
    x = {"x0": np.random.default_rng(0).standard_normal((3, 320)).astype(np.float32)}
    whole = mnnconvert.load(tmp_path / "whole.mnn").run(x)["x2"]
    np.testing.assert_array_equal(mnnconvert.load(tmp_path / "o.mnn").run(x)["x2"], whole)


WORDS, WIDTH = 400, 64


def tied(path, dtype, copied):
    """Words by a table, and scores by the same one: read through a transposition, or stored twice."""
    table = (np.random.default_rng(0).standard_normal((WORDS, WIDTH)) / 8).astype(dtype)
    turn = helper.make_node("Transpose", ["table"], ["turned"], perm=[1, 0])
    nodes = [helper.make_node("Gather", ["table", "ids"], ["x"]), *([] if copied else [turn])]
    nodes.append(helper.make_node("MatMul", ["x", "turned"], ["y"]))
    weights = [numpy_helper.from_array(table, "table")]
    weights += [numpy_helper.from_array(np.ascontiguousarray(table.T), "turned")] if copied else []
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    save(path, nodes, weights, ("ids", TensorProto.INT64, ["n"]), ("y", kind, None))
    return table.astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("external", [False, True])
def test_tied_weights_are_stored_once(tmp_path, dtype, copied, external):
    table = tied(tmp_path / "m.onnx", dtype, copied)
    report = mnnconvert.convert(tmp_path / "m.onnx", tmp_path / "o.mnn", save_external_data=external, tolerance=2e-2)
    assert table.nbytes < report.target_bytes + report.external_bytes < 1.1 * table.nbytes
    ids = np.array([0, 7, WORDS - 1], np.int32)
    found = MnnEngine(tmp_path / "o.mnn").run({"ids": ids})["y"]
    np.testing.assert_allclose(found, table[ids] @ table.T, atol=1e-5)


def test_halves_of_tied_weights_are_stored_once(tmp_path):
    table = tied(tmp_path / "m.onnx", np.float16, True)
    report = mnnconvert.convert(tmp_path / "m.onnx", tmp_path / "o.mnn", fp16=True, tolerance=2e-2)
    assert table.nbytes / 2 < report.target_bytes < 0.55 * table.nbytes
    assert report.source_bytes > table.nbytes


def test_a_folder_without_a_lock_is_cleared_when_empty_and_left_alone_else(tmp_path):
    """The first is of a process that was killed as it began, the second of nobody we know."""
    (tmp_path / ".o.mnn.abcdefgh.tmp").mkdir()
    (tmp_path / ".o.mnn.mine.tmp").mkdir()
    (tmp_path / ".o.mnn.ijklmnop.tmp").mkdir()
    (tmp_path / ".o.mnn.ijklmnop.tmp/thesis.txt").write_text("years of work")
    with files.staged(tmp_path / "o.mnn") as path:
        path.write_bytes(b"made")
        with files.staged(tmp_path / "o.mnn") as other:  # whoever comes meanwhile leaves the first alone
            other.write_bytes(b"first")
        assert path.read_bytes() == b"made" and (tmp_path / "o.mnn").read_bytes() == b"first"
    assert (tmp_path / "o.mnn").read_bytes() == b"made"
    assert sorted(os.listdir(tmp_path)) == [".o.mnn.ijklmnop.tmp", ".o.mnn.mine.tmp", "o.mnn"]


def test_a_place_that_is_cleared_as_it_is_made_is_made_again(tmp_path, monkeypatch):
    made, honest = [], files.tempfile.mkdtemp

    def cleared(**names):
        made.append(honest(**names))
        if len(made) == 1:
            os.rmdir(made[0])
        return made[-1]

    monkeypatch.setattr(files.tempfile, "mkdtemp", cleared)
    with files.staged(tmp_path / "o.mnn") as path:
        path.write_bytes(b"made")
    assert len(made) == 2 and os.listdir(tmp_path) == ["o.mnn"]


def test_an_old_model_stays_where_new_weights_cannot(tmp_path):
    (tmp_path / "o.mnn").write_bytes(b"old")
    (tmp_path / "o.mnn.weight").mkdir()
    with pytest.raises(mnnconvert.MnnConvertError, match="unwritable-output"), files.staged(tmp_path / "o.mnn") as path:
        path.write_bytes(b"new")
        path.with_name("o.mnn.weight").write_bytes(b"new")
    assert (tmp_path / "o.mnn").read_bytes() == b"old" and sorted(os.listdir(tmp_path)) == ["o.mnn", "o.mnn.weight"]
