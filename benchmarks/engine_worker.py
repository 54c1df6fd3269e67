"""One engine with one model in a process of its own: `engine_worker.py` with a Job as JSON.

Requests and answers are lines of JSON on the standard pipes: {"do": "time", "seconds": 0.1} runs the model again and
again for that long and tells the time per run; {"do": "answer", "path": FILE} runs it once and stores its outputs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Job:
    """`feeds` is an .npz file; `precision` "fast" lets products with coded weights round their other operand."""

    engine: str
    model: str
    feeds: str
    threads: int
    precision: str = "exact"


@dataclass(frozen=True)
class Sample:
    """Seconds per run, of the clock and of this process's use of processors; `foreign` processors used by others."""

    runs: int
    wall: float
    cpu: float
    foreign: float


class Ours:
    """mnnconvert's session; `backend` as in mnnconvert.load."""

    def __init__(self, job: Job, feeds: Arrays, backend: str = "cpu"):
        import mnnconvert

        self._session = mnnconvert.load(job.model, backend=backend, threads=job.threads, precision=job.precision)
        self._feeds = feeds

    def run(self) -> Arrays:
        return self._session.run(self._feeds)


class OnnxRuntime:
    """Inputs and outputs are bound once, so that a run copies nothing."""

    def __init__(self, job: Job, feeds: Arrays):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = job.threads, 1
        self._session = onnxruntime.InferenceSession(job.model, options, ["CPUExecutionProvider"])
        self._binding = self._session.io_binding()
        for name, array in feeds.items():
            self._binding.bind_cpu_input(name, array)
        self._names = [output.name for output in self._session.get_outputs()]
        for name in self._names:
            self._binding.bind_output(name)

    def run(self) -> Callable[[], Arrays]:
        self._session.run_with_iobinding(self._binding)
        return lambda: dict(zip(self._names, self._binding.copy_outputs_to_cpu(), strict=True))


class Mnn:
    """The released runtime's modules; inputs are made once, so a run is the forward call and a read of the outputs."""

    def __init__(self, job: Job, feeds: Arrays):
        from MNN import expr, nn

        self._expr = expr
        memory = expr.MemoryMode.Low if job.precision == "fast" else expr.MemoryMode.Normal
        self._module = nn.load_module_from_file(
            job.model, [], [], backend=expr.Backend.CPU, precision_mode=expr.PrecisionMode.High, memory_mode=memory,
            thread_num=job.threads,
        )  # fmt: skip
        info = self._module.get_info()
        self._names = list(info["outputNames"])
        declared = zip(info["inputNames"], info["inputs"], strict=True)
        self._inputs = [self._variable(feeds[name], like) for name, like in declared]

    def _variable(self, array: np.ndarray, like: Any) -> Any:
        """An input in the declared type; the runtime has no 64-bit integers."""
        variable = self._expr.placeholder(list(array.shape), like.data_format, like.dtype)
        variable.write(np.ascontiguousarray(array, np.float32 if array.dtype.kind == "f" else np.int32))
        return variable

    def run(self) -> Callable[[], Arrays]:
        variables = self._module.forward(self._inputs)
        read = [self._plain(v).read() for v in variables]
        return lambda: dict(zip(self._names, [np.array(array) for array in read], strict=True))

    def _plain(self, variable: Any) -> Any:
        return self._expr.convert(variable, self._expr.NCHW) if variable.data_format == self._expr.NC4HW4 else variable


class OpenVino:
    """With 32-bit arithmetic, one stream."""

    def __init__(self, job: Job, feeds: Arrays):
        import openvino

        options = {
            "INFERENCE_NUM_THREADS": job.threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
        }  # fmt: skip
        model = openvino.Core().read_model(job.model)
        model.reshape({name: list(array.shape) for name, array in feeds.items()})
        self._compiled = openvino.compile_model(model, "CPU", options)
        self._request = self._compiled.create_infer_request()
        for name, array in feeds.items():
            self._request.set_tensor(name, openvino.Tensor(array))

    def run(self) -> Callable[[], Arrays]:
        self._request.infer()
        return lambda: {o.any_name: np.array(self._request.get_tensor(o).data) for o in self._compiled.outputs}


ENGINES: Mapping[str, Callable[[Job, Arrays], Any]] = {
    "cpu": Ours,
    "reference": lambda job, feeds: Ours(job, feeds, "reference"),
    "onnxruntime": OnnxRuntime,
    "MNN": Mnn,
    "OpenVINO": OpenVino,
}


def sample(run: Callable[[], object], seconds: float) -> Sample:
    """Runs for at least `seconds`; the clocks are read every few runs only, because that takes time, too."""
    started = time.perf_counter()
    run()
    step = max(1, int(seconds / 8 / max(time.perf_counter() - started, 1e-7)))
    runs, busy, cpu, wall = 0, busy_seconds(), time.process_time(), time.perf_counter()
    while runs == 0 or time.perf_counter() - wall < seconds:
        for _ in range(step):
            run()
        runs += step
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    foreign = max(0.0, busy_seconds() - busy - cpu) / wall
    return Sample(runs, wall / runs, cpu / runs, foreign)


def busy_seconds() -> float:
    """What all processors together have worked since the machine started; 0 where the system does not tell."""
    try:
        words = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    except FileNotFoundError:
        return 0.0
    user, nice, system, _idle, _waiting, irq, softirq, steal = map(int, words[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def peak_megabytes() -> float:
    """The largest resident set of this process, in 10^6 bytes; NaN where the system does not tell."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except FileNotFoundError:
        return float("nan")
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # engines print as they please
    job = Job(**json.loads(sys.argv[1]))
    with np.load(job.feeds) as stored:
        feeds = {name: stored[name] for name in stored.files}
    engine = ENGINES[job.engine](job, feeds)
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "answer":
            result = engine.run()
            np.savez(request["path"], **(result() if callable(result) else result))
            reply: dict[str, float] = {"megabytes": peak_megabytes()}
        else:
            reply = asdict(sample(engine.run, request["seconds"]))
        print(json.dumps(reply), file=answers, flush=True)


if __name__ == "__main__":
    main()
