"""`mnnconvert bench MNN [--vs SRC]`: how long one run takes, alone or against the source engine.

Both engines live in one process, get the same inputs and threads, and take turns (A B A B), so that a machine that
slows down or warms up slows both. Medians are reported, as single runs are disturbed in one direction only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from mnnconvert.cli.arrays import read_inputs
from mnnconvert.cli.output import Output
from mnnconvert.cli.parser import Arguments, Syntax
from mnnconvert.cli.run import BACKEND, INPUT, SEED, complete_with_note
from mnnconvert.option_types import Option
from mnnconvert.options import COMMON

if TYPE_CHECKING:
    from mnnconvert.verify.engines import Engine

SYNTAX = Syntax(
    usage="mnnconvert bench MNN [--vs SRC] [--threads N] [--backend NAME] [--rounds N]",
    summary="Time a model: the median of many runs; --vs times the source engine in turn with it.",
    options=(
        Option("--vs", "vs", "path", "the ONNX source, run by onnxruntime", metavar="SRC"),
        Option("--threads", "threads", "int", "threads of each engine", default=1, low=1, metavar="N"),
        BACKEND,
        Option("--rounds", "rounds", "int", "timed runs of each engine", default=20, low=1, metavar="N"),
        Option("--warmup", "warmup", "int", "runs before timing starts", default=3, low=0, metavar="N"),
        INPUT,
        SEED,
        *COMMON,
    ),
    words=("MNN",),
    required=1,
    examples=("mnnconvert bench m.mnn --threads 2", "mnnconvert bench m.mnn --vs m.onnx"),
)


def run(arguments: Arguments, out: Output) -> int:
    engines = _engines(arguments)
    # The source knows the names of open sizes and its own element types, so it decides what the inputs are.
    feeds = read_inputs(arguments.texts("input"))
    feeds = complete_with_note(feeds, engines[-1].inputs, arguments.number("seed"), out)
    seconds = take_turns(engines, feeds, arguments.number("rounds"), arguments.number("warmup"), out)
    rows = [summarize(engine.name, times) for engine, times in zip(engines, seconds, strict=True)]
    document: dict[str, Any] = {"ok": True, "exit_code": 0, "threads": arguments["threads"], "engines": rows}
    if len(rows) == 2:
        document["speedup"] = rows[1]["median_ms"] / rows[0]["median_ms"]
    out.data(document)
    out.table(("Engine", ">Median ms", ">p10 ms", ">p90 ms", ">Runs"), [tuple(row.values()) for row in rows])
    if len(rows) == 2:
        out.result(_verdict(rows, document["speedup"]))
    return 0


def _engines(arguments: Arguments) -> list[Engine]:
    """Ours first, then the source's if it was asked for."""
    from mnnconvert import api
    from mnnconvert.verify.engines import OnnxRuntimeEngine, SessionEngine

    threads, backend = arguments.number("threads"), str(arguments["backend"])
    session = api.load(arguments.words[0], backend=backend, threads=threads)
    engines: list[Engine] = [SessionEngine(session, f"mnnconvert {backend}")]
    source = arguments.text("vs")
    if source is not None:
        engines.append(OnnxRuntimeEngine(source, threads=threads, optimize=True))
    return engines


def take_turns(
    engines: Sequence[Engine], feeds: Mapping[str, np.ndarray], rounds: int, warmup: int, out: Output
) -> list[list[float]]:
    """Seconds of `rounds` runs of each engine, taken in turns after `warmup` untimed ones."""
    prepared = [_in_types_of(engine, feeds) for engine in engines]
    seconds: list[list[float]] = [[] for _ in engines]
    for count in range(-warmup, rounds):
        for engine, own, times in zip(engines, prepared, seconds, strict=True):
            start = perf_counter()
            engine.run(own)
            if count >= 0:
                times.append(perf_counter() - start)
        out.progress("timing", (count + warmup + 1) / (rounds + warmup))
    return seconds


def _in_types_of(engine: Engine, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The feeds in the engine's own element types, so that no run pays for a conversion."""
    types = {info.name: info.dtype for info in engine.inputs}
    return {name: array.astype(types.get(name) or array.dtype, copy=False) for name, array in feeds.items()}


def summarize(name: str, seconds: Sequence[float]) -> dict[str, Any]:
    """Median and tenth and ninetieth percentile in milliseconds."""
    low, median, high = np.percentile(np.asarray(seconds) * 1000, (10, 50, 90))
    return {"name": name, "median_ms": float(median), "p10_ms": float(low), "p90_ms": float(high), "runs": len(seconds)}


def _verdict(rows: Sequence[Mapping[str, Any]], speedup: float) -> str:
    ours, theirs = rows[0]["name"], rows[1]["name"]
    if speedup >= 1:
        return f"{ours} is {speedup:.2f} times as fast as {theirs}."
    return f"{ours} is {1 / speedup:.2f} times slower than {theirs}."
