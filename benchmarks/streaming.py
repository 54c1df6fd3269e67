"""Models larger than memory: peak of memory, and speed against the quantizer alone on the same files.

    .venv/bin/python benchmarks/streaming.py --gigabytes 6 --rounds 3
    .venv/bin/python benchmarks/streaming.py --kind llm --gigabytes 1.5

A stack of products in an ONNX file with float32 weights in external data, and a Llama in float16 safetensors (in two
files), with random weights, are converted to 4 bits in blocks of 64 as a user would: by our program, with its defaults.
In turns with it the quantizer alone reads the same matrices from the same files, and keeps nothing. Peak memory is that
of all processes together.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from large_model import WEIGHT_BYTES
from large_model import write as write_onnx

WIDTH, INNER, VOCABULARY = 4096, 11008, 32000
LAYER = {"self_attn.q_proj": (WIDTH, WIDTH), "self_attn.k_proj": (WIDTH, WIDTH), "self_attn.v_proj": (WIDTH, WIDTH),
         "self_attn.o_proj": (WIDTH, WIDTH), "mlp.gate_proj": (INNER, WIDTH), "mlp.up_proj": (INNER, WIDTH),
         "mlp.down_proj": (WIDTH, INNER)}  # fmt: skip
TABLE = "model.embed_tokens.weight"
INTERVAL = 0.02  # seconds between looks at the memory
BITS, BLOCK = "4", "64"


@dataclass(frozen=True)
class Cost:
    """Seconds by the clock and of the CPU, and the most bytes that all processes had in memory together."""

    wall: float
    cpu: float
    peak: int


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """The weights of a Llama by their published names."""
    found: dict[str, tuple[int, ...]] = {TABLE: (VOCABULARY, WIDTH)}
    for i in range(layers):
        found |= {f"model.layers.{i}.{name}.weight": shape for name, shape in LAYER.items()}
        found |= {f"model.layers.{i}.{n}.weight": (WIDTH,) for n in ("input_layernorm", "post_attention_layernorm")}
    return found | {"model.norm.weight": (WIDTH,), "lm_head.weight": (VOCABULARY, WIDTH)}


def write_llm(folder: Path, gigabytes: float) -> None:
    """A folder of about this size, its weights in two files with an index."""
    of_layer = 2 * sum(a * b for a, b in LAYER.values())
    layers = max(1, round((gigabytes * 1e9 - 4 * VOCABULARY * WIDTH) / of_layer))
    weights = list(shapes(layers).items())
    places = {}
    for number, part in enumerate((weights[: len(weights) // 2], weights[len(weights) // 2 :]), 1):
        name = f"model-{number:05}-of-00002.safetensors"
        write_safetensors(folder / name, dict(part))
        places |= {weight: name for weight, _ in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    config = {"model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": INNER,
              "num_hidden_layers": layers, "num_attention_heads": 32, "rms_norm_eps": 1e-5}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    words = {f"token{i}": i for i in range(VOCABULARY)}
    tokenizer = {"version": "1.0", "added_tokens": [], "pre_tokenizer": level, "decoder": level,
                 "model": {"type": "BPE", "vocab": words, "merges": []}}  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def write(kind: str, folder: Path, gigabytes: float) -> None:
    """Write a model. Run in a process of its own: the peak of a process counts what the one held that started it."""
    folder.mkdir()
    if kind == "llm":
        write_llm(folder, gigabytes)
    else:
        write_onnx(folder, max(1, round(gigabytes * 1e9 / WEIGHT_BYTES)))


def write_safetensors(path: Path, weights: dict[str, tuple[int, ...]]) -> None:
    """A file of float16 weights of these shapes."""
    header, at = {}, 0
    for name, shape in weights.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    noise = np.random.default_rng(0).standard_normal(INNER * WIDTH + 4096).astype(np.float16) / np.float16(64)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for number, shape in enumerate(weights.values()):
            for start in range(0, int(np.prod(shape)), len(noise)):
                file.write(np.roll(noise, number)[: int(np.prod(shape)) - start].tobytes())


def quantize_alone(kind: str, folder: Path) -> None:
    """Read and quantize all matrices that the conversion codes, and keep nothing. Run in a process of its own."""
    from mnnconvert.frontends.llm.safetensors import read_folder
    from mnnconvert.ir import FileTensor
    from mnnconvert.quantizers.apply import code_rows
    from mnnconvert.quantizers.recipe import Setting

    setting = Setting(int(BITS), int(BLOCK), method="lsq")
    if kind == "llm":
        matrices = [t for n, t in read_folder(folder).items() if len(t.shape) == 2 and n != TABLE]
    else:
        count, side = (folder / "large.bin").stat().st_size // WEIGHT_BYTES, WIDTH
        places = range(0, count * WEIGHT_BYTES, WEIGHT_BYTES)
        matrices = [FileTensor(folder / "large.bin", at, np.dtype(np.float32), (side, side)) for at in places]
    for matrix in matrices:
        for _ in code_rows(matrix, matrix.shape[0], setting):
            pass


def measure(command: list[str]) -> Cost:
    """Run one command to its end; SystemExit with what it said when it fails."""
    with tempfile.TemporaryFile() as log:
        started, peak, ended, status = time.perf_counter(), 0, 0, 0
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        while not ended:
            peak = max(peak, sum(resident(pid) for pid in family(process.pid)))
            time.sleep(INTERVAL)
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            log.seek(0)
            raise SystemExit(f"{command} ended with {process.returncode}:\n{log.read().decode(errors='replace')}")
    return Cost(seconds, usage.ru_utime + usage.ru_stime, max(peak, usage.ru_maxrss * 1024))


def family(pid: int) -> Iterator[int]:
    """A process and those that come from it."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from family(int(child))


