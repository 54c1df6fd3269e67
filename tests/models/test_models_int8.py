"""Full int8 of real models: the classes stay, and the written steps are those that were simulated."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont
from real_models import source

import mnnconvert
from mnnconvert.calibration.report import Agreement
from mnnconvert.quantizers.int8 import simulate
from mnnconvert.runtime_ref.session import Session
from mnnconvert.schema.reader import read_model

pytestmark = [pytest.mark.models, pytest.mark.slow]

WORDS = "markers of the coins and background are pixels that we can label as either object here found at two parts"


def line_of_text(rng):
    """A printed line, upright or upside down, with some noise: float32 [1,3,48,192] in -1 .. 1."""
    picture = Image.new("RGB", (192, 48), tuple(int(v) for v in rng.integers(150, 256, 3)))
    size = int(rng.integers(16, 38))
    ink = tuple(int(v) for v in rng.integers(0, 110, 3))
    place = (int(rng.integers(0, 20)), int(rng.integers(0, max(1, 44 - size))))
    ImageDraw.Draw(picture).text(place, " ".join(rng.choice(WORDS.split(), 4)), ink, ImageFont.load_default(size))
    pixels = np.asarray(picture, np.float32) + rng.normal(0, 8, (48, 192, 3))
    turned = pixels[::-1, ::-1] if rng.random() < 0.5 else pixels
    return (turned.clip(0, 255) / 127.5 - 1).transpose(2, 0, 1)[None].astype(np.float32)


@pytest.mark.parametrize("keys", [{}, {"feature_quantize_method": "MSE", "weight_quantize_method": "MSE"}])
def test_upright_or_not_stays_the_answer(tmp_path, keys):
    onnx = source("rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx")
    mnnconvert.convert(onnx, tmp_path / "m.mnn", verify="never")
    (tmp_path / "lines").mkdir()
    rng = np.random.default_rng(0)
    for number in range(32):
        np.save(tmp_path / "lines" / f"{number:02}.npy", line_of_text(rng))
    (tmp_path / "c.json").write_text(json.dumps({"path": "lines", "input_type": "array", **keys}))
    report = mnnconvert.quantize(tmp_path / "m.mnn", tmp_path / "q.mnn", tmp_path / "c.json")
    assert len(report.layers) > 40
    floats, coded = read_model(tmp_path / "m.mnn"), read_model(tmp_path / "q.mnn")
    simulate(coded)
    want, got, agreement = Session(floats), Session(coded), Agreement()
    rng = np.random.default_rng(1)
    for _ in range(200):
        feeds = {"x": line_of_text(rng)}
        (expected,), (result,) = want.run(feeds).values(), got.run(feeds).values()
        agreement.add(result, expected)
    assert agreement.top1 >= 0.97
    assert agreement.sqnr > 18
