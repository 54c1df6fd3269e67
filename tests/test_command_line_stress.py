"""The command line where all around it is odd: signals, streams, names, links. Nothing is lost or left behind."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import onnx
import pytest
from onnx_cases import model

import mnnconvert
from mnnconvert.errors import MnnConvertError

ROOT = Path(__file__).parents[1]
PROGRAM = [sys.executable, "-m", "mnnconvert"]
QUICK = ["--verify", "never", "--json"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def folder(tmp_path):
    proto, _ = model("(float[n,4] x) => (float[n,4] y) { t = Abs(x) y = Add(t, t) }")
    onnx.save(proto, tmp_path / "m.onnx")
    return tmp_path


def run(*words, cwd, **more):
    return subprocess.run([*PROGRAM, *words], cwd=cwd, capture_output=True, timeout=60, **{"env": ENVIRONMENT, **more})


def names(folder):
    return sorted(p.name for p in folder.iterdir())


SLOW = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell starts without it
from mnnconvert.schema import writer
real = writer.flatbuffer.write
def slow(net, stream):
    stream.write(b"half"); print("writing", file=sys.stderr, flush=True); time.sleep(30)
writer.flatbuffer.write = slow
from mnnconvert.cli.main import main
raise SystemExit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_no_trace(number, code, folder):
    (folder / "o.mnn").write_bytes(b"precious")
    words = ["--modelFile", "m.onnx", "--MNNModel", "o.mnn", *QUICK]
    command = [sys.executable, "-c", SLOW, *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, text=True, **pipes) as process:
        assert "writing" in process.stderr.readline()
        time.sleep(0.1)
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
    assert process.returncode == code
    assert json.loads(out)["diagnostics"][0]["reference"] == "interrupted"
    assert "Traceback" not in err
    assert names(folder) == ["m.onnx", "o.mnn"]
    assert (folder / "o.mnn").read_bytes() == b"precious"


def shell(line, cwd):
    text = line.replace("mnnconvert", f"'{sys.executable}' -m mnnconvert")
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", text], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=60
    )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize("words", ["--help", "--version --json", "ops"])
def test_a_full_stdout_is_named(words, folder):
    ended = shell(f"mnnconvert {words} > /dev/full", folder)
    assert ended.returncode == 1
    assert "unwritable-output" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_reader_that_leaves_is_no_error(folder):
    ended = shell("mnnconvert ops | head -1", folder)
    assert ended.returncode in (0, 141)  # whether all fitted into the pipe
    assert ended.stdout.startswith("Operator")
    assert ended.stderr in ("", "250 operators of ONNX.\n") or "operators" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_closed_streams_do_not_become_files(folder):
    ended = shell("mnnconvert --modelFile m.onnx --MNNModel o.mnn >&- 2>&- <&-", folder)
    assert ended.returncode == 0
    assert mnnconvert.load(folder / "o.mnn").inputs[0].name == "x"


@pytest.mark.parametrize("name", ["a b", "ü漢", "new\nline", "-dash", "[x]*", "%s{}", "x" * 240])
def test_any_name_of_a_file(name, folder):
    (folder / "m.onnx").rename(folder / f"{name}.onnx")
    ended = run(f"--modelFile={name}.onnx", f"--MNNModel={name}.mnn", *QUICK, cwd=folder)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["target"] == f"{name}.mnn"
    assert names(folder) == sorted([f"{name}.onnx", f"{name}.mnn"])


@pytest.mark.parametrize("option", ["--modelFile", "--MNNModel"])
def test_a_name_that_is_too_long_is_named(option, folder):
    names_ = {"--modelFile": "m.onnx", "--MNNModel": "o.mnn", option: "x" * 5000}
    ended = run(*(word for pair in names_.items() for word in pair), *QUICK, cwd=folder)
    assert ended.returncode == 1
    assert json.loads(ended.stdout)["diagnostics"][0]["reference"] in ("unwritable-output", "unreadable-file")
    assert names(folder) == ["m.onnx"]


def test_surroundings_without_home_and_utf8(folder):
    bare = {"PYTHONPATH": str(ROOT), "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ended = run("--modelFile", "m.onnx", "--MNNModel", "é.mnn", *QUICK, cwd=folder, env=bare)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["ok"]
    assert names(folder) == ["m.onnx", "é.mnn"]


def test_the_home_folder_behind_an_equals_sign(folder):
    home = {**ENVIRONMENT, "HOME": str(folder)}
    assert run("--modelFile=~/m.onnx", "--MNNModel=~/o.mnn", *QUICK, cwd="/", env=home).returncode == 0
    assert names(folder) == ["m.onnx", "o.mnn"]


def convert(folder, target, **keywords):
    return mnnconvert.convert(folder / "m.onnx", folder / target, verify="never", **keywords)


def test_a_link_stays_a_link(folder):
    (folder / "there").mkdir()
    (folder / "there" / "real.mnn").write_bytes(b"old")
    (folder / "link.mnn").symlink_to("there/real.mnn")
    convert(folder, "link.mnn")
    assert (folder / "link.mnn").is_symlink()
    assert mnnconvert.load(folder / "there" / "real.mnn").inputs[0].name == "x"
    assert names(folder) == ["link.mnn", "m.onnx", "there"]


def test_weights_of_a_linked_model_are_found(tmp_path):
    import numpy as np

    weights = np.arange(4096, dtype=np.float32).reshape(64, 64)
    proto, _ = model("(float[n,64] x) => (float[n,64] y) { y = MatMul(x, w) }", {"w": weights})
    onnx.save(proto, tmp_path / "m.onnx")
    (tmp_path / "there").mkdir()
    (tmp_path / "link.mnn").symlink_to("there/real.mnn")
    convert(tmp_path, "link.mnn", save_external_data=True)
    assert names(tmp_path / "there") == ["real.mnn", "real.mnn.weight"]
    x = np.ones((1, 64), np.float32)
    np.testing.assert_allclose(mnnconvert.load(tmp_path / "link.mnn").run({"x": x})["y"], x @ weights, rtol=1e-6)


@pytest.mark.parametrize("kind", ["folder", "pipe", "loop", "dangling"])
def test_what_is_no_file_is_never_replaced(kind, folder):
    target = folder / "o.mnn"
    if kind == "folder":
        target.mkdir()
    elif kind == "pipe":
        os.mkfifo(target)
    else:
        target.symlink_to("o.mnn" if kind == "loop" else "no/such/place.mnn")
    before = stat.S_IFMT(target.lstat().st_mode)
    with pytest.raises(MnnConvertError, match="unwritable-output"):
        convert(folder, "o.mnn")
    assert stat.S_IFMT(target.lstat().st_mode) == before
    assert names(folder) == ["m.onnx", "o.mnn"]


def test_the_json_form_does_not_replace_its_model(folder):
    from mnnconvert import api

    convert(folder, "o.mnn")
    before = (folder / "o.mnn").read_bytes()
    (folder / "same.json").symlink_to("o.mnn")
    with pytest.raises(MnnConvertError, match="would overwrite"):
        api.to_json(folder / "o.mnn", folder / "same.json")
    assert (folder / "o.mnn").read_bytes() == before


def test_two_conversions_to_one_target(folder):
    command = [*PROGRAM, "--modelFile", "m.onnx", "--MNNModel", "o.mnn", *QUICK]
    both = [subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE) for _ in range(2)]
    assert [json.loads(p.communicate(timeout=60)[0])["exit_code"] for p in both] == [0, 0]
    assert mnnconvert.load(folder / "o.mnn").inputs[0].name == "x"
    assert names(folder) == ["m.onnx", "o.mnn"]


@pytest.mark.parametrize(
    "words",
    ["--help", "run --help", "--version", "", "--bogus", "frob", "run no.mnn", "--info m.onnx", "explain no-such",
     "--modelFile m.onnx --MNNModel .", "--modelFile m.onnx --plan", "verify m.onnx m.onnx"],
)  # fmt: skip
def test_json_is_always_json(words, folder, capsys, monkeypatch):
    from mnnconvert.cli.main import main

    monkeypatch.chdir(folder)
    code = main([*words.split(), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert isinstance(document, dict)
    assert code == 0 or (document["ok"] is False and document["exit_code"] == code and document["diagnostics"])


OFFLINE = """
import socket, sys
def refuse(*arguments, **keywords):
    print("NETWORK", arguments, file=sys.stderr, flush=True)
    raise OSError("no network in this test")
socket.socket = socket.create_connection = socket.getaddrinfo = refuse
from mnnconvert.cli.main import main
for line in ("--help", "--modelFile m.onnx --MNNModel o.mnn --weightQuantBits 8", "verify m.onnx o.mnn --tolerance 1",
             "run o.mnn", "--info o.mnn", "show o.mnn", "ops"):
    print(line, main(line.split()), file=sys.stderr, flush=True)
"""


def test_nothing_goes_over_the_network(folder):
    """Python's sockets are watched; onnxruntime's own telemetry would show as a store of events in the home folder."""
    home = {k: v for k, v in ENVIRONMENT.items() if k != "ORT_DISABLE_TELEMETRY"} | {"HOME": str(folder / "home")}
    (folder / "home").mkdir()
    ended = subprocess.run(
        [sys.executable, "-c", OFFLINE], cwd=folder, env=home, capture_output=True, text=True, timeout=60
    )
    assert "NETWORK" not in ended.stderr
    assert ended.stderr.count(" 0\n") == 7, ended.stderr
    assert names(folder / "home") == []
