"""Proves files against each other: opens the engines, makes up inputs, applies gates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mnnconvert.errors import ConversionError, UsageError, unreadable
from mnnconvert.ir import Graph, Shape
from mnnconvert.ir.types import merge
from mnnconvert.runtime_ref.session import Session, load
from mnnconvert.verify.compare import Tolerance
from mnnconvert.verify.engines import Engine, OnnxRuntimeEngine, SessionEngine, TensorInfo
from mnnconvert.verify.first_call import at_first_call
from mnnconvert.verify.gates import evaluate, read_gates
from mnnconvert.verify.inputs import ladder, load_npz
from mnnconvert.verify.litert_engine import LiteRtEngine
from mnnconvert.verify.mnn_engine import MnnEngine
from mnnconvert.verify.verification import VerificationResult, verify_engines

Feeds = Mapping[str, Any]
ENGINES: dict[str, Callable[..., Engine]] = {
    "ONNX": OnnxRuntimeEngine, "TFLITE": LiteRtEngine, "MNN": lambda path, **_: SessionEngine(load(path)),
}  # fmt: skip


def open_source(path: Path, framework: str = "", *, threads: int = 1, optimize: bool = False) -> Engine:
    """onnxruntime for ONNX, LiteRT for TFLite, our executor for MNN; `source-engine-missing` for anything else.

    Where the framework is not given, the suffix tells it. `optimize` lets the engine be as fast as it can.
    """
    try:
        path.stat()
    except OSError as error:
        raise unreadable(path, error) from error
    open_engine = ENGINES.get(framework or path.suffix.lower()[1:].upper())
    if open_engine is not None:
        return open_engine(path, threads=threads, optimize=optimize)
    raise ConversionError.of(
        "source-engine-missing", f"no engine here runs '{path.name}'", hint="an .onnx, .tflite or .mnn file", file=path
    )


def verify_files(
    source: Path, mnn: Path, inputs: Any, gates: Any, *, tolerance: float, engine: str | None, seed: int
) -> VerificationResult:
    """See `mnnconvert.verify`. Raises GateError when a gate is missed."""
    rules = read_gates(gates) if gates is not None else []
    candidate = open_candidate(mnn, engine)
    reference = at_first_call(open_source(source), candidate)
    feeds = choose_feeds(reference, candidate, inputs, seed)
    result = verify_engines(reference, candidate, feeds, Tolerance(tolerance))
    if rules:
        missed = [r for r in evaluate(rules, [run.comparison for run in result.runs if run.comparison]) if not r.passed]
        result = VerificationResult(result.reference, result.candidate, result.tolerance, result.runs, tuple(missed))
    return result


def open_candidate(mnn: Path, engine: str | None) -> Engine:
    """What runs the MNN file: our executor, or MNN's own runtime for "mnn"."""
    if engine not in (None, "mnnconvert", "mnn"):
        raise UsageError.of("unsupported-backend", f"there is no engine '{engine}'", hint="mnnconvert or mnn")
    return MnnEngine(mnn) if engine == "mnn" else SessionEngine(load(mnn))


def choose_feeds(reference: Engine, candidate: Engine, inputs: Any, seed: int) -> list[Feeds | Iterable[Feeds]]:
    """The given arrays, or seeded random ones: at two sizes when both models leave sizes open."""
    infos = _common_inputs(reference, candidate)
    if inputs is not None:
        return [inputs if isinstance(inputs, Mapping) else load_npz(inputs, infos)]
    if not infos:
        return [{}]
    first: list[Feeds | Iterable[Feeds]] = [ladder(infos, seed)]
    dynamic = any(not isinstance(d, int) for info in infos for d in info.shape or ("?",))
    return [*first, ladder(infos, seed + 1, variant=1)] if dynamic else first


def _common_inputs(reference: Engine, candidate: Engine) -> list[TensorInfo]:
    """The inputs of the reference, with the sizes that the candidate fixes."""
    fixed = {info.name: info.shape for info in candidate.inputs}
    return [replace(info, shape=_common_shape(info.shape, fixed.get(info.name, ()))) for info in reference.inputs]


def _common_shape(shape: Shape | None, fixed: Shape | None) -> Shape | None:
    """onnxruntime shows an unknown rank as no axes at all."""
    return None if shape == () and fixed is None else merge(shape, fixed)


def verify_graph(reference: Engine, graph: Graph, inputs: Any, tolerance: float, seed: int) -> VerificationResult:
    """A graph in memory, run by our executor, against a source engine."""
    candidate = SessionEngine(Session(graph))
    reference = at_first_call(reference, candidate)
    return verify_engines(reference, candidate, choose_feeds(reference, candidate, inputs, seed), Tolerance(tolerance))


def recorded_case(folder: Path, outputs: bool = True) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Inputs and (where wanted) expected outputs of MNN's test folder.

    `input.json` lists `inputs` (name, shape) and `outputs` (names); `NAME.txt` holds the numbers of each.
    """
    import json

    path = folder / "input.json"
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
        inputs = {i["name"]: tuple(int(d) for d in i["shape"]) for i in description["inputs"]}
        names = [str(o) for o in description["outputs"]] if outputs else []
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError.of("bad-input", f"'{path}' does not describe a test: {error}", file=path) from error
    feeds = {name: _shaped(folder, name, shape) for name, shape in inputs.items()}
    return feeds, {name: _numbers(folder, name) for name in names}


def _shaped(folder: Path, name: str, shape: tuple[int, ...]) -> np.ndarray:
    numbers = _numbers(folder, name)
    try:
        return numbers.reshape(shape)
    except ValueError:
        raise UsageError.of(
            "bad-input", f"'{name}.txt' has {numbers.size} numbers, not those of {list(shape)}", file=folder
        ) from None


def _numbers(folder: Path, name: str) -> np.ndarray:
    path = folder / f"{name}.txt"
    try:
        return np.array(path.read_text().split(), dtype=np.float64)
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:
        raise UsageError.of("bad-input", f"'{path}' holds something that is no number", file=path) from error


def check_recorded(session: Session, folder: Path, threshold: float) -> list[str]:
    """What differs by more than `threshold` of the largest expected value; shapes are compared by element count."""
    feeds, expected = recorded_case(folder)
    typed = {i.name: feeds[i.name].astype(i.dtype) for i in session.inputs if i.name in feeds}
    got = session.run(typed)
    problems = []
    for name, want in expected.items():
        if name not in got:
            problems.append(f"the model has no output '{name}'")
        elif got[name].size != want.size:
            problems.append(f"'{name}' has {got[name].size} elements instead of {want.size}")
        else:
            error = float(np.abs(got[name].reshape(-1).astype(np.float64) - want).max(initial=0))
            largest = float(np.abs(want).max(initial=0))
            if not error <= threshold * largest:
                problems.append(
                    f"'{name}' is off by {error:.3g} (largest value {largest:.3g}, allowed {threshold:g} of it)"
                )
    return problems
