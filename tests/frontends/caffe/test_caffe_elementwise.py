"""Activations and arithmetic against OpenCV, or Caffe's definitions in numpy where it has no such layer."""

from __future__ import annotations

import numpy as np
import pytest
from caffe_cases import check, feeds_for, inputs, layer, one, random, refusal

PLANE = (2, 3, 4, 5)

OPENCV = {
    "abs": ("AbsVal", ""),
    "bnll": ("BNLL", ""),
    "sigmoid": ("Sigmoid", ""),
    "tanh": ("TanH", ""),
    "relu": ("ReLU", ""),
    "leaky": ("ReLU", "relu_param { negative_slope: 0.1 }"),
    "elu": ("ELU", "elu_param { alpha: 0.5 }"),
    "relu6": ("ReLU6", ""),
    "power": ("Power", "power_param { power: 2 scale: 0.5 shift: 3 }"),
    "linear": ("Power", "power_param { scale: -1 shift: 3 }"),
    "cube": ("Power", "power_param { power: 3 shift: 4 }"),
    "exp": ("Exp", ""),
    "exp_base": ("Exp", "exp_param { base: 2 scale: 0.5 shift: 1 }"),
    "dropout": ("Dropout", "dropout_param { dropout_ratio: 0.3 }"),
}


@pytest.mark.parametrize("case", OPENCV)
def test_activations(case, tmp_path):
    check(one(OPENCV[case][0], OPENCV[case][1], x=PLANE), None, tmp_path)


X = feeds_for(one("ReLU", x=PLANE))["x"]
NUMPY = {
    "threshold": ("Threshold", "threshold_param { threshold: 0.5 }", (X > 0.5).astype(np.float32)),
    "log": ("Log", "log_param { shift: 3 }", np.log(X + 3)),
    "log_base": ("Log", "log_param { base: 10 scale: 0.5 shift: 2 }", np.log10(X * 0.5 + 2)),
    "swish": ("Swish", "swish_param { beta: 1.5 }", X / (1 + np.exp(-1.5 * X))),
    "clip": ("Clip", "clip_param { min: -0.5 max: 1 }", np.clip(X, -0.5, 1)),
    "scaled_dropout": ("Dropout", "dropout_param { dropout_ratio: 0.25 scale_train: false }", X * 0.75),
    "no_power": ("Power", "power_param { power: 0 }", np.ones_like(X)),
}


@pytest.mark.parametrize("case", NUMPY)
def test_definitions(case, tmp_path):
    kind, settings, want = NUMPY[case]
    check(one(kind, settings, x=PLANE), None, tmp_path, want={"y": want}, rtol=1e-4)


@pytest.mark.parametrize("shape", [PLANE, (2, 3, 4), (2, 3)])
@pytest.mark.parametrize("shared", [False, True])
def test_prelu(shape, shared, tmp_path, rng):
    slope = random(rng, 1 if shared else 3)
    text = one("PReLU", f"prelu_param {{ channel_shared: {str(shared).lower()} }}", x=shape)
    x = feeds_for(text)["x"]
    want = np.where(x > 0, x, x * slope.reshape(-1, *(1,) * (len(shape) - 2)))
    check(text, {"y": [slope]}, tmp_path, want={"y": want})


def test_prelu_of_planes_is_opencvs(tmp_path, rng):
    check(one("PReLU", x=PLANE), {"y": [random(rng, 3)]}, tmp_path)


@pytest.mark.parametrize("operation", ["PROD", "SUM", "MAX", "1"])
@pytest.mark.parametrize("count", [2, 3])
def test_eltwise(operation, count, tmp_path):
    shapes = {f"x{i}": PLANE for i in range(count)}
    check(one("Eltwise", f"eltwise_param {{ operation: {operation} }}", **shapes), None, tmp_path)


def test_eltwise_is_a_sum_and_takes_coefficients(tmp_path):
    check(one("Eltwise", a=PLANE, b=PLANE), None, tmp_path)
    check(one("Eltwise", "eltwise_param { coeff: 2 coeff: -0.5 }", a=PLANE, b=PLANE), None, tmp_path)


