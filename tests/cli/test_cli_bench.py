"""`bench --op`, profiles, and the list of compiled ops: real sessions, no fakes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import mnnconvert
from mnnconvert.cli.main import main
from mnnconvert.ir import F32, Builder, Graph
from mnnconvert.ops.elementwise import Binary, Unary
from mnnconvert.schema.writer import write_model

QUICK = ["--rounds", "2", "--warmup", "0"]


def test_one_op_is_timed_against_its_definition(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--op", "Convolution", "--shape", "1x8x10x9,4x8x3x3", "--set", "pads=1,1,1,1", "--set", "strides=2,2"]
    assert main(["bench", *given, *QUICK, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert len(document["engines"]) == 2 and document["engines"][1]["name"] == "numpy"
    assert {row["kind"] for row in document["profile"]} == {"Convolution"}


def test_one_op_without_shapes_takes_a_sample(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--op", "Softmax", *QUICK]) == 0
    assert "Kernel" in capsys.readouterr().out


@pytest.mark.parametrize(
    "given",
    [["--op", "Nothing"], ["--op", "Convolution", "--shape", "1x8xq"], ["--op", "Softmax", "--set", "nothing=1"], [],
     ["--op", "Convolution", "--shape", "1x8x9x9,3x3"]],
)  # fmt: skip
def test_what_cannot_be_timed_is_named(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *given, *QUICK]) == 2
    assert "error[" in capsys.readouterr().err


def test_a_profile_names_every_kernel(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    b = Builder(Graph())
    x = b.input("x", F32, (4, 5))
    b.output(b.add(Binary("ADD"), b.add(Unary("EXP"), x), x, name="y"))
    write_model(b.graph, tmp_path / "m.mnn")
    assert main(["bench", str(tmp_path / "m.mnn"), "--profile", *QUICK, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["profile"] and all(row["kernel"] and row["seconds"] >= 0 for row in document["profile"])
    kinds = document["profile_by_op"]
    assert {row["op"] for row in kinds} == {row["kind"] for row in document["profile"]}
    assert sum(row["calls"] for row in kinds) == len(document["profile"])
    assert sum(row["share"] for row in kinds) == pytest.approx(1.0)
    assert main(["bench", str(tmp_path / "m.mnn"), "--profile", *QUICK]) == 0
    printed = capsys.readouterr().out
    assert all(title in printed for title in ("By op", "By layer", "By kernel"))


def test_ops_of_a_backend(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "--backend", "cpu", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {"Convolution", "NonMaxSuppressionV2"} <= {row["name"] for row in document["ops"]}
    assert main(["ops", "--backend", "cpu", "--md"]) == 0
    assert "| Convolution |" in capsys.readouterr().out


def test_a_source_with_a_net_of_its_own(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Caffe weights are timed with their prototxt, at the sizes of the converted file."""
    pytest.importorskip("cv2", reason="needs OpenCV (make setup)")
    from caffe_cases import files, inputs, layer

    sizes = "convolution_param { num_output: 2 kernel_size: 3 }"
    text = inputs(data=(1, 3, 8, 9)) + layer("Convolution", "data", "y", sizes)
    net, weights = files(tmp_path, text, {"y": [np.ones((2, 3, 3, 3)), np.zeros(2)]})
    mnnconvert.convert(weights, tmp_path / "m.mnn", prototxt=net, verify="never")
    command = ["bench", str(tmp_path / "m.mnn"), "--rounds", "1", "--warmup", "0"]
    assert main([*command, "--vs", str(weights), "--prototxt", str(net), "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["engines"]][1] == "OpenCV"
    assert main([*command, "--prototxt", str(net)]) != 0
    assert "--vs" in capsys.readouterr().err
