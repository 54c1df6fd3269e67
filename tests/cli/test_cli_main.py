"""Every way the program can end: exit codes, where words go, and what is loaded on the way."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli_fakes import FakeApi

from mnnconvert.cli.main import COMMANDS, main
from mnnconvert.errors import ConversionError, Diagnostic, GateError

CONVERT = ["--modelFile", "m.onnx", "--MNNModel", "m.mnn"]
HEAVY = ("numpy", "onnx", "onnxruntime", "MNN", "rich", "argparse", "mnnconvert.api")


def program(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).parents[2])
    return subprocess.run(
        [sys.executable, "-m", "mnnconvert", *words],
        capture_output=True,
        text=True,
        cwd=cwd or root,
        env={"PYTHONPATH": root, "PATH": ""},
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("line", "mentions"),
    [
        ("--weigthQuantBits 4 --modelFile m.onnx --MNNModel m.mnn", ["--weightQuantBits"]),
        ("--fp16 --weightQuantBits 4 --modelFile m.onnx --MNNModel m.mnn", ["--fp16", "--weightQuantBits"]),
        ("verfy a b", ["verify"]),
        ("", ["--modelFile", "--help"]),
    ],
)
def test_usage_errors_end_with_two_and_write_nothing(tmp_path: Path, line: str, mentions: list[str]) -> None:
    ended = program(*line.split(), cwd=tmp_path)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert all(word in ended.stderr for word in mentions)
    assert "Traceback" not in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_help_loads_nothing_heavy() -> None:
    code = f"import sys; from mnnconvert.cli.main import main; main(['--help']); print({HEAVY} & sys.modules.keys())"
    code = code.replace(repr(HEAVY), f"set({HEAVY!r})")
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.splitlines()[-1] == "set()"
    assert "--weightQuantBits" in ended.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main([name, "--help"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"Usage: mnnconvert {name}")
    assert "--json" in printed


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-v"]) == 0
    assert re.match(r"mnnconvert \S", capsys.readouterr().out)


@pytest.mark.parametrize(("kind", "code"), [(ConversionError, 1), (GateError, 3)])
def test_known_failures_are_diagnostics(
    api: FakeApi, capsys: pytest.CaptureFixture[str], kind: type[ConversionError], code: int
) -> None:
    problems = [
        Diagnostic("unsupported-op", "No Foo.", {"node": "n1"}, "Use Bar."),
        Diagnostic("unsupported-op", "No Baz.", {"node": "n2\x1b[31m"}),
    ]
    api.error = kind(problems)
    assert main(CONVERT) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        "error[unsupported-op]: No Foo.\n  node: n1\n  hint: Use Bar.\n"
        "error[unsupported-op]: No Baz.\n  node: n2\\x1b[31m\n"
    )


def test_json_failures_are_one_document(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.error = ConversionError.of("unsupported-op", "No Foo.", node="n1")
    assert main([*CONVERT, "--json"]) == 1
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert (document["ok"], document["exit_code"]) == (False, 1)
    assert document["diagnostics"][0]["context"] == {"node": "n1"}
    assert "error[unsupported-op]" in printed.err


def test_json_is_honoured_even_when_the_line_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--nothing", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["diagnostics"][0]["reference"] == "unknown-option"


def test_a_bug_leaves_a_report(
    api: FakeApi, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    api.error = ZeroDivisionError("division by zero")
    assert main([*CONVERT, "--debug"]) == 4
    printed = capsys.readouterr().err
    (path,) = tmp_path.iterdir()
    assert "This is a bug of ours: ZeroDivisionError: division by zero" in printed
    assert str(path) in printed
    assert "Traceback" not in printed
    text = path.read_text()
    assert "Traceback" in text
    assert "'--debug'" in text
    assert "numpy: " in text


def test_a_bug_is_reported_even_where_nothing_can_be_written(
    api: FakeApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nonexistent")
    api.error = ZeroDivisionError()
    assert main(CONVERT) == 4
    assert "could not be written" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (MemoryError(), 1)])
def test_interruption_and_exhaustion_are_no_bugs(
    api: FakeApi, capsys: pytest.CaptureFixture[str], error: BaseException, code: int
) -> None:
    api.error = error
    assert main(CONVERT) == code
    assert "bug" not in capsys.readouterr().err


def test_a_closed_pipe_is_quiet() -> None:
    root = str(Path(__file__).parents[2])
    running = subprocess.Popen(
        [sys.executable, "-m", "mnnconvert", "explain"], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert running.stdout is not None
    assert running.stderr is not None
    running.stdout.close()
    assert running.stderr.read() == b""
    running.stderr.close()
    assert running.wait(timeout=60) == 141
