"""Against the released MNN: it opens what we write, and we read what it writes."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest
from schema_trees import to_bytes

from mnnconvert.schema.flatbuffer import read
from mnnconvert.schema.json_form import from_json, to_json
from mnnconvert.schema.tables import (
    MNN_DATA_FORMAT,
    BinaryOp,
    BinaryOpOperation,
    Blob,
    DataType,
    Input,
    Net,
    NetSource,
    Op,
    OpType,
    Scale,
)

pytestmark = pytest.mark.mnn

RUN = """
import sys
import numpy as np
import MNN.expr as expr
import MNN.nn as nn
module = nn.load_module_from_file(sys.argv[1], ["x"], ["y"])
output = module.forward(expr.const(list(range(8192)), [8192], expr.NCHW))
print(np.asarray(output.read()).astype(float).sum())
"""


@pytest.fixture(autouse=True)
def _needs_mnn():
    pytest.importorskip("MNN")


def python(code, *arguments):
    """The standard output of a Python program in a process of its own, since MNN may crash."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def convert(*arguments):
    python("import sys, _tools; _tools.mnnconvert(['mnnconvert', *sys.argv[1:]])", *arguments)


def small_net():
    """y = x + constant, on 8192 numbers: a vector long enough to stand at the end of the file."""
    shape = np.array([8192], np.int32)
    nchw = MNN_DATA_FORMAT.NCHW
    constant = Blob(dims=shape, dataFormat=nchw, dataType=DataType.DT_FLOAT, float32s=np.full(8192, 0.1, np.float32))
    add = BinaryOp(opType=BinaryOpOperation.ADD, T=DataType.DT_FLOAT)
    indices = [np.array([i], np.int32) for i in range(3)]
    ops = [
        Op(name="x", type=OpType.Input, main=Input(dims=shape, dformat=nchw), outputIndexes=indices[0]),
        Op(name="c", type=OpType.Const, main=constant, outputIndexes=indices[1]),
        Op(
            name="y",
            type=OpType.BinaryOp,
            main=add,
            inputIndexes=np.array([0, 1], np.int32),
            outputIndexes=indices[2],
        ),
    ]
    return Net(oplists=ops, tensorName=["x", "c", "y"], outputName=["y"], sourceType=NetSource.ONNX)


def test_mnn_runs_our_file(tmp_path):
    path = tmp_path / "ours.mnn"
    path.write_bytes(to_bytes(small_net()))
    expected = 8192 * 8191 / 2 + 8192 * 0.1
    assert float(python(RUN, path).split()[-1]) == pytest.approx(
        expected, rel=1e-6
    )  # a sum of 8192 single-precision numbers


def test_mnn_and_we_read_each_others_json(tmp_path):
    net = small_net()
    net.oplists[1].main.float32s = np.full(8192, 0.5, np.float32)  # MNN prints six decimals
    ours, theirs, dump = tmp_path / "ours.mnn", tmp_path / "theirs.mnn", tmp_path / "dump.json"
    ours.write_bytes(to_bytes(net))
    convert("-f", "MNN", "--modelFile", ours, "--JsonFile", dump)
    assert from_json(dump.read_text(), Net) == net

    stream = io.StringIO()
    to_json(net, stream)
    dump.write_text(stream.getvalue())
    convert("-f", "JSON", "--modelFile", dump, "--MNNModel", theirs)
    assert read(theirs.read_bytes()) == net
    assert to_bytes(read(theirs.read_bytes())) == ours.read_bytes()


def test_we_read_the_numbers_that_mnn_prints_but_does_not_read(tmp_path):
    values = np.array([np.nan, np.inf, -np.inf], np.float32)
    net = Net(oplists=[Op(type=OpType.Scale, main=Scale(channels=3, scaleData=values))], tensorName=[])
    ours, dump = tmp_path / "ours.mnn", tmp_path / "dump.json"
    ours.write_bytes(to_bytes(net))
    convert("-f", "MNN", "--modelFile", ours, "--JsonFile", dump)
    assert from_json(dump.read_text(), Net) == net


def test_we_read_and_rewrite_what_mnn_converts(tmp_path):
    from onnx import TensorProto, helper, numpy_helper, save

    weight = numpy_helper.from_array(np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 32])],
        [weight],
    )
    source, target = tmp_path / "small.onnx", tmp_path / "small.mnn"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), source)
    convert("-f", "ONNX", "--modelFile", source, "--MNNModel", target, "--weightQuantBits", 8)
    net = read(target.read_bytes())
    assert "y" in net.outputName
    assert read(to_bytes(net)) == net
    assert len(to_bytes(net)) <= target.stat().st_size