def resident(pid: int) -> int:
    """Bytes in memory; 0 of a process that has ended meanwhile."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def commands(kind: str, folder: Path, made: Path) -> list[list[str]]:
    """The conversion, and the quantizer alone."""
    ours = [sys.executable, "-m", "mnnconvert"]
    if kind == "llm":
        ours += ["llm", str(folder), str(made / "llm"), "--quant_bit", BITS, "--quant_block", BLOCK]
    else:
        ours += ["-f", "ONNX", "--modelFile", str(folder / "large.onnx"), "--MNNModel", str(made / "large.mnn"),
                 "--weightQuantBits", BITS, "--weightQuantBlock", BLOCK, "--saveExternalData"]  # fmt: skip
    return [ours, [sys.executable, __file__, "--alone", kind, str(folder)]]


def run(kind: str, gigabytes: float, rounds: int, scratch: Path) -> None:
    """Measure one kind, A B A B ..., and print medians."""
    folder, made = scratch / kind, scratch / "made"
    made.mkdir()
    subprocess.run([sys.executable, __file__, "--write", kind, str(folder), str(gigabytes)], check=True)
    size = sum(path.stat().st_size for path in folder.iterdir())
    pairs = [[measure(command) for command in commands(kind, folder, made)] for _ in range(rounds)]
    ours, alone = (
        Cost(*(statistics.median(numbers) for numbers in zip(*((c.wall, c.cpu, c.peak) for c in side), strict=True)))  # type: ignore[arg-type]
        for side in zip(*pairs, strict=True)
    )
    print(f"{kind}: {size / 1e9:.2f} GB, {rounds} rounds")
    print(f"  {ours.wall:.1f} s by the clock, {ours.cpu:.1f} of the CPU; peak {ours.peak / 1e6:.0f} MB")
    print(f"  the quantizer alone {alone.wall:.1f} s and {alone.cpu:.1f} s: ", end="")
    print(f"{alone.wall / ours.wall:.0%} of its speed by the clock, {alone.cpu / ours.cpu:.0%} by the CPU", flush=True)
    for path in (folder, made):
        shutil.rmtree(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=("onnx", "llm"), action="append", help="only this one (repeatable)")
    parser.add_argument("--gigabytes", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--write", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--alone", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        write(arguments.write[0], Path(arguments.write[1]), float(arguments.write[2]))
        return
    if arguments.alone:
        quantize_alone(arguments.alone[0], Path(arguments.alone[1]))
        return
    with tempfile.TemporaryDirectory() as scratch:
        for kind in arguments.kind or ("onnx", "llm"):
            run(kind, arguments.gigabytes, arguments.rounds, Path(scratch))


if __name__ == "__main__":
    main()