def test_eltwise_refusals():
    (found,) = refusal(one("Eltwise", "eltwise_param { operation: PROD coeff: 2 coeff: 1 }", a=PLANE, b=PLANE))
    assert found.reference == "unsupported-attribute"
    assert "coefficients" in found.message
    (found,) = refusal(one("Eltwise", a=PLANE, b=(2, 3, 4, 1)))
    assert found.reference == "shape-mismatch"
    (found,) = refusal(one("Eltwise", "eltwise_param { operation: DIV }", a=PLANE, b=PLANE))
    assert "DIV" in found.message


@pytest.mark.parametrize("bias", [False, True])
def test_scale(bias, tmp_path, rng):
    blobs = [random(rng, 3), random(rng, 3)][: 1 + bias]
    check(one("Scale", f"scale_param {{ bias_term: {str(bias).lower()} }}", x=PLANE), {"y": blobs}, tmp_path)


SPREADS = {
    "axis 2": ("axis: 2", (4,), (1, 1, 4, 1)),
    "two axes": ("axis: 1 num_axes: 2", (3, 4), (1, 3, 4, 1)),
    "the rest": ("axis: 2 num_axes: -1", (4, 5), (1, 1, 4, 5)),
    "negative": ("axis: -1", (5,), (1, 1, 1, 5)),
    "a scalar": ("num_axes: 0", (), (1, 1, 1, 1)),
    "images": ("axis: 0", (2,), (2, 1, 1, 1)),
}


@pytest.mark.parametrize("case", SPREADS)
def test_scale_and_bias_along_axes(case, tmp_path, rng):
    settings, sizes, spread = SPREADS[case]
    factor, addend = random(rng, *sizes), random(rng, *sizes)
    x = feeds_for(one("Scale", x=PLANE))["x"]
    check(
        one("Scale", f"scale_param {{ {settings} bias_term: true }}", x=PLANE), {"y": [factor, addend]}, tmp_path,
        want={"y": x * factor.reshape(spread) + addend.reshape(spread)},
    )  # fmt: skip
    check(
        one("Bias", f"bias_param {{ {settings} }}", x=PLANE), {"y": [addend]}, tmp_path,
        want={"y": x + addend.reshape(spread)},
    )  # fmt: skip


def test_scale_and_bias_by_a_second_operand(tmp_path, rng):
    text = one("Scale", "scale_param { axis: 0 bias_term: true }", x=PLANE, f=(2, 3))
    feeds, addend = feeds_for(text), random(rng, 2, 3)
    spread = feeds["f"].reshape(2, 3, 1, 1)
    check(text, {"y": [addend]}, tmp_path, want={"y": feeds["x"] * spread + addend.reshape(2, 3, 1, 1)})
    text = one("Bias", "bias_param { axis: 1 }", x=PLANE, f=(3,))
    feeds = feeds_for(text)
    check(text, None, tmp_path, want={"y": feeds["x"] + feeds["f"].reshape(3, 1, 1)})


def test_axpy_and_spatial_product(tmp_path):
    text = one("Axpy", a=(2, 3, 1, 1), x=PLANE, z=PLANE)
    feeds = feeds_for(text)
    check(text, None, tmp_path, want={"y": feeds["a"] * feeds["x"] + feeds["z"]})
    text = one("SpatialProduct", x=PLANE, m=(2, 1, 4, 5))
    feeds = feeds_for(text)
    check(text, None, tmp_path, want={"y": feeds["x"] * feeds["m"]})


def test_split_and_silence(tmp_path):
    text = (
        inputs(x=PLANE) + layer("Split", "x", "a b") + layer("ReLU", "a", "y") + layer("TanH", "b", "z")
        + layer("Power", "x", "unused") + layer("Silence", "unused", "", name="quiet")
    )  # fmt: skip
    x = feeds_for(text)["x"]
    check(text, None, tmp_path, want={"y": np.maximum(x, 0), "z": np.tanh(x)})
