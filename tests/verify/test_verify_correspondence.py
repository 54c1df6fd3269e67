"""Which values of a file stand for values of its source."""

from __future__ import annotations

from pathlib import Path

import pytest
from model_files import network

import mnnconvert
from mnnconvert.schema.reader import read_model
from mnnconvert.verify.correspondence import correspond


@pytest.mark.parametrize("activation", ["Relu", "Sigmoid"])
def test_an_operand_in_another_shape_is_not_the_result(tmp_path: Path, activation: str) -> None:
    """A product whose activation was fused has no value of its own; `fc1/Reshape` is what it reads."""
    mnnconvert.convert(network(tmp_path / "m.onnx", activation=activation), tmp_path / "m.mnn", verify="never")
    matches = correspond(read_model(tmp_path / "m.mnn"), {"fc1", "act", "y"})
    assert "fc1/Reshape" not in {m.value.name for m in matches}
    assert "y" in {m.source for m in matches}


def test_layers_of_a_float_file_are_exact(tmp_path: Path) -> None:
    mnnconvert.convert(network(tmp_path / "m.onnx"), tmp_path / "m.mnn")
    result = mnnconvert.verify(tmp_path / "m.onnx", tmp_path / "m.mnn", per_layer=True)
    assert result.layers is not None and result.layers.first_bad is None
    assert all(layer.judged.sqnr is not None and layer.judged.sqnr > 100 for layer in result.layers.layers)
