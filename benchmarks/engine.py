"""How fast our compiled engine runs models, against onnxruntime and the released MNN 3.6.1.

    make bench                                                 everything as a table
    .venv/bin/python benchmarks/engine.py --case bert --json   a part, as data
    .venv/bin/python benchmarks/engine.py --record             keep the ratios in benchmarks/ratios.json
    .venv/bin/python benchmarks/engine.py --check              fail where a ratio is worse than the one that was kept

Every engine has a process of its own (engine_worker.py) and times itself. A sample is a group of runs of at least 100
milliseconds: process CPU time per run with one thread, which other processes hardly change, and the clock with two. The
engines take turns, sample by sample; samples during which others used a processor for more than 15 % of the time are
taken again; a figure is the median. OpenVINO takes part where it is installed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import engine_models
import numpy as np
import onnx
import onnxruntime
from engine_worker import Job

ROOT = Path(__file__).parents[1]
SCRATCH = ROOT / ".bench/engine"
RATIOS = ROOT / "benchmarks/ratios.json"
WORKER = Path(__file__).with_name("engine_worker.py")
ONNXRUNTIME, MNN, OPENVINO = "onnxruntime", "MNN", "OpenVINO"

GROUP = 0.1  # seconds of a sample
FOREIGN = 0.15  # processors that others may use during a sample; the kernel counts in steps of 10 ms
PAUSE = 0.02  # seconds before a sample, in which threads of the engine before it fall asleep
ATTEMPTS = 3  # how often a round may be repeated because of others
SLACK = 1.15  # how much worse than recorded a ratio may be

Arrays = dict[str, np.ndarray]
Feeds = Callable[[np.random.Generator], Arrays]


@dataclass(frozen=True)
class Case:
    """A model and what to feed it.

    `make` gives the model; `path` is a file of `.models` instead. `coded` gives onnxruntime's form of a model whose
    weights we and MNN store in 4 bits. `tiny` is a small form of `make` for trying the benchmark itself; `tolerance`
    says how far answers may be from onnxruntime's, as a part of the largest value.
    """

    name: str
    feeds: Feeds
    make: Callable[[], onnx.ModelProto] | None = None
    path: str | None = None
    coded: Callable[[], onnx.ModelProto] | None = None
    tiny: Case | None = None
    tolerance: float = 1e-3

    @property
    def precision(self) -> str:
        return "fast" if self.coded else "exact"


def normal(name: str, *shape: int) -> Feeds:
    return lambda random: {name: random.standard_normal(shape, np.float32)}


def tokens(sequence: int, width: int) -> Feeds:
    return lambda random: normal("x", 1, sequence, width)(random) | {"mask": np.ones((1, sequence), np.int64)}


def speech(random: np.random.Generator) -> Arrays:
    """Half a second is 16 such windows."""
    state, rate = np.zeros((2, 1, 128), np.float32), np.array(16000)
    return {"input": 0.1 * random.standard_normal((1, 576), np.float32), "state": state, "sr": rate}


def coded_products(name: str, rows: int, layers: int = 1, size: int = 2048) -> Case:
    """Products with 4-bit weights, activations rounded to 8 bits by every engine."""
    return Case(
        name,
        normal("x", rows, size),
        make=lambda: engine_models.products(rows, layers, size),
        coded=lambda: engine_models.products(rows, layers, size, coded=True),
        tiny=coded_products(name, min(rows, 5), min(layers, 2), 128) if size > 128 else None,
        tolerance=0.2 if layers > 1 else 0.05,
    )


SMALL_BERT = engine_models.Bert(layers=2, width=32, heads=4, inner=64, sequence=9)
SMALL_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2))
OCR = "rapidocr_onnxruntime/models/ch_PP-OCRv4"

CASES = (
    Case("resnet50", normal("gpu_0/data_0", 1, 3, 224, 224), make=engine_models.resnet50),
    Case(
        "mobilenet_v2",
        normal("x", 1, 3, 224, 224),
        make=engine_models.mobilenet_v2,
        tiny=Case("mobilenet_v2", normal("x", 1, 3, 32, 32), lambda: engine_models.mobilenet_v2(32, SMALL_STAGES)),
    ),
    Case(
        "bert",
        tokens(128, 384),
        make=engine_models.bert,
        tiny=Case("bert", tokens(9, 32), lambda: engine_models.bert(SMALL_BERT)),
    ),
    Case("ocr_det", normal("x", 1, 3, 480, 640), path=f"{OCR}_det_infer.onnx"),
    Case("ocr_rec", normal("x", 1, 3, 48, 320), path=f"{OCR}_rec_infer.onnx"),
    coded_products("gemv", rows=1),
    coded_products("gemv_x32", rows=1, layers=32),
    coded_products("prefill", rows=64),
    Case("silero_vad", speech, path="silero_vad/data/silero_vad.onnx"),
)


@dataclass(frozen=True)
class Files:
    """The source for onnxruntime, the converted file for us and MNN, the inputs, and how much arithmetic a run is."""

    onnx: Path
    mnn: Path
    feeds: Path
    facts: Path

    @property
    def gigaflop(self) -> float | None:
        return json.loads(self.facts.read_text())["gigaflop"]

    def job(self, engine: str, threads: int, precision: str) -> Job:
        model = self.onnx if engine in (ONNXRUNTIME, OPENVINO) else self.mnn
        return Job(engine, str(model), str(self.feeds), threads, precision)


def prepare(case: Case, folder: Path) -> Files:
    """The files of a case; what is there already is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    files = Files(folder / "m.onnx", folder / "m.mnn", folder / "feeds.npz", folder / "facts.json")
    if not files.facts.exists():  # written last
        source = folder / "source.onnx"
        model = case.make() if case.make else onnx.load(ROOT / ".models" / str(case.path))
        onnx.save(model, source)
        _convert(source, files.mnn, ["--weightQuantBits", "4", "--weightQuantBlock", "64"] if case.coded else [])
        onnx.save(case.coded() if case.coded else model, files.onnx)
        source.unlink()
        feeds = case.feeds(np.random.default_rng(1))
        np.savez(files.feeds, **feeds)
        files.facts.write_text(json.dumps({"gigaflop": gigaflop(model, feeds)}))
    return files


