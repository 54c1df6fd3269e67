"""The command `verify` on real files: layers, bisection, gates, reports for CI, and the examples for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import mnnconvert
from mnnconvert.cli.main import main
from mnnconvert.schema.reader import read_model
from mnnconvert.schema.writer import write_model

CI = Path(__file__).parents[2] / "examples" / "ci"
NET = "(float[n,8] x) => (float[n,6] p) { a = MatMul(x, w)\n b = Sigmoid(a)\n c = MatMul(b, v)\n p = Softmax(c) }"


@pytest.fixture
def files(tmp_path, monkeypatch) -> tuple[str, str]:
    """A source and its conversion in the current folder; GitHub is not where this runs."""
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    random = np.random.default_rng(0)
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {NET}')
    for name, shape in (("w", (8, 16)), ("v", (16, 6))):
        weight = random.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    onnx.save(model, "m.onnx")
    mnnconvert.convert("m.onnx", "m.mnn", verify="never")
    return "m.onnx", "m.mnn"


@pytest.fixture
def wrong(files) -> tuple[str, str]:
    """The same with another function in the middle of the file."""
    graph = read_model(Path("m.mnn"))
    node = next(node for node in graph.nodes if node.name == "b")
    node.op = replace(node.op, function="TANH")
    write_model(graph, Path("wrong.mnn"))
    return files[0], "wrong.mnn"


def test_one_row_for_each_layer_and_the_first_bad_one(wrong, capsys):
    assert main(["verify", *wrong, "--per-layer"]) == 3
    out = capsys.readouterr().out
    assert out.splitlines()[0].split()[:3] == ["Layer", "Operator", "Shape"]
    assert "first bad layer: 'b' (Unary" in out
    assert "source node: Sigmoid b" in out


def test_json_has_all_of_it(wrong, capsys):
    assert main(["verify", *wrong, "--per-layer", "--bisect", "--repro", "layer", "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["layers"]["first_bad"] == "b"
    assert document["bisection"]["culprit"].startswith("node 'b' (Unary), whose function is TANH")
    assert Path(document["repro"]["layer.onnx"]).is_file()


def test_bisect_says_that_nothing_is_wrong(files, capsys):
    assert main(["verify", *files, "--bisect"]) == 0
    assert "the answer is right after each of" in capsys.readouterr().out


def test_sizes_and_runs(files, capsys):
    assert main(["verify", *files, "--input-shape", "x:3x8", "--runs", "3", "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [run["shapes"]["x"] for run in runs] == [[3, 8]] * 3


def gates(text: str) -> list[str]:
    Path("gates.toml").write_text(text)
    return ["--gates", "gates.toml"]


def gate(**fields: object) -> str:
    return "[[gate]]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items())


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"metric": "cosine", "bound": 0.99}, True),
        ({"metric": "top5", "bound": 1.0}, True),
        ({"metric": "top1", "output": "p", "bound": 1.1}, False),
        ({"metric": "size", "bound": "1 kB"}, False),
        ({"metric": "size", "bound": 100_000}, True),
        ({"metric": "sqnr", "layer": "*", "bound": 60}, True),
        ({"metric": "max_rel", "layer": "c", "bound": -1}, False),
        ({"function": "scores:worst", "bound": 0.01}, True),
        ({"function": "scores:rows", "bound": 1000, "better": "higher"}, False),
        ({"metric": "max_abs", "data": "samples", "bound": 0.01}, True),
    ],
)
def test_gates_of_all_kinds(files, capsys, fields, kept):
    Path("scores.py").write_text(
        "def worst(want, got):\n    return max(abs(want[n] - got[n]).max() for n in want)\n"
        "def rows(want, got):\n    return float(len(want['p']))\n"
    )
    Path("samples").mkdir()
    np.savez("samples/a.npz", x=np.ones((2, 8), np.float32))
    sys.modules.pop("scores", None)
    assert main(["verify", *files, *gates(gate(**fields))]) == (0 if kept else 3)
    assert ("missed by" in capsys.readouterr().out) is not kept


def test_gates_alone_judge_where_no_tolerance_is_given(wrong, capsys):
    loose = gates(gate(metric="cosine", bound=0.1))
    assert main(["verify", *wrong, *loose]) == 0
    assert main(["verify", *wrong, *loose, "--tolerance", "0.001"]) == 3


@pytest.mark.parametrize(
    ("module", "function", "says"),
    [
        ("", "absent:f", "cannot be loaded"),
        ("raise RuntimeError('no')", "broken:f", "RuntimeError: no"),
        ("def f(want, got):\n    return want['q']", "keys:f", "KeyError"),
        ("def f(want, got):\n    return float('nan')", "nan:f", "gives NaN"),
        ("f = 3", "three:f", "is no function"),
        ("", "nothing", "is no 'module:function'"),
    ],
)
def test_functions_that_do_not_work_are_named(files, capsys, module, function, says):
    if module:
        Path(function.partition(":")[0] + ".py").write_text(module)
    assert main(["verify", *files, *gates(gate(function=function, bound=1))]) == 2
    assert says in capsys.readouterr().err


def test_junit(wrong):
    assert main(["verify", *wrong, "--per-layer", "--junit", "j.xml", "-q"]) == 3
    root = ElementTree.parse("j.xml").getroot()
    cases = root.findall("./testsuite/testcase")
    failures = root.findall("./testsuite/testcase/failure")
    assert (int(root.get("tests")), int(root.get("failures"))) == (len(cases), len(failures))
    assert any("first bad layer: b" in case.get("name") for case in cases)
    for suite in root:
        assert int(suite.get("failures")) == len(suite.findall("testcase/failure"))


def test_names_that_xml_cannot_hold(files):
    from mnnconvert.verify.reports import junit
    from mnnconvert.verify.verification import VerificationResult

    result = mnnconvert.verify(*files)
    run = result.runs[0]
    odd = replace(run.comparison.outputs[0], name="a\x00\x1b<\ud800>", reason="\x01")
    strange = replace(run, comparison=replace(run.comparison, outputs=(odd,)))
    text = junit(VerificationResult("a", "b", result.tolerance, (strange,)), "m&<>.mnn")
    assert ElementTree.fromstring(text.encode("utf-8")) is not None


def test_sarif_is_what_the_standard_asks_for(wrong):
    assert main(["verify", *wrong, "--per-layer", "--sarif", "s.sarif", *gates(gate(metric="cosine", bound=2))]) == 3
    log = json.loads(Path("s.sarif").read_text())
    assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-2.1.0.json")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    rules = [rule["id"] for rule in driver["rules"]]
    assert driver["name"] == "mnnconvert" and len(set(rules)) == len(rules)
    assert run["results"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error")
        assert result["message"]["text"]
        for location in result["locations"]:
            artifact = location["physicalLocation"]["artifactLocation"]
            assert run["artifacts"][artifact["index"]]["location"]["uri"] == artifact["uri"] == "wrong.mnn"
            assert all(
                set(logical) <= {"name", "fullyQualifiedName", "kind"} for logical in location["logicalLocations"]
            )
    assert {result["ruleId"] for result in run["results"]} == {"gate-missed", "layer-wrong"}


def test_nothing_failed_is_an_empty_list_of_results(files):
    assert main(["verify", *files, "--sarif", "s.sarif", "--junit", "j.xml"]) == 0
    assert json.loads(Path("s.sarif").read_text())["runs"][0]["results"] == []
    assert ElementTree.parse("j.xml").getroot().get("failures") == "0"


def test_github_gets_annotations_and_a_summary(wrong, capsys, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    assert main(["verify", *wrong, "--per-layer"]) == 3
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("::error ")]
    assert any("title=layer-wrong" in line and "file=wrong.mnn" in line for line in lines)
    summary = Path("summary.md").read_text()
    assert summary.startswith("### wrong.mnn against m.onnx: ")
    assert "| **missed** | p |" in summary


@pytest.mark.parametrize("option", ["--junit", "--sarif"])
def test_reports_that_cannot_be_written_are_said_once(files, capsys, option):
    assert main(["verify", *files, option, "nowhere/report", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["diagnostics"][0]["reference"] == "unwritable-output"


@pytest.mark.parametrize("option", ["--junit", "--sarif"])
def test_reports_do_not_go_over_what_is_read(files, option):
    before = Path(files[1]).read_bytes()
    assert main(["verify", *files, option, files[1]]) == 2
    assert Path(files[1]).read_bytes() == before


def test_a_summary_that_cannot_be_written_is_a_warning(files, capsys, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "nowhere/summary.md")
    assert main(["verify", *files]) == 0
    assert "warning: unwritable-output" in capsys.readouterr().err


def test_annotations_are_one_line_each(files):
    from mnnconvert.verify.reports import github_annotations

    result = mnnconvert.verify(*files)
    run = result.runs[0]
    odd = replace(run.comparison.outputs[0], name="a\n::warning::b", reason="off by 100%")
    (line,) = github_annotations(
        replace(result, runs=(replace(run, comparison=replace(run.comparison, outputs=(odd,))),)), "m"
    )
    assert "\n" not in line and "%0A::warning::b" in line and "100%25" in line


def script(name: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A script of the examples, with the program of this environment on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", str(CI / name), *words],
        env={**os.environ, "PATH": path, **environment},
        capture_output=True,
        text=True,
    )


def test_the_action_of_the_examples(files):
    environment = {"SOURCE": "m.onnx", "MODEL": "made.mnn", "GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": "s.md"}
    done = script("verify-action/verify.sh", **environment, OPTIONS="--weightQuantBits 8", GATES=str(CI / "gates.toml"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert Path("reports/junit.xml").is_file() and Path("s.md").is_file()
    done = script("verify-action/verify.sh", **environment, OPTIONS="--weightQuantBits 2")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "::error file=made.mnn" in done.stdout


def test_the_hook_of_the_examples(wrong):
    assert script("verify-changed.sh", "m.mnn").returncode == 0
    Path("wrong.onnx").write_bytes(Path("m.onnx").read_bytes())
    assert script("verify-changed.sh", "m.mnn", "wrong.mnn").returncode == 3


def test_the_action_calls_the_script_with_all_it_needs():
    """Each input of the action reaches the script, which asks for nothing else."""
    action = (CI / "verify-action" / "action.yml").read_text()
    for name in ("source", "model", "options", "gates", "reports"):
        assert f"\n  {name}:" in action and f"{name.upper()}: ${{{{ inputs.{name} }}}}" in action
