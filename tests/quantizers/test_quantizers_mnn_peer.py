"""Codes, scales and minima against those that the released converter writes."""

import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mnnconvert.quantizers import hqq, rtn
from mnnconvert.schema.codec import IDSTFields, decode
from mnnconvert.schema.flatbuffer import read
from mnnconvert.schema.tables import Convolution2D

pytestmark = pytest.mark.mnn

F = np.float32
CONVERT = "import sys, _tools; _tools.mnnconvert(sys.argv)"


def released(weights, folder, *options):
    """The coded weights of a 1x1 convolution as the released converter writes them."""
    rows, columns = weights.shape
    shapes = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, c, 1, 1]) for n, c in (("x", columns), ("y", rows))
    ]
    kernel = numpy_helper.from_array(weights.reshape(rows, columns, 1, 1), "w")
    graph = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"])], "g", shapes[:1], shapes[1:], [kernel])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, folder / "m.onnx")
    files = ["--modelFile", str(folder / "m.onnx"), "--MNNModel", str(folder / "m.mnn"), "--bizCode", "x"]
    command = [sys.executable, "-c", CONVERT, "-f", "ONNX", *files, *options]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    net = read((folder / "m.mnn").read_bytes())
    (table,) = (op.main.quanParameter for op in net.oplists if isinstance(op.main, Convolution2D))
    names = ("type", "aMaxOrBits", "readType", "aMin", "quantScale", "shapeInt32", "alpha")
    fields = {name: getattr(table, name) for name in names}
    return decode(IDSTFields(**fields, buffer=table.buffer.view(np.uint8)), rows, columns)


def layer(seed, deviation=0.05):
    return (np.random.default_rng(seed).standard_normal((16, 96)) * deviation).astype(F)


def assert_same(ours, theirs):
    assert (ours.codes == theirs.codes).all()
    assert (ours.scale == theirs.scale).all()
    assert ours.minimum is None if theirs.minimum is None else (ours.minimum == theirs.minimum).all()
    assert ours.bits == theirs.bits


@pytest.mark.parametrize(("bits", "symmetric"), [(8, True), (8, False), (4, True), (4, False), (3, False), (2, True)])
def test_round_to_nearest_is_the_same_to_the_bit(bits, symmetric, tmp_path):
    options = ["--weightQuantBits", str(bits), "--weightQuantBlock", "32"]
    options += ["--weightQuantAsymmetric", "0"] if symmetric else []
    theirs = released(layer(bits), tmp_path, *options)
    assert_same(rtn.quantize(layer(bits), bits, 32, symmetric), theirs)


@pytest.mark.parametrize(("block", "deviation"), [(32, 0.05), (0, 5.0)])
def test_hqq_is_the_same_to_the_bit(block, deviation, tmp_path):
    weights = layer(4, deviation)
    options = ["--weightQuantBlock", str(block)] if block else []
    theirs = released(weights, tmp_path, "--weightQuantBits", "4", "--hqq", *options)
    ours = hqq.quantize(weights, 4, block)
    assert (ours.codes == theirs.codes).all() and (ours.scale == theirs.scale).all()
    ulps = 0 if deviation < 1 else 4  # large residuals are raised to a power, by another maths library
    np.testing.assert_array_max_ulp(ours.minimum, theirs.minimum, ulps)
