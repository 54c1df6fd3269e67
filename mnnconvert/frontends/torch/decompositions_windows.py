"""Pooling and batch statistics as compositions: divisors of one's own, adaptive windows, norms of the batch itself."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from mnnconvert.frontends.torch.decompositions import decomposes


@decomposes("aten::avg_pool2d")
def avg_pool2d(x: Any, kernel: Sequence[int], *rest: Any, **named: Any) -> Any:
    return _average(x, 2, kernel, *rest, **named)


@decomposes("aten::avg_pool3d")
def avg_pool3d(x: Any, kernel: Sequence[int], *rest: Any, **named: Any) -> Any:
    return _average(x, 3, kernel, *rest, **named)


def _average(
    x: Any, axes: int, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Any:  # fmt: skip
    """Sums divided by a number of one's own, which ONNX does not have: means of whole windows, scaled."""
    import math

    from torch.nn import functional

    if divisor_override is None:
        return NotImplemented
    kernel, padding = (tuple(v) * axes if len(v) == 1 else tuple(v) for v in (kernel, padding))
    stride = kernel if not stride else tuple(stride) * axes if len(stride) == 1 else tuple(stride)
    pads: list[Any] = []
    for size, k, s, p in zip(reversed(x.shape[-axes:]), kernel[::-1], stride[::-1], padding[::-1], strict=True):
        pads += [p, max(p, _end(size, k, s, p) - size - p) if ceil_mode else p]
    pool = functional.avg_pool2d if axes == 2 else functional.avg_pool3d
    return pool(functional.pad(x, pads), kernel, stride) * (math.prod(kernel) / divisor_override)


def _end(size: Any, kernel: int, stride: int, pad: int) -> Any:
    """Where the last window ends that begins inside of the axis or its left padding, counted with that padding."""
    count = -(-(size + 2 * pad - kernel) // stride)
    return (count if count * stride < size + pad else count - 1) * stride + kernel


@decomposes("aten::_adaptive_avg_pool3d")
def adaptive_avg_pool3d(x: Any, sizes: Sequence[int]) -> Any:
    """Means over axis after axis, as every window is a product of intervals."""
    for axis, count in zip((-3, -2, -1), sizes, strict=True):
        parts = [x.narrow(axis, a, b - a).mean(axis) for a, b in _windows(x.shape[axis], count)]
        x = _stacked(parts, axis)
    return x


@decomposes("aten::adaptive_max_pool2d")
def adaptive_max_pool2d(x: Any, sizes: Sequence[int]) -> Any:
    return _adaptive_max(x, sizes)


@decomposes("aten::adaptive_max_pool3d")
def adaptive_max_pool3d(x: Any, sizes: Sequence[int]) -> Any:
    return _adaptive_max(x, sizes)


def _adaptive_max(x: Any, sizes: Sequence[int]) -> tuple[Any, Any]:
    """Maxima of windows, and their places in the flattened picture."""
    import torch

    picture = x.shape[-len(sizes) :]
    places = torch.arange(picture.numel()).view(picture)
    windows = [_windows(size, count) for size, count in zip(picture, sizes, strict=True)]
    values, indices = [], []
    for window in itertools.product(*windows):
        cut = (..., *(slice(a, b) for a, b in window))
        value, place = x[cut].flatten(-len(sizes)).max(-1)
        values.append(value)
        indices.append(places[cut].flatten()[place])
    shape = (*x.shape[: -len(sizes)], *sizes)
    return torch.stack(values, -1).view(shape), torch.stack(indices, -1).view(shape)


def _windows(size: int, count: int) -> list[tuple[int, int]]:
    """Where each of `count` windows over `size` places begins and ends."""
    return [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


def _stacked(parts: list[Any], axis: int) -> Any:
    import torch

    return torch.stack(parts, axis)


@decomposes("aten::native_batch_norm", "aten::_native_batch_norm_legit")
def native_batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float
) -> Any:
    """Also with the statistics of the batch itself; returns these, too."""
    shape = (1, -1, *([1] * (x.dim() - 2)))
    saved = x.new_empty(0), x.new_empty(0)
    if training:
        others = [a for a in range(x.dim()) if a != 1]
        mean, variance = x.mean(others), x.var(others, correction=0)
        saved = mean, (variance + eps).rsqrt()
    y = (x - mean.view(shape)) * (variance + eps).rsqrt().view(shape)
    y = y if weight is None else y * weight.view(shape)
    return (y if bias is None else y + bias.view(shape), *saved)


@decomposes("aten::_native_batch_norm_legit.no_stats")
def batch_norm_without_statistics(x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float) -> Any:
    return native_batch_norm(x, weight, bias, None, None, True, momentum, eps)


@decomposes("aten::_native_batch_norm_legit_functional")
def functional_batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float
) -> Any:
    """The form without writing in place, which returns the running statistics too."""
    y, *saved = native_batch_norm(x, weight, bias, mean, variance, training, momentum, eps)
    if training:
        others = [a for a in range(x.dim()) if a != 1]
        mean = mean * (1 - momentum) + x.mean(others) * momentum
        variance = variance * (1 - momentum) + x.var(others) * momentum
    return (y, *saved, mean, variance)
