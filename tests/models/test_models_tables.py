"""A model whose table of words is most of it: stored in few bits as a whole, and computed alike everywhere."""

import numpy as np
import pytest
from real_models import MODELS, source

import mnnconvert
from mnnconvert.verify.engines import OnnxRuntimeEngine
from mnnconvert.verify.mnn_engine import MnnEngine


@pytest.mark.models
@pytest.mark.parametrize(
    ("options", "megabytes", "cosine"),
    [({"weight_bits": 8}, 18, 0.999), ({"weight_bits": 4, "weight_block": 32}, 11, 0.985)],
    ids=["8 bit", "4 bit"],
)
def test_a_sentence_encoder_shrinks_as_a_whole(options, megabytes, cosine, tmp_path):
    path = source(MODELS["MiniLM"].file)
    report = mnnconvert.convert(path, tmp_path / "m.mnn", verify="never", **options)
    assert report.source_bytes > 69e6 and report.target_bytes < megabytes * 1e6
    indices = np.random.default_rng(0).integers(1000, 30000, (1, 32))
    feeds = {"input_ids": indices, "attention_mask": np.ones_like(indices)}
    want = OnnxRuntimeEngine(path).run(feeds)
    with MnnEngine(tmp_path / "m.mnn") as engine:
        peer = engine.run(feeds)
    ours = mnnconvert.load(tmp_path / "m.mnn").run(feeds)
    for name, float_output in want.items():
        if float_output.dtype == np.float32 and float_output.size > 1000:
            a, b = float_output.ravel(), ours[name].ravel()
            assert a @ b / np.sqrt((a @ a) * (b @ b)) >= cosine
            np.testing.assert_allclose(peer[name], ours[name], atol=1e-4)
