"""Ensembles of decision trees as matrix products: what every node decides, then which leaf agrees with its whole path.

All nodes are decided at once. A leaf is reached where the decisions on the way to it are those that lead to it, so
the number of decisions that agree, a product with a constant matrix, has to be the length of the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.frontends.common.compose import apply, calc, cast
from mnnconvert.frontends.common.moves import reduced, unsqueezed
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.ir import F32, Builder, Value
from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.matmul import MatMul
from mnnconvert.ops.normalization import Softmax

ML = "ai.onnx.ml"
COMPARISONS = ("LESS_EQUAL", "LESS", "GREATER_EQUAL", "GREATER", "EQUAL", "NOTEQUAL", "MEMBER")  # by number
BRANCHES = {f"BRANCH_{name}": i for i, name in enumerate(("LEQ", "LT", "GTE", "GT", "EQ", "NEQ"))}
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")

Path = tuple[dict[int, bool], int]  # the decision of each node on the way, and the leaf


@dataclass(frozen=True)
class Forest:
    """Inner nodes as arrays. `branches` [nodes, 2] holds where false and true lead: a node, or ~leaf.

    `weights` [leaves, targets] is what a leaf adds. `members` are the sets of the nodes that test for membership.
    """

    roots: Sequence[int]
    modes: np.ndarray
    features: np.ndarray
    splits: np.ndarray
    missing: np.ndarray
    branches: np.ndarray
    weights: np.ndarray
    members: Sequence[np.ndarray] = ()


@onnx_op("TreeEnsemble", since=5, domain=ML, limits="sums and averages; no SOFTMAX_ZERO, no PROBIT")
def tree_ensemble(b: Builder, n: OnnxNode) -> Value:
    modes, features = n.required("nodes_modes", np.ndarray), np.array(n.attr("nodes_featureids"))
    branches = np.stack([_branch(n, "false"), _branch(n, "true")], -1)
    targets, weights = np.array(n.attr("leaf_targetids")), n.required("leaf_weights", np.ndarray)
    table = np.zeros((len(targets), n.attr("n_targets", 1)), F32)
    splits = n.required("nodes_splits", np.ndarray).astype(F32)
    missing = np.array(n.attr("nodes_missing_value_tracks_true") or (0,) * len(modes))
    sized = {len(v) for v in (modes, features, splits, missing, branches)}
    if len(sized) > 1 or len(weights) != len(targets) or (len(targets) and targets.max() >= table.shape[1]):
        raise _misfit(n)
    table[np.arange(len(targets)), targets] = weights
    members = _sets(n.attr("membership_values"))
    if len(members) < (modes == 6).sum():
        raise n.refuse(
            "TreeEnsemble has fewer sets of members than nodes that test for them", reference="bad-onnx-node"
        )
    roots = n.attr("tree_roots")
    forest = Forest(roots, modes.astype(int), features, splits, missing, branches, table, members)
    aggregate, transform = n.attr("aggregate_function", 1), n.attr("post_transform", 0)
    return _evaluated(b, n, forest, AGGREGATES[aggregate], TRANSFORMS[transform])


def _branch(n: OnnxNode, side: str) -> np.ndarray:
    places, leaves = (np.array(n.attr(f"nodes_{side}{what}")) for what in ("nodeids", "leafs"))
    if (places < 0).any():
        raise _misfit(n)
    return np.where(leaves != 0, ~places, places)


def _misfit(n: OnnxNode) -> ConversionError:
    return n.refuse(f"the attributes of {n.op_type} do not fit each other", reference="bad-onnx-node")


def _sets(values: np.ndarray | None) -> list[np.ndarray]:
    """The sets of a list in which a NaN ends each of them."""
    if values is None:
        return []
    ends = np.flatnonzero(np.isnan(values))
    return [part[~np.isnan(part)].astype(F32) for part in np.split(values, ends + 1)[: len(ends)]]


@onnx_op("TreeEnsembleRegressor", domain=ML, limits="sums and averages; no SOFTMAX_ZERO, no PROBIT")
def tree_ensemble_regressor(b: Builder, n: OnnxNode) -> Value:
    """The older form: nodes by tree and number, leaves among them, and any number of targets for a leaf."""
    try:
        forest = _forest(n)
    except KeyError as error:  # a node or a mode that there is not
        raise _misfit(n) from error
    aggregate, transform = n.attr("aggregate_function", "SUM"), n.attr("post_transform", "NONE")
    return _evaluated(b, n, forest, aggregate, transform, n.attr("base_values") or ())


def _forest(n: OnnxNode) -> Forest:
    keys = list(zip(n.attr("nodes_treeids", ()), n.attr("nodes_nodeids", ()), strict=True))
    inner = [i for i, mode in enumerate(n.attr("nodes_modes", ())) if mode != "LEAF"]
    leaves = [i for i in range(len(keys)) if i not in set(inner)]
    rows = {keys[i]: k for k, i in enumerate(leaves)}
    place = {keys[i]: k for k, i in enumerate(inner)} | {key: ~k for key, k in rows.items()}
    sides = [n.attr(f"nodes_{side}nodeids", ()) for side in ("false", "true")]
    branches = np.array([[place[keys[i][0], side[i]] for side in sides] for i in inner]).reshape(-1, 2)
    table = np.zeros((len(leaves), n.attr("n_targets", 1)), F32)
    names = ("target_treeids", "target_nodeids", "target_ids", "target_weights")
    for tree, node, target, weight in zip(*(n.attr(name, ()) for name in names), strict=True):
        table[rows[tree, node], target] += weight
    first: dict[int, int] = {}
    for tree, node in keys:
        first.setdefault(tree, place[tree, node])
    columns = (n.attr(f"nodes_{name}", ()) for name in ("featureids", "values", "missing_value_tracks_true"))
    features, splits, missing = (np.array([c[i] for i in inner] if c else [0] * len(inner)) for c in columns)
    modes = np.array([BRANCHES[n.attr("nodes_modes")[i]] for i in inner])
    return Forest(list(first.values()), modes, features, splits.astype(F32), missing, branches, table)


def _evaluated(
    b: Builder, n: OnnxNode, forest: Forest, aggregate: str, transform: str, base: Sequence[float] = ()
) -> Value:
    if len(forest.features) and forest.features.min() < 0:
        raise _misfit(n)
    if aggregate not in ("SUM", "AVERAGE") or transform not in ("NONE", "SOFTMAX", "LOGISTIC"):
        raise n.refuse(f"{n.op_type} with {aggregate} and {transform} is not supported")
    paths = [path for root in forest.roots for path in _paths(n, forest, root)]
    n.limited(len(forest.modes), len(paths))
    decided, order = _decisions(b, cast(b, n.input(0), F32), forest)
    agreeing, wanted = np.zeros((max(len(order), 1), len(paths)), F32), np.zeros(len(paths), F32)
    row = {node: i for i, node in enumerate(order)}
    for column, (way, _) in enumerate(paths):
        for node, decision in way.items():
            agreeing[row[node], column] = 1 if decision else -1
            wanted[column] += decision
    reached = calc(b, "EQUAL", b.add(MatMul(), decided, b.floats(agreeing)), wanted)
    weights = forest.weights[[leaf for _, leaf in paths]]
    weights = weights / np.float32(len(forest.roots)) if aggregate == "AVERAGE" else weights
    y = b.add(MatMul(), cast(b, reached, F32), b.floats(weights))
    y = calc(b, "ADD", y, np.array(base, F32)) if base else y
    if transform == "SOFTMAX":
        return b.add(Softmax(1), y)
    return apply(b, "SIGMOID", y) if transform == "LOGISTIC" else y


def _paths(n: OnnxNode, forest: Forest, root: int) -> list[Path]:
    """The ways from a root to all leaves below it."""
    found: list[Path] = []
    stack: list[tuple[int, dict[int, bool]]] = [(root, {})]
    while stack:
        place, way = stack.pop()
        if place < 0:
            found.append((way, ~place))
            continue
        if place in way or place >= len(forest.modes) or len(found) > len(forest.modes) + 1:
            raise n.refuse(f"the nodes of {n.op_type} are no trees", reference="bad-onnx-node")
        stack += [(int(to), way | {place: bool(side)}) for side, to in enumerate(forest.branches[place])]
    return found


def _decisions(b: Builder, x: Value, forest: Forest) -> tuple[Value, list[int]]:
    """1 where a node leads to its true side [N, nodes], and which nodes these columns are."""
    columns, order = [], []
    sets = dict(zip(np.flatnonzero(forest.modes == COMPARISONS.index("MEMBER")).tolist(), forest.members, strict=False))
    for mode in sorted(set(forest.modes.tolist())):
        nodes = np.flatnonzero(forest.modes == mode)
        order += nodes.tolist()
        values = b.add(GatherV2(), x, b.ints(forest.features[nodes]), b.ints(1))
        if COMPARISONS[mode] == "MEMBER":
            decided = _membership(b, values, [sets[node] for node in nodes.tolist()])
        else:
            decided = cast(b, calc(b, COMPARISONS[mode], values, forest.splits[nodes]), F32)
        if forest.missing[nodes].any():
            unknown = cast(b, calc(b, "NOTEQUAL", values, values), F32)
            decided = calc(b, "MAXIMUM", decided, calc(b, "MUL", unknown, forest.missing[nodes]))
        columns.append(decided)
    if not columns:  # trees that are a leaf
        columns = [calc(b, "MUL", cast(b, calc(b, "EQUAL", reduced(b, "SUM", x, 1), 0.0), F32), 0.0)]
    return (b.add(Concat(1), *columns) if len(columns) > 1 else columns[0]), order


def _membership(b: Builder, values: Value, sets: Sequence[np.ndarray]) -> Value:
    """Whether each column holds a member of its set; short sets repeat a member, and nothing is in an empty one."""
    most = max(1, *(len(s) for s in sets))
    table = np.stack([np.resize(s, most) if len(s) else np.full(most, np.nan, F32) for s in sets])
    equal = cast(b, calc(b, "EQUAL", unsqueezed(b, values, 2), table), F32)
    return reduced(b, "MAXIMUM", equal, 2, keep=False)
