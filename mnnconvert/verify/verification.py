"""Runs two engines on the same inputs and keeps what was seen: the proof, or the refutation, that two models agree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Protocol

import numpy as np

from mnnconvert.errors import ConversionError, Diagnostic
from mnnconvert.verify.compare import Comparison, OutputVerdict, Tolerance, compare_outputs
from mnnconvert.verify.dispute import settle
from mnnconvert.verify.engines import Engine, Feeds, Outputs
from mnnconvert.verify.gates import GateResult, failures_table
from mnnconvert.verify.layers import LayerwiseResult
from mnnconvert.verify.second_opinion import heard

Progress = Callable[[int, int], None]  # runs done, runs in all
Observer = Callable[[Feeds, Outputs, Outputs, Comparison], None]  # inputs, obtained and expected outputs, verdict


class Finding(Protocol):
    """What a search for the fault found."""

    def to_dict(self) -> dict[str, object]: ...
    def lines(self) -> list[str]: ...


@dataclass(frozen=True)
class VerificationRun:
    """One run. `comparison` is None when the candidate could not be run, `problems` then says why.

    `notes` tells what a reader has to know besides: sizes that the reference refused, inputs the candidate lacks.
    """

    shapes: dict[str, tuple[int, ...]]
    comparison: Comparison | None
    problems: tuple[Diagnostic, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return self.comparison is not None and self.comparison.passed

    def to_dict(self) -> dict[str, object]:
        return {
            "passed": self.passed,
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "comparison": None if self.comparison is None else self.comparison.to_dict(),
            "problems": [problem.to_dict() for problem in self.problems],
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class VerificationResult:
    """All runs of a candidate against a reference, by engine name, and the tolerance of every verdict.

    `gates` are the results of all gates, `missed_gates` those that were not kept. `layers`, `bisection` and `repro`
    (paths of files) are there where they were asked for.
    """

    reference: str
    candidate: str
    tolerance: Tolerance
    runs: tuple[VerificationRun, ...]
    missed_gates: tuple[GateResult, ...] = ()
    gates: tuple[GateResult, ...] = ()
    layers: LayerwiseResult | None = None
    bisection: Finding | None = None
    repro: Mapping[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether there were runs, each of them agreed, and no gate was missed."""
        return bool(self.runs) and all(run.passed for run in self.runs) and not self.missed_gates

    def to_dict(self) -> dict[str, object]:
        return {
            "passed": self.passed,
            "reference": self.reference,
            "candidate": self.candidate,
            "tolerance": asdict(self.tolerance),
            "runs": [run.to_dict() for run in self.runs],
            "missed_gates": [gate.to_dict() for gate in self.missed_gates],
            "gates": [gate.to_dict() for gate in self.gates],
            "layers": None if self.layers is None else self.layers.to_dict(),
            "bisection": None if self.bisection is None else self.bisection.to_dict(),
            "repro": dict(self.repro),
        }

    def disputes(self) -> list[str]:
        """The outputs that differ by no more than the reference from itself, each with its numbers."""
        return [
            f"run {number}, {bad.name}: {bad.reason}; {bad.dispute(self.reference)}"
            for number, run in enumerate(self.runs, 1)
            if run.comparison is not None
            for bad in run.comparison.disputed
        ]

    def lines(self) -> list[str]:
        """The result for people: the verdict, then per run its worst output, or everything that failed."""
        agrees = "agrees" if self.passed else "does not agree"
        count = f"{len(self.runs)} run{'' if len(self.runs) == 1 else 's'}"
        disputed = sum(1 for run in self.runs if run.comparison is not None and run.comparison.disputed)
        but = f", {disputed} of them disputed" if disputed else ""
        head = f"{self.candidate} {agrees} with {self.reference} on {count}{but} (tolerance {self.tolerance})"
        runs = (line for number, run in enumerate(self.runs, 1) for line in _run_lines(number, run, self.reference))
        found = [] if self.layers is None else self.layers.verdict()
        found += [] if self.bisection is None else self.bisection.lines()
        return [head, *runs, *failures_table(self.missed_gates), *found]


def _run_lines(number: int, run: VerificationRun, reference: str) -> list[str]:
    head = f"  run {number} ({_shape_text(run.shapes)}): "
    notes = [f"    note: {note}" for note in run.notes]
    if run.comparison is None:
        return [head + "could not be run", *(f"    {problem}" for problem in run.problems), *notes]
    if run.passed and run.comparison.disputed:
        disputed = (f"    {bad.name}: {bad.reason}; {bad.dispute(reference)}" for bad in run.comparison.disputed)
        return [head + "disputed", *disputed, *notes]
    if run.passed:
        return [head + _worst_text(run.comparison), *notes]
    return [head + "different", *(f"    {bad.name}: {bad.reason}" for bad in run.comparison.failures), *notes]


def _shape_text(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items()) or "no inputs"


