"""Feature maps in the blocked layout, for tests: numpy's own conversions, and packed weights."""

from __future__ import annotations

import numpy as np

from mnnconvert.runtime_ref.cpu import library

JUNK = 3.0  # what lies in lanes beyond the channels


def to_blocked(x: np.ndarray, lanes: int) -> np.ndarray:
    """[N,C,H,W] as [N, ceil(C/lanes), H, W, lanes]."""
    n, c, h, w = x.shape
    filled = np.full((n, -(-c // lanes) * lanes, h, w), JUNK, np.float32)
    filled[:, :c] = x
    return np.ascontiguousarray(filled.reshape(n, -1, lanes, h, w).transpose(0, 1, 3, 4, 2))


def from_blocked(y: np.ndarray, channels: int) -> np.ndarray:
    """The reverse; lanes beyond the channels must be finite, and are dropped."""
    assert np.isfinite(y).all()
    n, blocks, h, w, lanes = y.shape
    return y.transpose(0, 1, 4, 2, 3).reshape(n, blocks * lanes, h, w)[:, :channels]


def blocked_shape(shape: tuple[int, int, int, int], lanes: int) -> tuple[int, ...]:
    n, c, h, w = shape
    return (n, -(-c // lanes), h, w, lanes)


def pack(lib: library.Library, w: np.ndarray, group: int, plain: bool) -> np.ndarray:
    """The weights [O, I/group, kH, kW] of a convolution as conv_f32 takes them."""
    outputs, inputs, kernel_h, kernel_w = w.shape
    per_group = outputs // group
    packed = np.full((group, -(-per_group // lib.lanes) * lib.lanes * inputs * kernel_h * kernel_w), np.nan, np.float32)
    lib.call("conv_pack", w=w, packed=packed, outputs=outputs, inputs=inputs * group, group=group, kernel_h=kernel_h,
             kernel_w=kernel_w, plain_x=plain)  # fmt: skip
    assert np.isfinite(packed).all()
    return packed
