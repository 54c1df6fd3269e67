"""Whether an operator that picks places (TopK, ArgMax) had equal values to pick from, which is why most differ."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from mnnconvert.verify.metrics import ArrayComparison, kind_of

PICKING = ("TopK", "ArgMax", "ArgMin", "TopKV2", "TOPK_V2", "ARG_MAX", "ARG_MIN")
"""By the names of ONNX, MNN and TFLite."""
SHOWN = 6


def tie(op: str, sources: Iterable[np.ndarray], measured: ArrayComparison) -> str:
    """The places of the values that equal the one that the source picks where indices differ first; "" for no tie.

    `op` is the operator of the source, `sources` are what it may pick from, `measured` compares its indices.
    """
    if op not in PICKING or measured.where is None or measured.want is None or kind_of(measured.want_dtype) == "float":
        return ""
    return next((text for x in sources if (text := _tie(x, measured))), "")


def _tie(x: np.ndarray, m: ArrayComparison) -> str:
    axis, where, wanted = _axis(x.shape, m.want_shape), m.where, m.want
    if axis is None or where is None or wanted is None or not 0 <= wanted < x.shape[axis]:
        return ""
    others = (*where[:axis], *where[axis + 1 :]) if len(where) == x.ndim else where
    line = np.moveaxis(x, axis, -1)[others]
    equal = np.flatnonzero(line == line[int(wanted)])
    if len(equal) < 2:
        return ""
    places = ", ".join(str(place) for place in equal[:SHOWN]) + (", ..." if len(equal) > SHOWN else "")
    return f"a tie: places {places} all hold {line[int(wanted)].item():g}, and the source takes {wanted}"


def _axis(shape: tuple[int, ...], result: tuple[int, ...]) -> int | None:
    """The axis on which places are picked, as the sizes tell: the last one that fits."""
    fits = [
        axis
        for axis in reversed(range(len(shape)))
        if result in ((*shape[:axis], *shape[axis + 1 :]), shape)
        or (
            len(result) == len(shape)
            and all(a == b for i, (a, b) in enumerate(zip(shape, result, strict=True)) if i != axis)
        )
    ]
    return fits[0] if fits else None
