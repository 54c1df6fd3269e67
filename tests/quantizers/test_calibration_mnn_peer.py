"""Steps of activations against those that the released quantization tool writes for the same samples."""

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mnnconvert
from mnnconvert.schema.reader import read_model

pytestmark = pytest.mark.mnn

QUANTIZE = "import sys, _tools; _tools.mnnquant(['mnnquant', *sys.argv[1:]])"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """conv-relu-conv on planes of 32 x 32, and eight recorded samples."""
    folder = tmp_path_factory.mktemp("int8")
    rng = np.random.default_rng(0)
    weights = {"a": rng.standard_normal((16, 3, 3, 3)) * 0.3, "b": rng.standard_normal((8, 16, 3, 3)) * 0.1}
    nodes = [helper.make_node("Conv", ["x", "a"], ["p"], pads=[1] * 4), helper.make_node("Relu", ["p"], ["q"]),
             helper.make_node("Conv", ["q", "b"], ["y"])]  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, 32, 32))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 8, 30, 30))],
        [numpy_helper.from_array(w.astype("f"), n) for n, w in weights.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), folder / "m.onnx")
    mnnconvert.convert(folder / "m.onnx", folder / "m.mnn", verify="never")
    for number in range(8):
        sample = folder / "samples" / f"input_{number}"
        sample.mkdir(parents=True)
        x = rng.laplace(size=(1, 3, 32, 32)).astype("f")
        (sample / "input.json").write_text(
            json.dumps({"inputs": [{"name": "x", "shape": [1, 3, 32, 32]}], "outputs": ["y"]})
        )
        (sample / "x.txt").write_text("\n".join(repr(float(v)) for v in x.ravel()))
    return folder


def both(place, method):
    """Steps by value name: ours, theirs."""
    config = place / f"{method}.json"
    keys = {"path": f"{place}/samples/", "input_type": "sequence", "used_sample_num": 8, "batch_size": 1,
            "feature_quantize_method": method, "weight_quantize_method": "MAX_ABS"}  # fmt: skip
    config.write_text(json.dumps(keys))
    mnnconvert.quantize(place / "m.mnn", place / f"ours_{method}.mnn", config)
    command = [sys.executable, "-c", QUANTIZE, str(place / "m.mnn"), str(place / f"peer_{method}.mnn"), str(config)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    graphs = [read_model(place / f"{who}_{method}.mnn") for who in ("ours", "peer")]
    return [{v.name: v.steps for v in graph.values() if v.steps is not None} for graph in graphs]


@pytest.mark.parametrize(("method", "near"), [("KL", 0.01), ("ADMM", 0.05), ("EMA", 0.01)])
def test_the_released_tool_reads_our_configuration_and_finds_like_steps(place, method, near):
    ours, theirs = both(place, method)
    common = (ours.keys() & theirs.keys()) - ({"x", "x/c4"} if method == "KL" else set())  # we leave inputs unclipped
    assert "q" in common
    for name in common:
        assert ours[name].scale == pytest.approx(theirs[name].scale, rel=near), name
        assert ours[name].zero == theirs[name].zero, name
        assert ours[name].high == theirs[name].high == 127
