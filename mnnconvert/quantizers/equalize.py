"""Cross-layer equalization: channels between two convolutions are rescaled so that both weights use all codes."""

from __future__ import annotations

from collections.abc import Collection
from math import prod

import numpy as np
from numpy.typing import NDArray

from mnnconvert.ir import Graph, Node
from mnnconvert.ops.convolution import Convolution
from mnnconvert.quantizers.int8 import bias_of, matrix_of, set_constant

Floats = NDArray[np.float64]

ROUNDS = 20
SETTLED = 1e-3


def equalize(graph: Graph, layers: Collection[Node]) -> int:
    """Rescale the channels between pairs of `layers`; returns the number of pairs. The graph computes the same.

    Nagel et al., "Data-free quantization through weight equalization and bias correction", 2019: with r1 the largest
    |w| of a channel's row in the first layer and r2 that of its column in the second, s = sqrt(r1 r2) / r2; the row
    and the bias are divided by s, the column multiplied. Exact because relu(s x) = s relu(x) for s > 0. Repeated until
    no scale moves by more than 0.1 %, as chains of pairs disturb each other.
    """
    pairs = [(node, node.output.users[0]) for node in layers if _is_first(graph, node, layers)]
    touched = list(dict.fromkeys(node for pair in pairs for node in pair))
    weights = {node: matrix_of(node) for node in touched}
    biases = {node: bias_of(node) for node, _ in pairs}
    for _ in range(ROUNDS if pairs else 0):
        if max(_equalize(weights, biases, *pair) for pair in pairs) < SETTLED:
            break
    for node in touched:
        shape = node.inputs[1].tensor.shape  # type: ignore[union-attr]  # layers have constant weights
        set_constant(node, 1, weights[node].reshape(shape))
        if node in biases and (biases[node].any() or len(node.inputs) > 2):
            set_constant(node, 2, biases[node])
    return len(pairs)


def _is_first(graph: Graph, node: Node, layers: Collection[Node]) -> bool:
    """Whether a layer's result goes, through nothing but a ReLU, into the data operand of one other layer alone."""
    result = node.output
    if len(result.users) != 1 or result in graph.output_values or result.users[0] not in layers:
        return False
    second = result.users[0]
    activation = getattr(node.op, "activation", None)
    return activation in ("", "relu") and [v is result for v in second.inputs].count(True) == 1


def _equalize(weights: dict[Node, Floats], biases: dict[Node, Floats], first: Node, second: Node) -> float:
    """One step for one pair; returns the largest |log s|."""
    columns = _by_input(weights[second], second)
    rows, across = np.abs(weights[first]).max(axis=1), np.abs(columns).max(axis=1)
    live = (rows > 0) & (across > 0)
    scale = np.where(live, np.sqrt(rows / np.where(live, across, 1)), 1.0)
    scale = np.where(scale > 0, scale, 1.0)
    weights[first] = weights[first] / scale[:, None]
    biases[first] = biases[first] / scale
    weights[second] = _by_output(columns * scale[:, None], second)
    return float(np.abs(np.log(scale)).max())


def _by_input(matrix: Floats, node: Node) -> Floats:
    """A weight [O, I/group * area] as [I, O/group * area]."""
    group, per_group, area = _sizes(node)
    parts = matrix.reshape(group, -1, per_group, area)
    return parts.transpose(0, 2, 1, 3).reshape(group * per_group, -1)


def _by_output(columns: Floats, node: Node) -> Floats:
    """The inverse of `_by_input`."""
    group, per_group, area = _sizes(node)
    parts = columns.reshape(group, per_group, -1, area).transpose(0, 2, 1, 3)
    return parts.reshape(-1, per_group * area)


def _sizes(node: Node) -> tuple[int, int, int]:
    assert isinstance(node.op, Convolution) and node.inputs[1].tensor is not None
    _, per_group, *kernel = node.inputs[1].tensor.shape
    return node.op.group, per_group, prod(kernel)
