"""Import rules of resizing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mnnconvert.frontends.common.channels_last import channels_first, channels_last, resized_bilinear, resized_nearest
from mnnconvert.frontends.common.compose import cast
from mnnconvert.frontends.common.nodes import known_sizes, limited
from mnnconvert.frontends.tensorflow.node import TfNode
from mnnconvert.frontends.tensorflow.registry import tf_op
from mnnconvert.ir import F32, Builder, Value
from mnnconvert.ops.matmul import MatMul


def _flags(n: TfNode) -> tuple[bool, bool]:
    """Whether corners are aligned, and whether the centers of pixels are."""
    return n.flag("align_corners"), n.flag("half_pixel_centers")


@tf_op("ResizeBilinear", gives="float32")
def resize_bilinear(b: Builder, n: TfNode) -> Value:
    return resized_bilinear(b, n, cast(b, n.input(0), F32), n.input(1), *_flags(n))


@tf_op("ResizeNearestNeighbor", limits="aligned corners need known sizes")
def resize_nearest(b: Builder, n: TfNode) -> Value:
    x = n.input(0)
    wide = cast(b, x, F32)
    return cast(b, resized_nearest(b, n, wide, n.input(1), n.constant(1), *_flags(n)), x.dtype)


def cubic_weights(size: int, out: int, corners: bool, half: bool) -> np.ndarray:
    """What each of `out` rows takes of `size` rows, [out, size].

    R. Keys, Cubic convolution interpolation for digital image processing, 1981, with a = -0.5 where centers are
    aligned (the weights outside of the image are left out then, and the others scaled up) and a = -0.75 otherwise (the
    rows at the border are repeated). Offsets are rounded to 1/1024 as TensorFlow's table of weights has them.
    """
    a = -0.5 if half else -0.75
    scale = (size - 1) / (out - 1) if corners and out > 1 else size / out
    at = (np.arange(out) + 0.5) * scale - 0.5 if half else np.arange(out) * scale
    base = np.floor(at).astype(int)
    t = np.rint((at - base) * 1024) / 1024
    weights = np.zeros((out, size))
    for k in range(-1, 3):
        d = np.abs(t - k)
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        w = np.where(d <= 1, near, np.where(d < 2, far, 0.0))
        rows = base + k
        inside = (rows >= 0) & (rows < size)
        w = np.where(inside, w, 0.0) if half else w
        np.add.at(weights, (np.arange(out), np.clip(rows, 0, size - 1)), w)
    return weights / weights.sum(1, keepdims=True) if half else weights


def area_weights(size: int, out: int) -> np.ndarray:
    """What each of `out` rows takes of `size` rows, [out, size]: the parts of them that it covers."""
    edges = np.arange(out + 1) * size / out
    low, high = edges[:-1, None], edges[1:, None]
    rows = np.arange(size)[None]
    return np.clip(np.minimum(high, rows + 1) - np.maximum(low, rows), 0, None) * out / size


@tf_op("ResizeArea", gives="float32", limits="sizes must be known; no aligned corners")
def resize_area(b: Builder, n: TfNode) -> Value:
    if n.flag("align_corners"):
        raise n.refuse(f"{n.op} with aligned corners is not supported")
    return _by_weights(b, n, area_weights)


@tf_op("ResizeBicubic", gives="float32", limits="sizes must be known")
def resize_bicubic(b: Builder, n: TfNode) -> Value:
    return _by_weights(b, n, lambda size, out: cubic_weights(size, out, *_flags(n)))


def _by_weights(b: Builder, n: TfNode, weights: Callable[[int, int], np.ndarray]) -> Value:
    """Rows, then columns, as products with the matrices of their weights."""
    x, outs = cast(b, n.input(0), F32), n.ints(1, "the sizes")
    height, width, _ = known_sizes(n, x)
    limited(n, max(outs), max(height, width))
    rows, columns = (weights(size, out) for size, out in zip((height, width), outs, strict=True))
    y = b.add(MatMul(), b.floats(rows), channels_first(b, n, x))
    return channels_last(b, b.add(MatMul(), y, b.floats(columns.T)))
