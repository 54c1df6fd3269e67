"""Whether the outputs of one engine are those of another, and in words why not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from mnnconvert.verify.metrics import ArrayComparison, compare_arrays, kind_of, plain


@dataclass(frozen=True)
class Tolerance:
    """The bound on a float: |got - want| <= absolute + relative * (largest finite |want| of that output).

    Relative to the largest value because an output is one quantity: entries near zero carry the rounding of the
    large ones they were computed from. Integers, bools and texts are exact whatever the tolerance.
    """

    relative: float = 1e-3
    absolute: float = 1e-5

    def allowed(self, largest: float) -> float:
        return self.absolute + self.relative * largest

    def __str__(self) -> str:
        return f"{self.absolute:g} + {self.relative:g} x largest value"


@dataclass(frozen=True)
class Spread:
    """How far the reference is from itself on one output when its numbers are shaken (see `dispute`).

    `error` is the largest difference of `trials` shaken runs from the one that was not, `sqnr` the worst of them in
    dB; `moved` of them missed the tolerance. Integers count the elements that differ, and have no `sqnr`.
    """

    trials: int
    moved: int
    error: float
    sqnr: float | None

    def to_dict(self) -> dict[str, object]:
        """The fields as JSON values, like those of an ArrayComparison."""
        return {name: plain(value) for name, value in asdict(self).items()}

    def __str__(self) -> str:
        return f"moves by {self.error:.3g} itself, in {self.moved} of {self.trials} runs beyond the tolerance"


@dataclass(frozen=True)
class OutputVerdict:
    """One output: `reason` is empty when it agrees, `measured` is None when there was nothing to measure.

    `numeric` tells that shape, kind and special values fit, so that the numbers alone are too far off. With a
    `spread` this is disputed and passes: the reference is as far from itself. So it is with an `opinion`: another
    reference gives the answer of the file.
    """

    name: str
    reason: str
    measured: ArrayComparison | None = None
    numeric: bool = False
    spread: Spread | None = None
    opinion: str = ""

    @property
    def verdict(self) -> str:
        """ "passed", "disputed" or "missed"."""
        if not self.reason:
            return "passed"
        return "missed" if self.spread is None and not self.opinion else "disputed"

    @property
    def passed(self) -> bool:
        return self.verdict != "missed"

    def to_dict(self) -> dict[str, object]:
        facts = {"name": self.name, "passed": self.passed, "verdict": self.verdict, "reason": self.reason}
        measured = None if self.measured is None else self.measured.to_dict()
        spread = None if self.spread is None else self.spread.to_dict()
        return {**facts, "measured": measured, "spread": spread, "opinion": self.opinion}

    def dispute(self, reference: str) -> str:
        """Why it is disputed, for people."""
        return self.opinion or f"{reference} {self.spread}"


@dataclass(frozen=True)
class Comparison:
    """Verdicts on all outputs of one run, in the order of the reference, and the tolerance they were judged by."""

    outputs: tuple[OutputVerdict, ...]
    tolerance: Tolerance

    @property
    def passed(self) -> bool:
        return all(verdict.passed for verdict in self.outputs)

    @property
    def failures(self) -> list[OutputVerdict]:
        return [verdict for verdict in self.outputs if not verdict.passed]

    @property
    def disputed(self) -> list[OutputVerdict]:
        return [verdict for verdict in self.outputs if verdict.verdict == "disputed"]

    def to_dict(self) -> dict[str, object]:
        outputs = [verdict.to_dict() for verdict in self.outputs]
        return {"passed": self.passed, "tolerance": asdict(self.tolerance), "outputs": outputs}


SLACK = 1e-3  # of a step: what floats that stand for codes carry of rounding themselves
_NO_STEPS: Mapping[str, float] = {}


def compare_outputs(
    got: Mapping[str, np.ndarray],
    want: Mapping[str, np.ndarray],
    tolerance: Tolerance,
    *,
    exact_kinds: bool = True,
    steps: Mapping[str, float] = _NO_STEPS,
) -> Comparison:
    """Judges every output of `want`, and every output of `got` that nobody asked for.

    `exact_kinds=False` is for runtimes without bool and narrow integers: there any integer type may stand for another
    and for bool, as long as the values are equal. `steps` are the distances of the numbers that a quantized model gives
    for an output, whose last rounding may fall either way: one step is allowed, and two in one of a thousand values.
    """
    verdicts = [
        _verdict(name, got[name], expected, tolerance, exact_kinds, steps.get(name, 0.0))
        if name in got
        else OutputVerdict(name, "missing: the model does not give this output")
        for name, expected in want.items()
    ]
    extra = [OutputVerdict(name, "extra: the reference has no output of this name") for name in got if name not in want]
    return Comparison(tuple(verdicts + extra), tolerance)


def distance(m: ArrayComparison) -> float:
    """What the tolerance bounds: the largest difference of floats, of anything else the elements that differ."""
    if kind_of(m.want_dtype) != "float":
        return float(m.wrong)
    assert m.max_abs is not None  # same shape and kind
    return m.max_abs


def allowed(m: ArrayComparison, tolerance: Tolerance) -> float:
    """The bound on `distance`."""
    if kind_of(m.want_dtype) != "float":
        return 0.0
    assert m.largest is not None  # same shape and kind
    return tolerance.allowed(m.largest)


def _verdict(
    name: str, got: np.ndarray, want: np.ndarray, tolerance: Tolerance, exact_kinds: bool, step: float
) -> OutputVerdict:
    measured = compare_arrays(got, want)
    misfit = _misfit(measured, exact_kinds)
    if misfit:
        return OutputVerdict(name, misfit, measured)
    numeric = kind_of(measured.want_dtype) != "text"
    if distance(measured) <= allowed(measured, tolerance) or (step and _within_steps(got, want, step)):
        return OutputVerdict(name, "", measured, numeric)
    return OutputVerdict(name, _far(measured), measured, numeric)


def _within_steps(got: np.ndarray, want: np.ndarray, step: float) -> bool:
    """Whether numbers differ by at most one step, but for one of a thousand, which may differ by two."""
    steps = np.abs(got.astype(np.float64) - want.astype(np.float64)) / step
    return bool((steps < 2 + SLACK).all() and np.count_nonzero(steps > 1 + SLACK) <= steps.size / 1000)


def _misfit(m: ArrayComparison, exact_kinds: bool) -> str:
    """Why the two cannot be the same quantity, whatever the numbers; empty when they can."""
    if not m.same_shape:
        return f"shape {list(m.got_shape)} instead of {list(m.want_shape)}"
    if not (m.same_kind or (not exact_kinds and _integral(m.got_dtype) and _integral(m.want_dtype))):
        return f"element type {m.got_dtype} instead of {m.want_dtype}"
    return _odd(m) if m.odd else ""


def _far(m: ArrayComparison) -> str:
    """Where and by how much the numbers differ."""
    if kind_of(m.want_dtype) != "float":
        return _inexact(m)
    return f"off by {m.max_abs:.3g} at {_at(m)} (largest value {m.largest:.3g})"


def _integral(dtype: str) -> bool:
    return kind_of(dtype) in ("bool", "int", "uint")


def _inexact(m: ArrayComparison) -> str:
    values = "" if m.got is None else f": {m.got} instead of {m.want}"
    return f"{m.wrong} of {int(np.prod(m.want_shape))} values differ, for example at {_at(m)}{values}"


def _odd(m: ArrayComparison) -> str:
    """A NaN or infinity in one of the two only."""
    more = f", and {m.odd - 1} more" if m.odd > 1 else ""
    return f"{_word(m.got)} at {_at(m)} instead of {_word(m.want)}{more}"


def _word(value: float | int | None) -> str:
    return "NaN" if value != value else f"{value:.4g}"


def _at(m: ArrayComparison) -> str:
    return "[" + ",".join(str(i) for i in m.where or ()) + "]"