def _worst_text(comparison: Comparison) -> str:
    """The output that comes closest to its bound."""
    measured = [verdict for verdict in comparison.outputs if verdict.measured is not None]
    if not measured:
        return "no outputs"
    worst = max(measured, key=_max_rel)
    assert worst.measured is not None  # filtered above
    return f"equal, at worst {worst.name}: off by {worst.measured.max_abs:.2g} of {worst.measured.largest:.3g}"


def _max_rel(verdict: OutputVerdict) -> float:
    return (verdict.measured.max_rel if verdict.measured else None) or 0.0


def verify_engines(
    reference: Engine,
    candidate: Engine,
    feeds_list: Sequence[Feeds | Iterable[Feeds]],
    tolerance: Tolerance,
    progress: Progress | None = None,
    observe: Observer | None = None,
) -> VerificationResult:
    """Compares all outputs on every entry of `feeds_list`; `observe` sees the arrays of each comparison.

    An entry is the feeds of one run, or alternatives for it (`inputs.ladder`): the first that the reference accepts is
    used, and the run notes what was refused. When it accepts none, its last error is raised, with the sizes tried. A
    candidate that cannot be run is a failed run, not an error.
    """
    runs = []
    for index, entry in enumerate(feeds_list):
        choices = [entry] if isinstance(entry, Mapping) else entry
        runs.append(_verify(reference, candidate, choices, tolerance, observe))
        if progress is not None:
            progress(index + 1, len(feeds_list))
    return VerificationResult(reference.name, candidate.name, tolerance, tuple(runs))


def _verify(
    reference: Engine, candidate: Engine, choices: Iterable[Feeds], tolerance: Tolerance, observe: Observer | None
) -> VerificationRun:
    """One run. Feeds on which the reference gives another answer each time prove nothing: the next ones are taken."""
    remaining = iter(choices)
    random: list[str] = []
    while True:
        try:
            feeds, want, notes = first_accepted(reference, remaining)
        except ValueError:
            if not random:
                raise
            return VerificationRun({}, None, (_random(reference),), tuple(random))
        shapes = {name: tuple(np.shape(array)) for name, array in feeds.items()}
        unused = set(feeds) - {info.name for info in candidate.inputs}
        notes = [*random, *notes, *reference.notes, *candidate.notes]
        if unused:
            notes.append(f"{candidate.name} has no input {', '.join(name for name in feeds if name in unused)}")
        try:
            got = candidate.run({name: array for name, array in feeds.items() if name not in unused})
        except ConversionError as failure:
            return VerificationRun(shapes, None, tuple(failure.diagnostics), tuple(notes))
        steps = {info.name: info.step for info in reference.outputs if info.step}
        comparison = compare_outputs(got, want, tolerance, exact_kinds=candidate.exact_kinds, steps=steps)
        if comparison.passed or compare_outputs(reference.run(feeds), want, tolerance).passed:
            break
        random.append(f"{reference.name} gives another answer each time on {_shape_text(shapes)}")
    if not comparison.passed:
        comparison, evidence = settle(reference, candidate, feeds, got, want, comparison)
        notes += evidence
    if not comparison.passed:
        comparison = heard(reference, feeds, got, want, comparison)
    if observe is not None:
        observe(feeds, got, want, comparison)
    return VerificationRun(shapes, comparison, notes=tuple(notes))


def _random(reference: Engine) -> Diagnostic:
    return Diagnostic(
        "source-random",
        f"{reference.name} gives another answer each time it runs the model, so there is nothing to compare with.",
        {"engine": reference.name},
        "Give inputs with --inputs that turn what is random off, or leave the proof out with --verify never.",
    )


def first_accepted(reference: Engine, choices: Iterable[Feeds]) -> tuple[Feeds, Outputs, list[str]]:
    """The first feeds that the reference takes, its outputs, and what it refused before. Raises its last error."""
    refused: list[str] = []
    failure: ConversionError | None = None
    for feeds in choices:
        try:
            return feeds, reference.run(feeds), refused
        except ConversionError as problem:
            failure = problem
            shapes = _shape_text({name: tuple(np.shape(array)) for name, array in feeds.items()})
            refused.append(f"{reference.name} refused the sizes {shapes}")
    if failure is None:
        raise ValueError("an entry of feeds_list holds no feeds")
    if len(refused) > 1:
        raise ConversionError([*failure.diagnostics, _nothing_accepted(reference, refused)]) from failure
    raise failure


def _nothing_accepted(reference: Engine, refused: list[str]) -> Diagnostic:
    tried = "; ".join(text.partition("sizes ")[2] for text in refused)
    return Diagnostic(
        "source-engine-failed",
        f"{reference.name} accepted none of {len(refused)} sets of made-up inputs.",
        {"engine": reference.name, "tried": tried},
        "Give real inputs with --inputs FILE.npz, or fix the open sizes.",
    )
