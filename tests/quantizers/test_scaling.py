"""Scales folded into norms, gates, values and layers: where, that float outputs stay, and that codes gain."""

import numpy as np
import onnx
import pytest
from onnx_cases import model
from small_llama import llama_weight, quality_models, write_llama

from mnnconvert.frontends.onnx.reader import read_onnx
from mnnconvert.passes.pipeline import run_pipeline
from mnnconvert.quantizers import lsq
from mnnconvert.quantizers.apply import apply_plan
from mnnconvert.quantizers.channel_groups import find_groups
from mnnconvert.quantizers.plan import plan_weights
from mnnconvert.quantizers.recipe import Recipe, Setting
from mnnconvert.quantizers.scaling import scale_channels
from mnnconvert.runtime_ref.session import Session

RNG = np.random.default_rng(5)


def noise(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture
def llama(tmp_path):
    write_llama(tmp_path / "llama.onnx", 24)
    return read(tmp_path / "llama.onnx")


def read(path):
    graph = read_onnx(path, {}, 0)
    run_pipeline(graph)
    return graph


def from_text(folder, text, arrays):
    proto, _ = model(text, arrays)
    onnx.save(proto, folder / "m.onnx")
    return read(folder / "m.onnx")


def runner(graph):
    return Session(graph, "reference").run


def outputs(graph, samples):
    return np.concatenate([next(iter(runner(graph)(s).values())) for s in samples])


def plans(graph, bits=4, block=32):
    return plan_weights(graph, Recipe(Setting(bits=bits, block=block, method="rtn"), embedding=0))


def names(groups):
    return sorted(sorted(n.name.split("__")[0].split(".")[-1] for n in g.layers) for g in groups)


SAMPLES = [{"x": noise(2, 24, 64)} for _ in range(4)]


def test_every_linear_layer_of_a_llama_has_a_place_for_scales(llama):
    groups = find_groups(llama, [x.node for x in plans(llama)])
    assert names(groups) == sorted([["k", "q", "v"], ["o"], ["gate", "up"], ["down"]] * 2)
    shared = next(g for g in groups if names([g]) == [["o"]])
    assert shared.source.channels == 32 and shared.index.shape == (64,)  # two heads read the same values


def test_folding_leaves_float_outputs(llama):
    before = outputs(llama, SAMPLES)
    for group in find_groups(llama, [x.node for x in plans(llama)]):
        group.fold(np.exp(RNG.standard_normal(group.source.channels)))
    np.testing.assert_allclose(outputs(llama, SAMPLES), before, atol=1e-5 * np.abs(before).max())


@pytest.mark.parametrize("kind", ["awq", "smooth"])
def test_searched_scales_leave_float_outputs_and_never_raise_the_error(llama, kind):
    before = outputs(llama, SAMPLES)
    done = scale_channels(llama, plans(llama), SAMPLES, runner, kind)
    np.testing.assert_allclose(outputs(llama, SAMPLES), before, atol=1e-5 * np.abs(before).max())
    assert done and all(x.error < 1 and 0 <= x.exponent < 1 for x in done)


def test_awq_helps_the_coded_model(tmp_path, llama):
    exact, test = read(tmp_path / "llama.onnx"), [{"x": noise(2, 24, 64)}]
    errors = []
    for scaled in (False, True):
        graph = read(tmp_path / "llama.onnx")
        if scaled:
            scale_channels(graph, plans(graph), SAMPLES, runner, "awq")
        apply_plan(plans(graph))
        errors.append(np.linalg.norm(outputs(graph, test) - outputs(exact, test)))
    assert errors[1] < 0.9 * errors[0]


MLP = """(float[n,32] x) => (float[n,16] y{more}) {{
    a = MatMul(x, w1)
    b = Add(a, b1)
    c = {function}(b)
    {extra}
    y = MatMul(c, w2)
}}"""


@pytest.mark.parametrize(
    ("function", "more", "extra", "count"),
    [
        ("Relu", "", "", 1),
        ("Identity", "", "", 1),
        ("Sigmoid", "", "", 0),
        ("Relu", ", float[n,64] z", "z = Neg(c)", 0),  # another reader would see the scales
        ("Relu", ", float[n,64] c", "", 0),  # and so would a user
    ],
)
def test_only_what_nobody_else_sees_is_scaled(function, more, extra, count, tmp_path):
    text = MLP.format(function=function, more=more, extra=extra)
    graph = from_text(tmp_path, text, {"w1": noise(32, 64), "b1": noise(64), "w2": noise(64, 16)})
    samples = [{"x": noise(40, 32)}]
    before = outputs(graph, samples)
    groups = find_groups(graph, [x.node for x in plans(graph)])
    assert len(groups) == count
    for group in groups:
        group.fold(np.exp(RNG.standard_normal(group.source.channels)))
    np.testing.assert_allclose(outputs(graph, samples), before, atol=1e-5 * np.abs(before).max())


def test_gelu_and_residual_connections_are_dead_ends(tmp_path):
    net = quality_models.Net(("n", "s", 64))
    x = net.layer_norm("x", noise(64), noise(64), 1e-6)
    inner = net.gelu(net.linear(x, noise(96, 64), noise(96), "inner"))
    net.save(net("Add", x, net.linear(inner, noise(64, 96), None, "outer")), tmp_path / "m.onnx")
    graph = read(tmp_path / "m.onnx")
    assert len(plans(graph)) == 2 and not find_groups(graph, [x.node for x in plans(graph)])


def test_without_data_lsq_weighs_columns_by_the_norm_before_them(tmp_path, llama):
    plan = next(x for x in plans(llama) if "gate" in x.name)
    weight, gain = plan.weight.tensor.numpy().reshape(plan.rows, -1), llama_weight("blk.0.ffn_norm")
    layers = plan_weights(llama, Recipe(Setting(bits=4, block=32, method="lsq"), embedding=0))
    apply_plan(layers)
    coded = next(x for x in layers if x.node is plan.node).weight.tensor.numpy().reshape(weight.shape)
    plain = lsq.quantize(weight, 4, 32).decode()
    errors = [np.square((w - weight) * gain).sum() for w in (coded, plain)]
    assert errors[0] < 0.9 * errors[1]
