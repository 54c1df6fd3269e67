"""Graphs whose values have steps compute on codes: what the definitions say, and bit for bit what MNN 3.6.1 says."""

from __future__ import annotations

import numpy as np
import pytest
from int8_nets import convolution, placed, small_net

from mnnconvert.errors import MnnConvertError
from mnnconvert.ir import Builder, CodedTensor, CodedWeights, Spec, Steps, Value
from mnnconvert.ops.base import OPS
from mnnconvert.ops.steps import on_codes
from mnnconvert.runtime_ref.codes import with_codes
from mnnconvert.runtime_ref.cpu import library
from mnnconvert.runtime_ref.session import Session, load
from mnnconvert.schema import tables
from mnnconvert.schema.reader import read_net
from mnnconvert.schema.steps import read_value
from mnnconvert.schema.writer import write_model
from mnnconvert.verify.mnn_engine import MnnEngine

F = np.float32
needs_mnn = pytest.mark.skipif(not MnnEngine.available(), reason="no MNN runtime")
SYMMETRIC, OFFSET = Steps(0.02, 0, -127, 127), Steps(0.025, 5)


def in_mnn(graph, feeds, tmp_path):
    write_model(graph, tmp_path / "m.mnn")
    with MnnEngine(tmp_path / "m.mnn") as engine:
        return engine.run(feeds)


def one_op(op, shapes, constants=(), steps=SYMMETRIC, into=None):
    """A graph of one op between inputs and a result with steps, laid out for MNN, and feeds."""
    b, rng = Builder(), np.random.default_rng(3)
    inputs = [b.input(f"x{i}", np.dtype("float32"), shape) for i, shape in enumerate(shapes)]
    y = b.add(op, *inputs, *(b.constant(np.asarray(c), f"c{i}") for i, c in enumerate(constants)), name="y")
    b.output(y, "y")
    for value in inputs:
        value.steps = steps
    y.steps = into or steps
    return placed(b.graph), {v.name: rng.standard_normal(v.shape).astype(F) for v in inputs}


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_net_stays_near_its_floats(symmetric):
    """Rounding to steps changes something, but not much."""
    graph, feeds = small_net(symmetric)
    assert sum(on_codes(n) for n in graph.nodes if n.op.kind == "Convolution") == 5
    floats = {v: v.steps for v in graph.values()}
    for value in graph.values():
        value.steps = None
    exact = Session(graph, "reference").run(feeds)["y"]
    for value, steps in floats.items():
        value.steps = steps
    got = Session(graph, "reference").run(feeds)["y"]
    assert 0 < np.abs(got - exact).max() < 0.1 * np.abs(exact).max()


def test_convolution_is_a_sum_of_integers():
    b, rng = Builder(), np.random.default_rng(0)
    x = b.input("x", np.dtype("float32"), (1, 5, 9, 8))
    y = convolution(b, rng, x, 7, 3, "y", activation="relu")
    x.steps, y.steps = Steps(0.03, -11), Steps(0.05, -40, -128, 100)
    b.output(y)
    tensor, bias = y.producer.inputs[1].tensor.coded, y.producer.inputs[2].constant
    feed = rng.standard_normal(x.shape).astype(F)
    q = np.clip(np.floor(feed.astype(np.float64) / F(0.03) + 0.5) - 11, -128, 127).astype(np.int64) + 11
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(q, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3))
    sums = np.einsum("ncyxij,ocij->noyx", windows, tensor.codes.reshape(7, 5, 3, 3).astype(np.int64))
    exact = (sums * (tensor.scale[:, 0].astype(np.float64) * F(0.03))[:, None, None] + bias[:, None, None]) / F(0.05)
    want = np.clip(np.floor(exact + 0.5) - 40, -40, 100)
    got = Session(b.graph, "reference").run({"x": feed})["y"]
    np.testing.assert_array_equal(np.rint(got / F(0.05)) - 40, want)


