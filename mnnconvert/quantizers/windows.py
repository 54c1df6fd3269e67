"""What a convolution multiplies its weights with: means and products of its windows, gathered sample by sample."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mnnconvert.ops.convolution import Convolution
from mnnconvert.ops.windows import pad_spatial

Floats = NDArray[np.float64]

POSITIONS = 512  # windows of one sample whose products are taken, evenly spread


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
        x = x[..., None] if x.ndim == 3 else x
        shifted = list(self._shifted(np.asarray(x, np.float32)))
        n, channels, height, width = shifted[0].shape
        group, per_group = self.op.group, channels // self.op.group
        sums = np.stack([s.sum(axis=(0, 2, 3), dtype=np.float64) for s in shifted], axis=-1)  # [C, kH*kW]
        self.total = sums.reshape(group, -1) + (0.0 if self.total is None else self.total)
        self.count += n * height * width
        if self.wants_products:
            step = max(1, n * height * width // POSITIONS)
            rows = [np.moveaxis(s, 1, 0).reshape(channels, -1)[:, ::step] for s in shifted]
            self._multiply(np.stack(rows, axis=1).reshape(group, per_group * len(rows), -1))

    def _multiply(self, columns: NDArray[np.float32]) -> None:
        """Add the products of windows [group, K, positions]."""
        made = np.matmul(columns, columns.transpose(0, 2, 1)).astype(np.float64)
        self.products = made if self.products is None else self.products + made
        self.sampled += columns.shape[2]

    def _shifted(self, x: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
        """For every position in the kernel, what it meets at every output position: [N,C,oH,oW]."""
        op, sizes = self.op, (x.shape[2], x.shape[3])
        top, left, bottom, right = op.padding(sizes, self.kernel)
        padded = pad_spatial(x, (top, left), (bottom, right))
        reach = [d * (k - 1) + 1 for d, k in zip(op.dilations, self.kernel, strict=True)]
        last = [padded.shape[2 + i] - reach[i] for i in (0, 1)]
        for ky in range(self.kernel[0]):
            for kx in range(self.kernel[1]):
                y0, x0 = ky * op.dilations[0], kx * op.dilations[1]
                yield padded[:, :, y0 : y0 + last[0] + 1 : op.strides[0], x0 : x0 + last[1] + 1 : op.strides[1]]

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
