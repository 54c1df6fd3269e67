"""Whether the outputs of one engine are those of another, and in words why not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from mnnconvert.verify.metrics import ArrayComparison, compare_arrays, kind_of


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
class OutputVerdict:
    """One output: `reason` is empty when it passed, `measured` is None when there was nothing to measure."""

    name: str
    reason: str
    measured: ArrayComparison | None = None

    @property
    def passed(self) -> bool:
        return not self.reason

    def to_dict(self) -> dict[str, object]:
        measured = None if self.measured is None else self.measured.to_dict()
        return {"name": self.name, "passed": self.passed, "reason": self.reason, "measured": measured}


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

    def to_dict(self) -> dict[str, object]:
        outputs = [verdict.to_dict() for verdict in self.outputs]
        return {"passed": self.passed, "tolerance": asdict(self.tolerance), "outputs": outputs}


def compare_outputs(
    got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray], tolerance: Tolerance, *, exact_kinds: bool = True
) -> Comparison:
    """Judges every output of `want`, and every output of `got` that nobody asked for.

    `exact_kinds=False` is for runtimes without bool and narrow integers: there any integer type may stand for another
    and for bool, as long as the values are equal.
    """
    verdicts = [
        _verdict(name, got[name], expected, tolerance, exact_kinds)
        if name in got
        else OutputVerdict(name, "missing: the model does not give this output")
        for name, expected in want.items()
    ]
    extra = [OutputVerdict(name, "extra: the reference has no output of this name") for name in got if name not in want]
    return Comparison(tuple(verdicts + extra), tolerance)


def _verdict(name: str, got: np.ndarray, want: np.ndarray, tolerance: Tolerance, exact_kinds: bool) -> OutputVerdict:
    measured = compare_arrays(got, want)
    return OutputVerdict(name, _reason(measured, tolerance, exact_kinds), measured)


def _reason(m: ArrayComparison, tolerance: Tolerance, exact_kinds: bool) -> str:
    """Why the measured difference is too much; empty when it is not."""
    if not m.same_shape:
        return f"shape {list(m.got_shape)} instead of {list(m.want_shape)}"
    if not (m.same_kind or (not exact_kinds and _integral(m.got_dtype) and _integral(m.want_dtype))):
        return f"element type {m.got_dtype} instead of {m.want_dtype}"
    if kind_of(m.want_dtype) != "float":
        return _inexact(m) if m.wrong else ""
    if m.odd:
        return _odd(m)
    assert m.max_abs is not None and m.largest is not None  # same shape and kind: all was measured
    if m.max_abs <= tolerance.allowed(m.largest):
        return ""
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
