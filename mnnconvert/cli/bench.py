"""`mnnconvert bench MNN [--vs SRC]`: how long one run takes, alone or against the source engine; `--op` times one op.

Both engines live in one process, get the same inputs and threads, and take turns (A B A B), so that a machine that
slows down or warms up slows both. Medians are reported, as single runs are disturbed in one direction only.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from mnnconvert.cli.arrays import read_inputs
from mnnconvert.cli.output import Output, size
from mnnconvert.cli.parser import Arguments, Syntax
from mnnconvert.cli.run import (
    BACKEND,
    INPUT,
    PRECISION,
    SEED,
    STRICT,
    TUNE,
    complete_with_note,
    note_fallbacks,
    session_options,
)
from mnnconvert.errors import UsageError
from mnnconvert.option_types import Option
from mnnconvert.options import COMMON, OPTIONS

if TYPE_CHECKING:
    from mnnconvert.ir import Graph
    from mnnconvert.runtime_ref.session import OpTime, Session
    from mnnconvert.verify.engines import Engine

PROFILED = 5  # runs, of which the median of each kernel is shown
LONGEST = 30  # rows of a profile that are shown; --json has all

TELLING = tuple(option for option in OPTIONS if option.field in ("prototxt", "signature"))

SYNTAX = Syntax(
    usage="mnnconvert bench MNN [--vs SRC] [--profile] [--threads N] [--backend NAME] [--rounds N]\n"
    "       mnnconvert bench --op NAME [--shape 1x64x56x56,64x64x3x3] [--set pads=1,1,1,1]...",
    summary="Time a model: the median of many runs; --vs times the source engine in turn with it. --op times one op.",
    options=(
        Option("--vs", "vs", "path", "the source model, run by its own engine", metavar="SRC"),
        *TELLING,
        Option("--threads", "threads", "int", "threads of each engine", default=1, low=1, metavar="N"),
        BACKEND,
        replace(PRECISION, default="fast"),
        TUNE,
        STRICT,
        Option("--profile", "profile", "flag", "time by op, by layer and by kernel", default=False),
        Option("--op", "op", "text", "time one op against its numpy definition", metavar="NAME"),
        Option("--shape", "shape", "text", "sizes of the operands of --op", metavar="AxB,CxD"),
        Option("--set", "set", "texts", "an attribute of --op (repeatable)", metavar="NAME=VALUE"),
        Option("--rounds", "rounds", "int", "timed runs of each engine", default=20, low=1, metavar="N"),
        Option("--warmup", "warmup", "int", "runs before timing starts", default=3, low=0, metavar="N"),
        INPUT,
        SEED,
        *COMMON,
    ),
    words=("MNN",),
    examples=(
        "mnnconvert bench m.mnn --threads 2 --profile",
        "mnnconvert bench m.mnn --vs m.onnx",
        "mnnconvert bench --op Convolution --shape 1x64x56x56,64x64x3x3 --set pads=1,1,1,1",
    ),
)


def run(arguments: Arguments, out: Output) -> int:
    if arguments.text("op") is not None:
        return _bench_op(arguments, out)
    if not arguments.words:
        raise UsageError.of("missing-option", "There is no model to time.", hint=f"Usage: {SYNTAX.usage}")
    from mnnconvert.verification import common_inputs

    session, engines = _engines(arguments)
    # The source knows the names of open sizes and its own element types, so it decides what the inputs are.
    feeds = read_inputs(arguments.texts("input"))
    feeds = complete_with_note(feeds, common_inputs(engines[-1], engines[0]), arguments.number("seed"), out)
    seconds = take_turns(engines, feeds, arguments.number("rounds"), arguments.number("warmup"), out)
    rows = [summarize(engine.name, times) for engine, times in zip(engines, seconds, strict=True)]
    document: dict[str, Any] = {"ok": True, "exit_code": 0, "threads": arguments["threads"], "engines": rows}
    if len(rows) == 2:
        document["speedup"] = rows[1]["median_ms"] / rows[0]["median_ms"]
    note_fallbacks(session, out)
    times = profile(session, feeds) if arguments["profile"] else []
    if times:
        document["profile"] = [asdict(row) for row in times]
        document["profile_by_op"] = by_op(times)
    out.data(document)
    out.table(("Engine", ">Median ms", ">p10 ms", ">p90 ms", ">Runs"), [tuple(row.values()) for row in rows])
    if len(rows) == 2:
        out.result(_verdict(rows, document["speedup"]))
    if times:
        show_profile(times, out)
    return 0


def profile(session: Session, feeds: Mapping[str, np.ndarray]) -> list[OpTime]:
    """The median time of each piece of work in several runs, the slowest first."""
    runs = [session.profile(feeds) for _ in range(PROFILED)]
    seconds = np.median([[row.seconds for row in run] for run in runs], axis=0)
    rows = [replace(row, seconds=float(spent)) for row, spent in zip(runs[0], seconds, strict=True)]
    return sorted(rows, key=lambda row: -row.seconds)


def by_op(rows: Sequence[OpTime]) -> list[dict[str, Any]]:
    """For each kind of op: pieces of work, their seconds and result bytes, and the share of the run; slowest first."""
    total = sum(row.seconds for row in rows) or 1.0
    kinds: dict[str, list[OpTime]] = {}
    for row in rows:
        kinds.setdefault(row.kind, []).append(row)
    sums = [
        {"op": kind, "calls": len(own), "seconds": (spent := sum(row.seconds for row in own)),
         "nbytes": sum(row.nbytes for row in own), "share": spent / total}
        for kind, own in kinds.items()
    ]  # fmt: skip
    return sorted(sums, key=lambda row: -float(row["seconds"]))


def show_profile(rows: Sequence[OpTime], out: Output) -> None:
    """What each kind of op takes in all, the slowest pieces of work, and what each kernel takes."""
    total = sum(row.seconds for row in rows) or 1.0
    out.table(("Op", ">Calls", ">ms", ">Share", ">Results"), [
        (r["op"], r["calls"], f"{r['seconds'] * 1e3:.3f}", f"{r['share']:.1%}", size(r["nbytes"])) for r in by_op(rows)
    ], title="\nBy op (ops computed along with another count as part of it)")  # fmt: skip
    kernels: dict[str, list[float]] = {}
    for row in rows:
        kernels.setdefault(row.kernel, []).append(row.seconds)
    out.table(("Node", "Op", "Kernel", ">ms", ">Share"), [
        (_title(r), r.kind, r.kernel, f"{r.seconds * 1e3:.3f}", f"{r.seconds / total:.1%}") for r in rows[:LONGEST]
    ], title="\nBy layer")  # fmt: skip
    if len(rows) > LONGEST:
        rest = sum(r.seconds for r in rows[LONGEST:])
        out.detail(f"... and {len(rows) - LONGEST} more, {rest * 1e3:.3f} ms in all; --json has them.")
    sums = sorted(((kernel, len(spent), sum(spent)) for kernel, spent in kernels.items()), key=lambda row: -row[2])
    out.table(("Kernel", ">Calls", ">ms", ">Share"), [(k, n, f"{s * 1e3:.3f}", f"{s / total:.1%}") for k, n, s in sums],
              title="\nBy kernel")  # fmt: skip


def _title(row: OpTime) -> str:
    """The name of an op, and how many others are computed along with it."""
    return f"{row.name} +{len(row.along)}" if row.along else row.name


def _bench_op(arguments: Arguments, out: Output) -> int:
    """One op on random operands; all but the first are constants, as weights are."""
    from mnnconvert.runtime_ref.session import Session
    from mnnconvert.verify.engines import SessionEngine

    graph, feeds = one_op(str(arguments["op"]), arguments.text("shape"), arguments.texts("set"))
    threads = arguments.number("threads")
    compiled = Session(graph, threads=threads, **session_options(arguments))
    engines: list[Engine] = [
        SessionEngine(compiled, f"mnnconvert {compiled.backend}"),
        SessionEngine(Session(graph, "reference"), "numpy"),
    ]
    seconds = take_turns(engines, feeds, arguments.number("rounds"), arguments.number("warmup"), out)
    rows = [summarize(engine.name, times) for engine, times in zip(engines, seconds, strict=True)]
    times = profile(compiled, feeds)
    out.data(
        {"ok": True, "exit_code": 0, "threads": threads, "engines": rows, "profile": [asdict(row) for row in times]}
    )
    out.table(("Engine", ">Median ms", ">p10 ms", ">p90 ms", ">Runs"), [tuple(row.values()) for row in rows])
    show_profile(times, out)
    return 0


def one_op(name: str, shapes: str | None, attributes: Sequence[str]) -> tuple[Graph, dict[str, np.ndarray]]:
    """A graph of one op and its feeds; its first sample where no shapes are given. UsageError for what does not fit."""
    import mnnconvert.ops  # noqa: F401  (registers the ops)
    from mnnconvert.errors import ConversionError
    from mnnconvert.ir import Builder, Graph
    from mnnconvert.ops.base import OPS, attribute_names

    cls = OPS.get(name)
    if cls is None or not cls.samples:
        raise UsageError.of("bad-option-value", f"There is no op '{name}' to time.", hint=", ".join(sorted(OPS)))
    sample = next(iter(cls.samples.for_op(attribute_names(cls))))
    given = dict(text.partition("=")[::2] for text in attributes)
    rng = np.random.default_rng(0)
    arrays = sample.arrays()
    if shapes:
        types = [a.dtype for a in arrays] + [np.dtype(np.float32)] * shapes.count(",")
        arrays = [_drawn(rng, _sizes(s), dtype) for s, dtype in zip(shapes.split(","), types, strict=False)]
    try:
        values = {key: ast.literal_eval(text) for key, text in given.items()}
        op = cls(**(values if shapes else {**sample.attributes, **values}))
        builder = Builder(Graph())
        operands = [builder.input("x", arrays[0].dtype, arrays[0].shape)]
        operands += [builder.constant(a, f"w{i}") for i, a in enumerate(arrays[1:])]
        results = op.infer(*(v.spec for v in operands))
        count = len(results) if isinstance(results, tuple) else 1
        for value in builder.add(op, *operands, names=[f"y{i}" for i in range(count)]):
            builder.output(value)
    except (ValueError, TypeError, SyntaxError, ConversionError) as error:
        raise UsageError.of(
            "bad-option-value", f"{name} cannot be made: {error}", hint=f"{attribute_names(cls)}"
        ) from error
    return builder.graph, {"x": arrays[0]}


def _drawn(rng: np.random.Generator, sizes: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Noise; bytes of a sample stay bytes, and everything else is float32."""
    if dtype.itemsize == 1:
        return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, sizes, dtype, endpoint=True)
    return rng.standard_normal(sizes).astype(np.float32)


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(d) for d in text.split("x")) if text else ()
    except ValueError as error:
        raise UsageError.of("bad-option-value", f"'{text}' is not a shape such as 1x64x56x56") from error


