"""Import rules of matrix products. A constant factor stays an operand as it is: nothing multiplies or copies it."""

from __future__ import annotations

from mnnconvert.frontends.common.compose import calc
from mnnconvert.frontends.common.moves import permuted, reduced, squeezed, unsqueezed
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.ir import F32, I32, Builder, Value
from mnnconvert.ops.matmul import MatMul
from mnnconvert.ops.shape import Permute


def integer_product(b: Builder, x: Value, y: Value) -> Value:
    """The matrix product of int32 operands: all products, then their sums, wrapping as 32-bit integers do."""
    rank = max(x.rank or 0, y.rank or 0)
    vector_x, vector_y = x.rank == 1, y.rank == 1
    rows = unsqueezed(b, x, 0) if vector_x else x
    columns = unsqueezed(b, y, 1) if vector_y else y
    products = calc(b, "MUL", unsqueezed(b, rows, rows.rank or 0), unsqueezed(b, columns, (columns.rank or 0) - 2))
    total = reduced(b, "SUM", products, max(rank, 2) - 1, keep=False)
    axes = [max(rank, 2) - 2] * vector_x + [max(rank, 2) - 1] * vector_y
    return squeezed(b, total, *axes)


@onnx_op("MatMul")
def matmul(b: Builder, n: OnnxNode) -> Value:
    """numpy's matmul; integers are multiplied out exactly, and so are two vectors, at which the runtime crashes."""
    x, y = n.input(0), n.input(1)
    if x.rank == 1 and y.rank == 1:
        return reduced(b, "SUM", calc(b, "MUL", x, y), 0, keep=False)
    if x.dtype == F32:
        return b.add(MatMul(), x, y)
    if x.rank is None or y.rank is None or x.dtype != I32:
        raise n.refuse("MatMul of integers needs operands of known rank", reference="unsupported-type")
    return integer_product(b, x, y)


def transposed(b: Builder, x: Value, transpose: bool) -> Value:
    return b.add(Permute((1, 0)), x) if transpose else x


@onnx_op("Gemm", since=1)
def gemm(b: Builder, n: OnnxNode) -> Value:
    """alpha * A' B' + beta * C. alpha multiplies the product, so that a constant B is left alone."""
    x, y, c = n.input(0), n.input(1), n.optional(2)
    trans_x, trans_y = bool(n.attr("transA", 0)), bool(n.attr("transB", 0))
    alpha, beta = n.attr("alpha", 1.0), n.attr("beta", 1.0)
    if x.dtype == F32:
        return _float_gemm(b, MatMul(trans_x, trans_y), x, y, c, alpha, beta)
    if not float(alpha).is_integer() or not float(beta).is_integer():
        raise n.refuse(
            f"Gemm of integers with alpha {alpha} and beta {beta} is not supported", reference="unsupported-type"
        )
    product = integer_product(b, transposed(b, x, trans_x), transposed(b, y, trans_y))
    product = product if alpha == 1 else calc(b, "MUL", product, alpha)
    return product if c is None else calc(b, "ADD", product, c if beta == 1 else calc(b, "MUL", c, beta))


def _float_gemm(b: Builder, op: MatMul, x: Value, y: Value, c: Value | None, alpha: float, beta: float) -> Value:
    bias = None if c is None or beta == 0 else c if beta == 1 else calc(b, "MUL", c, beta)
    if alpha == 1 and bias is not None and bias.rank == 1 and _columns(op, y) == bias.shape[0]:  # type: ignore[index]
        return b.add(op, x, y, bias)
    product = b.add(op, x, y)
    product = product if alpha == 1 else calc(b, "MUL", product, alpha)
    return product if bias is None else calc(b, "ADD", product, bias)


def _columns(op: MatMul, y: Value) -> object:
    return y.shape[-2 if op.transpose_b else -1] if y.shape else None


@onnx_op("FusedMatMul", "TransposeMatMul", domain="com.microsoft")
def fused_matmul(b: Builder, n: OnnxNode) -> Value:
    """alpha * A' B'; `transBatchA` moves the first axis of an operand behind its other batch axes."""
    x, y = (_batch_last(b, n, i, name) for i, name in enumerate(("transBatchA", "transBatchB")))
    product = b.add(MatMul(bool(n.attr("transA", 0)), bool(n.attr("transB", 0))), x, y)
    alpha = n.attr("alpha", 1.0)
    return product if alpha == 1 else calc(b, "MUL", product, alpha)


def _batch_last(b: Builder, n: OnnxNode, index: int, name: str) -> Value:
    x = n.input(index)
    if not n.attr(name, 0):
        return x
    if x.rank is None or x.rank < 3:
        raise n.refuse(f"{name} needs an operand of known rank, 3 or more")
    return permuted(b, x, [*range(1, x.rank - 1), 0, x.rank - 1])
