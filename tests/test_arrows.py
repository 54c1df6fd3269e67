"""Imports point down and never back, and a heavy framework is imported by the function that needs it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "mnnconvert"

BASE = {"errors", "units"}
GRAPH = BASE | {"ir", "ops"}
ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "option_types": BASE,
    "options": BASE | {"option_types"},
    "frameworks": BASE,
    "references": BASE,
    "units": set(),
    "ir": BASE,
    "ops": BASE | {"ir"},
    "frontends": GRAPH,
    "passes": GRAPH,
    "quantizers": GRAPH,
    "schema": GRAPH,
    "runtime_ref": GRAPH | {"schema"},
    "verify": GRAPH | {"schema", "runtime_ref", "frontends"},
}
"""Room or module -> what it may know. The interface sits on top of all rooms, and `cli` on top of the interface."""
INTERFACE = {
    "api", "bisection", "calibration", "compression", "conversion", "describe", "difference", "feeding", "layers",
    "llm", "llm_session", "perplexity", "report", "reproduction", "sources", "verification", "weights",
}  # fmt: skip
ROOMS |= dict.fromkeys(INTERFACE, set(ROOMS) | INTERFACE)
ROOMS["root"] = set(ROOMS)
ROOMS["cli"] = set(ROOMS)
ROOMS["__main__"] = {"cli"}

EXCEPTIONS = {
    ("mnnconvert.verify", "mnnconvert.api"),
    ("mnnconvert.quantizers.compiled", "mnnconvert.runtime_ref.cpu.library.Library"),
    ("mnnconvert.quantizers.compiled", "mnnconvert.runtime_ref.cpu.library.library"),
    ("mnnconvert.quantizers.compiled", "mnnconvert.runtime_ref.cpu.library.usable_cores"),
}
"""The room `verify` can be called as the function of the same name, which lives above it. Quantizers use compiled
kernels (docs/decisions/0006-quantizers-use-kernels.md), and one module of theirs knows where these are."""

HEAVY = {"onnxruntime", "MNN", "_mnncengine", "torch", "torchvision", "tensorflow", "ai_edge_litert", "pyopencl", "cv2"}
NEVER = {"_tools"}
"""The released converter's binding is for tests and benchmarks; the product has no use for it."""

SOURCES = sorted(PACKAGE.rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "root"


def imports(tree: ast.AST, inside: bool = False) -> Iterator[tuple[str, bool]]:
    """Every imported name, in full, and whether a function imports it. Type checking alone imports nothing heavy."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are written in full"
            yield from ((f"{node.module}.{alias.name}", inside) for alias in node.names)
        else:
            lazy = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or is_type_checking(node)
            yield from imports(node, inside or lazy)


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def problems(module: str, source: str) -> list[str]:
    """What the imports of `source`, read as `module`, do wrong."""
    room, found = room_of(module), []
    for name, inside in imports(ast.parse(source)):
        top = name.split(".")[0]
        if top == "mnnconvert" and room_of(name) not in ROOMS[room] | {room} and (module, name) not in EXCEPTIONS:
            found.append(f"{room} imports {name}")
        if top in HEAVY and not inside:
            found.append(f"{top} is imported before anybody asks for it")
        if top in NEVER:
            found.append(f"{top} is imported by the product")
    return found


def test_every_room_has_its_arrows():
    assert {room_of(module_name(path)) for path in SOURCES} <= set(ROOMS)


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_imports_point_down(path):
    assert problems(module_name(path), path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("mnnconvert.ir.graph", "from mnnconvert.ops.base import Op"),
        ("mnnconvert.ops.pool", "def f():\n    from mnnconvert import schema"),
        ("mnnconvert.passes.fuse", "if TYPE_CHECKING:\n    from mnnconvert.schema.writer import write_model"),
        ("mnnconvert.api", "from mnnconvert.cli.main import main"),
        ("mnnconvert.verify.engines", "try:\n    import onnxruntime\nexcept ImportError:\n    pass"),
        ("mnnconvert.verify.engines", "class Engine:\n    from MNN import nn"),
        ("mnnconvert.verify.engines", "def convert():\n    import _tools"),
    ],
)
def test_a_wrong_import_is_seen(module, source):
    assert problems(module, source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("mnnconvert.verify.engines", "def run():\n    import onnxruntime"),
        ("mnnconvert.verify.engines", "if TYPE_CHECKING:\n    import onnxruntime"),
        ("mnnconvert.cli.convert", "from mnnconvert import api"),
        ("mnnconvert.ops.pool", "from mnnconvert.ops.base import Op"),
    ],
)
def test_a_right_import_is_let_through(module, source):
    assert problems(module, source) == []


def test_help_loads_no_framework():
    """Nor numpy, onnx and rich: the program answers at once."""
    script = "import sys, mnnconvert.cli.main as m; m.main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not (HEAVY | {"numpy", "onnx", "rich", "google"}) & set(done.stderr.split())
