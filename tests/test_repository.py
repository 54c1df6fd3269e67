"""What the repository promises about itself: commands in its pages exist, nothing names the machine it was made on."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from importlib.metadata import entry_points, version
from pathlib import Path

import numpy as np
import onnx
import pytest

from mnnconvert.cli.main import COMMANDS, main
from mnnconvert.cli.parser import Syntax

ROOT = Path(__file__).parents[1]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "docs/architecture.md",
    "docs/format.md",
    "docs/int8.md",
    "docs/quantization.md",
    "docs/reports.md",
]
FOREIGN = re.compile(r"(?<![\w./~-])/(?:work|home|root|Users|tmp)/\w+")


def tracked() -> list[Path]:
    """The text files that belong to the repository, whether it is a clone or an unpacked archive."""
    asked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if asked.returncode == 0:
        paths = [ROOT / name for name in asked.stdout.split("\0") if name]
    else:
        paths = [p for p in ROOT.rglob("*") if not any(part.startswith(".") for part in p.relative_to(ROOT).parts)]
    return [p for p in paths if p.is_file() and p.suffix not in {".mnn", ".onnx", ".npz", ".png"}]


def targets() -> set[str]:
    """The targets of the Makefile that it explains."""
    return set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES)
def test_make_commands_in_pages_exist(page):
    named = set(re.findall(r"(?:^|`|\$ )make ([a-z-]+)", (ROOT / page).read_text(), re.MULTILINE))
    assert named <= targets()


def test_readme_starts_with_demo_and_test():
    named = re.findall(r"^make ([a-z]+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert named[:2] == ["demo", "test"]


@pytest.mark.parametrize("page", PAGES)
def test_files_named_in_pages_exist(page):
    """Links, and everything in backticks that looks like a path of this repository; `<...>` stands for a name."""
    text = (ROOT / page).read_text()
    links = [(ROOT / page).parent / link for link in re.findall(r"\]\(([^)#:]+)\)", text)]
    paths = [ROOT / path for path in re.findall(r"`((?:mnnconvert|tests|docs|examples|benchmarks)/[\w./-]*)`", text)]
    assert [str(p) for p in (*links, *paths) if not p.exists()] == []


def test_options_and_commands_in_pages_exist():
    text = "\n".join((ROOT / page).read_text() for page in PAGES)
    known = {name for syntax in syntaxes() for option in syntax.options for name in option.names} | {"--help"}
    named = set(re.findall(r"(?<=[\s`])--[A-Za-z][\w-]*(?=[\s`=])", text))
    assert {"--weightQuantBits", "--engine"} <= named <= known
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
    assert set(re.findall(r"^mnnconvert ([a-z]+)", blocks, re.MULTILINE)) <= set(COMMANDS)


def syntaxes() -> list[Syntax]:
    modules = ["mnnconvert.cli.convert", *(module for module, _ in COMMANDS.values())]
    return [import_module(module).SYNTAX for module in modules]


def readme_block(language: str, after: str) -> str:
    """The first code block of a language behind a heading of the README."""
    rest = (ROOT / "README.md").read_text().split(after, 1)[1]
    return rest.split(f"```{language}\n", 1)[1].split("```", 1)[0]


@pytest.fixture
def folder_with_model(tmp_path, monkeypatch):
    """The current folder is empty but for m.onnx: two layers that 64 input channels divide, and an open batch."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[n, 128] x) => (float[n, 8] y)
              { a = MatMul(x, w0)  b = Relu(a)  y = MatMul(b, w1) }"""
    model, rng = onnx.parser.parse_model(text), np.random.default_rng(0)
    for name, shape in {"w0": (128, 64), "w1": (64, 8)}.items():
        weight = rng.standard_normal(shape, np.float32) / 8
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    onnx.save(model, tmp_path / "m.onnx")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("folder_with_model")
def test_first_lines_of_the_readme_work(capfd):
    install, *lines = readme_block("sh", "## Your first model").splitlines()
    assert install == "pip install '.[verify]'"
    assert len(lines) == 5
    for line in lines:
        program, *words = shlex.split(line)
        assert program == "mnnconvert"
        assert main(words) == 0, capfd.readouterr()


@pytest.mark.usefixtures("folder_with_model")
def test_python_example_of_the_readme_works(capsys):
    exec(compile(readme_block("python", "## From Python"), "README.md", "exec"), {})
    assert "agrees" in capsys.readouterr().out


def test_no_file_names_a_place_of_one_machine():
    found = []
    for path in tracked():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            found += [f"{path.relative_to(ROOT)}:{number}: {name}" for name in FOREIGN.findall(line)]
    assert found == []


def test_the_foreign_path_pattern_finds_paths():
    assert FOREIGN.findall("see /" + "work/main and ~/work/x, a/work/b") == ["/" + "work/main"]


def test_console_script_is_ours():
    """The MNN wheel installs a script of the same name; ours has to be the one that a shell finds."""
    script = Path(sys.executable).parent / "mnnconvert"
    answer = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=60)
    assert answer.stdout.strip() == f"mnnconvert {version('mnnconvert')}"
    ours = [e.value for e in entry_points(group="console_scripts", name="mnnconvert") if e.dist.name == "mnnconvert"]
    assert ours == ["mnnconvert.cli.main:main"]


def test_every_version_is_pinned():
    for name in ("constraints.txt", "models.txt"):
        lines = [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]
        assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []


def test_ci_runs_the_tests_and_nothing_else():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    commands = [
        line
        for line in script.read_text().splitlines()
        if line and not line.startswith(("#", "set ", "cd ", "export "))
    ]
    assert commands == ["make test"]
