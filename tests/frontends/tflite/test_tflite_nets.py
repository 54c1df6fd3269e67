"""Whole small networks: what single operators do not show."""

import numpy as np
import pytest
from tflite_cases import G, Op, T, build, check, const, import_bytes, through_file

import mnnconvert
from mnnconvert.ir import CodedTensor
from mnnconvert.passes.pipeline import run_pipeline

RNG = np.random.default_rng(21)
CONV = {"strideW": 1, "strideH": 1, "dilationWFactor": 1, "dilationHFactor": 1}


def normal(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) * 0.4).astype(np.float32)


def optimized(content: bytes):
    graph = import_bytes(content)
    run_pipeline(graph)
    return graph


def residual_net() -> bytes:
    """conv, relu6, depthwise, a residual, a gate of one number for each channel, mean, dense, softmax."""
    tensors = [
        T((1, 16, 16, 3)), const(normal(8, 3, 3, 3)), const(normal(8)), T(), const(normal(1, 3, 3, 8)),
        const(normal(8)), T(), T(), const([1, 2]), T(), const(normal(8, 1, 1, 8)), const(normal(8)), T(), T(), T(),
        T(), const(normal(5, 8)), const(normal(5)), T(), T(),
    ]  # fmt: skip
    ops = [
        Op("CONV_2D", [0, 1, 2], [3], "Conv2DOptions", CONV | {"strideW": 2, "fusedActivationFunction": 3}),
        Op("DEPTHWISE_CONV_2D", [3, 4, 5], [6], "DepthwiseConv2DOptions", CONV | {"depthMultiplier": 1}),
        Op("ADD", [3, 6], [7], "AddOptions", {"fusedActivationFunction": 1}),
        Op("MEAN", [7, 8], [9], "ReducerOptions", {"keepDims": True}),
        Op("CONV_2D", [9, 10, 11], [12], "Conv2DOptions", CONV),
        Op("LOGISTIC", [12], [13]),
        Op("MUL", [7, 13], [14], "MulOptions"),
        Op("MEAN", [14, 8], [15], "ReducerOptions"),
        Op("FULLY_CONNECTED", [15, 16, 17], [18], "FullyConnectedOptions"),
        Op("SOFTMAX", [18], [19], "SoftmaxOptions", {"beta": 1.0}),
    ]  # fmt: skip
    return build(G(tensors, ops, [0], [19]))


@pytest.mark.mnn
def test_a_residual_net_keeps_one_permutation(tmp_path):
    content = residual_net()
    check(content, tmp_path, peer=True)
    kinds = [n.op.kind for n in through_file(optimized(content)).nodes]
    assert kinds.count("Permute") == 1, "at the input"
    assert kinds.count("ConvertTensor") <= 2
    assert "ReLU6" not in kinds, "it is part of the convolution"


def quantized_net(kind: str, floats: bool = False) -> bytes:
    """conv with relu6, add, max pooling, dense, softmax, on codes from end to end, or `floats` at both ends."""
    moved = 128 if kind == "uint8" else 0
    low, high = (-127, 128) if kind == "int8" else (0, 256)

    def weight(*shape: int) -> T:
        return T(shape, kind, 0.01, 120 if moved else 0, 0, RNG.integers(low, high, shape).astype(kind))

    def bias(count: int, scale: float) -> T:
        return T((count,), "int32", scale, 0, 0, RNG.integers(-500, 500, count).astype(np.int32))

    def codes(shape: tuple[int, ...], scale: float, zero: int) -> T:
        return T(shape, kind, scale, zero + moved)

    tensors = [
        codes((1, 8, 8, 4), 0.05, -3), weight(4, 3, 3, 4), bias(4, 0.0005), codes((), 6 / 255, -128),
        codes((), 0.06, -20), codes((), 0.06, -20), weight(5, 64), bias(5, 0.0006), codes((), 0.2, 7),
        codes((), 1 / 256, -128),
    ]  # fmt: skip
    pool = {"filterHeight": 2, "filterWidth": 2, "strideH": 2, "strideW": 2, "padding": 1}
    ops = [
        Op("CONV_2D", [0, 1, 2], [3], "Conv2DOptions", CONV | {"fusedActivationFunction": 3}),
        Op("ADD", [3, 0], [4], "AddOptions"),
        Op("MAX_POOL_2D", [4], [5], "Pool2DOptions", pool),
        Op("FULLY_CONNECTED", [5, 6, 7], [8], "FullyConnectedOptions"),
        Op("SOFTMAX", [8], [9], "SoftmaxOptions", {"beta": 1.0}),
    ]  # fmt: skip
    if not floats:
        return build(G(tensors, ops, [0], [9]))
    ends = [Op("QUANTIZE", [10], [0], "QuantizeOptions"), Op("DEQUANTIZE", [9], [11], "DequantizeOptions")]
    return build(G([*tensors, T((1, 8, 8, 4)), T()], [ends[0], *ops, ends[1]], [10], [11]))


@pytest.mark.mnn
def test_a_quantized_net_with_float_ends_is_proved(tmp_path):
    """A step of its softmax is 1/256, more than the tolerance of floats."""
    path = tmp_path / "m.tflite"
    path.write_bytes(quantized_net("int8", floats=True))
    report = mnnconvert.convert(path, tmp_path / "m.mnn", verify="always")
    assert report.verification is not None and report.verification.passed
    assert mnnconvert.verify(path, tmp_path / "m.mnn", engine="mnn").passed


@pytest.mark.mnn
@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_a_quantized_net(kind, tmp_path):
    content = quantized_net(kind)
    check(content, tmp_path, peer=True)
    coded = [v.tensor for v in through_file(optimized(content)).constants() if isinstance(v.tensor, CodedTensor)]
    assert [t.coded.bits for t in coded] == [8, 8]


def test_scales_and_zero_points_reach_the_file():
    graph = through_file(optimized(quantized_net("int8")))
    steps = {(v.steps.scale, v.steps.zero) for v in graph.values() if v.steps is not None}
    assert {(np.float32(0.05), -3.0), (np.float32(0.06), -20.0), (np.float32(0.2), 7.0)} <= steps


def test_a_dense_net(tmp_path):
    tensors = [
        T((1, 8)), const(normal(16, 8)), const(normal(16)), T(), const(normal(6, 16)), const(normal(6)), T(),
    ]  # fmt: skip
    ops = [
        Op("FULLY_CONNECTED", [0, 1, 2], [3], "FullyConnectedOptions", {"fusedActivationFunction": 1}),
        Op("FULLY_CONNECTED", [3, 4, 5], [6], "FullyConnectedOptions"),
    ]
    content = build(G(tensors, ops, [0], [6]))
    check(content, tmp_path)
    assert import_bytes(content).outputs[0][1].shape == (1, 6)
