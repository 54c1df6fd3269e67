"""`mnnconvert diff A B`: two models, layer by layer and answer by answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mnnconvert.cli.output import Output, size
from mnnconvert.cli.parser import Arguments, Syntax
from mnnconvert.cli.summary import shape
from mnnconvert.option_types import Option
from mnnconvert.options import COMMON, OPTIONS

if TYPE_CHECKING:
    from mnnconvert.difference import LayerChange, ModelDifference, WeightChange

CHANGED = 3
MOST_ROWS = 60
WIDEST = 90  # characters of a fact in the table

SYNTAX = Syntax(
    usage="mnnconvert diff A B [--inputs FILE.npz] [--run=0] [--fail-on-change]",
    summary="Compare two models: layers that were added, removed or changed, weights, and what the outputs differ by.",
    options=(
        Option("--run", "run", "flag", "run both on the same inputs and measure B against A", default=True),
        Option("--inputs", "inputs", "path", "arrays by input name; made up otherwise", metavar="FILE.npz"),
        Option("--seed", "seed", "int", "seed of made-up inputs", default=0, low=0, metavar="N"),
        *(option for option in OPTIONS if option.field in ("prototxt", "signature")),
        Option("--all", "all", "flag", "list every change", default=False),
        Option("--fail-on-change", "fail", "flag", "exit code 3 when anything differs", default=False),
        *COMMON,
    ),
    words=("A", "B"),
    required=2,
    examples=("mnnconvert diff old.mnn new.mnn", "mnnconvert diff m.mnn m4.mnn --inputs real.npz",
              "mnnconvert diff old.mnn new.mnn --run=0 --fail-on-change"),
)  # fmt: skip


def run(arguments: Arguments, out: Output) -> int:
    from mnnconvert import api

    found = api.diff(
        arguments.words[0], arguments.words[1],
        run=bool(arguments["run"]), inputs=arguments.text("inputs"), seed=arguments.number("seed"),
        prototxt=arguments.text("prototxt"), signature=arguments.text("signature"),
    )  # fmt: skip
    code = CHANGED if arguments["fail"] and not found.equal else 0
    out.data({"ok": code == 0, "exit_code": code, **found.to_dict()})
    _print(found, out, everything=bool(arguments["all"]))
    return code


def _print(found: ModelDifference, out: Output, *, everything: bool) -> None:
    out.result(f"{found.before} {size(found.bytes_before)} -> {found.after} {size(found.bytes_after)}", "bold")
    for line in found.interface:
        out.result(f"  {line}")
    if found.operators:
        rows = [(op, *counts) for op, counts in found.operators.items()]
        out.table(("Operator", ">Before", ">After"), rows, title="\nOperators")
    if found.layers and not out.quiet:
        _print_layers(found.layers if everything else found.layers[:MOST_ROWS], out)
        if len(found.layers) > MOST_ROWS and not everything:
            out.detail(f"... and {len(found.layers) - MOST_ROWS} more; --all lists them.")
    _print_outputs(found, out)
    for note in found.notes:
        out.note(note)
    out.result(f"\n{headline(found)}", "green" if found.equal else "yellow")


def headline(found: ModelDifference) -> str:
    """For example "No difference: 41 layers are the same.", or how many layers differ and how."""
    same = f"{found.same} layers are the same"
    if found.equal:
        return f"No difference: {same}{'' if found.outputs is None else ', and so are all outputs'}."
    counts = Counter(change.kind for change in found.layers)
    kinds = [f"{counts[kind]} {kind}" for kind in ("added", "removed", "changed") if counts[kind]]
    answers = "" if found.outputs is None else "; outputs differ" if found.moved else "; outputs are equal"
    return f"{same}, {', '.join(kinds) or 'none differ'}{answers}."


def _print_layers(layers: Sequence[LayerChange], out: Output) -> None:
    columns = ("Change", "Layer", "Operator", "What", ">SQNR dB", ">Size")
    out.table(columns, [row for change in layers for row in _rows(change)], title="\nLayers")


def _rows(change: LayerChange) -> list[tuple[object, ...]]:
    """A row for each fact and weight; the first has the name."""
    facts: list[tuple[object, ...]] = [(_short(fact), "", "") for fact in change.facts]
    facts += [(_stored(w), "" if w.sqnr is None else w.sqnr, _sizes(w)) for w in change.weights]
    names = [(change.kind, change.name, change.op), *[("", "", "")] * len(facts)]
    return [(*name, *fact) for name, fact in zip(names, facts or [("", "", "")], strict=False)]


def _short(text: str) -> str:
    """A fact that fits in a column; names may be long, and --json has them whole."""
    return text if len(text) <= WIDEST else f"{text[: WIDEST // 2]} ... {text[-WIDEST // 2 :]}"


def _stored(w: WeightChange) -> str:
    before, after = (f"{'' if s is None else shape(s) + ' '}{form}"
                     for s, form in zip(w.shapes, (w.before, w.after), strict=True))  # fmt: skip
    if before == after:
        return f"operand {w.operand}: {before}"
    return f"operand {w.operand}: {before} -> {w.after if w.shapes[0] == w.shapes[1] else after}"


def _sizes(w: WeightChange) -> str:
    after = size(w.bytes_after)
    return after if w.bytes_before == w.bytes_after else f"{size(w.bytes_before)} -> {after}"


def _print_outputs(found: ModelDifference, out: Output) -> None:
    if found.outputs is None or out.quiet:
        return
    rows = [
        (number, v.name, m.cosine, m.sqnr, m.max_abs, m.largest, m.wrong, v.reason)
        for number, run in enumerate(found.outputs.runs, 1) if run.comparison is not None
        for v in run.comparison.outputs for m in [v.measured] if m is not None
    ]  # fmt: skip
    out.table((">Run", "Output", ">Cosine", ">SQNR dB", ">Max error", ">Largest", ">Differ", ""), rows,
              title="\nOutputs of the second against the first")  # fmt: skip
    for number, run in enumerate(found.outputs.runs, 1):
        for problem in run.problems:
            out.diagnostic(problem, label=f"run {number}", style="yellow")
        for v in run.comparison.outputs if run.comparison is not None else ():
            if v.measured is None:
                out.result(f"  run {number}, {v.name}: {v.reason}")
