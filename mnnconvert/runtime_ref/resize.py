"""Resizing an axis as sums of taps, or picks: what the backends share."""

from __future__ import annotations

from typing import Any

import numpy as np

from mnnconvert.ir import F32, I32, Node
from mnnconvert.ops.resample import LINEAR, cubic_kernel, positions
from mnnconvert.runtime_ref.lower import Lowering

Taps = tuple[np.ndarray, np.ndarray]


def nearest(op: Any, size: int, out: int, scale: float) -> np.ndarray:
    """The element of the source at each place of a resized axis."""
    at = positions(size, out, scale, op.coordinate_rule())
    index = np.floor(at) if op.resize_type == 1 else np.ceil(at - 0.5)
    return np.clip(index, 0, size - 1).astype(np.int64)


def taps(op: Any, size: int, out: int, scale: float) -> Taps:
    """Which elements of the source are summed at each place, int32 [2 or 4, out], and their weights float32."""
    at = positions(size, out, scale, op.coordinate_rule())
    if op.resize_type == LINEAR:
        at = np.clip(at, 0, size - 1)
    low = np.floor(at)
    around = np.arange(2)[:, None] if op.resize_type == LINEAR else np.arange(-1, 3)[:, None]
    distance = np.abs(around - (at - low))
    weights = 1 - distance if op.resize_type == LINEAR else cubic_kernel(distance, op.cubic_a)
    return np.clip(low + around, 0, size - 1).astype(I32), weights.astype(F32)


def fits(ctx: Lowering, node: Node) -> bool:
    """Whether the sizes are known and leave batch and channels alone; else the definition says what is wrong."""
    if len(node.inputs) < 2:
        return True
    x, given = ctx.shape(node.inputs[0]), ctx.constant(node.inputs[1])
    if given is None:
        return False
    return given.dtype != I32 or given.size != len(x) or tuple(given.reshape(-1)[:2]) == x[:2]


def scales_of(ctx: Lowering, node: Node) -> list[float]:
    """The factor of each resized axis: what the operand says, if it holds scales, else out / in."""
    given = ctx.constant(node.inputs[1]) if len(node.inputs) > 1 else None
    pairs = list(zip(ctx.shape(node.inputs[0])[2:], ctx.shape(node.output)[2:], strict=True))
    ratios = [m / n for n, m in pairs]
    if given is None or given.dtype == I32:
        return ratios
    return [g or r for g, r in zip(given.reshape(-1).tolist()[-len(pairs) :], ratios, strict=True)]
