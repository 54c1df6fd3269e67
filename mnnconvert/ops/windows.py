"""Sliding windows over any number of spatial axes: sizes, padding, correlation, its transpose, and pooling.

Arrays are [N, C, spatial...]. Windows are copied in blocks that fit the cache, so memory stays small for any image.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mnnconvert.ir.types import Dim, add, floordiv

BLOCK = 1 << 21  # elements of windows copied at a time (8 MB)
PLANES = 1 << 16  # elements of a depthwise block: it stays in the second-level cache
Ints = tuple[int, ...]


def positive(*sizes: int) -> None:
    """ValueError unless all of these are at least 1, as kernels, strides and dilations of a sound file are."""
    if min(sizes) < 1:
        raise ValueError(f"a window of {list(sizes)}")


def same_pads(size: int, kernel: int, stride: int, dilation: int = 1) -> tuple[int, int]:
    """Pads (begin, end) of the SAME rule: out = ceil(in/s), the smaller half first."""
    total = max(0, (-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1 - size)
    return total // 2, total - total // 2


def window_out(size: Dim, kernel: int, stride: int, dilation: int, pads: int) -> Dim:
    """floor((size + pads - ((kernel-1)*dilation+1)) / stride) + 1; ValueError when the window does not fit."""
    out = add(floordiv(add(size, pads - (kernel - 1) * dilation - 1), stride), 1)
    if isinstance(out, int) and out < 1:
        raise ValueError(
            f"the window of {(kernel - 1) * dilation + 1} is larger than the padded input of {add(size, pads)}"
        )
    return out


def pad_spatial(x: np.ndarray, begin: Sequence[int], end: Sequence[int], value: float = 0) -> np.ndarray:
    """`x` with `begin` and `end` elements of `value` around its spatial axes; negative numbers crop."""
    cut = [slice(max(0, -b), s - max(0, -e)) for b, e, s in zip(begin, end, x.shape[2:], strict=True)]
    x = x[(slice(None), slice(None), *cut)]
    grow = [(max(0, b), max(0, e)) for b, e in zip(begin, end, strict=True)]
    if not any(map(any, grow)):
        return x
    sizes = [b + s + e for (b, e), s in zip(grow, x.shape[2:], strict=True)]
    y = np.full((*x.shape[:2], *sizes), value, x.dtype)
    inner = [slice(b, b + s) for (b, _), s in zip(grow, x.shape[2:], strict=True)]
    y[(slice(None), slice(None), *inner)] = x
    return y


def _taps(kernel: Ints, strides: Ints, dilations: Ints, out: Ints) -> Iterator[tuple[Ints, tuple[slice, ...]]]:
    """Each position in the kernel, and the strided part of the padded image that it meets."""
    for tap in itertools.product(*map(range, kernel)):
        yield (
            tap,
            tuple(
                slice(k * d, k * d + (o - 1) * s + 1, s)
                for k, d, o, s in zip(tap, dilations, out, strides, strict=True)
            ),
        )


def windows(x: np.ndarray, kernel: Ints, strides: Ints, dilations: Ints, out: Ints) -> np.ndarray:
    """Windows of a padded image as a view [N, C, kernel..., out...]."""
    steps = x.strides[2:]
    inner = [step * d for step, d in zip(steps, dilations, strict=True)]
    outer = [step * s for step, s in zip(steps, strides, strict=True)]
    shape = (*x.shape[:2], *kernel, *out)
    return np.lib.stride_tricks.as_strided(x, shape, (*x.strides[:2], *inner, *outer), writeable=False)


def correlate(x: np.ndarray, w: np.ndarray, strides: Ints, dilations: Ints, group: int) -> np.ndarray:
    """Cross-correlation of a padded image with w [O, C/group, kernel...], without bias, in their element type."""
    kernel = w.shape[2:]
    out = tuple(
        (size - (k - 1) * d - 1) // s + 1 for size, k, d, s in zip(x.shape[2:], kernel, dilations, strides, strict=True)
    )
    if w.shape[1] == 1 and group == w.shape[0]:
        return _depthwise(x, w, strides, dilations, out)
    y = np.empty((x.shape[0], w.shape[0], *out), np.result_type(x, w))
    matrix = w.reshape(group, w.shape[0] // group, -1)
    if group == 1 and x.shape[2:] == kernel:  # one pixel each: the batch is the matrix
        return np.matmul(x.reshape(x.shape[0], matrix.shape[2]), matrix[0].T).reshape(y.shape)
    if math.prod(kernel) == 1 and math.prod(strides) == 1:
        count = math.prod(out)
        np.matmul(
            matrix,
            x.reshape(x.shape[0], group, w.shape[1], count),
            out=y.reshape(x.shape[0], group, matrix.shape[1], count),
        )
        return y
    view: Any = windows(x, kernel, strides, dilations, out)
    width = math.prod(out[1:])
    step = max(1, BLOCK // max(1, x.shape[1] * math.prod(kernel) * width))
    for image, start in itertools.product(range(x.shape[0]), range(0, out[0], step)):
        rows = slice(start, min(start + step, out[0]))
        columns = view[(image, ..., rows, *(slice(None),) * (len(out) - 1))]
        product = np.matmul(matrix, columns.reshape(group, matrix.shape[2], -1))
        y[image, :, rows] = product.reshape(w.shape[0], -1, *out[1:])
    return y


def _depthwise(x: Any, w: Any, strides: Ints, dilations: Ints, out: Ints) -> np.ndarray:
    """One tap of the kernel at a time, on a few channels at a time: no window is ever copied."""
    y = np.zeros((x.shape[0], w.shape[0], *out), np.result_type(x, w))
    ones = (1,) * len(out)
    step = max(1, PLANES // max(1, math.prod(out)))
    taps = list(_taps(w.shape[2:], strides, dilations, out))
    for image, start in itertools.product(range(x.shape[0]), range(0, w.shape[0], step)):
        channels = slice(start, min(start + step, w.shape[0]))
        total = y[image, channels]
        product = np.empty_like(total)
        for tap, where in taps:
            weight = w[(channels, 0, *tap)].reshape(-1, *ones)
            total += np.multiply(x[(image, channels, *where)], weight, out=product)
    return y


def correlate_transposed(x: np.ndarray, w: Any, strides: Ints, dilations: Ints, group: int) -> np.ndarray:
    """What each element of x [N, I, ...] spreads by w [I, O/group, kernel...], not cropped, without bias."""
    kernel, per_group = w.shape[2:], w.shape[1]
    full = [
        (size - 1) * s + (k - 1) * d + 1 for size, s, k, d in zip(x.shape[2:], strides, kernel, dilations, strict=True)
    ]
    y = np.zeros((x.shape[0], group * per_group, *full), np.float32)
    flat = x.reshape(x.shape[0], group, x.shape[1] // group, math.prod(x.shape[2:]))
    for tap, where in _taps(kernel, strides, dilations, x.shape[2:]):
        weight = w[(slice(None), slice(None), *tap)].reshape(group, -1, per_group).transpose(0, 2, 1)
        spread = np.matmul(weight, flat)
        y[(slice(None), slice(None), *where)] += spread.reshape(x.shape[0], group * per_group, *x.shape[2:])
    return y


def fold_windows(function: Callable[..., Any], x: np.ndarray, kernel: Ints, strides: Ints, out: Ints) -> np.ndarray:
    """`function` (maximum or add) over every window of a padded image, one axis after the other."""
    for axis, (k, s, o) in enumerate(zip(kernel, strides, out, strict=True), 2):
        cut = [slice(None)] * x.ndim
        total: np.ndarray | None = None
        for tap in range(k):
            cut[axis] = slice(tap, tap + (o - 1) * s + 1, s)
            part = x[tuple(cut)]
            total = np.array(part) if total is None else function(total, part, out=total)
        x = x[tuple(cut)] if total is None else total
    return x


def covered(sizes: Ints, kernel: Ints, strides: Ints, begin: Ints, out: Ints, margin: Ints) -> np.ndarray:
    """How many elements of the image, widened by `margin` on both sides, each window covers: [out...] float32."""
    count = np.ones((), np.float32)
    for size, k, s, b, o, m in zip(sizes, kernel, strides, begin, out, margin, strict=True):
        start = np.arange(o) * s - b
        length = np.minimum(start + k, size + m) - np.maximum(start, -m)
        count = np.multiply.outer(count, np.maximum(length, 1).astype(np.float32))
    return count
