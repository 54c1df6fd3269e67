"""Import rules of matrix products."""

from __future__ import annotations

from mnnconvert.frontends.common import einsum as products
from mnnconvert.frontends.common.nodes import known_rank
from mnnconvert.frontends.tensorflow.node import TfNode
from mnnconvert.frontends.tensorflow.registry import tf_op
from mnnconvert.ir import F32, Builder, Value
from mnnconvert.ops.matmul import MatMul
from mnnconvert.ops.search import Det

SWAPS = {"MatMul": ("transpose_a", "transpose_b")}


@tf_op("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", limits="real numbers")
def matmul(b: Builder, n: TfNode) -> Value:
    """Products of the last two axes; the others broadcast. Integers are multiplied out exactly."""
    x, y = n.input(0), n.input(1)
    swaps = SWAPS.get(n.op, ("adj_x", "adj_y"))
    swap_x, swap_y = (n.flag(name) for name in swaps)
    if x.dtype != F32:
        known_rank(n, x), known_rank(n, y)
        equation = f"...{'ji' if swap_x else 'ij'},...{'kj' if swap_y else 'jk'}->...ik"
        return products.einsum(b, n, equation, [x, y])
    return b.add(MatMul(swap_x, swap_y), x, y)


@tf_op("Einsum", limits="operands of known rank; the size of a diagonal must be known")
def einsum(b: Builder, n: TfNode) -> Value:
    return products.einsum(b, n, n.text("equation"), n.inputs)


@tf_op("MatrixDeterminant")
def determinant(b: Builder, n: TfNode) -> Value:
    return b.add(Det(), n.input(0))
