"""Which values are held in steps, which share them, and what simulation and equalization do to a graph."""

import numpy as np
import pytest
from graphs import import_proto, run_graph, through_file
from onnx import TensorProto, helper, numpy_helper

from mnnconvert.ir import F32, Builder, verify
from mnnconvert.ir.types import Steps
from mnnconvert.ops.arrange import Pack, Unpack
from mnnconvert.ops.convolution import Convolution
from mnnconvert.ops.slicing import Slice
from mnnconvert.passes.pipeline import run_pipeline
from mnnconvert.quantizers.equalize import equalize
from mnnconvert.quantizers.int8 import bias_of, matrix_of, plan_int8, simulate
from mnnconvert.quantizers.thresholds import rounded
from mnnconvert.runtime_ref.session import Session

RNG = np.random.default_rng(0)


def graph_of(nodes, weights, shape=(1, 3, 12, 12), out="y"):
    """A graph from (op, inputs, output, attributes); weights are arrays, or made up in the given shapes."""
    made = [helper.make_node(op, inputs.split(), [output], name=output, **attributes)
            for op, inputs, output, attributes in nodes]  # fmt: skip
    drawn = {n: RNG.standard_normal(w) * 0.3 if isinstance(w, tuple) else w for n, w in weights.items()}
    arrays = [numpy_helper.from_array(np.asarray(w, "f"), n) for n, w in drawn.items()]
    graph = helper.make_graph(
        made, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(out, TensorProto.FLOAT, None)], arrays,
    )  # fmt: skip
    return import_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8))


SAME = {"pads": [1, 1, 1, 1]}
BRANCHES = [
    ("Conv", "x a", "p", SAME), ("Conv", "x b", "q", SAME), ("Concat", "p q", "c", {"axis": 1}),
    ("MaxPool", "c", "m", {"kernel_shape": [2, 2], "strides": [2, 2]}), ("Conv", "m d", "r", {}),
    ("GlobalAveragePool", "r", "s", {}), ("Conv", "s e", "t", {}), ("Softmax", "t", "y", {"axis": 1}),
]  # fmt: skip
SHAPES = {"a": (4, 3, 3, 3), "b": (4, 3, 3, 3), "d": (6, 8, 1, 1), "e": (5, 6, 1, 1)}


def branches():
    return graph_of(BRANCHES, SHAPES)


def names(plan):
    return {value.name: owner.name for value, owner in plan.owners.items()}


def test_moves_share_steps_and_means_do_not():
    plan = plan_int8(branches())
    assert [node.name for node in plan.layers] == ["p", "q", "r", "t"]
    assert names(plan) == {"x": "x", "p": "c", "q": "c", "c": "c", "m": "c", "r": "r", "s": "s", "t": "t"}
    assert [v.name for v in plan.observed] == ["x", "c", "r", "s", "t"]


def test_a_skipped_layer_holds_nothing():
    plan = plan_int8(branches(), ["r"])
    assert plan.skipped == [("r", "named in skip_quant_op_names")]
    assert set(names(plan)) == {"x", "p", "q", "r", "s", "t"}  # the mean of r is held, and so is r


def test_a_mean_of_held_values_is_held_by_itself():
    plan = plan_int8(branches(), ["t"])
    assert names(plan)["s"] == "s"
    assert "t" not in names(plan)


def test_a_mean_whose_result_is_held_has_a_held_operand():
    nodes = [("Sigmoid", "x", "p", {}), ("GlobalAveragePool", "p", "q", {}), ("Conv", "q a", "y", {})]
    plan = plan_int8(graph_of(nodes, {"a": (4, 3, 1, 1)}))
    assert names(plan) == {"p": "p", "q": "q", "y": "y"}


@pytest.mark.parametrize("read", [0, 1])
def test_parts_of_a_split_lie_in_the_steps_of_the_whole(read):
    b = Builder(graph_of([("Conv", "x a", "p", {})], {"a": (4, 3, 3, 3)}, out="p"))
    (_, whole), b.graph.outputs = b.graph.outputs[0], []
    part = b.add(Slice(axis=1, sizes=(2, 2)), whole, names=["q", "r"])[read]
    packed = b.add(Unpack(axis=0), b.add(Pack(axis=0), part, part), names=["s", "t"])[read]
    b.output(b.add(Convolution(), packed, b.floats(np.ones((3, 2, 1, 1)))), "y")
    owners = names(plan_int8(b.graph))
    assert len({owners[v.name] for v in (whole, part, packed)}) == 1


def test_results_of_moves_that_no_layer_reads_stay_in_floats():
    nodes = [("Conv", "x a", "p", {}), ("Reshape", "p shape", "y", {})]
    graph = graph_of([*nodes[:1], ("Flatten", "p", "y", {})], {"a": (4, 3, 3, 3)})
    assert set(names(plan_int8(graph))) == {"x", "p"}


def test_computed_weights_are_no_layer():
    graph = graph_of([("Conv", "x a", "p", {}), ("Conv", "x p", "y", {})], {"a": (3, 3, 10, 10)})
    plan = plan_int8(graph)
    assert [n.name for n in plan.layers] == ["p"]
    assert plan.skipped == [("y", "its weights are computed")]


