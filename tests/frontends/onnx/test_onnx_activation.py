"""Activations and dropout against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import import_proto
from onnx_cases import check, model, refusal

X = np.array([[-90.0, -3.0, -1.25, -0.5], [-1e-3, 0.0, 1e-3, 0.4], [0.9, 2.5, 7.0, 90.0]], np.float32)
MICROSOFT = ("com.microsoft",)


@pytest.mark.parametrize("op", [
    "Relu", "LeakyRelu", "LeakyRelu <alpha=0.3>", "Elu", "Elu <alpha=0.5>", "Selu", "Selu <alpha=1.5, gamma=1.2>",
    "Celu", "Celu <alpha=1.7>", "HardSigmoid", "HardSigmoid <alpha=0.3, beta=0.4>", "HardSwish", "Softplus", "Softsign",
    "ThresholdedRelu", "ThresholdedRelu <alpha=0.7>", "Shrink", "Shrink <lambd=0.6, bias=0.2>", "Mish", "Gelu",
    'Gelu <approximate="tanh">',
])  # fmt: skip
def test_activations(op):
    check(f"(float[3,4] x) => (float[3,4] y) {{ y = {op} (x) }}", {"x": X}, opset=20, rtol=1e-6)


def test_relu_of_integers():
    x = np.int32([[-3, 0, 7]])
    check("(int32[1,3] x) => (int32[1,3] y) { y = Relu(x) }", {"x": x}, rtol=0)


@pytest.mark.parametrize(("alpha", "opset"), [(1.0, 24), (0.5, 24)])
def test_swish(alpha, opset):
    want = X / (1 + np.exp(-alpha * X.astype(np.float64)))
    check(f"(float[3,4] x) => (float[3,4] y) {{ y = Swish <alpha={alpha}> (x) }}", {"x": X}, opset=opset, rtol=1e-6,
          want={"y": want.astype(np.float32)})  # fmt: skip


SLOPES = {
    (4, 1, 1): "PReLU",
    (1, 4, 1, 1): "PReLU",
    (1,): "ReLU",
    (1, 1, 1): "ReLU",
    (4, 3, 5): "Select",
    (5,): "Select",
}


@pytest.mark.parametrize(("slope", "kind"), SLOPES.items())
def test_prelu_by_the_shape_of_its_slope(slope, kind):
    rng = np.random.default_rng(0)
    text = "(float[2,4,3,5] x) => (float[2,4,3,5] y) { y = PRelu(x, s) }"
    arrays = {"x": rng.standard_normal((2, 4, 3, 5)).astype("f"), "s": rng.uniform(0.1, 1, slope).astype("f")}
    check(text, arrays, rtol=1e-6)
    assert import_proto(model(text, arrays)[0]).nodes[-1].op.kind == kind


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (2, 3, 4, 5), (2, 3, 2, 4, 5)])
@pytest.mark.parametrize("stored", [True, False])
def test_prelu_of_old_opsets_has_a_slope_per_channel(shape, stored):
    rng = np.random.default_rng(0)
    x, slope = rng.standard_normal(shape).astype("f"), np.array([0.1, -0.5, 2], np.float32)
    sizes = ",".join(map(str, shape))
    text = f"(float[{sizes}] x{'' if stored else ', float[3] s'}) => (float[{sizes}] y) {{ y = PRelu(x, s) }}"
    want = np.where(x > 0, x, x * slope.reshape(3, *(1,) * (len(shape) - 2)))
    check(text, {"x": x, "s": slope}, opset=6, rtol=1e-6, want={"y": want})


def test_prelu_with_a_slope_known_at_run_time():
    check("(float[3,4] x, float[4] s) => (float[3,4] y) { y = PRelu(x, s) }", {"x": X, "s": X[1] + 1}, rtol=1e-6)


@pytest.mark.parametrize(("text", "inputs"), [
    ("(float[3,4] x) => (float[3,4] y) { y = com.microsoft.QuickGelu(x) }", {}),
    ("(float[3,4] x) => (float[3,4] y) { y = com.microsoft.Gelu(x) }", {}),
    ("(float[3,4] x) => (float[3,4] y) { y = com.microsoft.FastGelu(x) }", {}),
    ("(float[3,4] x, float[4] b) => (float[3,4] y) { y = com.microsoft.FastGelu(x, b) }", {"b": X[1]}),
    ("(float[3,4] x, float[4] b) => (float[3,4] y) { y = com.microsoft.BiasGelu(x, b) }", {"b": X[1]}),
])  # fmt: skip
def test_gelus_of_microsoft(text, inputs):
    check(text, {"x": X, **inputs}, domains=MICROSOFT, rtol=1e-6)


@pytest.mark.parametrize("opset", [7, 10, 13])
def test_dropout_does_nothing_and_its_mask_keeps_all(opset):
    kind = "bool" if opset >= 10 else "float"
    mask = np.ones((3, 4), bool if opset >= 10 else np.float32)
    if opset < 10:
        check("(float[3,4] x) => (float[3,4] z) { y = Dropout(x) z = Neg(y) }", {"x": X}, opset=opset, rtol=0)
        return
    check(f"(float[3,4] x) => (float[3,4] z, {kind}[3,4] m) {{ y, m = Dropout(x) z = Neg(y) }}", {"x": X}, opset=opset,
          rtol=0, want={"z": -X, "m": mask})  # fmt: skip


def test_dropout_in_training_is_refused():
    (diagnostic,) = refusal("(float[3,4] x) => (float[3,4] y) <float r = {0.5}, bool t = {1}> { y = Dropout(x, r, t) }")
    assert "training" in diagnostic.message
