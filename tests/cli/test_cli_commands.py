"""What each command asks of the program, prints, and returns."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cli_fakes import FakeApi, FakeVerification, layer, report

from mnnconvert.cli.main import main

CONVERT = ["--modelFile", "m.onnx", "--MNNModel", "m.mnn"]


def test_conversion_says_what_happened(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CONVERT, "-f", "onnx", "--weightQuantBits=4", "--weightQuantBlock=64"]) == 0
    (_, options) = api.calls[0]
    assert (options.framework, options.weight_quant_bits, options.weight_quant_block) == ("ONNX", 4, 64)
    printed = capsys.readouterr()
    assert "m.onnx (ONNX) -> m.mnn: 96 nodes -> 41 operators" in printed.out
    assert "fold-constants" in printed.out
    assert "fuse-gelu" not in printed.out
    assert "4.1 MB -> 1.2 MB (29% of the source)" in printed.out
    assert "Verified  2 outputs agree with onnxruntime" in printed.out
    assert "note[int64-range]: Indices became int32." in printed.err


def test_passes_that_changed_nothing_are_listed_on_demand(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CONVERT, "--dumpPass"]) == 0
    assert "fuse-gelu" in capsys.readouterr().out


def test_layer_table_is_condensed_unless_debugging(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.report = report(layers=[layer(i) for i in range(45)])
    assert main(CONVERT) == 0
    printed = capsys.readouterr().out
    assert "encoder.layer.39.attention.query  Convolution  int4, block 64, hqq  590 kB  82.9 kB  0.01235" in printed
    assert "encoder.layer.40." not in printed
    assert "... and 5 more (5 x int4, block 64, hqq); --debug lists all." in printed
    assert main([*CONVERT, "--debug"]) == 0
    assert "encoder.layer.44." in capsys.readouterr().out


def test_float_layers_are_not_listed(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.report = report(layers=[layer(0, precision="float32")])
    assert main(CONVERT) == 0
    assert "encoder.layer" not in capsys.readouterr().out


def test_unverified_conversion_says_so(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.verification = None
    assert main([*CONVERT, "--verify", "never"]) == 0
    assert "not compared with its source (as --verify never asks)" in capsys.readouterr().out


def test_plan_writes_nothing_and_needs_no_target(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.report, api.verification = report(target=None), None
    assert main(["--modelFile", "m.onnx", "--plan"]) == 0
    printed = capsys.readouterr().out
    assert "Plan only: nothing was written." in printed
    assert "Verified" not in printed


def test_quiet_conversion_prints_nothing(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.report = report(layers=[layer(0)])
    assert main([*CONVERT, "-q"]) == 0
    assert capsys.readouterr() == ("", "")


def test_json_conversion_keeps_stdout_pure(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.report = report(layers=[layer(0)], seconds=float("inf"))
    assert main([*CONVERT, "--json"]) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert (document["ok"], document["target"], document["seconds"]) == (True, "m.mnn", "inf")
    assert "Wrote     m.mnn" in printed.err


@pytest.mark.parametrize(
    ("words", "call"),
    [
        (["-f", "MNN", "--modelFile", "a.mnn", "--JsonFile", "a.json"], ("to_json", "a.mnn", "a.json")),
        (["--modelFile", "a.mnn", "--JsonFile=a.json"], ("to_json", "a.mnn", "a.json")),
        (["-f", "json", "--modelFile", "a", "--MNNModel", "b"], ("from_json", "a", "b")),
        (["--modelFile", "a.JSON", "--MNNModel", "b"], ("from_json", "a.JSON", "b")),
        (["--info", "m.mnn"], ("info", "m.mnn")),
        (["m.mnn", "--info"], ("info", "m.mnn")),
        (["-f", "MNN", "--modelFile", "m.mnn", "--info"], ("info", "m.mnn")),
        (["-f", "tflite", "--OP"], ("supported_ops", "TFLITE")),
        (["--OP"], ("supported_ops", "ONNX")),
        (["ops", "--framework=tf"], ("supported_ops", "TF")),
    ],
)
def test_each_form_asks_for_the_right_thing(api: FakeApi, words: list[str], call: tuple[str, ...]) -> None:
    assert main(words) == 0
    assert api.calls == [call]


@pytest.mark.parametrize(
    ("words", "mentions"),
    [
        (["--info"], "--modelFile is missing"),
        (["--info", "a.mnn", "--modelFile", "b.mnn"], "'a.mnn' belongs to no option"),
        (["--info", "a.onnx", "-f", "ONNX"], "--info and -f ONNX"),
        (["--modelFile", "a.onnx", "-f", "ONNX", "--JsonFile", "b"], "--JsonFile and -f ONNX"),
        (["--modelFile", "a.mnn", "--JsonFile", "b", "--MNNModel", "c"], "--JsonFile and --MNNModel"),
        (["--JsonFile", "b"], "--modelFile is missing"),
        (["-f", "JSON", "--modelFile", "b"], "--MNNModel is missing"),
        (["--modelFile", "a.onnx"], "--MNNModel is missing"),
        (["--MNNModel", "a.mnn"], "--modelFile is missing"),
        (["--modelFile", "a", "--MNNModel", "b", "c"], "'c' belongs to no option"),
        (["explain", "unsuported-op"], "unsupported-op"),
        (["verify", "a.onnx"], "MNN is missing"),
        (["verify", "a", "b", "--tolerance", "-1"], "--tolerance"),
    ],
)
def test_incomplete_requests_are_usage_errors(
    api: FakeApi, capsys: pytest.CaptureFixture[str], words: list[str], mentions: str
) -> None:
    assert main(words) == 2
    assert mentions in capsys.readouterr().err
    assert "convert_with" not in [call[0] for call in api.calls]


def test_info_shows_values_and_weights(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--info", "m.mnn"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  bizCode: demo" in lines
    assert "in   x              float32  1x3x?x224  NCHW" in lines
    assert "Weights: 1 in 4 bits, 1 in 32 bits; 1.24 MB" in lines
    assert "conv1    Convolution     4     64  asymmetric  1.23 MB  [-0.5123, 0.5]" in lines


def test_ops_as_markdown(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "--md"]) == 0
    assert capsys.readouterr().out == (
        "| Operator | Since | Limits |\n| --- | --- | --- |\n| Conv | 1 | 2-D \\| 3-D |\n| Relu | 1 |  |\n"
    )


@pytest.mark.parametrize(("passed", "code"), [(True, 0), (False, 3)])
def test_verify_returns_its_verdict(api: FakeApi, capsys: pytest.CaptureFixture[str], passed: bool, code: int) -> None:
    api.verification = FakeVerification(passed)
    assert main(["verify", "m.onnx", "m.mnn", "--engine", "mnn", "--inputs", "i.npz", "--json"]) == code
    [(command, source, mnn, keywords)] = api.calls
    assert (command, source, mnn) == ("verify", "m.onnx", "m.mnn")
    given = {"inputs": "i.npz", "engine": "mnn"}
    left_out = dict.fromkeys(("gates", "tolerance", "runs", "repro", "prototxt", "signature"))
    assert keywords.items() >= (given | left_out | {"seed": 0, "per_layer": False, "bisect": False}).items()
    document = json.loads(capsys.readouterr().out)
    assert document == {"ok": passed, "exit_code": code, "passed": passed, "worst": "nan"}


def test_run_shows_and_keeps_outputs(api: FakeApi, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[1.0, 2.0], [np.nan, 4.0]], np.float32))
    given = ["--input", f"x={tmp_path / 'x.npy'}", "--backend", "reference", "--out", str(tmp_path / "o")]
    assert main(["run", "m.mnn", *given]) == 0
    assert api.calls == [("load", "m.mnn", "reference", {"precision": "exact", "tune": False, "strict": False})]
    assert "scope/y:0  float32  2x2      2    8  4.667        1" in capsys.readouterr().out
    assert np.load(tmp_path / "o" / "scope_y_0.npy").shape == (2, 2)


def test_run_makes_up_what_is_not_given(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "m.mnn", "--seed", "3"]) == 0
    assert "Made-up values for x (seed 3)." in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01\x00", b"PK\x03\x04rubbish", b"not an array"])
@pytest.mark.parametrize("form", ["x={}", "{}"])
def test_run_refuses_files_without_arrays(
    api: FakeApi, capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes, form: str
) -> None:
    path = tmp_path / "bad.npz"
    path.write_bytes(content)
    assert main(["run", "m.mnn", "--input", form.format(path)]) == 1
    assert "error[bad-input]" in capsys.readouterr().err


def test_run_refuses_missing_and_repeated_inputs(
    api: FakeApi, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["run", "m.mnn", "--input", "x=nowhere.npy"]) == 1
    assert "error[missing-file]" in capsys.readouterr().err
    np.savez(tmp_path / "x.npz", x=np.zeros(2))
    assert main(["run", "m.mnn", "--input", str(tmp_path / "x.npz"), "--input", str(tmp_path / "x.npz")]) == 2
    assert "gives 'x' twice" in capsys.readouterr().err


def test_run_names_a_folder_it_cannot_write(api: FakeApi, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert main(["run", "m.mnn", "--out", str(tmp_path / "file")]) == 1
    assert "error[unwritable-output]" in capsys.readouterr().err


def test_bench_times_in_the_engines_own_types(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "m.mnn", "--rounds", "5", "--warmup", "1", "--threads", "2", "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    (engine,) = document["engines"]
    assert engine["runs"] == 5
    assert 0 < engine["p10_ms"] <= engine["median_ms"] <= engine["p90_ms"]
    assert api.calls == [("load", "m.mnn", "cpu", {"threads": 2, "precision": "fast", "tune": False, "strict": False})]


def test_explain_takes_what_was_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "error[half-overflow]:"]) == 0
    assert "65504" in capsys.readouterr().out
    assert main(["explain", "--json"]) == 0
    assert "half-overflow" in json.loads(capsys.readouterr().out)


def test_bench_takes_turns_with_the_source(api: FakeApi, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> m (float[2,n] x) => (float[2,n] y) { y = Add(x, x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    assert main(["bench", "m.mnn", "--vs", str(tmp_path / "m.onnx"), "--rounds", "3"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^mnnconvert cpu +[\d.e-]+ +[\d.e-]+ +[\d.e-]+ +3$", printed, re.MULTILINE)
    assert re.search(r"^mnnconvert cpu is [\d.]+ times (as fast as|slower than) onnxruntime\.$", printed, re.MULTILINE)
