"""The other models of the same packages: recurrences, branches, heads. Run by both executors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx_cases import assert_equal
from real_models import FOLDER, MODELS, Feeds, normal, sound, source

import mnnconvert
from mnnconvert.verify.engines import OnnxRuntimeEngine
from mnnconvert.verify.mnn_engine import MnnEngine

pytestmark = pytest.mark.models

WAKE, MOS = "openwakeword/resources/models/", "speechmos/"


def vad(batch: int, rate: int) -> Feeds:
    """Sound, and the state that the network leaves for the next window."""
    state = {name: normal(2, batch, 64, spread=0.3) for name in "hc"}
    return {"input": sound(batch, 512), "sr": np.array(rate), **state}


def echo(state: int, frames: int) -> Feeds:
    return {"input": normal(1, 3, frames, 160), "h0": normal(4, 1, state, spread=0.3)}


def packets(batch: int, frames: int) -> Feeds:
    return {"degraded_audio": normal(batch, 1, frames, 257), "rater_embed": normal(batch, 64)}


# The heads get small numbers: on larger ones their last sigmoid is so far out that only rounding is left.
MORE: dict[str, tuple[str, Callable[[], list[Feeds]]]] = {
    "alexa": (WAKE + "alexa_v0.1.onnx", lambda: [{"onnx::Flatten_0": normal(1, 16, 96)}]),
    "timer": (WAKE + "timer_v0.1.onnx", lambda: [{"onnx::Flatten_0": normal(1, 34, 96)}]),
    "weather": (WAKE + "weather_v0.1.onnx", lambda: [{"onnx::Flatten_0": normal(1, 22, 96)}]),
    "marvin": (WAKE + "hey_marvin_v0.1.onnx", lambda: [{"onnx::Flatten_0": np.ones((1, 16, 96), np.float32)}]),
    "jarvis": (WAKE + "hey_jarvis_v0.1.onnx", lambda: [{"x.1": normal(1, 16, 96)}]),
    "mycroft": (WAKE + "hey_mycroft_v0.1.onnx", lambda: [{"input_1": normal(n, 16, 96)} for n in (1, 3)]),
    "voice activity": (WAKE + "silero_vad.onnx", lambda: [vad(1, 16000), vad(2, 8000)]),
    "background": (MOS + "dnsmos_models/bak_ovr.onnx", lambda: [{"input_1": normal(1, 901, 161)}]),
    "signal": (MOS + "dnsmos_models/sig.onnx", lambda: [{"input_1": normal(1, 901, 161)}]),
    "personal": (MOS + "pdnsmos_models/sig_bak_ovr.onnx", lambda: [{"input_1": sound(1, 144160)}]),
    "packet loss": (MOS + "plcmos_models/plcmos_v2.onnx", lambda: [packets(1, 40), packets(2, 64)]),
    "echo 1": (MOS + "aecmos_models/Run_1663829550_Stage_0.onnx", lambda: [echo(64, 48), echo(64, 70)]),
    "echo 2": (MOS + "aecmos_models/Run_1663915512_Stage_0.onnx", lambda: [echo(64, 48), echo(64, 70)]),
    "echo 3": (MOS + "aecmos_models/Run_1668423760_Stage_0.onnx", lambda: [echo(96, 48)]),
}


@pytest.mark.mnn
@pytest.mark.parametrize("name", MORE)
def test_both_executors_agree_with_onnxruntime(name, tmp_path):
    file, make_feeds = MORE[name]
    target = tmp_path / "m.mnn"
    mnnconvert.convert(source(file), target, verify="never")
    reference, session = OnnxRuntimeEngine(source(file)), mnnconvert.load(target)
    with MnnEngine(target) as engine:
        for feeds in make_feeds():
            want = reference.run(feeds)
            for got in (session.run(feeds), engine.run(feeds)):
                for output, expected in want.items():
                    assert np.abs(expected).max() > 1e-3  # large enough that 1e-7 is no excuse
                    assert_equal(np.asarray(got[output]), expected, rtol=1e-3, atol=1e-7, name=output)


@pytest.mark.parametrize("name", ["marvin", "voice activity", "mycroft", "packet loss", "echo 3"])
def test_the_proof_works_with_made_up_inputs(name, tmp_path):
    result = mnnconvert.convert(source(MORE[name][0]), tmp_path / "m.mnn").verification
    assert result is not None and result.passed and result.runs


@pytest.mark.mnn
@pytest.mark.parametrize("name", ["mycroft", "voice activity", "jarvis", "packet loss"])
def test_8_bit_files_run_alike_in_both_executors(name, tmp_path):
    file, make_feeds = MORE[name]
    mnnconvert.convert(source(file), tmp_path / "m.mnn", verify="never", weight_bits=8)
    feeds = make_feeds()[0]
    with MnnEngine(tmp_path / "m.mnn") as engine:
        got = engine.run(feeds)
    for output, expected in mnnconvert.load(tmp_path / "m.mnn").run(feeds).items():
        assert_equal(np.asarray(got[output]), expected, rtol=1e-3, atol=1e-7, name=output)


def test_no_model_is_left_out():
    known = {source(file) for file, _ in MORE.values()} | {source(model.file) for model in MODELS.values()}
    packages = {path.relative_to(FOLDER).parts[0] for path in known}
    assert known == {path for package in packages for path in (FOLDER / package).rglob("*.onnx")}
