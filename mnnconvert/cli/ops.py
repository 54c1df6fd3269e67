"""`mnnconvert ops`: the support table, generated from the registries."""

from __future__ import annotations

from collections.abc import Sequence

from mnnconvert.cli.output import Output
from mnnconvert.cli.parser import Arguments, Syntax
from mnnconvert.option_types import Option
from mnnconvert.options import COMMON, FRAMEWORKS

SYNTAX = Syntax(
    usage="mnnconvert ops [--framework NAME | --backend cpu] [--md]",
    summary="List the source operators that can be converted, or the ops that have a compiled kernel.",
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
            choices=("cpu",),
            metavar="NAME",
        ),
        Option("--md", "md", "flag", "as a Markdown table", default=False),
        *COMMON,
    ),
    examples=("mnnconvert ops", "mnnconvert ops --md > operators.md"),
)


def run(arguments: Arguments, out: Output) -> int:
    if arguments.text("backend") is not None:
        return print_kernels(out, markdown=bool(arguments["md"]))
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


def print_kernels(out: Output, *, markdown: bool = False) -> int:
    """Print all ops, and whether compiled kernels compute them or numpy does; the exit code."""
    from mnnconvert import api

    backend = api.compiled_ops()
    out.data(backend)
    rows = [(row["name"], "compiled" if row["compiled"] else "numpy") for row in backend["ops"]]
    if markdown:
        out.result(markdown_table(("Op", "Computed by"), rows))
    else:
        out.table(("Op", "Computed by"), rows)
        out.note(f"Instruction set: {backend['level'] or 'no compiled kernels here'}.")
    return 0


def markdown_table(columns: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> str:
    """A Markdown table; bars inside cells are escaped."""
    lines = [columns, tuple("---" for _ in columns), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)
