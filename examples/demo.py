"""Draw a line of text, convert the model that reads such lines, compress it, and read the line again with each result.

    make demo

The model is PP-OCRv4 recognition (ONNX, 10.9 MB) from `.models`. Everything is written to demo-out. The exit code is 0
when every model that has to read what was drawn does: all but the one that is rounded to 4 bits without further care.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from PIL import Image, ImageDraw, ImageFont
from rich.console import Console
from rich.table import Table
from rich.text import Text

import mnnconvert

ROOT = Path(__file__).parents[1]
MODEL = ROOT / ".models/rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx"
OUT = ROOT / "demo-out"

LINE = "Right twice, and proven."
HEIGHT = 48  # pixels; the model takes lines of this height and of any width
FONT_SIZE, MARGIN = 36, 4  # a wider margin is read as a space


@dataclass(frozen=True)
class Reading:
    """What a model made of the picture: probabilities [1, steps, characters], and how large and how fast it was."""

    name: str
    megabytes: float
    seconds: float
    probabilities: np.ndarray
    demanded: bool = True


def draw(text: str) -> Image.Image:
    """Black text on white, as high as the model wants it."""
    font = ImageFont.load_default(size=FONT_SIZE)
    picture = Image.new("RGB", (int(font.getlength(text)) + 2 * MARGIN, HEIGHT), "white")
    ImageDraw.Draw(picture).text((MARGIN, HEIGHT / 2), text, font=font, fill="black", anchor="lm")
    return picture


def preprocess(picture: Image.Image) -> np.ndarray:
    """Pixels as the model was trained on them: blue first, -1 to 1, [1, 3, height, width]."""
    bgr = np.asarray(picture, np.float32)[:, :, ::-1]
    return np.ascontiguousarray(((bgr / 255 - 0.5) / 0.5).transpose(2, 0, 1)[None])


def alphabet() -> list[str]:
    """Class -> character: the blank of CTC, the characters that the model carries in its metadata, and the space."""
    properties = {p.key: p.value for p in onnx.load(MODEL, load_external_data=False).metadata_props}
    return ["", *properties["character"].split("\n"), " "]


def decode(probabilities: np.ndarray, characters: list[str]) -> str:
    """Greedy CTC: the best class of each step, repetitions once, blanks dropped."""
    best = probabilities[0].argmax(axis=-1)
    kept = best[np.flatnonzero(np.diff(best, prepend=-1))]
    return "".join(characters[c] for c in kept)


def read_with_onnxruntime(pixels: np.ndarray) -> Reading:
    session = onnxruntime.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    started = time.perf_counter()
    probabilities = session.run(None, {name: pixels})[0]
    return Reading("onnxruntime", megabytes(MODEL), time.perf_counter() - started, probabilities)


def convert_and_read(name: str, pixels: np.ndarray, demanded: bool = True, **options: Any) -> Reading:
    """Convert with these options, verify, load the file and read the picture with it."""
    target = OUT / f"{name.replace(' ', '-').replace(',', '')}.mnn"
    mnnconvert.convert(MODEL, target, **options)
    session = mnnconvert.load(target)
    started = time.perf_counter()
    outputs = session.run({session.inputs[0].name: pixels})
    seconds = time.perf_counter() - started
    return Reading(name, megabytes(target), seconds, outputs[session.outputs[0].name], demanded)


def megabytes(path: Path) -> float:
    return path.stat().st_size / 1e6


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.ravel().astype(np.float64), b.ravel().astype(np.float64)
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def table(readings: list[Reading], characters: list[str]) -> Table:
    """One row per model; cosine and largest error of the probabilities are against the first."""
    result = Table(title="What onnxruntime and then our files read; error of probabilities")
    for column in ("Model", "MB", "Run s", "Cosine", "Error", "Read"):
        result.add_column(column, justify="left" if column in ("Model", "Read") else "right")
    source = readings[0]
    for r in readings:
        text = decode(r.probabilities, characters)
        error = np.abs(r.probabilities - source.probabilities).max()
        result.add_row(
            r.name, f"{r.megabytes:.2f}", f"{r.seconds:.2f}",
            f"{cosine(r.probabilities, source.probabilities):.6f}", f"{error:.1e}",
            Text(text, style="green" if text == LINE else "red"),
        )  # fmt: skip
    return result


def main() -> int:
    console = Console()
    OUT.mkdir(exist_ok=True)
    picture = draw(LINE)
    picture.save(OUT / "line.png")
    pixels, characters = preprocess(picture), alphabet()
    console.print(f"Drew {LINE!r} to {OUT.name}/line.png, {picture.width} x {picture.height} pixels.")
    readings = [
        read_with_onnxruntime(pixels),
        convert_and_read("float", pixels, verify="always"),
        convert_and_read("8 bits", pixels, weight_bits=8),
        convert_and_read("4 bits", pixels, demanded=False, weight_bits=4, weight_block=64),
        convert_and_read("4 bits, HQQ", pixels, weight_bits=4, weight_block=64, hqq=True),
    ]
    console.print(table(readings, characters))
    wrong = [r.name for r in readings if r.demanded and decode(r.probabilities, characters) != LINE]
    console.print(f"[red]Misread by: {', '.join(wrong)}[/]" if wrong else "The line was read as it was drawn.")
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except mnnconvert.MnnConvertError as error:
        sys.exit(str(error))