def set_all(graph, scale=0.125):
    plan = plan_int8(graph)
    plan.set_steps({v: Steps(scale * (i + 1), float(i), -127, 127) for i, v in enumerate(plan.observed)})
    return plan


def test_steps_of_a_plan_pass_through_a_file():
    graph = branches()
    set_all(graph)
    back = {v.name: v.steps for v in through_file(graph).values()}
    for value in graph.values():
        assert back.get(value.name) == value.steps or value.is_constant


def test_simulation_rounds_every_held_value():
    graph = branches()
    plan = set_all(graph)
    steps = {v.name: v.steps for v in plan.owners}
    x = RNG.standard_normal((1, 3, 12, 12)).astype("f")
    held = simulate(graph)
    verify(graph, "simulate")
    assert all(v.steps is None for v in graph.values())
    assert {v.name: after.name for v, after in held.items()} == {n: f"{n}/held" for n in steps}
    wanted = [*steps, *(f"{n}/held" for n in steps), "y"]
    for backend in ("reference", "cpu"):
        got = Session(graph, backend).run({"x": x}, wanted)
        for name, each in steps.items():
            np.testing.assert_allclose(got[f"{name}/held"], rounded(got[name].astype(float), each), rtol=1e-6)
        np.testing.assert_array_equal(got["c"][:, :4], got["p/held"])
        weight = next(n for n in graph.nodes if n.name == "r").inputs[1].tensor.numpy()
        np.testing.assert_allclose(got["r"], Convolution().ref(got["m/held"], weight), atol=1e-4)


def test_simulation_of_an_output_and_of_a_shared_operand():
    graph = graph_of([("Conv", "x a", "y", {})], {"a": (4, 3, 3, 3)})
    set_all(graph)
    x = RNG.standard_normal((1, 3, 12, 12)).astype("f")
    plain = run_graph(graph, {"x": x})["y"]
    simulate(graph)
    got = run_graph(graph, {"x": x})["y"]
    assert np.abs(got - plain).max() > 0.01
    np.testing.assert_allclose(got / 0.25, np.rint(got / 0.25), atol=1e-5)


CHAIN = [
    ("Conv", "x a ab", "p", SAME), ("Relu", "p", "pr", {}), ("Conv", "pr b bb", "q", {**SAME, "group": 8}),
    ("Relu", "q", "qr", {}), ("Conv", "qr d", "r", {"group": 2}), ("Relu", "r", "rr", {}), ("Conv", "rr e", "y", {}),
]  # fmt: skip
CHAIN_SHAPES = {"a": (8, 3, 3, 3), "ab": (8,), "b": (8, 1, 3, 3), "bb": (8,), "d": (6, 4, 1, 1), "e": (5, 6, 1, 1)}


def chain():
    """conv-relu-depthwise-relu-grouped-relu-conv with channels of very different size, activations fused."""
    uneven = RNG.standard_normal((8, 3, 3, 3)) * 10.0 ** np.linspace(-2, 2, 8).reshape(8, 1, 1, 1)
    graph = graph_of(CHAIN, CHAIN_SHAPES | {"a": uneven})
    run_pipeline(graph)
    return graph


def test_equalization_is_exact_and_evens_out_the_channels():
    graph = chain()
    x = RNG.standard_normal((2, 3, 12, 12)).astype("f")
    want = run_graph(graph, {"x": x[:1]})["y"]
    layers = plan_int8(graph).layers
    assert [n.op.activation for n in layers] == ["relu", "relu", "relu", ""]

    def unevenness(node):
        largest = np.abs(matrix_of(node)).max(axis=1)
        return largest.max() / largest.min()

    before = unevenness(layers[0])
    assert equalize(graph, layers) == 3
    verify(graph, "equalize")
    assert unevenness(layers[0]) < before / 50
    got = run_graph(graph, {"x": x[:1]})["y"]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize(("why", "pairs"), [("relu", 1), ("two readers", 0), ("an output", 0), ("relu6", 0)])
def test_equalization_leaves_alone_what_would_not_be_exact(why, pairs):
    middle = ("Clip", "p low high", "pr", {}) if why == "relu6" else ("Relu", "p", "pr", {})
    nodes = [("Conv", "x a", "p", SAME), middle, ("Conv", "pr d", "q", {}), ("Conv", "pr e", "r", {}),
             ("Add", "q r", "y", {})]  # fmt: skip
    kept = nodes if why == "two readers" else nodes[:3]
    weights = {"a": (4, 3, 3, 3), "d": (5, 4, 1, 1), "e": (5, 4, 1, 1), "low": 0.0, "high": 6.0}
    graph = graph_of(kept, weights, out="y" if why == "two readers" else "q")
    if why == "an output":
        graph.outputs.append(("pr", next(n for n in graph.nodes if n.name == "pr").output))
    run_pipeline(graph)
    layers = plan_int8(graph).layers
    assert layers[0].op.activation == ("relu6" if why == "relu6" else "relu")
    assert equalize(graph, layers) == pairs


def test_matrix_and_bias():
    graph = graph_of(CHAIN, CHAIN_SHAPES)
    first, *_, last = plan_int8(graph).layers
    assert matrix_of(first).shape == (8, 27)
    assert bias_of(first).shape == (8,)
    assert not bias_of(last).any()
    assert first.inputs[1].dtype == F32