def _convert(source: Path, target: Path, words: Sequence[str]) -> None:
    """In a process of its own: what this one holds would be counted for the engines."""
    command = ["-m", "mnnconvert", "--modelFile", source, "--MNNModel", target, "--verify", "never", "--quiet"]
    subprocess.run([sys.executable, *command, *words], check=True)


class Worker:
    """An engine in a process of its own, ready to run."""

    def __init__(self, job: Job):
        self.engine = job.engine
        command = [sys.executable, str(WORKER), json.dumps(asdict(job))]
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the process
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def ask(self, **request: Any) -> dict[str, float]:
        """SystemExit with what the engine said when it fails."""
        assert self._process.stdin is not None and self._process.stdout is not None  # both are pipes
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
            return json.loads(self._process.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError):
            self._process.wait()
            self._log.seek(0)
            raise SystemExit(f"{self.engine} failed:\n{self._log.read()[-2000:]}") from None


@dataclass(frozen=True)
class Figure:
    """Milliseconds per run; `calm` unless others disturbed all attempts. Peak memory of the process in 10^6 bytes."""

    milliseconds: float
    calm: bool
    megabytes: float


@dataclass
class Result:
    """Figures of one case by engine, ours first; arithmetic in 10^9 operations of a run, where it is known."""

    case: str
    threads: int
    figures: dict[str, Figure]
    gigaflop: float | None = None
    error: dict[str, float] = field(default_factory=dict)

    @property
    def ours(self) -> Figure:
        return next(iter(self.figures.values()))

    @property
    def calm(self) -> bool:
        return all(figure.calm for figure in self.figures.values())

    @property
    def ratios(self) -> dict[str, float]:
        """Our time divided by theirs: below 1 is better."""
        return {name: self.ours.milliseconds / f.milliseconds for name, f in list(self.figures.items())[1:]}

    @property
    def gigaflops(self) -> float | None:
        return self.gigaflop / self.ours.milliseconds * 1e3 if self.gigaflop else None


def run(case: Case, engines: Sequence[str], threads: int, rounds: int, folder: Path, seconds: float = GROUP) -> Result:
    """Answers are compared first: a wrong one is not worth timing."""
    files = prepare(case, folder)
    with ExitStack() as stack, tempfile.TemporaryDirectory() as scratch:
        workers = [stack.enter_context(Worker(files.job(e, threads, case.precision))) for e in engines]
        paths = {w.engine: Path(scratch) / f"{w.engine}.npz" for w in workers}
        memory = {w.engine: w.ask(do="answer", path=str(paths[w.engine]))["megabytes"] for w in workers}
        errors = _compare(case, paths)
        times = take_turns(workers, threads, rounds, seconds)
    figures = {e: Figure(*times[e], memory[e]) for e in engines}
    return Result(case.name, threads, figures, files.gigaflop, errors)