def test_a_graph_without_steps_is_left_alone():
    graph, _ = small_net(True)
    for value in graph.values():
        value.steps = None
    assert Session(graph, "reference").graph is graph


def test_the_graph_is_not_changed():
    graph, feeds = small_net(True)
    before = [(n.name, list(n.inputs), list(n.outputs)) for n in graph.nodes], [list(v.users) for v in graph.values()]
    Session(graph, "reference").run(feeds)
    assert before == ([(n.name, n.inputs, n.outputs) for n in graph.nodes], [v.users for v in graph.values()])


def test_intermediate_values_are_what_their_codes_stand_for():
    graph, feeds = small_net(False)
    steps = next(v.steps for v in graph.values() if v.name == "c")
    got = Session(graph).run(feeds, ["c", "y"])["c"]
    assert got.dtype == np.float32
    np.testing.assert_array_equal(steps.decode(steps.encode(got)), got)


def test_a_convolution_without_bias_is_one_of_floats(tmp_path):
    """Only weights and biases in the table of the op are for integers."""
    b = Builder()
    x = b.input("x", np.dtype("float32"), (1, 4, 5, 5))
    weight = CodedTensor(CodedWeights(np.ones((3, 4), np.int8), np.ones((3, 1), F), None, 8), (3, 4, 1, 1))
    y = b.add(OPS["Convolution"](), x, b.constant(weight, "w"), name="y")
    x.steps = y.steps = Steps(0.05)
    b.output(y, "y")
    write_model(b.graph, tmp_path / "m.mnn")
    feed = {"x": np.full((1, 4, 5, 5), 0.51, F)}
    for backend in ("reference", "cpu"):
        np.testing.assert_allclose(load(tmp_path / "m.mnn", backend).run(feed)["y"], 4 * 0.51, rtol=1e-6)


def test_a_float_op_reads_values_not_codes():
    graph, feeds = one_op(OPS["Unary"]("SIGMOID"), [(2, 3)])
    np.testing.assert_array_equal(Session(graph).graph.nodes, graph.nodes)
    x = feeds["x0"]
    np.testing.assert_allclose(Session(graph).run(feeds)["y"], 1 / (1 + np.exp(-x)), rtol=1e-5)


@pytest.mark.skipif(not library.runnable_levels(), reason="no compiled kernels")
@pytest.mark.parametrize("level", library.runnable_levels())
@pytest.mark.parametrize("symmetric", [True, False])
def test_compiled_kernels_give_the_same_bits(symmetric, level, monkeypatch):
    monkeypatch.setenv("MNNCONVERT_ISA", level)
    for channels in (5, 16, 20):
        graph, feeds = small_net(symmetric, channels, 27)
        names = [v.name for n in graph.nodes for v in n.outputs if on_codes(n)]
        want = Session(graph, "reference").run(feeds, ["y", *names])
        for threads in (1, 2):
            got = Session(graph, "cpu", threads).run(feeds, ["y", *names])
            assert all(got[name].tobytes() == want[name].tobytes() for name in want)
        assert Session(graph).run(feeds)["y"].tobytes() == want["y"].tobytes()


@needs_mnn
@pytest.mark.parametrize("symmetric", [True, False])
def test_a_net_is_the_same_in_mnn(symmetric, tmp_path):
    """An activation in floats, which MNN approximates, and sums near a half: few codes may differ by one."""
    graph, feeds = small_net(symmetric)
    theirs, ours = in_mnn(graph, feeds, tmp_path)["y"], load(tmp_path / "m.mnn").run(feeds)["y"]
    step = next(v.steps.scale for v in graph.values() if v.name == "j")
    assert np.abs(theirs - ours).max() < 1.01 * step
    assert (np.abs(theirs - ours) > 0.01 * step).mean() <= 0.05


