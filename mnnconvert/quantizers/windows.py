"""What a convolution multiplies its weights with: means and products of its windows, gathered sample by sample."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mnnconvert.ops.convolution import Convolution
from mnnconvert.ops.windows import pad_spatial, windows

Floats = NDArray[np.float64]

POSITIONS = 512  # windows of one sample whose products are taken, evenly spread


def layer_windows(op: Convolution, kernel: tuple[int, ...], x: NDArray[np.float32]) -> NDArray[np.float32]:
    """The windows of an input [N,C,H,W] or [N,C,L], padded, as a view [N,C,kH,kW,oH,oW]."""
    x = x[..., None] if x.ndim == 3 else x
    top, left, bottom, right = op.padding(x.shape[2:], (kernel[0], kernel[1]))
    x = pad_spatial(x, (top, left), (bottom, right))
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, op.dilations, strict=True)]
    out = tuple((size - span) // s + 1 for size, span, s in zip(x.shape[2:], spans, op.strides, strict=True))
    return windows(x, kernel, op.strides, op.dilations, out)


@dataclass
class WindowMoments:
    """Sums over the windows of a convolution.

    A window of group g has K = I/group * kH * kW values, in the order of a row of the weight. `total` [group, K] is
    the sum of all windows and `count` their number; `products` [group, K, K] is the sum of x x^T over at most 512
    windows of each sample and `sampled` their number (only with `wants_products`).
    """

    op: Convolution
    kernel: tuple[int, int]
    wants_products: bool = False
    count: int = 0
    sampled: int = 0
    total: Floats | None = None
    products: Floats | None = field(default=None, repr=False)

    def add(self, x: NDArray[np.floating]) -> None:
        """Take in an input [N,C,H,W] or [N,C,L]."""
        view = layer_windows(self.op, self.kernel, np.asarray(x, np.float32))
        n, height, width = view.shape[0], *view.shape[4:]
        group, positions = self.op.group, n * height * width
        sums = view.sum(axis=(0, 4, 5), dtype=np.float64)
        self.total = sums.reshape(group, -1) + (0.0 if self.total is None else self.total)
        self.count += positions
        if self.wants_products:
            picked = np.arange(0, positions, max(1, positions // POSITIONS))
            image, y, at = np.unravel_index(picked, (n, height, width))
            rows = view[image, :, :, :, y, at].reshape(len(picked), group, -1)
            self._multiply(np.ascontiguousarray(rows.transpose(1, 2, 0)))

    def _multiply(self, columns: NDArray[np.float32]) -> None:
        """Add the products of windows [group, K, positions]."""
        made = np.matmul(columns, columns.transpose(0, 2, 1)).astype(np.float64)
        self.products = made if self.products is None else self.products + made
        self.sampled += columns.shape[2]

    @property
    def mean(self) -> Floats:
        """The mean window, [group, K]."""
        assert self.total is not None
        return self.total / max(1, self.count)

    @property
    def second(self) -> Floats:
        """The mean of x x^T over the sampled windows, [group, K, K]."""
        assert self.products is not None
        return self.products / max(1, self.sampled)
