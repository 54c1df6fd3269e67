"""Ensembles of decision trees."""

import numpy as np
import pytest
from onnx import helper, numpy_helper
from onnx_cases import assert_equal, import_proto, onnxruntime_outputs, run_graph, through_file

from mnnconvert.errors import ConversionError

SIDES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def _model(op, opset, features, targets, **attributes):
    node = helper.make_node(op, ["x"], ["y"], domain="ai.onnx.ml", **attributes)
    infos = [
        helper.make_tensor_value_info("x", 1, ["n", features]),
        helper.make_tensor_value_info("y", 1, ["n", targets]),
    ]
    graph = helper.make_graph([node], "g", infos[:1], infos[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("ai.onnx.ml", opset)], ir_version=10)


def _agrees(proto, x, rtol=1e-6):
    want, graph = onnxruntime_outputs(proto, {"x": x}), import_proto(proto)
    for got in (run_graph(graph, {"x": x}), run_graph(through_file(graph), {"x": x})):
        assert_equal(got["y"], want["y"], rtol, 1e-6)


def _forest(rng, trees, depth, modes=SIDES):
    """The attributes of complete trees of this depth over 4 features, in the form of TreeEnsembleRegressor."""
    inner, count = 2**depth - 1, 2 ** (depth + 1) - 1
    nodes = [(t, k) for t in range(trees) for k in range(count)]
    leaves = [(t, k) for t, k in nodes if k >= inner]
    picked = {key: modes[int(rng.integers(len(modes)))] for key in nodes}
    return {
        "nodes_treeids": [t for t, _ in nodes],
        "nodes_nodeids": [k for _, k in nodes],
        "nodes_featureids": rng.integers(0, 4, len(nodes)).tolist(),
        "nodes_values": rng.integers(-2, 3, len(nodes)).astype(float).tolist(),
        "nodes_modes": [picked[t, k] if k < inner else "LEAF" for t, k in nodes],
        "nodes_truenodeids": [2 * k + 1 if k < inner else 0 for _, k in nodes],
        "nodes_falsenodeids": [2 * k + 2 if k < inner else 0 for _, k in nodes],
        "nodes_missing_value_tracks_true": rng.integers(0, 2, len(nodes)).tolist(),
        "target_treeids": [t for t, _ in leaves],
        "target_nodeids": [k for _, k in leaves],
        "target_ids": rng.integers(0, 3, len(leaves)).tolist(),
        "target_weights": rng.standard_normal(len(leaves)).tolist(),
        "n_targets": 3,
    }


@pytest.mark.parametrize("mode", SIDES)
@pytest.mark.parametrize("missing", [False, True])
def test_regressor(mode, missing, rng):
    x = rng.integers(-3, 4, (40, 4)).astype("float32")
    if missing:
        x[rng.random(x.shape) < 0.2] = np.nan
    _agrees(_model("TreeEnsembleRegressor", 3, 4, 3, **_forest(rng, 5, 3, [mode])), x)


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE"])
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_regressor_results(aggregate, transform, rng):
    attributes = {"aggregate_function": aggregate, "post_transform": transform}
    x = rng.integers(-3, 4, (40, 4)).astype("float32")
    _agrees(_model("TreeEnsembleRegressor", 3, 4, 3, **_forest(rng, 4, 2), **attributes), x)


def test_base_values_are_added(rng):
    """To every target: onnxruntime leaves out those that no leaf of a row adds to."""
    forest, x = _forest(rng, 4, 2), rng.integers(-3, 4, (9, 4)).astype("float32")
    base = [0.5, -1.0, 2.0]
    plain, moved = (
        run_graph(import_proto(_model("TreeEnsembleRegressor", 3, 4, 3, **forest, **more)), {"x": x})["y"]
        for more in ({}, {"base_values": base})
    )
    np.testing.assert_allclose(moved, plain + np.array(base, "float32"), rtol=1e-6, atol=1e-6)


def test_a_tree_that_is_a_leaf():
    leaf = {"nodes_modes": ["LEAF"], "nodes_values": [0.0], "target_weights": [1.5]}
    names = ("nodes_treeids", "nodes_nodeids", "nodes_featureids", "nodes_truenodeids", "nodes_falsenodeids")
    zeros = {name: [0] for name in (*names, "target_treeids", "target_nodeids", "target_ids")}
    _agrees(_model("TreeEnsembleRegressor", 3, 2, 1, **leaf, **zeros, n_targets=1), np.ones((3, 2), "float32"))


def _ensemble(modes, splits, **attributes):
    tensors = {"nodes_modes": np.array(modes, "uint8"), "nodes_splits": np.array(splits, "float32"),
               "leaf_weights": np.array([1, 10, 100, 1000], "float32"), **attributes}  # fmt: skip
    stored = {name: numpy_helper.from_array(value, name) for name, value in tensors.items()}
    return _model(
        "TreeEnsemble", 5, 1, 4, n_targets=4, tree_roots=[0], nodes_featureids=[0, 0, 0], leaf_targetids=[0, 1, 2, 3],
        nodes_truenodeids=[1, 0, 1], nodes_trueleafs=[0, 1, 1], nodes_falsenodeids=[2, 2, 3],
        nodes_falseleafs=[0, 1, 1], **stored,
    )  # fmt: skip


def test_membership():
    sets = np.array([1, 2, np.nan, 7, np.nan], "float32")
    x = np.array([[1], [2], [3], [7], [8], [np.nan]], "float32")
    graph = import_proto(_ensemble([0, 6, 6], [5, 0, 0], membership_values=sets))
    leaf = [0, 0, 2, 1, 3, 3]
    want = np.eye(4, dtype="float32")[leaf] * np.array([1, 10, 100, 1000], "float32")
    np.testing.assert_array_equal(run_graph(graph, {"x": x})["y"], want)


def test_nodes_in_a_circle_are_refused():
    proto = _ensemble([0, 0, 0], [1, 2, 3])
    circle = next(a for a in proto.graph.node[0].attribute if a.name == "nodes_truenodeids")
    circle.ints[:] = [0, 0, 1]
    with pytest.raises(ConversionError, match="no trees"):
        import_proto(proto)


@pytest.mark.parametrize("name", ["nodes_truenodeids", "target_nodeids", "nodes_treeids", "target_ids"])
def test_attributes_that_do_not_fit_are_refused(name, rng):
    forest = _forest(rng, 2, 2)
    forest[name] = [99, *forest[name][1:]]
    with pytest.raises(ConversionError, match="do not fit"):
        import_proto(_model("TreeEnsembleRegressor", 3, 4, 3, **forest))
