"""Import rules of products with matrices."""

from __future__ import annotations

from mnnconvert.frontends.common.compose import calc, reshape
from mnnconvert.frontends.common.nodes import known_rank
from mnnconvert.frontends.tflite.compose import activated, bias_of
from mnnconvert.frontends.tflite.node import TfliteNode
from mnnconvert.frontends.tflite.registry import tflite_op
from mnnconvert.ir import Builder, Value
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.matmul import MatMul


@tflite_op("FULLY_CONNECTED", limits="not with shuffled weights")
def fully_connected(b: Builder, n: TfliteNode) -> Value:
    """x W' (+ bias). Unless the axes are kept, x is taken as a matrix of as many columns as W has."""
    if n.choice("WeightsFormat", "FullyConnectedOptionsWeightsFormat", "DEFAULT") != "DEFAULT":
        raise n.refuse("FULLY_CONNECTED with shuffled weights is not supported")
    x, w = n.input(0), n.weight(b, 1, (0, 1), 0)
    columns = w.shape[1] if w.shape else None
    keep = bool(n.option("KeepNumDims", False)) and known_rank(n, x) > 1
    if not keep and (x.rank != 2 or (x.shape or (None, None))[1] != columns):
        if not isinstance(columns, int):
            raise n.refuse("FULLY_CONNECTED needs to know the columns of its weight")
        x = reshape(b, x, (-1, columns))
    y = b.add(MatMul(False, True), x, w)
    return activated(b, n, calc(b, "ADD", y, bias_of(b, n, 2, None)) if n.has(2) else y)


@tflite_op("BATCH_MATMUL")
def batch_matmul(b: Builder, n: TfliteNode) -> Value:
    return b.add(MatMul(bool(n.option("AdjX", False)), bool(n.option("AdjY", False))), n.input(0), n.input(1))


@tflite_op("EMBEDDING_LOOKUP")
def embedding_lookup(b: Builder, n: TfliteNode) -> Value:
    return b.add(GatherV2(), n.input(1), n.input(0), b.ints(0))
