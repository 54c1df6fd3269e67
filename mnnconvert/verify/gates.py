"""Accuracy gates: bounds on how far a converted or compressed model may move, as data.

[[gate]]
metric = "sqnr"        # max_abs and max_rel are bounded from above; sqnr (dB), cosine and top1 from below
output = "prob*"       # a pattern of output names; all outputs when left out
bound = 30.0
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from mnnconvert.errors import MnnConvertError, UsageError
from mnnconvert.verify.compare import Comparison, OutputVerdict

UPPER = ("max_abs", "max_rel")
LOWER = ("sqnr", "cosine", "top1")
METRICS = UPPER + LOWER


@dataclass(frozen=True)
class Gate:
    """A bound on one metric of the outputs whose name matches a pattern."""

    metric: str
    bound: float
    output: str = "*"

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise _bad(f"There is no metric '{self.metric}'", f"The metrics are {', '.join(METRICS)}.")
        if math.isnan(self.bound):
            raise _bad(f"The bound of {self.metric} is not a number", "Give a number.")

    def admits(self, value: float) -> bool:
        return value <= self.bound if self.metric in UPPER else value >= self.bound

    def __str__(self) -> str:
        return f"{self.metric} {'<=' if self.metric in UPPER else '>='} {self.bound:g}"


@dataclass(frozen=True)
class GateResult:
    """A gate applied to one output: `value` is the worst over all runs, None when there was nothing to measure."""

    gate: Gate
    output: str
    value: float | None

    @property
    def passed(self) -> bool:
        return self.value is not None and self.gate.admits(self.value)

    def to_dict(self) -> dict[str, object]:
        value = str(self.value) if self.value is not None and not math.isfinite(self.value) else self.value
        gate = {"metric": self.gate.metric, "bound": self.gate.bound, "pattern": self.gate.output}
        return {**gate, "output": self.output, "value": value, "passed": self.passed}


def read_gates(path: str | Path) -> list[Gate]:
    """The gates of a TOML file; UsageError (`bad-gate`) when it cannot be read or says something unknown."""
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise _bad(f"The gates cannot be read: {problem}", "Write [[gate]] tables in TOML.", file=path) from problem
    entries = content.get("gate")
    if set(content) != {"gate"} or not isinstance(entries, list) or not entries:
        raise _bad("The file holds something other than [[gate]] tables", "Start each gate with [[gate]].", file=path)
    return [_gate(entry, path) for entry in entries]


def _gate(entry: object, path: str | Path) -> Gate:
    if not isinstance(entry, dict) or not {"metric", "bound"} <= set(entry) <= {"metric", "bound", "output"}:
        raise _bad(f"A gate takes metric, bound and output, not {entry}", "metric and bound are needed.", file=path)
    metric, bound, output = entry["metric"], entry["bound"], entry.get("output", "*")
    if isinstance(bound, bool) or not isinstance(bound, int | float) or not isinstance(output, str):
        raise _bad(f"The gate {entry} has a value of the wrong type", "bound is a number, output a text.", file=path)
    return Gate(str(metric), float(bound), output)


def evaluate(gates: Iterable[Gate], runs: Sequence[Comparison]) -> list[GateResult]:
    """Every gate on every output it names, over all runs.

    An output without a top-1 (its last axis does not look like classes) is passed over by a top1 pattern that matches
    other outputs too. UsageError (`bad-gate`) for a pattern that matches nothing measurable.
    """
    return [result for gate in gates for result in _evaluate(gate, runs)]


def _evaluate(gate: Gate, runs: Sequence[Comparison]) -> list[GateResult]:
    names = dict.fromkeys(verdict.name for run in runs for verdict in run.outputs)
    matched = [name for name in names if fnmatchcase(name, gate.output)]
    results = [_worst(gate, name, runs) for name in matched if gate.metric != "top1" or _has_top1(name, runs)]
    if not results:
        why = "names no output that looks like classes" if matched else "matches no output"
        raise _bad(f"The pattern '{gate.output}' of gate {gate} {why}", f"Outputs: {', '.join(names) or 'none'}.")
    return results


def _verdicts(name: str, runs: Sequence[Comparison]) -> list[OutputVerdict]:
    return [verdict for run in runs for verdict in run.outputs if verdict.name == name]


def _has_top1(name: str, runs: Sequence[Comparison]) -> bool:
    """Whether some run has a top-1 for it, or could not be measured at all (which must not pass unseen)."""
    measured = [verdict.measured for verdict in _verdicts(name, runs)]
    return any(m is None or not m.same_shape or m.top1 is not None for m in measured)


def _worst(gate: Gate, name: str, runs: Sequence[Comparison]) -> GateResult:
    found = [getattr(verdict.measured, gate.metric, None) for verdict in _verdicts(name, runs)]
    values: list[float] = [value for value in found if value is not None]
    if len(values) < len(found):
        return GateResult(gate, name, None)
    return GateResult(gate, name, max(values) if gate.metric in UPPER else min(values))


def failures_table(results: Iterable[GateResult]) -> list[str]:
    """One aligned line per missed gate: the output, what was asked, what was found. Empty when all passed."""
    rows = [(result.output, str(result.gate), _value(result)) for result in results if not result.passed]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(2)]
    return [f"{output:{widths[0]}}  {asked:{widths[1]}}  {found}" for output, asked, found in rows]


def _value(result: GateResult) -> str:
    return "not measurable" if result.value is None else f"{result.value:.6g}"


def _bad(message: str, hint: str, **context: object) -> MnnConvertError:
    return UsageError.of("bad-gate", f"{message}.", hint=hint, **context)
