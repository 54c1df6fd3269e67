"""Ten real models in three forms: against onnxruntime, the released runtime and the released converter."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_cases import assert_equal
from real_models import MODELS, Conversions, coded_nodes, weight

import mnnconvert
from mnnconvert.api import from_json, to_json
from mnnconvert.verify.mnn_engine import MnnEngine

pytestmark = pytest.mark.models

QUANTIZED = ("8 bit", "4 bit")
TABLE_BYTES = 64  # of a coded layer beside its weights: sizes, and the fields of its table


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory) -> Conversions:
    return Conversions(MODELS[request.param], tmp_path_factory.mktemp("model"))


def agree(got, want, rtol: float = 1e-3) -> None:
    """All outputs; 1e-7 of absolute slack is less than a thousandth of any value that means something here."""
    assert got.keys() == want.keys()
    for name, expected in want.items():
        assert_equal(np.asarray(got[name]), expected, rtol=rtol, atol=1e-7, name=name)


def test_our_executor_agrees_with_onnxruntime(model):
    session = mnnconvert.load(model.path("float"))
    for feeds, want in model.runs:
        agree(session.run(feeds), want)


@pytest.mark.mnn
def test_the_released_runtime_agrees_with_onnxruntime(model):
    with MnnEngine(model.path("float")) as engine:
        for feeds, want in model.runs:
            agree(engine.run(feeds), want)


def test_the_outputs_are_worth_comparing(model):
    """No output is so small that the absolute slack would hide errors."""
    for _, want in model.runs:
        assert min(np.abs(array).max() for array in want.values()) > 1e-2


@pytest.mark.mnn
@pytest.mark.parametrize("kind", QUANTIZED)
def test_quantized_files_run_alike_in_both_executors(model, kind):
    feeds, _ = model.runs[0]
    with MnnEngine(model.path(kind)) as engine:
        agree(engine.run(feeds), mnnconvert.load(model.path(kind)).run(feeds), model.model.coded_rtol)


@pytest.mark.parametrize("kind", QUANTIZED)
def test_every_weight_decodes_to_within_half_a_step(model, kind):
    """But for those beyond the ends of the grid, where it was narrowed because that errs less on the whole."""
    exact, coded = weight(model.path("float")), coded_nodes(model.path(kind))
    assert len(coded) >= sum(not (layer.reason or layer.is_table) for layer in model.report(kind).layers) > 0
    for name, node in coded.items():
        tensor = node.inputs[1].tensor
        float_weight = exact[name] if name in exact else part_of(exact, name, node)
        step = np.abs(np.repeat(tensor.coded.scale, tensor.coded.block, axis=1))
        error = np.abs(tensor.numpy() - float_weight).reshape(step.shape)
        inside = (tensor.coded.codes > tensor.coded.lowest) & (tensor.coded.codes < ~tensor.coded.lowest)
        assert (error <= 0.5 * step * 1.001)[inside].all(), name  # float32 arithmetic on top of half a step


def part_of(exact, name, node) -> np.ndarray:
    """The float weight of a layer that was cut in two along its input channels."""
    stem, _, part = name.rpartition("/")
    whole, channels = exact[stem], node.inputs[1].tensor.shape[1]
    return whole[:, -channels:] if part == "tail" else whole[:, :channels]


@pytest.mark.parametrize("kind", QUANTIZED)
def test_sizes_are_what_the_encoding_needs(model, kind):
    """The float file without its weights, and for each weight codes, scales, the codebook and its table."""
    report = model.report(kind)
    layers = {id(x.weight.tensor): x for x in report.layers if not x.reason}.values()
    codebook = 256 if kind == "8 bit" else 16
    rest = model.report("float").target_bytes - sum(x.bytes_before for x in layers)
    needed = rest + sum(x.bytes_after + codebook + TABLE_BYTES for x in layers)
    assert report.target_bytes == pytest.approx(needed, rel=0.02)


@pytest.mark.mnn
@pytest.mark.parametrize("kind", ("float", *QUANTIZED))
def test_no_file_is_larger_than_that_of_the_released_converter(model, kind):
    assert model.report(kind).target_bytes <= model.peer(kind).stat().st_size


@pytest.mark.parametrize("kind", ("float", *QUANTIZED))
def test_a_second_run_gives_the_same_bytes(model, kind):
    again = Conversions(model.model, model.folder / "again")
    again.folder.mkdir(exist_ok=True)
    assert again.path(kind).read_bytes() == model.path(kind).read_bytes()


@pytest.mark.parametrize("kind", ("float", "4 bit"))
def test_the_json_form_gives_the_same_bytes(model, kind, tmp_path):
    if kind == "float" and model.source.stat().st_size > 50e6:
        pytest.skip("the numbers of the large one are mostly its embeddings, which its 4-bit file holds too")
    to_json(model.path(kind), tmp_path / "m.json")
    from_json(tmp_path / "m.json", tmp_path / "m.mnn")
    assert (tmp_path / "m.mnn").read_bytes() == model.path(kind).read_bytes()