def _compare(case: Case, paths: Mapping[str, Path]) -> dict[str, float]:
    """Largest differences from onnxruntime, as a part of the largest value; SystemExit beyond the tolerance."""
    answers = {engine: _load(path) for engine, path in paths.items()}
    expected, errors = answers[ONNXRUNTIME], {}
    for engine, got in answers.items():
        errors[engine] = max(_difference(got[name], want) for name, want in expected.items())
        if not errors[engine] <= case.tolerance:
            raise SystemExit(f"{case.name}: {engine} is {errors[engine]:.1e} off, more than {case.tolerance:g}")
    return errors


def _load(path: Path) -> Arrays:
    with np.load(path) as stored:
        return {name: stored[name] for name in stored.files}


def _difference(got: np.ndarray, want: np.ndarray) -> float:
    if got.shape != want.shape:
        return math.inf
    return float(np.abs(got.astype(np.float64) - want).max() / max(np.abs(want).max(), 1e-30))


def take_turns(workers: Sequence[Worker], threads: int, rounds: int, seconds: float) -> dict[str, tuple[float, bool]]:
    """Median milliseconds by engine, and whether enough of its samples were undisturbed to take only those."""
    clock = "cpu" if threads == 1 else "wall"
    seen: dict[str, list[dict[str, float]]] = {w.engine: [] for w in workers}
    for worker in workers:
        worker.ask(do="time", seconds=seconds)  # warms up
    for _ in range(rounds * ATTEMPTS):
        for worker in workers:
            time.sleep(PAUSE)
            seen[worker.engine].append(worker.ask(do="time", seconds=seconds))
        if all(len(_calm(samples)) >= rounds for samples in seen.values()):
            break
    figures = {}
    for engine, samples in seen.items():
        calm = _calm(samples)
        enough = len(calm) >= min(rounds, 3)
        figures[engine] = 1e3 * statistics.median(s[clock] for s in (calm if enough else samples)), enough
    return figures


def _calm(samples: Iterable[Mapping[str, float]]) -> list[Mapping[str, float]]:
    return [s for s in samples if s["foreign"] <= FOREIGN]


def gigaflop(model: onnx.ModelProto, feeds: Arrays) -> float | None:
    """10^9 operations of the products and convolutions of a model; None where branches decide what is computed.

    onnxruntime tells their sizes; adds outputs to `model` for that.
    """
    graph = model.graph
    if any(a.HasField("g") for node in graph.node for a in node.attribute):
        return None
    nodes = [node for node in graph.node if node.op_type in _MULTIPLICATIONS]
    shapes = {i.name: tuple(i.dims) for i in graph.initializer} | {n: a.shape for n, a in feeds.items()}
    wanted = sorted({name for n in nodes for name in (*n.input[:2], n.output[0])} - set(shapes))
    del graph.output[:]
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    shapes |= {name: array.shape for name, array in zip(wanted, session.run(wanted, feeds), strict=True)}
    return sum(2e-9 * _MULTIPLICATIONS[n.op_type](n, shapes) for n in nodes)


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


_MULTIPLICATIONS: dict[str, Callable[[onnx.NodeProto, Mapping[str, tuple[int, ...]]], int]] = {
    "Conv": lambda n, s: math.prod(s[n.output[0]]) * math.prod(s[n.input[1]][1:]),
    "ConvTranspose": lambda n, s: math.prod(s[n.input[0]]) * math.prod(s[n.input[1]][1:]),
    "MatMul": lambda n, s: math.prod(s[n.output[0]]) * s[n.input[0]][-1],
    "Gemm": lambda n, s: math.prod(s[n.output[0]]) * s[n.input[0]][0 if _attributes(n).get("transA") else -1],
}


def peak_gigaflops() -> float | None:
    """What one core can do: the best of many short runs of fused products in registers; None without kernels."""
    from mnnconvert.runtime_ref.cpu import library

    chosen = library.library()
    if chosen is None:
        return None
    y, rounds, best = np.ones(chosen.lanes, np.float32), 100_000, math.inf
    for _ in range(40):
        started = time.perf_counter()
        chosen.call("peak_fma", y=y, rounds=rounds)
        best = min(best, time.perf_counter() - started)
    return 2e-9 * rounds * 12 * chosen.lanes / best


def level() -> str:
    """Ratios are kept per instruction set: those of one say nothing about another."""
    from mnnconvert.runtime_ref.cpu import library

    chosen = library.library()
    return chosen.level if chosen else "numpy"


