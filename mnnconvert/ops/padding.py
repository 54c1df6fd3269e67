"""Padding and cropping."""

from __future__ import annotations

from typing import Any

import numpy as np

from mnnconvert.ir.types import Dim, Spec, add
from mnnconvert.ops.base import Form, Op, register
from mnnconvert.ops.samples import exactly, grid, integers

NUMPY_MODES: dict[str, Any] = {"REFLECT": "reflect", "SYMMETRIC": "symmetric", "EDGE": "edge"}


@register()
class Padding(Op):
    """x with more elements on either side of its axes. Operands: x, pads int32 [2*rank][, value].

    pads holds before, after for each axis in turn; negative amounts crop, before anything is added. CONSTANT adds
    `value` (0), REFLECT mirrors without the border, SYMMETRIC with it, EDGE repeats the border.
    """

    mode: str = "CONSTANT"

    form = Form("Padding", "PadParam", {"mode": "mode"})
    layout = "any"

    def infer(self, x: Spec, pads: Spec, value: Spec | None = None) -> Spec:
        amounts = pads.sizes
        if x.shape is None or amounts is None:
            return Spec(x.dtype, None if x.shape is None else (None,) * len(x.shape))
        if len(amounts) != 2 * len(x.shape):
            raise ValueError(f"there are {len(amounts)} amounts for {len(x.shape)} axes")
        pairs = zip(x.shape, amounts[::2], amounts[1::2], strict=True)
        return Spec(x.dtype, tuple(_padded(size, before, after) for size, before, after in pairs))

    def ref(self, x: np.ndarray, pads: np.ndarray, value: np.ndarray | None = None) -> np.ndarray:
        pairs = np.asarray(pads).reshape(x.ndim, 2)
        cut = tuple(slice(max(0, -b), s - max(0, -a)) for (b, a), s in zip(pairs.tolist(), x.shape, strict=True))
        grow = np.maximum(pairs, 0)
        if not grow.any():
            return np.ascontiguousarray(x[cut])
        if self.mode != "CONSTANT":
            return np.asarray(np.pad(x[cut], grow, NUMPY_MODES[self.mode]))
        fill = 0 if value is None else np.asarray(value).reshape(-1)[0]
        return np.pad(x[cut], grow, "constant", constant_values=fill)

    samples = (
        grid(x=[(3, 4), integers(3, 4)], pads=[exactly(p) for p in ([0, 0, 0, 0], [1, 0, 2, 1], [-1, 0, 1, -2])])
        + grid(x=[(2, 3, 4)], pads=[exactly([0, 0, 1, 2, 3, 0])], mode=["REFLECT", "SYMMETRIC", "EDGE"])
        + grid(x=[(2, 3)], pads=[exactly([0, 1, 1, 1])], value=[exactly(0.5, "float32")])
    )


def _padded(size: Dim, before: Dim, after: Dim) -> Dim:
    result = add(add(size, before), after)
    if isinstance(result, int) and result < 0:
        raise ValueError(
            f"an axis of {size} cannot lose {-(result - size)}" if isinstance(size, int) else "a negative size"
        )
    return result
