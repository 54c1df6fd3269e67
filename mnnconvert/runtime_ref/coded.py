"""Which products have weights that may stay integer codes, for every backend."""

from __future__ import annotations

from mnnconvert.ir import CodedTensor, CodedWeights, Tensor, TransposedMatrix
from mnnconvert.ops.convolution import Convolution


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
