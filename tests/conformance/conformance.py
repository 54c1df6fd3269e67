"""`make conformance`: every backend case of the onnx package in our executor and MNN's runtime, as docs/conformance.md.

    conformance.py [--ours] [--only TEXT]

`--ours` leaves MNN's runtime out, `--only` runs the cases whose name or op holds TEXT; both only print.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import onnx
from backend_cases import Case, all_cases
from conformance_columns import OUTCOMES, Result, run_case
from conformance_peer import Peer

PAGE = Path(__file__).parents[2] / "docs/conformance.md"
HEAD = """\
# Conformance

Made by `make conformance`: every test case that onnx {version} generates for its operators, and the models that it
ships, converted to a file, which our executor and the released MNN runtime run. An output has to have the expected
shape, integers their exact value, floats the tolerance of the case (a relative error of 1e-3). *Refused* means that
the conversion ended with a diagnostic that says why, or that a feed does not fit into MNN's types; what is *wrong* or
crashes is a bug.

Where a case is refused as it is, mostly because a parameter (an axis, scales, a target shape) is an input and has to be
known when the model is converted, it is converted again with its small inputs (of one axis, up to 16 numbers) stored in
the model, as models of the field have them. *Stored* counts what is right, wrong or crashes only that way.

Values of types of few bits (bfloat16, floats of 8 and 4 bits, integers of 4 and 2) are held in a wider type, float32 or
an 8-bit integer, and outputs come in that type; they compare by value. A cast to or a quantisation with such a type
rounds and saturates or wraps as the type has it, but for float16 and bfloat16, which keep the precision of float32:
their outputs may differ by two units in the last place. These cases are counted apart from the others.

Where a file for the released runtime is refused because that runtime would compute it wrongly (`runtime-defect`), our
executor runs the file that `--target none` writes.
"""
APART = "Cases with an input or output that is no tensor of numbers, or that nobody can be held to."
Row = tuple[Case, Result, Result | None]


def main() -> int:
    options = _parser().parse_args()
    warnings.simplefilter("ignore")
    started, rows, apart = time.perf_counter(), [], []
    peer = None if options.ours else Peer()
    for case in all_cases():
        if options.only.lower() not in f"{case.name} {case.group}".lower():
            continue
        if case.apart:
            apart.append(case)
            continue
        rows.append((case, *run_case(case, peer)))
        _show(rows[-1])
    if peer is not None:
        peer.close()
    text = page(rows, apart)
    if not options.ours and not options.only:
        PAGE.write_text(text, encoding="utf-8")
    for narrow in (False, True):
        print("\n".join(["", *_totals([r for r in rows if bool(r[0].narrow) == narrow])]))
    print(f"\n{len(apart)} apart, {time.perf_counter() - started:.0f} s")
    return int(any(r is not None and r.outcome in ("wrong", "crash") for _, *results in rows for r in results))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ours", action="store_true", help="leave MNN's runtime out")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases whose name or op holds TEXT")
    return parser


def _show(row: Row) -> None:
    """Print what is not right, while it happens."""
    case, *results = row
    for engine, result in zip(("ours", "mnn"), results, strict=True):
        if result is not None and result.outcome != "right":
            print(f"{result.outcome:8} {engine:5} {case.group:20} {case.name}: {result.reason}", flush=True)


def page(rows: list[Row], apart: list[Case]) -> str:
    """docs/conformance.md."""
    plain, narrow = [r for r in rows if not r[0].narrow], [r for r in rows if r[0].narrow]
    parts = [HEAD.format(version=onnx.__version__), *_totals(plain), ""]
    parts += [*_counts("Per operator", "cases of", ((r[0].group, r) for r in plain)), ""]
    parts += _counts("Types of few bits", "cases with", ((r[0].narrow, r) for r in narrow))
    parts += ["", "## Not right in our executor", "", *_listed((c, ours) for c, ours, _ in rows)]
    parts += ["", "## Right in our executor, not in the released runtime", ""]
    parts += _listed((c, theirs) for c, ours, theirs in rows if theirs is not None and ours.outcome == "right")
    parts += ["", "## Counted apart", "", APART, ""]
    kinds = Counter(c.apart for c in apart)
    parts += ["| reason | cases |", "| --- | ---: |", *(f"| {kind} | {kinds[kind]} |" for kind in sorted(kinds))]
    return "\n".join(parts) + "\n"


def _totals(rows: list[Row]) -> list[str]:
    lines = ["| executor | cases | " + " | ".join(OUTCOMES) + " | stored |", "| --- |" + " ---: |" * 6]
    for i, name in enumerate(("ours", "MNN 3.6.1")):
        results = [row[1 + i] for row in rows if row[1 + i] is not None]
        counts = Counter(r.outcome for r in results)
        numbers = [len(results), *(counts[o] for o in OUTCOMES), sum(r.stored for r in results)]
        lines.append(f"| {name} | " + " | ".join(map(str, numbers)) + " |")
    return lines


def _counts(title: str, what: str, named: Iterable[tuple[str, Row]]) -> list[str]:
    """Counts per op or kind of case, and of all; zeros are left out to let the others be seen."""
    lines = [f"## {title}", "", f"| {what} | cases | right | refused | wrong | right in MNN | refused | wrong |"]
    lines.append("| --- |" + " ---: |" * 7)
    groups: dict[str, list[Row]] = {}
    for name, row in named:
        groups.setdefault(name, []).append(row)
    everything = [row for rows in groups.values() for row in rows]
    for group in [*sorted(groups, key=lambda g: (not g[0].isupper(), g)), "all"]:
        rows = groups.get(group, everything)
        counts = [
            str(n or "")
            for results in zip(*((ours, theirs) for _, ours, theirs in rows), strict=True)
            for n in _three(r for r in results if r is not None)
        ]
        lines.append(f"| {group} | {len(rows)} | " + " | ".join(counts) + " |")
    return lines


def _three(results: Iterable[Result]) -> list[int]:
    """How many are right, refused, and wrong or crashed."""
    counts = Counter(r.outcome for r in results)
    return [counts["right"], counts["refused"], counts["wrong"] + counts["crash"]]


def _listed(results: Iterable[tuple[Case, Result]]) -> list[str]:
    """The cases that are not right, under what is said of them."""
    groups: dict[str, list[str]] = {}
    for case, result in results:
        if result.outcome != "right":
            said = result.reason if result.outcome == "refused" else f"{result.outcome}: {result.reason}"
            groups.setdefault(f"{case.group}: {said}", []).append(f"`{case.name}`")
    return [f"- {_plain(reason)}<br>{', '.join(names)}" for reason, names in sorted(groups.items())] or ["None."]


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("<", "&lt;").replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
