"""Every diagnostic of the package can be explained."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import mnnconvert
from mnnconvert.references import CATALOGUE

ROOT = Path(mnnconvert.__file__).parent
RAISERS = ("of", "Diagnostic", "_problem")


def _references(tree: ast.AST) -> Iterator[str]:
    """First arguments of `Error.of("...")` and `Diagnostic("...")`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in RAISERS and isinstance(node.args[0].value, str):
                yield node.args[0].value


def test_every_reference_in_the_package_is_explained() -> None:
    used = {
        reference: str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        for reference in _references(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert "unknown-option" in used
    assert {name: where for name, where in used.items() if name not in CATALOGUE} == {}


def test_entries_are_complete_sentences() -> None:
    for name, entry in CATALOGUE.items():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
        assert entry.meaning.endswith(".")
        assert entry.remedy.endswith(".")
