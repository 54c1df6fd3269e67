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


def released(layers, folder, *options):
    """The coded weights of 1x1 convolutions, one per matrix, as the released converter writes them."""
    inputs, outputs, kernels, nodes = [], [], [], []
    for i, weights in enumerate(layers):
        rows, columns = weights.shape
        inputs.append(helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, [1, columns, 1, 1]))
        outputs.append(helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, [1, rows, 1, 1]))
        kernels.append(numpy_helper.from_array(weights.reshape(rows, columns, 1, 1), f"w{i}"))
        nodes.append(helper.make_node("Conv", [f"x{i}", f"w{i}"], [f"y{i}"]))
    graph = helper.make_graph(nodes, "g", inputs, outputs, kernels)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, folder / "m.onnx")
    files = ["--modelFile", str(folder / "m.onnx"), "--MNNModel", str(folder / "m.mnn"), "--bizCode", "x"]
    command = [sys.executable, "-c", CONVERT, "-f", "ONNX", *files, *options]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    net = read((folder / "m.mnn").read_bytes())
    found = {op.name: op.main.quanParameter for op in net.oplists if isinstance(op.main, Convolution2D)}
    return [stored(found[f"y{i}"], *weights.shape) for i, weights in enumerate(layers)]


def stored(table, rows, columns):
    """What a file holds, as coded weights."""
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
    (theirs,) = released([layer(bits)], tmp_path, *options)
    assert_same(rtn.quantize(layer(bits), bits, 32, symmetric), theirs)


@pytest.mark.parametrize(("block", "deviation"), [(32, 0.05), (0, 5.0)])
def test_hqq_is_the_same_to_the_bit(block, deviation, tmp_path):
    weights = layer(4, deviation)
    options = ["--weightQuantBlock", str(block)] if block else []
    (theirs,) = released([weights], tmp_path, "--weightQuantBits", "4", "--hqq", *options)
    ours = hqq.quantize(weights, 4, block)
    assert (ours.codes == theirs.codes).all() and (ours.scale == theirs.scale).all()
    ulps = 0 if deviation < 1 else 4  # large residuals are raised to a power, by another maths library
    np.testing.assert_array_max_ulp(ours.minimum, theirs.minimum, ulps)


def twenty_layers():
    """Of many sizes and distributions, all so small that HQQ takes no powers."""
    rng = np.random.default_rng(20)
    layers = []
    for i in range(20):
        rows, columns = int(rng.integers(2, 40)), 32 * int(rng.integers(1, 6))
        values = rng.standard_t(4, (rows, columns)) if i % 3 else rng.uniform(-1, 1.3, (rows, columns))
        layers.append((values * 10 ** rng.uniform(-3, -1.5)).astype(F))
    layers[3][0] = 0  # what converters fear: a row of zeros, a constant row, one weight alone
    layers[4][1] = 0.3
    layers[5][0, 1:] = 0
    return layers


@pytest.mark.parametrize(
    ("bits", "block", "options"),
    [
        (4, 32, []),
        (8, 0, []),
        (4, 32, ["--weightQuantAsymmetric", "0"]),
        (8, 0, ["--weightQuantAsymmetric", "0"]),
        (4, 32, ["--hqq"]),
        (3, 0, ["--hqq"]),
        (8, 32, ["--hqq"]),
    ],
)
def test_twenty_layers_are_the_same_to_the_bit(bits, block, options, tmp_path):
    layers = twenty_layers()
    words = ["--weightQuantBits", str(bits), *(["--weightQuantBlock", str(block)] if block else []), *options]
    for weights, theirs in zip(layers, released(layers, tmp_path, *words), strict=True):
        if "--hqq" in options:
            assert_same(hqq.quantize(weights, bits, block), theirs)
        else:
            assert_same(rtn.quantize(weights, bits, block, symmetric=bool(options)), theirs)