@needs_mnn
@pytest.mark.parametrize("steps", [SYMMETRIC, OFFSET])
def test_what_no_code_stands_for_is_the_same_in_mnn(steps, tmp_path):
    """NaN becomes the highest code, on every level and in numpy."""
    graph, feeds = one_op(OPS["Unary"]("NEG"), [(1, 16, 3, 5)], steps=steps)
    feeds["x0"][:, :4] = np.array([np.nan, np.inf, -np.inf, 1e30], F)[:, None, None]
    theirs = in_mnn(graph, feeds, tmp_path)["y"][:, :4]
    for backend in ("reference", "cpu"):
        np.testing.assert_array_equal(Session(graph, backend).run(feeds)["y"][:, :4], theirs)


@needs_mnn
@pytest.mark.parametrize("group", [1, 16])
@pytest.mark.parametrize(("x", "y"), [(SYMMETRIC, Steps(0.05, 0, -50, 40)), (OFFSET, Steps(0.04, -7))])
@pytest.mark.parametrize("activation", ["", "relu", "relu6"])
def test_convolutions_are_the_same_in_mnn(group, x, y, activation, tmp_path):
    b, rng = Builder(), np.random.default_rng(0)
    source = b.input("x", np.dtype("float32"), (1, 16, 40, 30))
    made = convolution(b, rng, source, 16, 3, "y", group=group, activation=activation)
    source.steps, made.steps = x, y
    b.output(made)
    graph, feeds = placed(b.graph), {"x": rng.standard_normal(source.shape).astype(F) * 2}
    theirs, ours = in_mnn(graph, feeds, tmp_path)["y"], load(tmp_path / "m.mnn", "reference").run(feeds)["y"]
    differ = np.rint(np.abs(theirs - ours) / F(y.scale))
    assert differ.max() <= 1 and (differ > 0).mean() <= (0 if group > 1 else 1e-3)


@needs_mnn
@pytest.mark.parametrize(("steps", "into"), [(SYMMETRIC, Steps(0.03, 0, -127, 127)), (OFFSET, OFFSET)])
@pytest.mark.parametrize("name", ["ADD", "SUB", "MUL", "MAXIMUM", "SquaredDifference", "SUM_RELU", "SIGN", "PReLU",
                                  "Scale", "Softmax", "LayerNorm", "max", "mean", "all", "counted", "Interp", "Concat",
                                  "Transpose", "Padding"])  # fmt: skip
def test_ops_are_the_same_in_mnn(name, steps, into, tmp_path):
    image, rng = (1, 16, 9, 8), np.random.default_rng(5)
    per_channel = rng.uniform(0.2, 1.5, (2, 16)).astype(F)
    op, count, constants = {
        "SUM_RELU": (OPS["Binary"]("ADD", activation=1), 2, ()),
        "SIGN": (OPS["Unary"]("SIGN"), 1, ()),
        "PReLU": (OPS["PReLU"](), 1, (per_channel[0],)),
        "Scale": (OPS["Scale"](), 1, tuple(per_channel)),
        "Softmax": (OPS["Softmax"](1), 1, ()),
        "LayerNorm": (OPS["LayerNorm"](axes=(3,), epsilon=1e-5), 1, (np.ones(8, F), np.zeros(8, F))),
        "max": (OPS["Pooling"]("MAXPOOL", (3, 3), (2, 2), (1, 1, 1, 1)), 1, ()),
        "mean": (OPS["Pooling"]("AVEPOOL", (3, 3), (2, 1), (1, 1, 1, 1)), 1, ()),
        "all": (OPS["Pooling"]("AVEPOOL", whole=True), 1, ()),
        "counted": (OPS["Pooling"]("AVEPOOL", (3, 3), (2, 1), (1, 1, 1, 1), count="INCLUDE_PADDING"), 1, ()),
        "Interp": (OPS["Interp"](out_width=16, out_height=18, rule="HalfPixels"), 1, ()),
        "Concat": (OPS["Concat"](1), 2, ()),
        "Transpose": (OPS["Transpose"](), 1, (np.array([0, 2, 3, 1], np.int32),)),
        "Padding": (OPS["Padding"](), 1, (np.array([[0, 0], [0, 0], [1, 2], [0, 1]], np.int32),)),
    }.get(name) or (OPS["Binary"](name), 2, ())
    same = name in ("max", "mean", "all", "counted", "Concat", "Transpose", "Padding")
    graph, feeds = one_op(op, [image] * count, constants, steps, steps if same else into)
    theirs, ours = in_mnn(graph, feeds, tmp_path)["y"], load(tmp_path / "m.mnn", "reference").run(feeds)["y"]
    step = graph.output_values.pop().steps or into
    differ = np.abs(ours - theirs) / F(step.scale)
    halves = {"Interp": 0.1, "mean": 0.05}  # of a code, in so many results, fall either way
    assert differ.max() <= 1.001 and (differ > 0.01).mean() <= halves.get(name, 0.01)


