"""Fair verdicts on models whose own steps amplify rounding.

A model that quantises its activations while it runs has steps: where a value lies between two codes, the last bit of a
sum decides, and one code moves what is computed from it by far more than rounding does. No two implementations agree on
such a model within a tolerance, and neither of them is nearer the truth. So when an output misses, the reference is run
against itself: its float inputs and weights are changed by a millionth, which is about what another order of adding up
some hundred products does. The miss is disputed, and passes, only if all of this holds:

1. The numbers alone are off. A wrong shape, type or NaN is a miss.
2. The reference misses the tolerance itself, in at least two of eight shaken runs. An ordinary model moves by a
   millionth or so, a hundred times below; one run alone could be an accident.
3. The error is at most three times the largest of these eight. The candidate's is one more draw of the same kind,
   which exceeds the largest of eight once in nine times, and with steps of a few sizes rarely by much.
4. The noise is at most 3 dB above the worst of them, which is twice the power. Noise is a sum over the whole output,
   so that it scatters less than its largest element; a wrong conversion makes it everywhere.
5. The candidate gives the very answer of the reference where no rounding happens to be in doubt: each entry along the
   first axis of each output agrees somewhere, in this run, with a shaken run, or on a variant of the inputs of the same
   shapes and almost the same values. Points 2 to 4 only say that a miss is possible, this one that nothing else is
   wrong: an error of the conversion does not come and go with the last bit. Entries of few elements could agree by
   chance, so where the output misses they have to agree a thousand times better.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Protocol, runtime_checkable

import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.verify.compare import Comparison, OutputVerdict, Spread, Tolerance, allowed, compare_outputs, distance
from mnnconvert.verify.engines import Change, Engine, Feeds, Outputs
from mnnconvert.verify.metrics import compare_arrays, kind_of

SHAKE = 1e-6  # relative, some eight units in the last place of a float32
TRIALS, MOVED = 8, 2
FACTOR, SLACK_DB = 3.0, 3.0
VARIANTS = 64  # of a model with many steps, one in twenty or so is free of doubt
VARIATION = 0.01  # relative: several steps of 8 bits, so that every rounding is drawn anew
FEW, FINE = 64, 1e-3


@runtime_checkable
class Shakable(Protocol):
    """An engine that can open its model once more with other float constants; None where that would be too large."""

    def with_constants(self, change: Change) -> Engine | None: ...


def settle(
    reference: Engine, candidate: Engine, feeds: Feeds, got: Outputs, want: Outputs, comparison: Comparison
) -> tuple[Comparison, list[str]]:
    """`comparison` with its misses disputed where the rules of this module hold for all of them, and the evidence."""
    missed, tolerance = comparison.failures, comparison.tolerance
    if not isinstance(reference, Shakable) or not all(verdict.numeric for verdict in missed):
        return comparison, []
    shaken = _shaken_runs(reference, feeds, want, tolerance)
    spreads = {verdict.name: _spread(verdict.name, shaken, want, tolerance) for verdict in missed}
    if not all(_covers(spreads[verdict.name], verdict) for verdict in missed):
        return comparison, []
    pairs = chain(((got, outputs) for outputs in (want, *shaken)), _variant_runs(reference, candidate, feeds))
    alike = (pair for pair in pairs if all(np.shape(side[name]) == want[name].shape for side in pair for name in want))
    tried = _tries_to_agree(alike, _row_tolerances(want, spreads, tolerance), candidate.exact_kinds)
    if tried is None:
        return comparison, []
    verdicts = tuple(replace(verdict, spread=spreads.get(verdict.name)) for verdict in comparison.outputs)
    evidence = f"{reference.name} gives the answers of {candidate.name} where no rounding is in doubt, in {tried} tries"
    return replace(comparison, outputs=verdicts), [evidence]


def _shaken_runs(reference: Shakable, feeds: Feeds, want: Outputs, tolerance: Tolerance) -> list[Outputs]:
    """Outputs of the reference with all float numbers shaken; empty where that cannot be done.

    The first half is enough to know a model that does not move at all.
    """
    runs = []
    for trial in range(TRIALS):
        outputs = _shaken_run(reference, feeds, np.random.default_rng([trial, 0]))
        if outputs is None:
            return []
        runs.append(outputs)
        if len(runs) == TRIALS // 2 and all(compare_outputs(run, want, tolerance).passed for run in runs):
            break
    return runs


def _shaken_run(reference: Shakable, feeds: Feeds, random: np.random.Generator) -> Outputs | None:
    """One run of one twin, which is gone afterwards; None when the model is too large or refuses the inputs."""
    try:
        twin = reference.with_constants(partial(scaled, random=random, relative=SHAKE))
        return None if twin is None else twin.run(_scaled_feeds(feeds, random, SHAKE))
    except ConversionError:
        return None


def _scaled_feeds(feeds: Feeds, random: np.random.Generator, relative: float) -> dict[str, np.ndarray]:
    return {name: scaled(array, random, relative) for name, array in feeds.items()}


def scaled(array: np.ndarray, random: np.random.Generator, relative: float) -> np.ndarray:
    """Floats times factors within 1 +- `relative`. Whole numbers stay, as they may be sizes, indices or switches."""
    array = np.asarray(array)
    if kind_of(array.dtype) != "float":
        return array
    factor = random.random(array.shape, dtype=np.float32) * np.float32(2 * relative) + np.float32(1 - relative)
    moved = np.where(array == np.rint(array), array, array * factor)
    return moved.astype(array.dtype, copy=False)


def _spread(name: str, shaken: Sequence[Outputs], want: Outputs, tolerance: Tolerance) -> Spread | None:
    """None without runs, or when their shapes or special values differ, which no distance describes."""
    measured = [compare_arrays(outputs[name], want[name]) for outputs in shaken]
    if not measured or any(not m.same_shape or m.odd for m in measured):
        return None
    floats = [m.sqnr for m in measured if m.sqnr is not None] if kind_of(want[name].dtype) == "float" else []
    moved = sum(distance(m) > allowed(m, tolerance) for m in measured)
    return Spread(len(measured), moved, max(map(distance, measured)), min(floats, default=None))


def _covers(spread: Spread | None, verdict: OutputVerdict) -> bool:
    """Rules 2 to 4."""
    measured = verdict.measured
    assert measured is not None  # the verdict is numeric
    if spread is None or spread.moved < MOVED or distance(measured) > FACTOR * spread.error:
        return False
    return spread.sqnr is None or (measured.sqnr is not None and measured.sqnr >= spread.sqnr - SLACK_DB)


def _row_tolerances(want: Outputs, missed: Container[str], tolerance: Tolerance) -> dict[str, Tolerance]:
    """For every output, what its entries along the first axis have to keep to."""
    fine = Tolerance(tolerance.relative * FINE, tolerance.absolute * FINE)
    small = {name for name, array in want.items() if name in missed and array.size < FEW * _rows(array)}
    return {name: fine if name in small else tolerance for name in want}


def _rows(array: np.ndarray) -> int:
    return max(array.shape[0], 1) if array.ndim else 1


def _tries_to_agree(
    pairs: Iterable[tuple[Outputs, Outputs]], tolerances: Mapping[str, Tolerance], exact_kinds: bool
) -> int | None:
    """How many pairs of answers it takes until each row of each output agreed in one; None when that never happens."""
    agreed: dict[str, np.ndarray] = {}
    for tried, (got, want) in enumerate(pairs, 1):
        for name, tolerance in tolerances.items():
            rows = _agreeing_rows(got[name], want[name], tolerance, exact_kinds)
            agreed[name] = rows | agreed.get(name, False)
        if all(rows.all() for rows in agreed.values()):
            return tried
    return None


def _agreeing_rows(got: np.ndarray, want: np.ndarray, tolerance: Tolerance, exact_kinds: bool) -> np.ndarray:
    """Which entries along the first axis are within the bound of the whole output: bools [rows]."""
    rows = _rows(want)
    (verdict,) = compare_outputs({"": got}, {"": want}, tolerance, exact_kinds=exact_kinds).outputs
    if verdict.passed or not verdict.numeric:
        return np.full(rows, verdict.passed)
    assert verdict.measured is not None  # the verdict is numeric
    finite_got, finite_want = (np.nan_to_num(array.astype(np.float64)).reshape(rows, -1) for array in (got, want))
    errors = np.abs(finite_got - finite_want).max(axis=1, initial=0.0)
    return np.asarray(errors <= allowed(verdict.measured, tolerance))


def _variant_runs(reference: Engine, candidate: Engine, feeds: Feeds) -> Iterator[tuple[Outputs, Outputs]]:
    """Answers of candidate and reference on variants; values that one of them does not take prove nothing."""
    wanted = {info.name for info in candidate.inputs}
    for variant in _variants(feeds):
        with suppress(ConversionError):
            want = reference.run(variant)
            yield candidate.run({name: array for name, array in variant.items() if name in wanted}), want


def _variants(feeds: Feeds) -> Iterator[dict[str, np.ndarray]]:
    """Inputs of the same shapes: floats vary a little; where there are none to vary, values change places."""
    for number in range(VARIANTS):
        random = np.random.default_rng([number, 1])
        variant = _scaled_feeds(feeds, random, VARIATION)
        if all(np.array_equal(variant[name], array) for name, array in feeds.items()):
            variant = {name: _rearranged(array, random) for name, array in feeds.items()}
        yield variant


def _rearranged(array: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return random.permutation(np.ravel(array)).reshape(np.shape(array))