def _engines(arguments: Arguments) -> tuple[Session, list[Engine]]:
    """Our session, and the engines: ours first, then the source's if it was asked for."""
    from mnnconvert import api
    from mnnconvert.verification import open_source
    from mnnconvert.verify.engines import SessionEngine

    threads = arguments.number("threads")
    session = api.load(arguments.words[0], threads=threads, **session_options(arguments))
    engines: list[Engine] = [SessionEngine(session, f"mnnconvert {arguments['backend']}")]
    source = arguments.text("vs")
    if source is None and _told(arguments):
        flags = ", ".join(f"--{name}" for name in _told(arguments))
        raise UsageError.of("option-without-effect", f"{flags} is for the source of --vs", hint="name it with --vs SRC")
    if source is not None:
        engines.append(open_source(Path(source), threads=threads, optimize=True, chosen=_chosen(arguments)))
    return session, engines


def _chosen(arguments: Arguments) -> dict[str, Any]:
    """What tells the source beside its file: options, and what the converted file says of the inputs of a script."""
    from mnnconvert.sources import check_told, guess_framework, inputs_of_script

    source, mnn = Path(str(arguments["vs"])), Path(arguments.words[0])
    told = _told(arguments)
    check_told(told, [guess_framework(source)])
    inputs = inputs_of_script(source, mnn)
    return {**told, **({} if inputs is None else {"inputs": inputs})}


def _told(arguments: Arguments) -> dict[str, str]:
    given = {option.field: arguments.text(option.field) for option in TELLING}
    return {name: text for name, text in given.items() if text is not None}


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