@needs_mnn
def test_steps_of_moves_go_on_as_in_mnn(tmp_path):
    b = Builder()
    x = b.input("x", np.dtype("float32"), (2, 3, 4))
    x.steps = SYMMETRIC
    b.output(b.add(OPS["Unary"]("SIGMOID"), b.add(OPS["Transpose"](), x, b.ints([0, 2, 1])), name="y"))
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 3, 4)).astype(F)}
    theirs, ours = in_mnn(placed(b.graph), feeds, tmp_path)["y"], load(tmp_path / "m.mnn").run(feeds)["y"]
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_convolution_says_its_steps_in_its_table(tmp_path):
    graph, _ = small_net(False)
    write_model(graph, tmp_path / "m.mnn")
    tables = [op.main for op in read_net(tmp_path / "m.mnn").oplists if op.type.name.startswith("Convolution")]
    assert all(t.quanParameter.type == 1 and t.symmetricQuan is not None for t in tables)
    by_name = {v.name: v.steps for v in graph.values()}
    first = next(n for n in graph.nodes if n.op.kind == "Convolution")
    steps, into = first.inputs[0].steps, by_name[first.output.name]
    assert (F(steps.scale), F(into.scale)) == (F(tables[0].quanParameter.scaleIn), F(tables[0].quanParameter.scaleOut))
    quan = tables[0].symmetricQuan
    assert (quan.zeroPoint, quan.outputZeroPoint, quan.clampMin, quan.clampMax) == (
        steps.zero, into.zero, into.low, into.high,
    )  # fmt: skip


def moving_net():
    """Codes that are joined, split, padded, moved and reshaped; convolutions of groups and of sequences."""
    b, rng = Builder(), np.random.default_rng(4)
    x = b.input("x", np.dtype("float32"), (1, 12, 9, 8))
    a = convolution(b, rng, x, 12, 3, "a", group=3, activation="relu")
    c = b.add(OPS["Concat"](1), a, x, name="c")
    parts = b.add(OPS["Slice"](1, (5, 11, 8)), c, names=["s0", "s1", "s2"])
    d = convolution(b, rng, parts[1], 10, 1, "d", strides=(2, 1))
    e = b.add(OPS["Padding"](), d, b.ints([0, 0, 0, 0, 1, 0, 0, 2]), name="e")
    f = b.add(OPS["Transpose"](), e, b.ints([0, 2, 3, 1]), name="f")
    b.output(b.add(OPS["Reshape"](()), f, b.ints([1, -1]), name="g"), "y")
    b.output(parts[0], "y0")
    b.output(b.add(OPS["Binary"]("MUL"), parts[2], parts[2], name="h"), "y1")
    line = b.add(OPS["Reshape"](()), e, b.ints([1, 10, -1]), name="i")
    columns = rng.integers(-127, 128, (4, 30)).astype(np.int8)
    weight = CodedTensor(CodedWeights(columns, np.full((4, 1), 0.01, F), None, 8), (4, 10, 3, 1))
    b.output(b.add(OPS["Convolution"](pads=(1, 0, 1, 0)), line, b.constant(weight, "j.w"), b.floats([0] * 4), name="j"))
    for value in b.graph.values():
        if value.dtype.kind == "f" and not value.is_constant:
            value.steps = Steps(0.25 if value.name in ("h", "j") else 0.03, 4)
    return b.graph, {"x": rng.standard_normal(x.shape).astype(F)}


