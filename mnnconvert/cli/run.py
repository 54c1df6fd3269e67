"""`mnnconvert run MNN`: run a model and look at, or keep, what it gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mnnconvert.cli.arrays import complete, read_inputs, write_arrays
from mnnconvert.cli.output import Output
from mnnconvert.cli.parser import Arguments, Syntax
from mnnconvert.cli.summary import shape
from mnnconvert.option_types import Option
from mnnconvert.options import COMMON

if TYPE_CHECKING:
    from mnnconvert.runtime_ref.session import Session
    from mnnconvert.verify.engines import TensorInfo

BACKEND = Option(
    "--backend",
    "backend",
    "choice",
    "what computes",
    default="cpu",
    choices=("cpu", "opencl", "reference"),
    metavar="NAME",
)
PRECISION = Option(
    "--precision",
    "precision",
    "choice",
    "fast: round activations to 8 bits in products with quantized weights (cpu); half: keep floats as float16 (opencl)",
    default="exact",
    choices=("exact", "fast", "half"),
    metavar="NAME",
)
TUNE = Option(
    "--tune", "tune", "flag", "opencl: measure which kernels are the fastest here, and remember it", default=False
)
STRICT = Option(
    "--strict-backend", "strict_backend", "flag", "opencl: refuse ops that have no kernel there", default=False
)
INPUT = Option(
    "--input",
    "input",
    "texts",
    "an input (repeatable), or FILE.npz with several; made up otherwise",
    metavar="NAME=FILE.npy",
)
SEED = Option("--seed", "seed", "int", "seed of made-up inputs", default=0, low=0, metavar="N")

SYNTAX = Syntax(
    usage="mnnconvert run MNN [--input NAME=FILE.npy]... [--backend NAME] [--out DIR]",
    summary="Run a model and show its outputs; --out keeps them as .npy files.",
    options=(
        INPUT,
        BACKEND,
        PRECISION,
        TUNE,
        STRICT,
        Option("--out", "out", "path", "folder for the outputs, one .npy file each", metavar="DIR"),
        SEED,
        *COMMON,
    ),
    words=("MNN",),
    required=1,
    examples=("mnnconvert run m.mnn --input image=cat.npy --out answers", "mnnconvert run m.mnn --input inputs.npz"),
)


def run(arguments: Arguments, out: Output) -> int:
    from mnnconvert import api
    from mnnconvert.verify.engines import SessionEngine

    feeds = read_inputs(arguments.texts("input"))
    session = api.load(arguments.words[0], **session_options(arguments))
    engine = SessionEngine(session)
    feeds = complete_with_note(feeds, engine.inputs, arguments.number("seed"), out)
    outputs = engine.run(feeds)
    note_fallbacks(session, out)
    folder = arguments.text("out")
    paths = write_arrays(outputs, folder) if folder else {}
    described = [describe(name, array, paths.get(name)) for name, array in outputs.items()]
    out.data({"ok": True, "exit_code": 0, "outputs": described})
    rows = [[d["name"], d["dtype"], shape(array.shape), d["minimum"], d["maximum"], d["mean"], d["non_finite"]]
            for d, array in zip(described, outputs.values(), strict=True)]  # fmt: skip
    out.table(("Output", "Type", "Shape", ">Min", ">Max", ">Mean", ">NaN/Inf"), rows)
    for path in paths.values():
        out.note(f"wrote {path}")
    return 0


def session_options(arguments: Arguments) -> dict[str, Any]:
    """How a session is to compute, as `api.load` takes it."""
    return {
        "backend": str(arguments["backend"]),
        "precision": str(arguments["precision"]),
        "tune": bool(arguments["tune"]),
        "strict": bool(arguments["strict_backend"]),
    }


def note_fallbacks(session: Session, out: Output) -> None:
    """Say which ops the backend has no kernel for."""
    if session.fallbacks:
        kinds = ", ".join(f"{kind} ({count})" for kind, count in sorted(session.fallbacks.items()))
        out.note(f"Computed on the CPU, without an OpenCL kernel: {kinds}.")


def complete_with_note(feeds: dict, inputs: Sequence[TensorInfo], seed: int, out: Output) -> dict[str, np.ndarray]:
    """`feeds` with made-up arrays where it lacks an input, and a note that says which."""
    feeds, absent = complete(feeds, inputs, seed)
    if absent:
        out.note(f"Made-up values for {', '.join(absent)} (seed {seed}).")
    return feeds


def describe(name: str, array: np.ndarray, path: str | None) -> dict[str, object]:
    """What one output holds: range and mean of its finite numbers, how many are not finite, and where it was kept."""
    numbers = np.asarray(array, dtype=np.float64)
    finite = numbers[np.isfinite(numbers)]
    return {
        "name": name,
        "dtype": str(array.dtype),
        "shape": list(array.shape),
        "minimum": float(finite.min()) if finite.size else None,
        "maximum": float(finite.max()) if finite.size else None,
        "mean": float(finite.mean()) if finite.size else None,
        "non_finite": int(numbers.size - finite.size),
        "file": path,
    }
