"""What constants tell about the inputs of layers, against many random vectors sent through the same operators."""

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_cases import model

from mnnconvert.frontends.onnx.reader import read_onnx
from mnnconvert.ops.elementwise import UNARY
from mnnconvert.passes.pipeline import run_pipeline
from mnnconvert.quantizers.expected import expected_power
from mnnconvert.quantizers.plan import plan_weights
from mnnconvert.quantizers.recipe import Recipe, Setting

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import quality_models

SIZES = quality_models.Llama(layers=1, width=64, heads=4, groups=2, base=1e4, epsilon=1e-5)
ROWS = {"attn_q": 64, "attn_k": 32, "attn_v": 32, "attn_output": 64, "ffn_gate": 96, "ffn_up": 96, "ffn_down": 64}


def noise(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def weight(name):
    """Gains with outliers; rows of matrices of very different size, so that what they make differs."""
    kind, seed = name.split(".")[-1], sum(name.encode())
    if kind.endswith("norm"):
        return np.exp(noise(64, seed=seed))
    rows, columns = ROWS[kind], 96 if kind == "ffn_down" else 64
    return noise(rows, columns, seed=seed) * np.exp(noise(rows, 1, seed=seed + 1)) / np.float32(np.sqrt(columns))


def powers(path):
    """What is expected of all layers of a file, by name."""
    graph = read_onnx(path, {}, 0)
    run_pipeline(graph)
    layers = plan_weights(graph, Recipe(Setting(bits=4, block=32), embedding=0))
    return {x.name.split("__")[0].split(".")[-1]: expected_power(x.node) for x in layers}


def of_text(folder, text, arrays):
    onnx.save(model(text, arrays)[0], folder / "m.onnx")
    return list(powers(folder / "m.onnx").values())


def proportions(power):
    return power / power.mean()


def test_a_llama(tmp_path):
    quality_models.write_llama(tmp_path / "m.onnx", SIZES, 24, weight)
    found = powers(tmp_path / "m.onnx")
    gains = {"q": "attn_norm", "k": "attn_norm", "v": "attn_norm", "gate": "ffn_norm", "up": "ffn_norm"}
    for kind, gain in gains.items():
        np.testing.assert_allclose(found[kind], weight(f"blk.0.{gain}").astype(float) ** 2, rtol=1e-5)

    values = np.square(weight("blk.0.attn_v")) @ np.square(weight("blk.0.attn_norm"))
    by_head = values.reshape(2, 16).repeat(2, axis=0).reshape(-1)  # two heads read the same values
    np.testing.assert_allclose(found["o"], by_head, rtol=1e-4)

    x = noise(64, 20_000, seed=9) * weight("blk.0.ffn_norm")[:, None]
    gate, up = (weight(f"blk.0.ffn_{n}") @ x for n in ("gate", "up"))
    real = np.square(UNARY["SILU"](gate) * up).mean(axis=1)
    assert real.max() > 20 * np.median(real)
    ratio = proportions(found["down"]) / proportions(real)
    assert np.corrcoef(np.log(found["down"]), np.log(real))[0, 1] > 0.97 and 0.8 < np.median(ratio) < 1.25


@pytest.mark.parametrize(
    ("lines", "function"),
    [
        ("h = Relu(c)", lambda c, k: np.maximum(c, 0)),
        ("h = Sigmoid(c)", lambda c, k: 1 / (1 + np.exp(-c))),
        ("h = Tanh(c)", lambda c, k: np.tanh(c)),
        ("h = Mul(c, k)", lambda c, k: c * k),
        ("h = Sub(k, c)", lambda c, k: k - c),
        ("s = Sigmoid(c) t = Mul(s, c) h = Neg(t)", lambda c, k: c / (1 + np.exp(-c))),  # both sides are one value
        ("h = Add(c, one)", lambda c, k: c + 1),
    ],
)
def test_what_lies_behind_a_layer(lines, function, tmp_path):
    text = f"""(float[n,32] x) => (float[n,16] y) {{
        m = LayerNormalization<axis=-1>(x, g, o)
        a = MatMul(m, w1)
        c = Add(a, b1)
        {" ".join(lines.split())}
        y = MatMul(h, w2)
    }}"""
    gain, offset, w1, b1, k = noise(32), noise(32, seed=1), noise(32, 64, seed=2), noise(64, seed=3) * 3, noise(64) * 5
    arrays = {"g": gain, "o": offset, "w1": w1, "b1": b1, "k": k, "one": np.float32(1), "w2": noise(64, 16)}
    first, second = of_text(tmp_path, text, arrays)
    np.testing.assert_allclose(first, gain.astype(float) ** 2 + offset.astype(float) ** 2, rtol=1e-5)
    c = (noise(20_000, 32, seed=7) * gain + offset) @ w1 + b1
    real = np.square(function(c, k)).mean(axis=0)
    likely = real > 0.02 * real.mean()  # of what is hardly ever more than 0, few samples know little
    np.testing.assert_allclose(second[likely], real[likely], rtol=0.3)
    assert np.corrcoef(second, real)[0, 1] > 0.995


HEAD = "(float[n,64] x) => (float[n,64] y) { m = LayerNormalization<axis=-1>(x, g, o) "


@pytest.mark.parametrize(
    ("lines", "known"),
    [
        ("y = MatMul(m, w)", [True]),
        ("y = MatMul(x, w)", [False]),
        ("r = Add(x, m) y = MatMul(r, w)", [False]),  # the rest of the sum is not known
        ("a = MatMul(m, w) b = Relu(a) c = MatMul(b, v) d = Relu(c) y = MatMul(d, w)", [True, True, False]),
        ("l = Log(m) y = MatMul(l, w)", [False]),  # NaN
        ("s = Softmax<axis=-1>(m) y = MatMul(s, w)", [False]),
        ("t = Exp(m) u = Exp(t) v2 = Exp(u) y = MatMul(v2, w)", [False]),  # infinity
    ],
)
def test_where_nothing_is_known(lines, known, tmp_path):
    arrays = {"g": noise(64), "o": noise(64), "w": noise(64, 64), "v": noise(64, 64, seed=1)}
    found = of_text(tmp_path, HEAD + lines + " }", arrays)
    assert [power is not None for power in found] == known


@pytest.mark.parametrize("function", ["Mul(x{0}, x{0})", "Tanh(x{0})"])
def test_long_chains_end_soon(function, tmp_path):
    lines = " ".join(f"x{i + 1} = {function.format(i)}" for i in range(400))
    text = f"{HEAD} x0 = Tanh(m) {lines} y = MatMul(x400, w) }}"
    (power,) = of_text(tmp_path, text, {"g": noise(64), "o": noise(64), "w": noise(64, 64)})
    assert power is None


def test_the_same_in_every_run(tmp_path):
    quality_models.write_llama(tmp_path / "m.onnx", SIZES, 24, weight)
    first, second = powers(tmp_path / "m.onnx"), powers(tmp_path / "m.onnx")
    assert all((first[name] == second[name]).all() for name in first)


def test_nothing_is_expected_of_values_of_unknown_rank(tmp_path):
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, None)
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    nodes = [onnx.helper.make_node("Conv", ["x", "w"], ["y"])]
    weights = [onnx.numpy_helper.from_array(noise(8, 16, 1, 1), "w")]
    graph = onnx.helper.make_graph(nodes, "g", [x], [y], weights)
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    (layer,) = plan_weights(read_onnx(tmp_path / "m.onnx", {}, 0), Recipe(Setting(bits=4)))
    assert expected_power(layer.node) is None
