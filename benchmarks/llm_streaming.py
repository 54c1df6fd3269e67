"""How fast and in how little memory a large language model is converted, against the quantizer alone.

    .venv/bin/python benchmarks/llm_streaming.py --gigabytes 6

A Llama of random float16 weights is written (kept with --keep FOLDER), converted to 4 bits in blocks of 64 in a process
of its own, whose peak of memory is that of the system, and the same matrices are quantized without reading or writing.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from mnnconvert.quantizers import lsq

WIDTH, INNER, VOCABULARY = 4096, 11008, 32000
LAYER = {"self_attn.q_proj": (WIDTH, WIDTH), "self_attn.k_proj": (WIDTH, WIDTH), "self_attn.v_proj": (WIDTH, WIDTH),
         "self_attn.o_proj": (WIDTH, WIDTH), "mlp.gate_proj": (INNER, WIDTH), "mlp.up_proj": (INNER, WIDTH),
         "mlp.down_proj": (WIDTH, INNER)}  # fmt: skip
BITS, BLOCK = 4, 64


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """The weights of the model by their published names."""
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens": (VOCABULARY, WIDTH)}
    for i in range(layers):
        found |= {f"model.layers.{i}.{name}": shape for name, shape in LAYER.items()}
        found |= {f"model.layers.{i}.{n}": (WIDTH,) for n in ("input_layernorm", "post_attention_layernorm")}
    return found | {"model.norm": (WIDTH,), "lm_head": (VOCABULARY, WIDTH)}


def write_model(folder: Path, gigabytes: float) -> int:
    """A folder of about this size; the number of its layers."""
    of_layer = 2 * sum(a * b for a, b in LAYER.values())
    layers = max(1, round((gigabytes * 1e9 - 4 * VOCABULARY * WIDTH) / of_layer))
    header, at = {}, 0
    for name, shape in shapes(layers).items():
        size = 2 * int(np.prod(shape))
        header[f"{name}.weight"] = {"dtype": "F16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    noise = np.random.default_rng(0).standard_normal(INNER * WIDTH + 4096).astype(np.float16) / np.float16(64)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for number, shape in enumerate(shapes(layers).values()):
            for start in range(0, int(np.prod(shape)), len(noise)):
                file.write(np.roll(noise, number)[: int(np.prod(shape)) - start].tobytes())
    config = {"model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": INNER,
              "num_hidden_layers": layers, "num_attention_heads": 32, "rms_norm_eps": 1e-5}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    vocabulary = {f"token{i}": i for i in range(VOCABULARY)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {"version": "1.0", "added_tokens": [], "pre_tokenizer": level, "decoder": level,
                 "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return layers


def convert(source: str, target: str) -> None:
    """Convert, and print CPU seconds and the peak of memory in bytes. Run in a process of its own."""
    from mnnconvert.llm import LlmOptions, convert_llm

    started = time.process_time()
    report = convert_llm(source, target, LlmOptions(quant_bit=BITS, quant_block=BLOCK, verify="never"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": time.process_time() - started, "peak": peak, "bytes": report.target_bytes}))


def quantizer_seconds(layers: int) -> float:
    """CPU seconds that the quantizer takes for the same matrices, measured on one of each shape."""
    total = 0.0
    counts: dict[tuple[int, ...], int] = {}
    for name, shape in shapes(layers).items():
        if len(shape) == 2 and name != "model.embed_tokens":
            counts[shape] = counts.get(shape, 0) + 1
    for shape, count in counts.items():
        weights = np.random.default_rng(0).standard_normal(shape, np.float32).astype(np.float16) / np.float16(64)
        started = time.process_time()
        lsq.quantize(weights, BITS, BLOCK, False, False, np.ones(shape[1]))
        total += count * (time.process_time() - started)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=6.0)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--convert", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.convert:
        convert(*arguments.convert)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.keep or Path(scratch) / "source"
        folder.mkdir(parents=True, exist_ok=True)
        layers = write_model(folder, arguments.gigabytes)
        size = (folder / "model.safetensors").stat().st_size
        words = [sys.executable, __file__, "--convert", str(folder), str(Path(scratch) / "made")]
        found = json.loads(subprocess.run(words, check=True, capture_output=True, text=True, env=os.environ).stdout)
    alone = quantizer_seconds(layers)
    print(f"{size / 1e9:.2f} GB, {layers} layers -> {found['bytes'] / 1e9:.2f} GB")
    share = alone / found["seconds"]
    print(f"{found['seconds']:.1f} CPU seconds, the quantizer alone {alone:.1f}: {share:.0%} of its speed")
    print(f"peak {found['peak'] / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
