"""Sequential calibration: what each layer is coded with, how often ops run, what cannot be calibrated."""

import errno

import numpy as np
import onnx
import pytest
from onnx_cases import model

from mnnconvert.errors import MnnConvertError
from mnnconvert.frontends.onnx.reader import read_onnx
from mnnconvert.ir import CodedTensor
from mnnconvert.passes.pipeline import run_pipeline
from mnnconvert.quantizers import methods, rtn
from mnnconvert.quantizers.activations import ActivationStore
from mnnconvert.quantizers.calibrate import calibrate
from mnnconvert.quantizers.plan import plan_weights
from mnnconvert.quantizers.recipe import Recipe, Setting
from mnnconvert.quantizers.statistics import layer_rows
from mnnconvert.runtime_ref.session import Session

TEXT = """(float[n,16,6,6] x, float[n,24] z) => (float[n,s,8] y, float[n,24] unused) {
    a = Conv <kernel_shape=[3,3], pads=[1,1,1,1]> (x, w1)
    b = Relu(a)
    c = Conv <kernel_shape=[1,1]> (b, w2)
    e = Add(c, x)
    d = Conv <kernel_shape=[3,3], group=16> (e, w3)
    f = Flatten(d)
    p = MatMul(f, w4)
    q = MatMul(f, w5)
    r = Mul(p, q)
    u = MatMul(z, w6)
    v = Add(r, u)
    t = MatMul(v, w7)
    to = Constant <value_ints=[0, 1, 8]> ()
    y = Reshape(t, to)
    unused = Sqrt(z)
}"""
RNG = np.random.default_rng(11)


