"""Sizes that travel through ops: small integer tensors whose elements are numbers, symbols or unknown.

An op that only moves elements runs its own reference on them, so shape arithmetic of a model is followed exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mnnconvert.ir.types import I32, Dim, Spec, element_count, known, size_content

LARGEST = 64  # elements; larger tensors do not hold sizes


def carried(x: Spec) -> np.ndarray | None:
    """The content of `x` as an object array of sizes, `None` where unknown; None when `x` cannot hold sizes."""
    if x.dtype != I32:
        return None
    if x.content is not None:
        return x.content.astype(object) if x.content.size <= LARGEST else None
    if not known(x.shape) or element_count(x.shape) > LARGEST:  # type: ignore[operator]
        return None
    return np.full(x.shape, None, dtype=object)  # type: ignore[arg-type]


def moved(ref: Callable[..., Any], operands: list[Spec], *rest: np.ndarray | None) -> np.ndarray | None:
    """What `ref` makes of the sizes in `operands` (and the known arrays `rest`); None when nothing is known."""
    if all(x.content is None for x in operands) or any(r is None or r.dtype == object for r in rest):
        return None
    contents = [carried(x) for x in operands]
    if any(c is None for c in contents):
        return None
    try:
        return tidy(np.asarray(ref(*contents, *rest)))
    except (ValueError, IndexError):
        return None


def tidy(content: np.ndarray) -> np.ndarray | None:
    """Sizes as the content of a spec: int32 when all are known, None when none is."""
    sizes: list[Dim] = [d if d is None or isinstance(d, str) else int(d) for d in content.reshape(-1)]
    if sizes and all(d is None for d in sizes):
        return None
    return size_content(sizes).reshape(content.shape)


def numbers(spec: Spec | None) -> list[int] | None:
    """The content of a small integer operand (axes, permutation, ...) in flat order when all of it is known."""
    if spec is None or spec.constant is None:
        return None
    return [int(v) for v in spec.constant.reshape(-1)]
