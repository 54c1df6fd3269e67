"""Time and peak memory of conversions, ours against the released MNN 3.6.1 converter.

    make bench                                     all cases as a table
    .venv/bin/python benchmarks/bench.py --json    the same as data
    .venv/bin/python benchmarks/bench.py --case help --rounds 9

Each case runs A B A B ... in fresh processes, after one run of each that is not counted. Wall time is from start to end
of the process, peak memory is the largest resident set that the kernel saw; both as medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SCRATCH = ROOT / ".bench"
OCR = ROOT / ".models/rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx"
OURS, PEER = "mnnconvert", "MNN 3.6.1"
FOUR_BITS = ("--weightQuantBits", "4", "--weightQuantBlock", "64")


def ours(*words: str) -> list[str]:
    """Our program."""
    return [sys.executable, "-m", "mnnconvert", *words]


def peer(*words: str) -> list[str]:
    """The released converter, called by its binding: the script around it would install software."""
    return [sys.executable, "-c", f"import sys, _tools; sys.exit(not _tools.mnnconvert({['mnnconvert', *words]!r}))"]


def conversion(source: Path, *options: str) -> dict[str, list[str]]:
    """The same conversion by both, each to a file of its own."""
    words = ["-f", "ONNX", "--modelFile", str(source), "--MNNModel"]
    return {
        OURS: ours(*words, str(SCRATCH / "ours.mnn"), "--verify", "never", *options),
        PEER: peer(*words, str(SCRATCH / "peer.mnn"), *options),
    }


def large_model() -> Path:
    """The 1.4 GB model, made once, in a process of its own: a child's peak counts what its parent holds."""
    path = SCRATCH / "large/large.onnx"
    if not path.exists():
        subprocess.run([sys.executable, str(ROOT / "benchmarks/large_model.py"), str(path.parent)], check=True)
    return path


@dataclass(frozen=True)
class Case:
    """A name, how often each side runs unless the caller says otherwise, and the commands by side."""

    name: str
    rounds: int
    commands: Callable[[], dict[str, list[str]]]


CASES = (
    Case("help", 5, lambda: {OURS: ours("--help"), PEER: peer("--help")}),
    Case("ocr", 3, lambda: conversion(OCR)),
    Case("ocr-8bit", 3, lambda: conversion(OCR, "--weightQuantBits", "8")),
    Case("large", 2, lambda: conversion(large_model(), "--saveExternalData")),
    Case("large-4bit", 2, lambda: conversion(large_model(), "--saveExternalData", *FOUR_BITS)),
)


@dataclass(frozen=True)
class Cost:
    """Seconds of wall time and of the CPU, megabytes (10^6 bytes) of peak resident memory."""

    seconds: float
    cpu: float
    megabytes: float


@dataclass(frozen=True)
class Result:
    """Medians of one case by side."""

    case: str
    rounds: int
    costs: dict[str, Cost]

    @property
    def ratios(self) -> Cost:
        """Ours divided by the peer's: below 1 is better."""
        a, b = self.costs[OURS], self.costs[PEER]
        return Cost(a.seconds / b.seconds, a.cpu / b.cpu, a.megabytes / b.megabytes)


def measure(command: list[str]) -> Cost:
    """Run one command to its end; SystemExit with what it said when it fails.

    In the scratch folder: the released converter leaves a file where it runs.
    """
    log = SCRATCH / "last.log"
    with log.open("wb") as stream:
        started = time.perf_counter()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, cwd=SCRATCH
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{command} ended with {process.returncode}:\n{log.read_text(errors='replace')}")
    return Cost(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6)


def run(case: Case, rounds: int) -> Result:
    """A B A B ..., the first of each discarded."""
    commands = case.commands()
    seen: dict[str, list[Cost]] = {side: [] for side in commands}
    for _ in range(rounds + 1):
        for side, command in commands.items():
            seen[side].append(measure(command))
    return Result(case.name, rounds, {side: median(costs[1:]) for side, costs in seen.items()})


def median(costs: list[Cost]) -> Cost:
    names = ("seconds", "cpu", "megabytes")
    return Cost(*(statistics.median(getattr(cost, name) for cost in costs) for name in names))


def print_table(results: list[Result]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Medians; ratio is {OURS} / {PEER}, below 1 is better")
    columns = ("Our s", "MNN s", "Ratio", "Our CPU s", "MNN CPU s", "Ratio", "Our MB", "MNN MB", "Ratio")
    for column in ("Case", "Rounds", *columns):
        table.add_column(column, justify="left" if column == "Case" else "right")
    for r in results:
        a, b, ratio = r.costs[OURS], r.costs[PEER], r.ratios
        times = (f"{x:.2f}" for x in (a.seconds, b.seconds, ratio.seconds, a.cpu, b.cpu, ratio.cpu))
        table.add_row(
            r.case, str(r.rounds), *times, f"{a.megabytes:.0f}", f"{b.megabytes:.0f}", f"{ratio.megabytes:.2f}"
        )
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare conversions with those of the released converter.")
    parser.add_argument("--case", action="append", choices=[c.name for c in CASES], help="only this one (repeatable)")
    parser.add_argument("--rounds", type=int, help="runs of each side that count")
    parser.add_argument("--json", action="store_true", help="print data instead of a table")
    arguments = parser.parse_args()
    SCRATCH.mkdir(exist_ok=True)
    results = []
    for case in CASES:
        if not arguments.case or case.name in arguments.case:
            print(f"{case.name} ...", file=sys.stderr)
            results.append(run(case, arguments.rounds or case.rounds))
    if arguments.json:
        print(json.dumps([asdict(r) | {"ratios": asdict(r.ratios)} for r in results], indent=2))
    else:
        print_table(results)


if __name__ == "__main__":
    main()
