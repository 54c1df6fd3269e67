"""Which products have weights that may stay integer codes, for every backend."""

from __future__ import annotations

from mnnconvert.ir import CodedTensor, CodedWeights, Node, Tensor, TransposedMatrix
from mnnconvert.ops.convolution import Convolution
from mnnconvert.ops.matmul import MatMul
from mnnconvert.runtime_ref.lower import Lowering


def coded_right(ctx: Lowering, node: Node) -> CodedWeights | None:
    """The codes of the right operand of a MatMul where rows of the left one are multiplied with rows of codes."""
    op, (left, right, *bias) = node.op, node.inputs
    assert isinstance(op, MatMul)
    coded = coded_rows(right.tensor, op.transpose_b)
    if coded is None or (op.transpose_a and len(ctx.shape(left)) > 1):
        return None
    return None if bias and ctx.shape(bias[0]) != coded.shape[:1] else coded


def coded_rows(tensor: Tensor | None, transposed: bool) -> CodedWeights | None:
    """The codes of a right operand if each column of results has a row of codes."""
    if isinstance(tensor, TransposedMatrix):
        tensor, transposed = tensor.source, not transposed
    fits = isinstance(tensor, CodedTensor) and transposed and tensor.shape == tensor.coded.shape
    return tensor.coded if fits else None  # type: ignore[union-attr]


def coded_kernel(op: Convolution, tensor: Tensor | None) -> CodedWeights | None:
    """The codes of a kernel of 1 x 1 that multiplies the pixels of all channels."""
    if not isinstance(tensor, CodedTensor) or op.group > 1 or any(op.pads):
        return None
    return tensor.coded if tensor.shape == (*tensor.coded.shape, 1, 1) else None
