"""Runs one backend case in an executor and says what became of it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from backend_cases import Case
from conformance_peer import Peer

from mnnconvert.errors import Diagnostic, MnnConvertError
from mnnconvert.frontends.onnx.importer import Importer
from mnnconvert.passes.pipeline import run_pipeline
from mnnconvert.runtime_ref.session import load, widened
from mnnconvert.schema.writer import write_model

REFUSALS = {
    "unsupported-op", "unsupported-attribute", "unsupported-type", "int64-range", "runtime-defect", "bad-input",
}  # fmt: skip
Arrays = dict[str, np.ndarray]
OUTCOMES = ("right", "refused", "wrong", "crash")
LARGEST = 16  # elements of a parameter
# Two units in the last place, as the expected value is rounded itself, and so were operands on the way to it.
ROUNDED = {"float16": 2.0**-9, "bfloat16": 2.0**-6}
NOISE = 2.0**-20  # of the largest expected value: sums cancel to zero in one order and nearly so in another


@dataclass(frozen=True)
class Result:
    """One of `OUTCOMES`; `reason` says of a refusal "reference: sentence", otherwise what was seen.

    `stored` holds if the case had to have its parameters (see `with_stored_parameters`) in the model.
    """

    outcome: str
    reason: str = ""
    stored: bool = False


def run_case(case: Case, peer: Peer | None = None) -> tuple[Result, Result | None]:
    """What our executor, and with `peer` MNN's runtime, make of a case.

    Both read the file for the released runtime. Where that is refused because the runtime would compute it wrongly, our
    executor reads the file for a runtime that does not. A refused case is tried again with its parameters stored.
    """
    ours, theirs = _run(case, peer)
    stored = with_stored_parameters(case) if "refused" in (ours.outcome, theirs and theirs.outcome) else None
    if stored is None:
        return ours, theirs
    again, theirs_again = _run(stored, peer)
    return _better(ours, again), theirs and theirs_again and _better(theirs, theirs_again)


def _better(first: Result, again: Result) -> Result:
    """The second result if it says more than the first; of two refusals the second says what is really missing."""
    return first if first.outcome != "refused" else replace(again, stored=again.outcome != "refused")


def with_stored_parameters(case: Case) -> Case | None:
    """The case with its small inputs (an axis, scales, a target shape) stored in the model; None if it has none."""
    feeds = [feeds for feeds, _ in case.runs]
    small = [n for n in feeds[0] if all(f[n].ndim <= 1 and f[n].size <= LARGEST for f in feeds)]
    small = [n for n in small if all(np.array_equal(f[n], feeds[0][n]) for f in feeds)]
    if not small:
        return None
    model = onnx.ModelProto.FromString(case.model.SerializeToString())
    kept = [i for i in model.graph.input if i.name not in small]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(feeds[0][n], n) for n in small)
    runs = tuple(({k: v for k, v in f.items() if k not in small}, want) for f, want in case.runs)
    return replace(case, model=model, runs=runs)


def _run(case: Case, peer: Peer | None) -> tuple[Result, Result | None]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.mnn"
        refused = _converted(case, path, "mnn-3.6.1")
        theirs = refused or _judged(case, lambda feeds: peer.run(path, feeds)) if peer is not None else None
        if refused is not None and refused.reason.startswith("runtime-defect"):
            refused = _converted(case, path, "none")
        ours = refused or _judged(case, lambda feeds: [load(path).run(f) for f in feeds])
    unfit = theirs is not None and ours.reason.startswith("bad-input")  # what cannot be fed is fed to neither
    return ours, ours if unfit else theirs


def _converted(case: Case, path: Path, target: str) -> Result | None:
    """Write the file; the result if there is none."""
    try:
        graph = Importer(case.model, path.parent).run()
        run_pipeline(graph, target=target)
        write_model(graph, path)
    except Exception as error:  # noqa: BLE001  whatever comes out is what is reported
        return _failure(error)
    return None


def _judged(case: Case, run: Callable[[list[Arrays]], list[Arrays]]) -> Result:
    try:
        results = run([feeds for feeds, _ in case.runs])
    except Exception as error:  # noqa: BLE001  as above
        return _failure(error)
    wrong = [
        f"{name}: {difference}"
        for got, (_, want) in zip(results, case.runs, strict=True)
        for name, expected in want.items()
        if (difference := _difference(got[name], expected, case))
    ]
    return Result("wrong", wrong[0]) if wrong else Result("right")


def _failure(error: Exception) -> Result:
    if not isinstance(error, MnnConvertError) or not error.diagnostics:
        return Result("crash", f"{type(error).__name__}: {error}")
    first: Diagnostic = error.diagnostics[0]
    outcome = "refused" if all(d.reference in REFUSALS for d in error.diagnostics) else "crash"
    return Result(outcome, f"{first.reference}: {first.message}")


def _difference(got: np.ndarray, want: np.ndarray, case: Case) -> str:
    """Why an output is not the expected one; empty if it is. Integers of any width and bools compare by value."""
    if got.shape != want.shape:
        return f"shape {list(got.shape)} instead of {list(want.shape)}"
    tolerance, want = _tolerance(want, case), widened(want)
    if (got.dtype.kind == "f") != (want.dtype.kind == "f"):
        return f"{got.dtype} instead of {want.dtype}"
    exact = want.dtype.kind != "f"
    kind = np.int64 if exact else np.float64
    rtol, atol = (0.0, 0.0) if exact else tolerance
    close = np.isclose(got.astype(kind), want.astype(kind), rtol=rtol, atol=atol, equal_nan=True)
    if close.all():
        return ""
    at = tuple(int(i) for i in np.argwhere(~close)[0])
    return f"{int((~close).sum())} of {close.size} differ, at {list(at)} {got[at]} instead of {want[at]}"


def _tolerance(want: np.ndarray, case: Case) -> tuple[float, float]:
    """The relative and absolute error that a float output may have."""
    wide = want.astype(np.float64)
    largest = np.abs(wide[np.isfinite(wide)]).max(initial=0)
    return max(case.rtol, ROUNDED.get(want.dtype.name, 0.0)), max(case.atol, NOISE * largest)
