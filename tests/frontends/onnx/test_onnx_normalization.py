"""Normalisations and softmax against onnxruntime, or against the definition where it has no kernel."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import import_proto
from onnx_cases import check, model, refusal

MICROSOFT = ("com.microsoft",)


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def shaped(shape: tuple[int, ...]) -> str:
    return f"float[{','.join(map(str, shape))}]"


def kinds(text: str, arrays, **options) -> list[str]:
    return [node.op.kind for node in import_proto(model(text, arrays, **options)[0]).nodes]


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize(
    ("opset", "axis"), [(9, None), (11, 0), (11, 1), (11, 2), (11, -1), (13, None), (13, 0), (13, -2)]
)
def test_softmax_family_over_each_axis(op, opset, axis):
    """Before opset 13 the default is 1, and the axes behind belong to it."""
    attribute = "" if axis is None else f"<axis={axis}>"
    check(f"(float[2,3,4] x) => (float[2,3,4] y) {{ y = {op} {attribute} (x) }}", {"x": noise(2, 3, 4) * 3},
          opset=opset, rtol=1e-6)  # fmt: skip


def test_softmax_of_old_opset_is_one_op_where_nothing_is_behind():
    text = "(float[2,5,1,1] x) => (float[2,5,1,1] y) { y = Softmax(x) }"
    assert kinds(text, {"x": noise(2, 5, 1, 1)}, opset=9) == ["Softmax"]
    check(text, {"x": noise(2, 5, 1, 1)}, opset=9, rtol=1e-6)


def test_hardmax_takes_the_first_of_equals():
    check("(float[1,4] x) => (float[1,4] y) { y = Hardmax(x) }", {"x": np.float32([[1, 3, 3, 2]])}, rtol=0)


def test_softmax_of_a_fully_masked_row():
    mask = np.full((1, 4), np.finfo("float32").min, np.float32)
    check("(float[1,4] x) => (float[1,4] y) { t = Add(x, m) y = Softmax(t) }", {"x": noise(1, 4), "m": mask}, rtol=1e-6)


def test_log_softmax_of_far_values_is_finite():
    check("(float[1,3] x) => (float[1,3] y) { y = LogSoftmax(x) }", {"x": np.float32([[0, 200, -300]])}, rtol=1e-6)


@pytest.mark.parametrize("shape", [(3, 4), (2, 4, 5), (2, 4, 3, 5), (1, 4, 2, 2, 3)])
@pytest.mark.parametrize("epsilon", [None, 0.25])
def test_batch_normalization_with_constants(shape, epsilon):
    attribute = "" if epsilon is None else f"<epsilon={epsilon}>"
    text = f"({shaped(shape)} x) => ({shaped(shape)} y) {{ y = BatchNormalization {attribute} (x, s, b, m, v) }}"
    arrays = {"x": noise(*shape), "s": noise(4, seed=1), "b": noise(4, seed=2), "m": noise(4, seed=3),
              "v": np.float32([1e-6, 0.5, 1, 2])}  # fmt: skip
    check(text, arrays, rtol=1e-5)
    assert kinds(text, arrays) == (["Scale"] if len(shape) == 4 else ["Binary", "Binary"])


@pytest.mark.parametrize("opset", [8, 9, 14, 15])
def test_batch_normalization_with_parameters_known_at_run_time(opset):
    check("(float[2,4,3] x, float[4] s, float[4] b, float[4] m, float[4] v) => (float[2,4,3] y) "
          "{ y = BatchNormalization(x, s, b, m, v) }",
          {"x": noise(2, 4, 3), "s": noise(4, seed=1), "b": noise(4, seed=2), "m": noise(4, seed=3),
           "v": np.abs(noise(4, seed=4))}, opset=opset, rtol=1e-5)  # fmt: skip


def test_batch_normalization_of_old_opsets_in_training_is_refused():
    text = "y, a, b, c, d = BatchNormalization(x, s, s, s, s)"
    diagnostics = refusal(f"(float[2,4,3] x, float[4] s) => (float[2,4,3] y) {{ {text} }}", opset=9)
    assert "training" in diagnostics[0].message


@pytest.mark.parametrize("shape", [(2, 4, 5), (2, 4, 3, 5), (1, 4, 2, 3, 2)])
@pytest.mark.parametrize("op", ["InstanceNormalization", "GroupNormalization <num_groups=2>"])
def test_instance_and_group_normalization(op, shape):
    text = f"({shaped(shape)} x) => ({shaped(shape)} y) {{ y = {op} (x, s, b) }}"
    check(text, {"x": noise(*shape) + 1, "s": noise(4, seed=1), "b": noise(4, seed=2)}, opset=21, rtol=1e-5)


def test_group_normalization_of_opset_18_has_a_scale_per_group():
    x, scale, bias = noise(2, 6, 3), noise(2, seed=1), noise(2, seed=2)
    grouped = x.reshape(2, 2, -1).astype(np.float64)
    y = (grouped - grouped.mean(2, keepdims=True)) / np.sqrt(grouped.var(2, keepdims=True) + 1e-5)
    want = (y * scale[:, None] + bias[:, None]).reshape(x.shape).astype(np.float32)
    check("(float[2,6,3] x, float[2] s) => (float[2,6,3] y) { y = GroupNormalization <num_groups=2> (x, s, b) }",
          {"x": x, "s": scale, "b": bias}, opset=18, rtol=1e-5, want={"y": want})  # fmt: skip


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
@pytest.mark.parametrize("bias", ["", ", b"])
def test_layer_normalization_is_one_op(axis, bias):
    text = f"(float[2,3,4] x) => (float[2,3,4] y) {{ y = LayerNormalization <axis={axis}> (x, g{bias}) }}"
    parameters = (2, 3, 4)[axis:]
    arrays = {"x": noise(2, 3, 4) + 1, "g": noise(*parameters, seed=1), "b": noise(*parameters, seed=2)}
    check(text, arrays, rtol=1e-5)
    assert kinds(text, arrays) == ["LayerNorm"]


@pytest.mark.parametrize("gamma", [(1,), (4,), (1, 4), (3, 1), ()])
def test_layer_normalization_with_a_scale_that_broadcasts(gamma):
    x, scale = noise(2, 3, 4), noise(*gamma, seed=1)
    want = (x - x.mean((1, 2), keepdims=True)) / np.sqrt(x.var((1, 2), keepdims=True) + 1e-5) * scale
    check("(float[2,3,4] x) => (float[2,3,4] y) { y = LayerNormalization <axis=1> (x, g) }",
          {"x": x, "g": scale}, rtol=1e-5, want={"y": want})  # fmt: skip


def test_layer_normalization_with_parameters_known_at_run_time():
    check("(float[2,4] x, float[4] g, float[4] b) => (float[2,4] y) { y = LayerNormalization(x, g, b) }",
          {"x": noise(2, 4), "g": noise(4, seed=1), "b": noise(4, seed=2)}, rtol=1e-5)  # fmt: skip


@pytest.mark.parametrize("outputs", ["y, m, d", 'y, "", d', "y, m"])
def test_layer_normalization_with_statistics(outputs):
    declared = {"y": "float[2,3,4] y", "m": "float[2,3,1] m", "d": "float[2,3,1] d"}
    wanted = ", ".join(declared[o] for o in outputs.split(", ") if o in declared)
    check(f"(float[2,3,4] x) => ({wanted}) {{ {outputs} = LayerNormalization <axis=-1, epsilon=0.01> (x, g, b) }}",
          {"x": noise(2, 3, 4), "g": noise(4, seed=1), "b": noise(4, seed=2)}, rtol=1e-5)  # fmt: skip


def test_layer_normalization_at_two_lengths():
    for length in (2, 5):
        check("(float[1,n,4] x) => (float[1,n,4] y) { y = LayerNormalization(x, g, b) }",
              {"x": noise(1, length, 4), "g": noise(4, seed=1), "b": noise(4, seed=2)}, rtol=1e-5)  # fmt: skip


@pytest.mark.parametrize("axis", [1, -1])
def test_rms_normalization(axis):
    check(f"(float[2,3,4] x) => (float[2,3,4] y) {{ y = RMSNormalization <axis={axis}, epsilon=0.001> (x, g) }}",
          {"x": noise(2, 3, 4), "g": noise(*(2, 3, 4)[axis:], seed=1)}, opset=23, rtol=1e-5)  # fmt: skip


@pytest.mark.parametrize("p", [1, 2])
def test_lp_normalization_of_nothing_is_zero(p):
    x = noise(2, 3)
    x[1] = 0
    want = x / np.maximum(np.linalg.norm(x, ord=p, axis=1, keepdims=True), 1e-30)
    check(
        f"(float[2,3] x) => (float[2,3] y) {{ y = LpNormalization <p={p}> (x) }}", {"x": x}, rtol=1e-6, want={"y": want}
    )


@pytest.mark.parametrize("attribute", ["", "<axes=[1, -1]>"])
def test_mean_variance_normalization(attribute):
    check(f"(float[2,3,4,5] x) => (float[2,3,4,5] y) {{ y = MeanVarianceNormalization {attribute} (x) }}",
          {"x": noise(2, 3, 4, 5)}, rtol=1e-5)  # fmt: skip


@pytest.mark.parametrize("outputs", ["y", 'y, "", "", sum'])
@pytest.mark.parametrize(("op", "operands"), [
    ("SkipLayerNormalization", "x, skip, g"), ("SkipLayerNormalization", "x, skip, g, b"),
    ("SkipLayerNormalization", "x, skip, g, b, bias"), ("SkipSimplifiedLayerNormalization", "x, skip, g"),
    ("SkipSimplifiedLayerNormalization", "x, skip, g, bias"),
])  # fmt: skip
def test_skip_layer_normalization(op, operands, outputs):
    declared = "float[1,3,8] y" + (", float[1,3,8] sum" if "sum" in outputs else "")
    check(f"(float[1,3,8] x, float[1,3,8] skip) => ({declared}) {{ {outputs} = com.microsoft.{op} ({operands}) }}",
          {"x": noise(1, 3, 8), "skip": noise(1, 3, 8, seed=3), "g": noise(8, seed=1), "b": noise(8, seed=2),
           "bias": noise(8, seed=4)}, domains=MICROSOFT, rtol=1e-5)  # fmt: skip


def test_simplified_layer_normalization_is_an_rms_norm():
    text = "(float[2,8] x) => (float[2,8] y) { y = SimplifiedLayerNormalization <axis=-1> (x, g) }"
    arrays = {"x": noise(2, 8), "g": noise(8, seed=1)}
    check(text, arrays, rtol=1e-5)
    assert kinds(text, arrays) == ["LayerNorm"]


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 4, 5)])
def test_batch_normalization_in_training(shape):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype("f")
    scale, bias, mean, variance = rng.uniform(0.5, 1, (4, 3)).astype("f")
    axes, column = (0, *range(2, len(shape))), (3, *(1,) * (len(shape) - 2))
    m, v = x.mean(axes), x.var(axes)
    y = (x - m.reshape(column)) / np.sqrt(v.reshape(column) + 1e-3) * scale.reshape(column) + bias.reshape(column)
    want = {"y": y, "rm": 0.75 * mean + 0.25 * m, "rv": 0.75 * variance + 0.25 * v}
    sizes = ",".join(map(str, shape))
    text = f"""(float[{sizes}] x, float[3] s, float[3] b, float[3] m, float[3] v)
               => (float[{sizes}] y, float[3] rm, float[3] rv)
               {{ y, rm, rv = BatchNormalization <training_mode=1, momentum=0.75, epsilon=0.001> (x, s, b, m, v) }}"""
    check(text, {"x": x, "s": scale, "b": bias, "m": mean, "v": variance}, opset=15, rtol=1e-5, want=want)
