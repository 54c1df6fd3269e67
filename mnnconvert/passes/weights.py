"""Weights scaled per output channel. Large ones are not computed until they are used."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mnnconvert.ir import ArrayTensor, CodedTensor, CodedWeights, LazyTensor, Tensor

EAGER_BYTES = 1 << 20  # up to this size a changed weight is computed at once


def scaled(tensor: Tensor, factor: np.ndarray) -> Tensor:
    """`tensor` times `factor`, which broadcasts to its shape, in float32. Coded weights keep their codes."""
    if isinstance(tensor, CodedTensor) and keeps_codes(tensor, factor):
        return CodedTensor(_with_scales(tensor.coded, factor), tensor.shape)
    lazy = LazyTensor(tensor, lambda a: a * factor, np.dtype(np.float32), tuple(tensor.shape))
    return ArrayTensor(lazy.numpy()) if tensor.nbytes <= EAGER_BYTES else lazy


def keeps_codes(tensor: Tensor, factor: np.ndarray) -> bool:
    """Whether a factor changes only the scales of a tensor: it is not coded, or has one number per row of codes."""
    if not isinstance(tensor, CodedTensor) or factor.size == 1:
        return True
    return bool(factor.size == tensor.coded.shape[0] == factor.shape[0])


def _with_scales(coded: CodedWeights, factor: np.ndarray) -> CodedWeights:
    """The same codes with scales and minima times one factor per row, rounded once more."""
    rows = factor.reshape(-1, 1).astype(np.float32)
    minimum = None if coded.minimum is None else coded.minimum * rows
    return replace(coded, scale=coded.scale * rows, minimum=minimum, half_scales=False)


def channel_factor(factor: np.ndarray, weight: tuple[int, ...], group: int, transposed: bool) -> np.ndarray:
    """`factor` [O] shaped to multiply a weight: [O,I/g,kH,kW], or [I,O/g,kH,kW] of a transposed convolution.

    In the latter the rows of one group of inputs belong to one group of outputs.
    """
    if not transposed:
        return factor.reshape(-1, 1, 1, 1)
    by_group = np.broadcast_to(factor, (group * weight[1],)).reshape(group, 1, weight[1])
    return np.broadcast_to(by_group, (group, weight[0] // group, weight[1])).reshape(weight[0], weight[1], 1, 1)
