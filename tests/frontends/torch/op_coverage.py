"""Measures all operators that torch has tests for, as docs/torch-operators.md and the table of the package.

    op_coverage.py [--only TEXT] [--part I/N] --rows FILE     measure, a line of JSON for each operator
    op_coverage.py --known FILE ... --rows FILE               those that are not all right in such lines, or not there
    op_coverage.py --write FILE ...                           make the page and the table from such lines

The lines of later files replace those of earlier ones.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from torch_samples import Row, measure, operators

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/torch-operators.md"
TABLE = ROOT / "mnnconvert/frontends/torch/coverage.txt"
SAMPLES = 2  # in float32; beside them one in int64, and one that writes in place
HEAD = """\
# Operators of torch

Made by `tests/frontends/torch/op_coverage.py` with torch {version}: samples of torch's own operator tests, up to {most}
in float32, one in int64 and one that writes into its operand, go through `torch.export` and a conversion, and our
executor has to give what torch gives: shapes, integers exactly, floats within 1e-3 of the largest value of a result.
*Refused* means that the conversion ended with a diagnostic that says why. What gives other numbers each time is
left out.

| operators | samples | right | refused | wrong |
| ---: | ---: | ---: | ---: | ---: |
| {operators} | {samples} | {right} | {refused} | {wrong} |

The samples that are right call {overloads} overloads of operators; `mnnconvert ops --framework TORCH` lists them.

## Not right

| operator | right | refused | what is said |
| --- | ---: | ---: | --- |
"""


def main() -> int:
    options = _parser().parse_args()
    if options.write:
        PAGE.write_text(page(_rows(options.write)), encoding="utf-8")
        TABLE.write_text(table(_rows(options.write)), encoding="utf-8")
        return 0
    part, count = (int(x) for x in options.part.split("/"))
    done = {row.name for row in _rows(options.known) if not row.refused + row.wrong}
    with options.rows.open("w", encoding="utf-8") as file:
        for i, (name, info) in enumerate(operators()):
            if options.only in name and i % count == part and name not in done:
                _measure(name, info, file)
    return 0


def _rows(paths: list[Path]) -> list[Row]:
    """The rows of files; those of later ones replace those of earlier ones."""
    lines = [line for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    return list({row.name: row for row in map(_read, lines)}.values())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="operators whose name holds TEXT")
    parser.add_argument("--part", default="0/1", metavar="I/N", help="every N-th operator from I on")
    parser.add_argument("--known", type=Path, nargs="+", default=[], metavar="FILE", help="what was measured")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="where the lines go")
    parser.add_argument("--write", type=Path, nargs="+", metavar="FILE", help="make page and table")
    return parser


def _measure(name: str, info: object, file: object) -> None:
    started = time.perf_counter()
    row = measure(name, info, SAMPLES) or Row(name)
    plain = asdict(row) | {"seen": sorted(row.seen), "refusals": sorted(row.refusals)}
    print(json.dumps(plain), file=file, flush=True)
    said = "; ".join([*sorted(row.refusals), *row.mistakes])[:300]
    print(
        f"{row.right:3} {row.refused:3} {row.wrong:3} {time.perf_counter() - started:5.1f} s  {name} {said}", flush=True
    )


def _read(line: str) -> Row:
    plain = json.loads(line)
    return Row(**plain | {"seen": set(plain["seen"]), "refusals": set(plain["refusals"])})


def page(rows: list[Row]) -> str:
    """docs/torch-operators.md."""
    import torch

    rows = sorted((row for row in rows if row.right + row.refused + row.wrong), key=lambda row: row.name)
    counts = {key: sum(getattr(row, key) for row in rows) for key in ("right", "refused", "wrong")}
    version = torch.__version__.partition("+")[0]
    overloads = len(set().union(*(row.seen for row in rows)))
    text = HEAD.format(
        version=version, most=SAMPLES, operators=len(rows), samples=sum(counts.values()), overloads=overloads, **counts
    )
    bad = [row for row in rows if row.refused or row.wrong]
    lines = [f"| {row.name} | {row.right or ''} | {row.refused or ''} | {_said(row)} |" for row in bad]
    return text + "\n".join(lines) + "\n"


def _said(row: Row) -> str:
    texts = [*sorted(row.refusals), *(f"wrong: {text}" for text in row.mistakes)]
    return "<br>".join(" ".join(text.split())[:160] for text in texts).replace("|", "\\|").replace("<f", "&lt;f")


def table(rows: list[Row]) -> str:
    """Overloads that are called by samples that are right; with what is refused of those that bear the name."""
    limits: dict[str, set[str]] = {}
    for row in rows:
        for overload in row.seen:
            limits.setdefault(overload, set())
            if row.refusals and _is_named(overload, row.name):
                limits[overload].add("not all forms, see docs/torch-operators.md")
    lines = ["\t".join([name, *sorted(limits[name])]) for name in sorted(limits)]
    return (
        "# Operators of torch that convert, and limits; made by tests/frontends/torch/op_coverage.py\n"
        + "\n".join(lines)
        + "\n"
    )


def _is_named(overload: str, operator: str) -> bool:
    plain = overload.partition("::")[2].partition(".")[0].rstrip("_")
    return plain in (operator, operator.rpartition(".")[2], operator.partition(".")[0])


if __name__ == "__main__":
    sys.exit(main())