def noise(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


SIZES = {"w1": (24, 16, 3, 3), "w2": (16, 24, 1, 1), "w3": (16, 1, 3, 3), "w4": (256, 32), "w5": (256, 32),
         "w6": (24, 32), "w7": (32, 8)}  # fmt: skip
ARRAYS = {name: noise(*shape) / np.float32(np.sqrt(np.prod(shape[1:]))) for name, shape in SIZES.items()}
SAMPLES = [{"x": noise(n, 16, 6, 6), "z": noise(n, 24)} for n in (30, 40, 30)]


@pytest.fixture
def graph(tmp_path):
    return read(tmp_path, TEXT, ARRAYS)


def read(folder, text, arrays):
    proto, _ = model(text, arrays)
    onnx.save(proto, folder / "m.onnx")
    graph = read_onnx(folder / "m.onnx", {}, 0)
    run_pipeline(graph)
    return graph


@pytest.fixture
def seen(monkeypatch):
    """A stand-in for gptq that rounds to nearest and keeps what it was given, in order."""
    calls = []

    def method(weights, setting, statistics):
        calls.append((weights.copy(), statistics))
        return rtn.quantize(weights, setting.bits, setting.block, setting.symmetric, setting.half_scales)

    monkeypatch.setitem(methods.METHODS, "gptq", method)
    monkeypatch.setitem(methods.METHODS, "lsq", method)
    return calls


def numpy_runner(graph):
    return Session(graph, "reference").run


def plans(graph, method="gptq", bits=4):
    return plan_weights(graph, Recipe(Setting(bits=bits, block=0, method=method)))


def inputs_of(graph, node, samples):
    session = Session(graph, "reference")
    arrays = (session.run(s, [node.inputs[0].name])[node.inputs[0].name] for s in samples)
    return np.concatenate([rows for x in arrays for rows in layer_rows(node, x)]).astype(float)


def test_layers_are_coded_with_what_the_coded_layers_before_leave_them(graph, seen, tmp_path):
    exact = read(tmp_path, TEXT, ARRAYS)
    layers = plans(graph)
    calibrate(graph, layers, SAMPLES, numpy_runner)
    assert all(isinstance(x.weight.tensor, CodedTensor) for x in layers)
    by_name = {n.name: n for n in exact.nodes}
    for layer in layers:
        if layer.columns == 9:
            assert layer.method == "lsq" and "different inputs" in layer.notes[0]
            continue
        source = by_name[layer.name].inputs[1].tensor.numpy().reshape(layer.rows, -1)
        (statistics,) = [s for w, s in seen if w.shape == source.shape and (w == source).all()]
        coded, float_ = inputs_of(graph, layer.node, SAMPLES), inputs_of(exact, by_name[layer.name], SAMPLES)
        assert statistics.samples == len(coded)
        np.testing.assert_allclose(statistics.gram, coded.T @ coded / len(coded), atol=1e-4)
        first = (coded == float_).all()
        assert (statistics.correction is None) == first
        if not first:
            np.testing.assert_allclose(statistics.correction, float_.T @ coded / len(coded), atol=1e-4)


def test_the_error_of_outputs_is_measured_against_the_float_model(graph, seen, tmp_path):
    exact = read(tmp_path, TEXT, ARRAYS)
    layers = plans(graph)
    calibrate(graph, layers, SAMPLES, numpy_runner)
    layer = layers[-1]
    name = layer.node.output.name
    want, got = (
        np.concatenate([Session(g, "reference").run(s, [name])[name] for s in SAMPLES]) for g in (exact, graph)
    )
    error = np.sqrt(np.square(got - want).sum() / np.square(want).sum())
    assert layer.weighted_error == pytest.approx(error, rel=0.1)  # of all rows here, of some there
    assert layer.sqnr == pytest.approx(-20 * np.log10(layer.weighted_error))


def test_every_op_runs_once_per_sample_and_path(graph, seen):
    runs, names = [], [n.name for n in graph.nodes]

    def counting(part):
        run = numpy_runner(part)

        def counted(feeds):
            runs.extend(n.name for n in part.nodes)
            return run(feeds)

        return counted

    fractions = []
    calibrate(graph, plans(graph), SAMPLES, counting, fractions.append)
    assert max(runs.count(n) for n in names) == 2 * len(SAMPLES)
    assert fractions == sorted(fractions) and fractions[-1] == 1
    last = [n.name for n in graph.nodes if n.output.name in ("y", "t", "unused")]
    assert last and not set(runs) & set(last)


def test_memory_limits_and_executors_do_not_change_the_codes(graph, seen, tmp_path):
    codes = []
    for limit, prepare in ((0, numpy_runner), (1 << 30, numpy_runner), (1 << 30, lambda g: Session(g).run)):
        again = read(tmp_path, TEXT, ARRAYS)
        layers = plans(again)
        calibrate(again, layers, SAMPLES, prepare, limit=limit)
        codes.append([x.weight.tensor.coded.codes for x in layers])
    for one, two, three in zip(*codes, strict=True):
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(one, three)


def test_too_few_rows_fall_back_and_say_so(graph, seen):
    layers = plans(graph)
    calibrate(graph, layers, [{"x": noise(5, 16, 6, 6), "z": noise(5, 24)}], numpy_runner)
    few = {x.name: x for x in layers if x.columns == 256}
    assert len(few) == 2
    for layer in few.values():
        assert layer.method == layer.setting.method == "lsq"
        assert layer.notes == ["lsq instead of gptq: 5 rows for 256 columns"]
    assert all(x.method == "gptq" for x in layers if x.columns in (144, 24) and x.rows == 24)


def test_lsq_runs_the_coded_model_alone_and_gets_mean_squares(graph, seen):
    paths = []

    def prepare(part):
        paths.append(part)
        return numpy_runner(part)

    layers = plans(graph, "lsq")
    calibrate(graph, layers, SAMPLES, prepare)
    assert len(paths) == len({tuple(n.name for n in p.nodes) for p in paths})
    assert all(s is None or (s.gram is None and s.importance.min() > 0) for _, s in seen)
    assert any(s is not None for _, s in seen)


def test_a_shared_weight_is_coded_once(tmp_path, seen):
    text = """(float[8,32] x) => (float[8,32] y) { a = MatMul(x, w) b = Relu(a) y = MatMul(b, w) }"""
    graph = read(tmp_path, text, {"w": noise(32, 32)})
    layers = plans(graph)
    calibrate(graph, layers, [{"x": noise(8, 32)} for _ in range(4)], numpy_runner)
    assert len(seen) == 1 and len({id(x.weight.tensor) for x in layers}) == 1


def test_layers_inside_control_flow_are_coded_without_data(tmp_path, seen):
    text = """(bool flag, float[8,32] x) => (float[8,32] y) {
        a = MatMul(x, w)
        y = If (flag) <
            then_branch = yes () => (float[8,32] p) { p = MatMul(a, v) },
            else_branch = no () => (float[8,32] q) { q = Relu(a) }
        >
    }"""
    graph = read(tmp_path, text, {"w": noise(32, 32), "v": noise(32, 32)})
    layers = plans(graph)
    samples = [{"flag": np.array(True), "x": noise(8, 32)} for _ in range(4)]
    calibrate(graph, layers, samples, numpy_runner)
    assert sorted("inside" in "".join(x.notes) for x in layers) == [False, True]
    assert all(isinstance(x.weight.tensor, CodedTensor) for x in layers)


@pytest.mark.parametrize("method", ["gptq", "lsq", "rtn"])
def test_activations_that_are_not_finite_are_refused_with_the_layer(method, tmp_path):
    graph = read(tmp_path, "(float[n,32] x) => (float[n,8] y) { a = Log(x) y = MatMul(a, w) }", {"w": noise(32, 8)})
    layers = plans(graph, method)
    with pytest.raises(MnnConvertError, match="non-finite-activation") as caught:
        calibrate(graph, layers, [{"x": noise(50, 32)}], numpy_runner)
    assert caught.value.diagnostics[0].context["layer"] == layers[0].name


def test_a_full_temporary_folder_is_told(tmp_path, monkeypatch):
    def full(*words, **more):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with ActivationStore(limit=0) as store, pytest.raises(MnnConvertError, match="No space left"):
        store.put("x", np.ones(4, np.float32))
