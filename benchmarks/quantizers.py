"""How fast weights are quantized: per core, and whole conversions with HQQ against the released converter.

    .venv/bin/python benchmarks/quantizers.py            everything (two minutes)
    .venv/bin/python benchmarks/quantizers.py --no-peer  our functions alone

Speeds are megabytes (10^6 bytes) of float32 weights per second of processor time, on one core; the best of several
runs, because others may use the machine. The released converter is timed as a whole process, A B A B ..., with plain
rounding and with HQQ of one large layer: what HQQ costs is the difference of the medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import onnx
from bench import OURS, PEER, SCRATCH, measure, ours, peer
from onnx import TensorProto, helper, numpy_helper

from mnnconvert.quantizers import compiled, gptq, hqq, lsq, rtn

LAYER = (2048, 1024)
LARGE_LAYER = (4096, 4096)
ROWS = {
    "rtn 4 bits, block 64": lambda w: rtn.quantize(w, 4, 64),
    "rtn 4 bits, channel": lambda w: rtn.quantize(w, 4),
    "rtn 8 bits, block 64": lambda w: rtn.quantize(w, 8, 64),
    "rtn 8 bits, channel": lambda w: rtn.quantize(w, 8),
    "hqq 4 bits, block 64": lambda w: hqq.quantize(w, 4, 64),
    "lsq 4 bits, block 64": lambda w: lsq.quantize(w, 4, 64),
    "lsq 4 bits, block 64, symmetric": lambda w: lsq.quantize(w, 4, 64, True),
    "lsq 2 bits, block 32": lambda w: lsq.quantize(w, 2, 32),
    "lsq 8 bits, channel": lambda w: lsq.quantize(w, 8),
}


def seconds(work: Callable[[], object], runs: int) -> float:
    """The least processor time of several runs, after one that is not counted."""
    work()
    times = []
    for _ in range(runs):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return min(times)


def speeds(runs: int) -> None:
    weights = (np.random.default_rng(0).standard_normal(LAYER) * 0.05).astype(np.float32)
    kernels = compiled.kernels
    print(f"{'MB/s per core':34} kernels   numpy")
    for name, work in ROWS.items():
        figures = []
        for way in (kernels, lambda: None):
            compiled.kernels = way
            figures.append(weights.nbytes / seconds(lambda: work(weights), runs) / 1e6)  # noqa: B023 - called at once
        print(f"{name:34} {figures[0]:7.0f} {figures[1]:7.0f}")
    compiled.kernels = kernels


def layer_with_inputs(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights, and H of inputs of very different power."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2 * columns, columns)) * rng.lognormal(0, 0.5, columns)
    return (rng.standard_normal((rows, columns)) * 0.05).astype(np.float32), x.T @ x / len(x)


def compensation(runs: int) -> None:
    weights, gram = layer_with_inputs(576, 1536)
    alone = seconds(lambda: gptq.quantize(weights, gram, 4, 64, rounds=0, sweeps=0), runs)
    whole = seconds(lambda: gptq.quantize(weights, gram, 4, 64), runs)
    print(f"gptq of 576 x 1536, 4 bits, block 64: {alone:.2f} s, with refits and sweeps {whole:.2f} s")


def large_layer() -> Path:
    """A model of one 1x1 convolution, 67 MB of weights."""
    rows, columns = LARGE_LAYER
    weights = (np.random.default_rng(0).standard_normal((rows, columns, 1, 1)) * 0.05).astype(np.float32)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, c, 1, 1]) for n, c in (("x", columns), ("y", rows))]
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "layer", ends[:1], ends[1:], [numpy_helper.from_array(weights, "w")])
    path = SCRATCH / "layer.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def against_the_peer(rounds: int) -> None:
    SCRATCH.mkdir(exist_ok=True)
    source = str(large_layer())
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds + 1):
        for method, extra in (("rtn", ()), ("hqq", ("--hqq",))):
            words = ["-f", "ONNX", "--modelFile", source, "--MNNModel", str(SCRATCH / "layer.mnn")]
            words += ["--weightQuantBits", "4", "--weightQuantBlock", "64", *extra]
            for side, command in ((OURS, ours(*words, "--verify", "never")), (PEER, peer(*words))):
                times.setdefault((side, method), []).append(measure(command).seconds)
    medians = {key: statistics.median(values[1:]) for key, values in times.items()}
    for side in (OURS, PEER):
        plain, fitted = medians[side, "rtn"], medians[side, "hqq"]
        speed = 4e-6 * np.prod(LARGE_LAYER) / max(fitted - plain, 1e-3)
        print(
            f"{side:10} 67 MB layer: rtn {plain:.2f} s, hqq {fitted:.2f} s, so that hqq adds 67 MB at {speed:.0f} MB/s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the quantizers.")
    parser.add_argument("--no-peer", action="store_true", help="leave the released converter out")
    parser.add_argument("--runs", type=int, default=5, help="runs that count")
    arguments = parser.parse_args()
    speeds(arguments.runs)
    compensation(min(arguments.runs, 3))
    if not arguments.no_peer:
        against_the_peer(min(arguments.runs, 3))


if __name__ == "__main__":
    sys.exit(main())
