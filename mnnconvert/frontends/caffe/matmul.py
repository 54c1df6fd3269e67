"""Import rules of products with matrices and of tables of words."""

from __future__ import annotations

import math

from mnnconvert.frontends.caffe.node import CaffeNode
from mnnconvert.frontends.caffe.registry import caffe_op
from mnnconvert.frontends.common.compose import calc, cast, reshape
from mnnconvert.ir import I32, Builder, Value
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.matmul import MatMul


@caffe_op("InnerProduct")
def inner_product(b: Builder, n: CaffeNode) -> tuple[Value, ...]:
    """x, flattened from `axis` on, times the weight [outputs, inputs] (its transpose where told), plus bias."""
    p = n.params("inner_product_param")
    outputs, transposed, biased = (
        p.integer("num_output", 0), p.flag("transpose", False), p.flag("bias_term", True),
    )  # fmt: skip
    axis = n.axis(p.integer("axis", 1), n.rank(n.input()))
    inputs = math.prod(n.sizes(n.input(), axis))
    weight = n.weight(b, 0, (inputs, outputs) if transposed else (outputs, inputs))
    bias = n.weight(b, 1, (outputs,), "bias") if biased else None
    return tuple(_product(b, x, axis, inputs, weight, transposed, bias) for x in n.inputs)


def _product(
    b: Builder, x: Value, axis: int, inputs: int, weight: Value, transposed: bool, bias: Value | None
) -> Value:
    rank = x.rank or 0
    if axis == 0:
        x = reshape(b, x, (1, inputs))
    elif axis < rank - 1:
        x = reshape(b, x, (*(0,) * axis, inputs))
    y = b.add(MatMul(False, not transposed), x, weight)
    y = y if bias is None else calc(b, "ADD", y, bias)
    return reshape(b, y, (-1,)) if axis == 0 else y


@caffe_op("Embed")
def embed(b: Builder, n: CaffeNode) -> Value:
    """Rows of the table [input_dim, num_output] by index, plus bias."""
    p = n.params("embed_param")
    outputs, words = p.integer("num_output", 0), p.integer("input_dim", 0)
    y = b.add(GatherV2(), n.weight(b, 0, (words, outputs)), cast(b, n.input(), I32), b.ints(0))
    return calc(b, "ADD", y, n.weight(b, 1, (outputs,), "bias")) if p.flag("bias_term", True) else y