def print_table(results: Sequence[Result], peak: float | None) -> None:
    from rich.console import Console
    from rich.table import Table

    others = list(results[0].ratios)
    unit = f"one core can do {peak:.0f} GFLOP/s" if peak else "no kernels"
    table = Table(title=f"ms per run, CPU time at 1 thread, else wall; ratio: ours / theirs; level {level()}, {unit}")
    columns = ["Case", "Threads", "Ours"]
    for name in others:
        columns += [name, "Ratio"]
    for column in (*columns, "GFLOP/s", "of peak", "MB", *(f"MB {name}" for name in others)):
        table.add_column(column, justify="left" if column == "Case" else "right")
    for r in results:
        cells = [r.case, str(r.threads), _cell(r.ours)]
        for name in others:
            cells += [_cell(r.figures[name]), f"{r.ratios[name]:.2f}"] if name in r.figures else ["", ""]
        cells.append(f"{r.gigaflops:.1f}" if r.gigaflops else "")
        cells.append(f"{r.gigaflops / peak / r.threads:.0%}" if r.gigaflops and peak else "")
        memory = [r.figures[name].megabytes if name in r.figures else math.nan for name in others]
        cells += [f"{m:.0f}" for m in (r.ours.megabytes, *memory)]
        table.add_row(*cells)
    Console(width=None if sys.stdout.isatty() else 180).print(table)
    if not all(r.calm for r in results):
        print("~ the machine was busy all the time: all samples were taken")


def _cell(figure: Figure) -> str:
    return f"{'' if figure.calm else '~'}{figure.milliseconds:.4g}"


def found_ratios(results: Sequence[Result]) -> dict[str, dict[str, float]]:
    """By case and threads; only those that others did not disturb."""
    return {f"{r.case}/{r.threads}": {name: round(v, 3) for name, v in r.ratios.items()} for r in results if r.calm}


def record(results: Sequence[Result], path: Path = RATIOS) -> None:
    """Keeps what was measured beside what is known of other cases and levels."""
    kept = json.loads(path.read_text()) if path.exists() else {}
    kept[level()] = dict(sorted((kept.get(level(), {}) | found_ratios(results)).items()))
    path.write_text(json.dumps(dict(sorted(kept.items())), indent=2) + "\n")


def worse(results: Sequence[Result], path: Path = RATIOS) -> list[str]:
    """A line per ratio that is more than SLACK times the one that was kept, that was never kept, or is no measure."""
    kept = (json.loads(path.read_text()) if path.exists() else {}).get(level(), {})
    lines = [f"{r.case}/{r.threads}: the machine was too busy to tell" for r in results if not r.calm]
    for key, ratios in found_ratios(results).items():
        for name, ratio in ratios.items():
            before = kept.get(key, {}).get(name)
            if before is None:
                lines.append(f"{key}: no ratio to {name} was recorded for {level()}")
            elif ratio > SLACK * before:
                lines.append(f"{key}: {ratio:.2f} of {name}'s time, recorded {before:.2f}")
    return lines


def engines_for(case: Case, backend: str) -> list[str]:
    """Ours first. OpenVINO does not know onnxruntime's operator for 4-bit weights."""
    optional = [OPENVINO] if find_spec("openvino") and not case.coded else []
    return [backend, ONNXRUNTIME, MNN, *optional]


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare runs of models with those of other engines.")
    parser.add_argument("--case", action="append", choices=[c.name for c in CASES], help="only this one (repeatable)")
    parser.add_argument("--threads", action="append", type=int, help="numbers of threads (repeatable; 1 and 2)")
    parser.add_argument("--rounds", type=int, default=9, help="samples of each engine that count")
    parser.add_argument("--backend", choices=("cpu", "reference"), default="cpu", help="which of our backends")
    parser.add_argument("--tiny", action="store_true", help="small models, only to try the benchmark")
    parser.add_argument("--json", action="store_true", help="print data instead of a table")
    parser.add_argument("--record", action="store_true", help=f"keep the ratios in {RATIOS.name}")
    parser.add_argument("--check", action="store_true", help=f"fail beyond {SLACK} times the ratios in {RATIOS.name}")
    arguments = parser.parse_args()
    chosen = [c for c in CASES if not arguments.case or c.name in arguments.case]
    if arguments.tiny:
        chosen = [c.tiny for c in chosen if c.tiny]
    results = []
    for case in chosen:
        for threads in arguments.threads or (1, 2):
            print(f"{case.name}, {threads} threads ...", file=sys.stderr)
            folder = SCRATCH / (f"{case.name}-tiny" if arguments.tiny else case.name)
            results.append(run(case, engines_for(case, arguments.backend), threads, arguments.rounds, folder))
    if arguments.json:
        print(json.dumps([asdict(r) | {"ratios": r.ratios} for r in results], indent=2))
    else:
        print_table(results, peak_gigaflops())
    if arguments.record:
        record(results)
    problems = worse(results) if arguments.check else []
    if problems:
        raise SystemExit("\n".join(problems))


if __name__ == "__main__":
    main()
