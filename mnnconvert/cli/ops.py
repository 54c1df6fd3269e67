"""`mnnconvert ops`: the support table, generated from the registries."""

from __future__ import annotations

from collections.abc import Sequence

from mnnconvert.cli.output import Output
from mnnconvert.cli.parser import Arguments, Syntax
from mnnconvert.option_types import Option
from mnnconvert.options import COMMON, FRAMEWORKS

SYNTAX = Syntax(
    usage="mnnconvert ops [--framework NAME | --backend NAME] [--md]",
    summary="List the source operators that can be converted, or the ops that a backend has kernels for.",
    options=(
        Option(
            "--framework",
            "framework",
            "choice",
            "source format",
            default="ONNX",
            choices=tuple(name for name in FRAMEWORKS if name not in ("MNN", "JSON")),
            metavar="NAME",
            short="-f",
        ),
        Option(
            "--backend",
            "backend",
            "choice",
            "list the ops of MNN and what computes them here",
            choices=("cpu", "opencl"),
            metavar="NAME",
        ),
        Option("--md", "md", "flag", "as a Markdown table", default=False),
        *COMMON,
    ),
    examples=("mnnconvert ops", "mnnconvert ops --md > operators.md"),
)


def run(arguments: Arguments, out: Output) -> int:
    backend = arguments.text("backend")
    if backend is not None:
        return print_kernels(backend, out, markdown=bool(arguments["md"]))
    return print_operators(str(arguments["framework"]), out, markdown=bool(arguments["md"]))


def print_operators(framework: str, out: Output, *, markdown: bool = False) -> int:
    """Print the operators of one framework, by name; the exit code."""
    from mnnconvert import api

    operators = sorted(api.supported_ops(framework), key=lambda op: str(op["name"]))
    out.data({"framework": framework, "operators": operators})
    rows = [(op["name"], op["since"], op["limits"] or "") for op in operators]
    if markdown:
        out.result(markdown_table(("Operator", "Since", "Limits"), rows))
    else:
        out.table(("Operator", ">Since", "Limits"), rows)
        out.note(f"{len(operators)} operators of {framework}.")
    return 0


def print_kernels(backend: str, out: Output, *, markdown: bool = False) -> int:
    """Print all ops, and whether kernels of the backend compute them or numpy does; the exit code."""
    from mnnconvert import api

    found = api.kernels_of(backend)
    out.data(found)
    rows = [(row["name"], backend if row["compiled"] else "numpy") for row in found["ops"]]
    if markdown:
        out.result(markdown_table(("Op", "Computed by"), rows))
    else:
        out.table(("Op", "Computed by"), rows)
        out.note(f"They run on {found['runs']}." if found["runs"] else "There are no compiled kernels here.")
    return 0


def markdown_table(columns: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> str:
    """A Markdown table; bars inside cells are escaped."""
    lines = [columns, tuple("---" for _ in columns), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)
