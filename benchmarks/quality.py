"""How much of a model is left after compression: ours and the released converter's, on real weights and held-out data.

    make quality                                                        everything (an hour), into docs/quality.md
    .venv/bin/python benchmarks/quality.py --model minilm --bits 4 --block 64   a part, kept beside the others
    .venv/bin/python benchmarks/quality.py --quick                       a smaller sample of everything, only printed

Every compression starts from the float graph, with scales stored as float16. The reference is the float model. Methods
with data see the calibration samples only; errors are those on the test samples, taken from other parts of the texts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import quality_files as files
import quality_models as models
from bench import peer
from PIL import Image, ImageDraw, ImageFont

from mnnconvert.frontends.llm.gguf import read_gguf
from mnnconvert.frontends.onnx.reader import read_onnx
from mnnconvert.ir import CodedTensor, Graph
from mnnconvert.passes.pipeline import run_pipeline
from mnnconvert.quantizers import gptq, methods
from mnnconvert.quantizers.apply import apply_plan
from mnnconvert.quantizers.calibrate import calibrate
from mnnconvert.quantizers.plan import plan_weights
from mnnconvert.quantizers.recipe import Recipe, Setting
from mnnconvert.quantizers.scaling import scale_channels
from mnnconvert.runtime_ref.session import Session
from mnnconvert.schema.reader import read_model

ROOT = Path(__file__).parents[1]
SCRATCH = ROOT / ".bench/quality"
RESULTS = ROOT / "benchmarks/quality.json"
PAGE = ROOT / "docs/quality.md"
OCR = ROOT / ".models/rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx"

Feeds = dict[str, np.ndarray]
Metrics = dict[str, float]
GRIDS = ((4, 64), (4, 32), (3, 64), (2, 32))
PLAIN = {"drift": 0.0, "rounds": 0, "sweeps": 0}


@dataclass(frozen=True)
class Method:
    """A way to choose codes: what the table calls it, the method of the recipe, and whether it is given data.

    `changes` are arguments of gptq that differ from what a conversion uses; `released` has the released converter
    write the file; `scaling` are the scales that are folded first.
    """

    title: str
    method: str = ""
    data: bool = False
    changes: dict[str, Any] | None = None
    released: str | None = None
    scaling: str = ""


METHODS = {
    "peer rtn": Method("MNN 3.6.1", released=""),
    "peer hqq": Method("MNN 3.6.1 `--hqq`", released="--hqq"),
    "rtn": Method("rtn", "rtn"),
    "hqq": Method("hqq", "hqq"),
    "lsq": Method("lsq", "lsq"),
    "rtn awq": Method("rtn with AWQ scales", "rtn", data=True, scaling="awq"),
    "lsq awq": Method("lsq with AWQ scales and data", "lsq", data=True, scaling="awq"),
    "lsq data": Method("lsq with data", "lsq", data=True),
    "gptq plain": Method("gptq without drift, refit, descent", "gptq", data=True, changes=PLAIN),
    "gptq": Method("gptq", "gptq", data=True),
}


@dataclass(frozen=True)
class Subject:
    """A model, its samples, and what is measured on its outputs.

    `measure` takes for all test samples the outputs of the float model and those of the compressed one.
    """

    name: str
    source: Callable[[], Path]
    calibration: Callable[[], list[Feeds]]
    test: Callable[[], list[Feeds]]
    measure: Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], Metrics]

    def graph(self) -> Graph:
        """The float graph as a conversion has it before weights are coded."""
        graph = read_onnx(self.source(), {}, 0)
        run_pipeline(graph, options={"block": 64})
        return graph


def made(name: str, write: Callable[[Path], None]) -> Path:
    """A file of the scratch folder, made once; it has its name only when it is complete."""
    path = SCRATCH / name
    if not path.exists():
        unfinished = SCRATCH / "unfinished" / name
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        write(unfinished)
        unfinished.replace(path)
    return path


def windows(tokens: Sequence[int], start: float, count: int, length: int) -> np.ndarray:
    """`count` windows [count, length] of consecutive tokens from the part `start` (0 .. 1) of a text on."""
    first = int(start * len(tokens))
    return np.asarray(tokens[first : first + count * length]).reshape(count, length)


@cache
def word_pieces(text: Callable[[], str]) -> list[int]:
    return files.WordPieces(files.MINILM / "vocab.txt").encode(text()[:500_000])


def minilm(quick: bool) -> Subject:
    """128 windows of 64 tokens to calibrate, half prose and half help topics; later parts of both to test."""
    count = 16 if quick else 64

    def feeds(start: float) -> list[Feeds]:
        ids = np.concatenate([windows(word_pieces(text), start, count, 64) for text in (files.prose, files.manual)])
        return [{"x": x[None]} for x in models.minilm_embeddings(ids)]

    return Subject(
        "MiniLM",
        lambda: made("minilm.onnx", models.write_minilm),
        lambda: feeds(0.0),
        lambda: feeds(0.6),
        sentence_errors,
    )


def sentence_errors(exact: Sequence[np.ndarray], coded: Sequence[np.ndarray]) -> Metrics:
    """Relative error of the hidden states, and 1 - cosine of the sentence vectors."""
    a, b = np.concatenate(exact), np.concatenate(coded)
    u, v = a.mean(1), b.mean(1)
    cosine = (u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
    return {"error": relative(a, b), "cosine": float(1 - cosine.mean())}


def relative(exact: np.ndarray, coded: np.ndarray) -> float:
    return float(np.linalg.norm(coded - exact) / np.linalg.norm(exact))


class Decoder:
    """SmolLM2 outside its layers: tokens, embeddings, and the head that makes probabilities of hidden states."""

    LENGTH = 512

    def __init__(self, quick: bool):
        file = read_gguf(files.SMOLLM)
        pairs = files.BytePairs(file)
        self.table = file.tensor("token_embd.weight").numpy()
        sizes = (4, 2) if quick else (16, 8)
        texts = [pairs.encode(t) for t in (files.prose()[:1_000_000], files.manual())]
        self.calibration = [windows(t, 0.0, sizes[0], self.LENGTH) for t in texts]
        self.test = [windows(t, 0.6, n, self.LENGTH) for t, n in zip(texts, (sizes[1], sizes[1] // 2), strict=True)]

    def feeds(self, tokens: Sequence[np.ndarray]) -> list[Feeds]:
        return [{"x": self.table[ids][None]} for text in tokens for ids in text]

    def log_probabilities(self, hidden: np.ndarray) -> np.ndarray:
        scores = hidden[0] @ self.table.T
        scores -= scores.max(axis=1, keepdims=True)
        scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
        return scores

    def measure(self, exact: Sequence[np.ndarray], coded: Sequence[np.ndarray]) -> Metrics:
        """Mean divergence KL(float, coded) in nats per token, perplexity, and how often the likeliest token agrees."""
        rows: list[list[float]] = []
        for ids, a, b in zip(np.concatenate(self.test), exact, coded, strict=True):
            p, q = self.log_probabilities(a), self.log_probabilities(b)
            divergence = (np.exp(p) * (p - q)).sum(axis=1).mean()
            surprise = [-each[np.arange(len(ids) - 1), ids[1:]].mean() for each in (q, p)]
            rows.append([divergence, *surprise, (p.argmax(1) == q.argmax(1)).mean()])
        split = len(self.test[0])
        prose, manual = np.mean(rows[:split], axis=0), np.mean(rows[split:], axis=0)
        return {
            "kl": float(prose[0]), "perplexity": float(np.exp(prose[1])), "float perplexity": float(np.exp(prose[2])),
            "agreement": float(prose[3]), "manual kl": float(manual[0]), "manual perplexity": float(np.exp(manual[1])),
            "manual float perplexity": float(np.exp(manual[2])),
        }  # fmt: skip


def smollm(quick: bool) -> Subject:
    """32 sequences of 512 tokens to calibrate, half prose and half help topics; later parts of both to test."""
    decoder = cache(lambda: Decoder(quick))
    return Subject(
        "SmolLM2",
        lambda: made("smollm.onnx", partial(models.write_smollm, length=Decoder.LENGTH)),
        lambda: decoder().feeds(decoder().calibration),
        lambda: decoder().feeds(decoder().test),
        lambda exact, coded: decoder().measure(exact, coded),
    )


def lines(text: str, start: int, count: int) -> list[str]:
    """`count` pieces of 24 characters, one every 300 characters."""
    plain = " ".join(text[start : start + 400 * count].split())
    return [plain[i * 300 : i * 300 + 24].strip() for i in range(count)]


def pictures(texts: Sequence[str]) -> list[Feeds]:
    """Each text dark on light, [1,3,48,320] in -1 .. 1, in another size and at another place."""
    feeds = []
    for number, text in enumerate(texts):
        random = np.random.default_rng(number)
        picture = Image.new("RGB", (320, 48), tuple(int(c) for c in random.integers(200, 256, 3)))
        font = ImageFont.load_default(int(random.integers(20, 27)))
        ink = tuple(int(c) for c in random.integers(0, 90, 3))
        ImageDraw.Draw(picture).text((4 + number % 9, 6 + number % 7), text, ink, font)
        noisy = np.asarray(picture, np.float32) + random.normal(0, 4, (48, 320, 3)).astype(np.float32)
        feeds.append({"x": (noisy.transpose(2, 0, 1) / 127.5 - 1)[None]})
    return feeds


def ocr(quick: bool) -> Subject:
    """Pictures of prose to calibrate, of help topics to test."""
    count = 8 if quick else 48
    return Subject(
        "PP-OCR rec",
        lambda: OCR,
        lambda: pictures(lines(files.prose(), 20_000, count)),
        lambda: pictures(lines(files.manual(), 30_000, count)),
        reading_errors,
    )


def reading_errors(exact: Sequence[np.ndarray], coded: Sequence[np.ndarray]) -> Metrics:
    """Divergence KL(float, coded) per position, relative error of the probabilities, and positions read the same."""
    p, q = np.concatenate(exact).astype(float), np.concatenate(coded).astype(float)
    divergence = (p * (np.log(p + 1e-12) - np.log(q + 1e-12))).sum(-1).mean()
    same = p.argmax(-1) == q.argmax(-1)
    return {
        "kl": float(divergence), "error": relative(p, q), "agreement": float(same.mean()),
        "lines": float(same.all(-1).mean()),
    }  # fmt: skip


SUBJECTS: dict[str, Callable[[bool], Subject]] = {"minilm": minilm, "smollm": smollm, "ocr": ocr}


def outputs(graph: Graph, feeds: Sequence[Feeds]) -> list[np.ndarray]:
    session = Session(graph, threads=1)
    return [next(iter(session.run(each).values())) for each in feeds]


def float_outputs(subject: Subject, test: Sequence[Feeds]) -> list[np.ndarray]:
    """The outputs of the float model, computed once for the same file and samples."""
    digest = hashlib.blake2b(subject.source().read_bytes(), digest_size=16)
    for each in test:
        digest.update(each["x"].tobytes())
    path = made(f"{digest.hexdigest()}.npz", lambda target: np.savez(target, *outputs(subject.graph(), test)))
    with np.load(path) as kept:
        return [kept[f"arr_{i}"] for i in range(len(test))]


def compress(subject: Subject, method: Method, bits: int, block: int) -> Graph:
    """The model with its weights coded."""
    if method.released is not None:
        return released(subject, method.released, bits, block)
    graph = subject.graph()
    recipe = Recipe(Setting(bits=bits, block=block, method=method.method, half_scales=True), embedding=0)
    layers = plan_weights(graph, recipe)
    if not method.data:
        apply_plan(layers)
        return graph
    samples = subject.calibration()
    if method.scaling:
        scale_channels(graph, layers, samples, run_on_one_thread, method.scaling, show)
    usual = methods.METHODS["gptq"]
    try:
        if method.changes is not None:
            methods.METHODS["gptq"] = partial(changed_gptq, changes=method.changes)
        calibrate(graph, layers, samples, run_on_one_thread, show)
    finally:
        methods.METHODS["gptq"] = usual
    return graph


def run_on_one_thread(graph: Graph) -> Callable[[Mapping[str, np.ndarray]], Feeds]:
    return Session(graph, threads=1).run


def changed_gptq(weights: Any, setting: Setting, statistics: Any, changes: dict[str, Any]) -> Any:
    """gptq with other arguments than a conversion uses."""
    how = (setting.bits, setting.block, setting.symmetric, setting.half_scales)
    correction = statistics.correction if changes.get("drift", 1) else None
    return gptq.quantize(weights, statistics.gram, *how, correction=correction, **changes)[0]


def show(fraction: float) -> None:
    print(f"\r  {fraction:4.0%}", end="" if fraction < 1 else "\n", file=sys.stderr, flush=True)


def released(subject: Subject, option: str, bits: int, block: int) -> Graph:
    """What the released converter makes of the same file, in a process of its own."""
    target = SCRATCH / "peer.mnn"
    words = ["-f", "ONNX", "--modelFile", str(subject.source()), "--MNNModel", str(target), "--bizCode", "MNN"]
    words += ["--weightQuantBits", str(bits), "--weightQuantBlock", str(block), "--weightQuantScaleBit", "16"]
    command = peer(*words, *([option] if option else []))
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=SCRATCH)  # it leaves a file where it runs
    return read_model(target)


def coded_bytes(graph: Graph) -> int:
    """Bytes of all coded weights in a file."""
    tensors = {id(v.tensor): v.tensor for v in graph.constants() if isinstance(v.tensor, CodedTensor)}
    return sum(t.nbytes for t in tensors.values())


def measure(subject: Subject, chosen: Sequence[str], grids: Sequence[tuple[int, int]]) -> Iterator[dict[str, Any]]:
    """A result for every grid and method."""
    test = subject.test()
    exact = float_outputs(subject, test)
    for bits, block in grids:
        for name in chosen:
            started = time.process_time()
            print(f"{subject.name}, {bits} bits, block {block}, {name}", file=sys.stderr)
            graph = compress(subject, METHODS[name], bits, block)
            seconds = time.process_time() - started
            metrics = subject.measure(exact, outputs(graph, test))
            yield {
                "model": subject.name, "bits": bits, "block": block, "method": name, "bytes": coded_bytes(graph),
                "seconds": round(seconds, 1), **{k: float(f"{v:.4g}") for k, v in metrics.items()},
            }  # fmt: skip


def stored() -> list[dict[str, Any]]:
    """The results that were kept; other processes may add to them meanwhile."""
    found: list[dict[str, Any]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    return found


def keep(results: list[dict[str, Any]], new: dict[str, Any]) -> list[dict[str, Any]]:
    """Results with a new one in the place of the same measurement before."""
    key = ("model", "bits", "block", "method")
    return [r for r in results if any(r[k] != new[k] for k in key)] + [new]


COLUMNS = {
    "MiniLM": {"error": "hidden states, relative error", "cosine": "sentence vectors, 1 - cosine"},
    "SmolLM2": {"kl": "KL, prose", "perplexity": "perplexity, prose", "agreement": "same token",
                "manual kl": "KL, manual", "manual perplexity": "perplexity, manual"},
    "PP-OCR rec": {"kl": "KL", "error": "relative error", "agreement": "positions the same", "lines": "lines the same"},
}  # fmt: skip


def tables(results: Sequence[dict[str, Any]]) -> str:
    """The results as Markdown, a table per model."""
    parts = []
    for name, columns in COLUMNS.items():
        own = [r for r in results if r["model"] == name]
        own.sort(key=lambda r: (-r["bits"], -r["block"], list(METHODS).index(r["method"])))
        if not own:
            continue
        rows = [f"## {name}", ""]
        if "float perplexity" in own[0]:
            rows += [f"Perplexity of the float model: {own[0]['float perplexity']:.2f} on prose, "
                     f"{own[0]['manual float perplexity']:.2f} on the manual.", ""]  # fmt: skip
        rows += ["| bits | block | method | MB | " + " | ".join(columns.values()) + " | CPU s |"]
        rows += ["|---|---|---|---|" + "---|" * (len(columns) + 1)]
        for r in own:
            cells = [f"{r[c]:.4g}" for c in columns]
            title = METHODS[r["method"]].title
            rows.append(
                f"| {r['bits']} | {r['block']} | {title} | {r['bytes'] / 1e6:.1f} | {' | '.join(cells)} "
                f"| {r['seconds']:.0f} |"
            )
        parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


MARK = "<!-- results -->\n"


def write_page(results: Sequence[dict[str, Any]]) -> None:
    """Put the tables where the page has its mark."""
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text.partition(MARK)[0] + MARK + "\n" + tables(results), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what compression does to models.")
    parser.add_argument("--model", action="append", choices=list(SUBJECTS), help="only this one (repeatable)")
    parser.add_argument("--method", action="append", choices=list(METHODS), help="only this one (repeatable)")
    parser.add_argument("--bits", type=int, help="only this number of bits")
    parser.add_argument("--block", type=int, help="only blocks of this size")
    parser.add_argument("--quick", action="store_true", help="fewer samples; nothing is kept")
    arguments = parser.parse_args()
    grids = [g for g in GRIDS if arguments.bits in (None, g[0]) and arguments.block in (None, g[1])]
    results: list[dict[str, Any]] = []
    for name in arguments.model or SUBJECTS:
        for new in measure(SUBJECTS[name](arguments.quick), arguments.method or list(METHODS), grids):
            results = keep(results if arguments.quick else stored(), new)
            if not arguments.quick:
                RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(tables(results))
    if not arguments.quick:
        write_page(results)


if __name__ == "__main__":
    main()