@pytest.mark.skipif(not library.runnable_levels(), reason="no compiled kernels")
@pytest.mark.parametrize("level", library.runnable_levels())
def test_moves_of_codes_give_the_same_bits(level, monkeypatch):
    monkeypatch.setenv("MNNCONVERT_ISA", level)
    graph, feeds = moving_net()
    assert all(on_codes(n) for n in graph.nodes)
    want = Session(graph, "reference").run(feeds)
    for threads in (1, 2):
        got = Session(graph, "cpu", threads).run(feeds)
        assert all(got[name].tobytes() == want[name].tobytes() for name in want)
    kernels = {t.kernel for t in Session(graph, "cpu").profile(feeds)}
    assert "reference" not in kernels


def test_a_relu_on_codes_is_a_lowest_code_for_mnn():
    graph, _ = one_op(OPS["Binary"]("ADD", activation=1), [(1, 2, 3, 4)] * 2, steps=Steps(0.02, -100))
    node = graph.nodes[-1]
    assert not node.op.activation and node.output.steps == Steps(0.02, -100, -100, 127)


@pytest.mark.parametrize(
    "numbers", [{"scale": 0.0}, {"scale": float("nan")}, {"zero": 300.0}, {"min": 5.0, "max": 5.0}, {"max": 1e9}]
)
def test_steps_that_make_no_sense_are_refused(numbers):
    info = tables.TensorQuantInfo(**{"scale": 0.1, "type": tables.DataType.DT_INT8, **numbers})
    with pytest.raises(MnnConvertError, match="bad-mnn-file"):
        read_value(Value("x", Spec(np.dtype("float32"))), info)


@pytest.mark.parametrize(("factor", "conversions"), [(1.0, 2), (1.5, 4)], ids=["same steps", "other steps"])
def test_rounding_to_the_steps_that_a_value_has_is_nothing_to_do(factor, conversions):
    """As importers write it: FloatToInt8 and Int8ToFloat behind what is held in these steps anyway."""
    rng, b = np.random.default_rng(3), Builder()
    x = b.input("x", np.dtype("float32"), (1, 4, 5, 6))
    x.steps, steps = Steps(0.02, 3), Steps(0.05, -7)
    y = convolution(b, rng, x, 8, 3, "first")
    y.steps = steps
    scale = np.float32(steps.scale * factor)
    codes = b.add(OPS["FloatToInt8"]((float(np.float32(1) / scale),), (steps.zero,)), y)
    z = b.add(OPS["Int8ToFloat"]((float(scale),), (steps.zero,)), codes)
    z.steps = Steps(float(scale), steps.zero)
    y.steps = Steps(float(np.float32(steps.scale)), steps.zero)
    w = convolution(b, rng, z, 3, 1, "second")
    w.steps = Steps(0.1, 0)
    b.output(w, "w")
    kinds = [n.op.kind for n in with_codes(b.graph).graph.nodes]
    assert kinds.count("ConvInt8") == 2
    assert kinds.count("FloatToInt8") + kinds.count("Int8ToFloat") == conversions
    feeds = {"x": rng.uniform(-2, 2, (1, 4, 5, 6)).astype(np.float32)}
    got = Session(b.graph).run(feeds)["w"]
    assert got.shape == (1, 3, 5, 6)
    np.testing.assert_array_equal(got, Session(b.graph, "reference").run(feeds)["w"])
