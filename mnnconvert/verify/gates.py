"""Accuracy gates: bounds on how far a converted or compressed model may move, as data.

[[gate]]
metric = "sqnr"        # max_abs and max_rel are bounded from above; sqnr (dB), cosine, top1 and top5 from below
output = "prob*"       # a pattern of output names; all outputs when left out
bound = 30.0

[[gate]]
metric = "cosine"
layer = "encoder/*"    # a pattern of layer names, in place of outputs
data = "samples/"      # the inputs that it is measured on, beside this file; those of the run when left out
bound = 0.99

[[gate]]
metric = "size"        # bytes of the file with its external weights, also as text such as "5 MB"
bound = "5 MB"

[[gate]]
function = "scores:word_error"  # called with the expected and the obtained outputs by name, of each run
bound = 0.02
better = "lower"                # or "higher"
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

from mnnconvert.errors import MnnConvertError, UsageError
from mnnconvert.verify.compare import Comparison, OutputVerdict
from mnnconvert.verify.metrics import ArrayComparison

UPPER = ("max_abs", "max_rel")
LOWER = ("sqnr", "cosine", "top1", "top5")
SIZE = "size"
METRICS = (*UPPER, *LOWER, SIZE)
CLASSES = ("top1", "top5")
TEXTS = ("metric", "output", "layer", "data", "function", "better")
UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}


@dataclass(frozen=True)
class Gate:
    """A bound on one metric of the outputs (or of the layers) whose name matches a pattern.

    With `function` (`module:name`) the metric is what a user's function says of the outputs, and `better` tells from
    which side it is bounded. `data` is the path of the inputs, relative to the file of the gates.
    """

    metric: str
    bound: float
    output: str = "*"
    layer: str = ""
    data: str = ""
    function: str = ""
    better: str = "lower"

    def __post_init__(self) -> None:
        if not self.function and self.metric not in METRICS:
            raise _bad(f"There is no metric '{self.metric}'", f"The metrics are {', '.join(METRICS)}.")
        if math.isnan(self.bound):
            raise _bad(f"The bound of {self.metric} is not a number", "Give a number.")
        if self.better not in ("lower", "higher"):
            raise _bad(f"'better' is lower or higher, not '{self.better}'", "Say which side is bounded.")

    @property
    def upper(self) -> bool:
        """Whether small values are the good ones."""
        return self.better == "lower" if self.function else self.metric in (*UPPER, SIZE)

    def admits(self, value: float) -> bool:
        return value <= self.bound if self.upper else value >= self.bound

    def __str__(self) -> str:
        return f"{self.function or self.metric} {'<=' if self.upper else '>='} {self.bound:g}"


@dataclass(frozen=True)
class GateResult:
    """A gate applied to one output, layer or file: `value` is the worst over all runs, None for nothing to measure."""

    gate: Gate
    output: str
    value: float | None

    @property
    def passed(self) -> bool:
        return self.value is not None and self.gate.admits(self.value)

    @property
    def missed_by(self) -> float | None:
        """How far the value is beyond the bound; None where it is not, or was not measured."""
        return None if self.value is None or self.passed else abs(self.value - self.gate.bound)

    def to_dict(self) -> dict[str, object]:
        value = str(self.value) if self.value is not None and not math.isfinite(self.value) else self.value
        pattern = self.gate.layer or self.gate.output
        gate = {"metric": self.gate.function or self.gate.metric, "bound": self.gate.bound, "pattern": pattern}
        return {**gate, "data": self.gate.data, "output": self.output, "value": value, "passed": self.passed}


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
    if not isinstance(entry, dict) or not {"bound"} <= set(entry) <= {"bound", *TEXTS}:
        raise _bad(
            f"A gate takes metric, bound and output (or layer), data, function and better, not {entry}",
            "bound and metric, or bound and function, are needed.",
            file=path,
        )
    if ("metric" in entry) == ("function" in entry) or {"output", "layer"} <= set(entry):
        raise _bad(
            f"The gate {entry} says two things, or nothing", "Give metric or function, output or layer.", file=path
        )
    bound = _bytes(entry["bound"]) if entry.get("metric") == SIZE else entry["bound"]
    texts = {name: entry[name] for name in TEXTS if name in entry}
    if isinstance(bound, bool) or not isinstance(bound, int | float) or not all(_text(t) for t in texts.values()):
        raise _bad(f"The gate {entry} has a value of the wrong type", "bound is a number, output a text.", file=path)
    return Gate(**{"metric": "", **texts, "bound": float(bound)})


def _text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _bytes(value: object) -> object:
    """`5 MB` as a number; anything else as it is."""
    found = re.fullmatch(r"\s*([\d.]+)\s*([kMG]?B)\s*", value, re.IGNORECASE) if isinstance(value, str) else None
    return value if found is None else float(found[1]) * UNITS[found[2].lower()]


class Measured(Protocol):
    """A layer with its name and the error in a whole run."""

    @property
    def name(self) -> str: ...
    @property
    def total(self) -> ArrayComparison: ...


def evaluate(
    gates: Iterable[Gate],
    runs: Sequence[Comparison],
    layers: Sequence[Measured] = (),
    file_bytes: int | None = None,
    scores: Mapping[str, float] | None = None,
) -> list[GateResult]:
    """Every gate on every output, layer or file it names, over all runs.

    `scores` are the worst values of the users' functions. An output without a top-1 (its last axis does not look like
    classes) is passed over by a top1 pattern that matches other outputs too. UsageError (`bad-gate`) for a pattern that
    matches nothing measurable.
    """
    results: list[GateResult] = []
    for gate in gates:
        if gate.function:
            results.append(GateResult(gate, gate.function, (scores or {}).get(gate.function)))
        elif gate.metric == SIZE:
            results.append(GateResult(gate, "file", None if file_bytes is None else float(file_bytes)))
        elif gate.layer:
            results += _of_layers(gate, layers)
        else:
            results += _evaluate(gate, runs)
    return results


def _of_layers(gate: Gate, layers: Sequence[Measured]) -> list[GateResult]:
    matched = [layer for layer in layers if fnmatchcase(layer.name, gate.layer)]
    if not matched:
        raise _bad(f"The pattern '{gate.layer}' of gate {gate} matches no layer", "--per-layer lists them.")
    values = [(layer.name, getattr(layer.total, gate.metric)) for layer in matched]
    return [GateResult(gate, name, value) for name, value in values if value is not None or gate.metric not in CLASSES]


def _evaluate(gate: Gate, runs: Sequence[Comparison]) -> list[GateResult]:
    names = dict.fromkeys(verdict.name for run in runs for verdict in run.outputs)
    matched = [name for name in names if fnmatchcase(name, gate.output)]
    wanted = [name for name in matched if gate.metric not in CLASSES or _has_classes(gate.metric, name, runs)]
    results = [_worst(gate, name, runs) for name in wanted]
    if not results:
        why = "names no output that looks like classes" if matched else "matches no output"
        raise _bad(f"The pattern '{gate.output}' of gate {gate} {why}", f"Outputs: {', '.join(names) or 'none'}.")
    return results


def _verdicts(name: str, runs: Sequence[Comparison]) -> list[OutputVerdict]:
    return [verdict for run in runs for verdict in run.outputs if verdict.name == name]


def _has_classes(metric: str, name: str, runs: Sequence[Comparison]) -> bool:
    """Whether some run has a top-1 for it, or could not be measured at all (which must not pass unseen)."""
    measured = [verdict.measured for verdict in _verdicts(name, runs)]
    return any(m is None or not m.same_shape or getattr(m, metric) is not None for m in measured)


def _worst(gate: Gate, name: str, runs: Sequence[Comparison]) -> GateResult:
    found = [getattr(verdict.measured, gate.metric, None) for verdict in _verdicts(name, runs)]
    values: list[float] = [value for value in found if value is not None]
    if len(values) < len(found):
        return GateResult(gate, name, None)
    return GateResult(gate, name, max(values) if gate.upper else min(values))


def failures_table(results: Iterable[GateResult]) -> list[str]:
    """One aligned line per missed gate: where, what was asked, what was found, by how much it misses."""
    rows = [(r.output, str(r.gate), _value(r), _missed(r)) for r in results if not r.passed]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    return [
        f"{output:{widths[0]}}  {asked:{widths[1]}}  {found:{widths[2]}}  {missed}".rstrip()
        for output, asked, found, missed in rows
    ]


def _value(result: GateResult) -> str:
    return "not measurable" if result.value is None else f"{result.value:.6g}"


def _missed(result: GateResult) -> str:
    return "" if result.missed_by is None else f"missed by {result.missed_by:.3g}"


def _bad(message: str, hint: str, **context: object) -> MnnConvertError:
    return UsageError.of("bad-gate", f"{message}.", hint=hint, **context)
