"""Import rule of Einsum."""

from __future__ import annotations

from mnnconvert.frontends.common import einsum as products
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.ir import Builder, Value


@onnx_op("Einsum", limits="operands of known rank; the size of a diagonal must be known")
def einsum(b: Builder, n: OnnxNode) -> Value:
    return products.einsum(b, n, str(n.attr("equation", "")), n.inputs)
