"""The perplexity of SmolLM2-135M-Instruct on Pride and Prejudice, by `mnnconvert perplexity` and by transformers.

    make perplexity

All is done as a user would: the GGUF file becomes a folder of MNN's, bit for bit; transformers writes the same weights
once as a float16 folder, which becomes another; and both are measured from the command line. Times are of one thread.
A float16 folder whose perplexity is more than 0.5 % from that of transformers is an error.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import novels
import quality_files as files
import smollm

from mnnconvert.perplexity import encode

WORK = Path(__file__).parents[1] / ".bench/smollm"
BOUND = 0.005
DEFINITIONS = {"llama.cpp": (512, 0), "Hugging Face": (1024, 512)}  # window, stride


def main() -> None:
    """Print a table: definition, transformers, float16, GGUF, and the seconds that each took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--characters", type=int, default=50_000, help="of the novel, from its beginning (50000)")
    characters = parser.parse_args().characters
    try:
        novels.fetch()
    except novels.NovelsError as reason:
        raise SystemExit(f"there is no novel to read: {reason}") from reason
    WORK.mkdir(parents=True, exist_ok=True)
    text = WORK / "pride_and_prejudice.txt"
    text.write_text(novels.novel(), encoding="utf-8")
    make()
    print("| definition | window | tokens | in transformers | float16 | apart | Q4_1 | seconds of the three |")
    print("|---|---|---|---|---|---|---|---|")
    for name, (window, stride) in DEFINITIONS.items():
        print(row(name, text, characters, window, stride), flush=True)


def make() -> None:
    """The folders."""
    if not (WORK / "gguf").is_dir():
        command("llm", files.SMOLLM, WORK / "gguf")
    if not (WORK / "half16").is_dir():
        smollm.write_half(WORK / "half", WORK / "gguf/tokenizer.json")
        command("llm", WORK / "half", WORK / "half16", "--quant_bit", 16)


def row(name: str, text: Path, characters: int, window: int, stride: int) -> str:
    """A line of the table."""
    tokens, first = encode(WORK / "gguf", text.read_text(encoding="utf-8")[:characters])
    asked = ["--text", text, "--characters", characters, "--window", window, "--threads", 1]
    asked += ["--stride", stride] if stride else []
    seconds, found = [], []
    for folder in ("half16", "gguf"):
        start = time.perf_counter()
        found.append(json.loads(command("perplexity", WORK / folder, *asked, "--json"))["perplexity"])
        seconds.append(time.perf_counter() - start)
    start = time.perf_counter()
    wanted = theirs(tokens, window, stride, first)
    seconds.insert(0, time.perf_counter() - start)
    half, coded = found
    apart = abs(half / wanted - 1)
    if not apart <= BOUND:
        raise SystemExit(f"{name}: {half:.4f} where transformers has {wanted:.4f}")
    steps = f"{window}, every {stride}" if stride else str(window)
    times = ", ".join(f"{t:.0f}" for t in seconds)
    return f"| {name} | {steps} | {len(tokens)} | {wanted:.4f} | {half:.4f} | {apart:.4%} | {coded:.4f} | {times} |"


def theirs(tokens: Sequence[int], window: int, stride: int, first: int | None) -> float:
    """What transformers finds."""
    import torch

    torch.set_num_threads(1)
    return smollm.perplexity(smollm.in_transformers(WORK / "half"), tokens, window, stride, first)


def command(*words: object) -> str:
    """What `mnnconvert` prints."""
    line = [sys.executable, "-m", "mnnconvert", *map(str, words)]
    return subprocess.run(line, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
