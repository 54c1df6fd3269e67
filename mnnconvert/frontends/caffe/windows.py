"""The settings with which layers describe windows over the axes behind batch and channels."""

from __future__ import annotations

from dataclasses import dataclass

from mnnconvert.frontends.caffe.node import CaffeNode, Params
from mnnconvert.ir import Value

Ints = tuple[int, ...]
LETTERS = ("h", "w")


@dataclass(frozen=True)
class Window:
    """A window: its size, steps, zeros in front of (and behind) each axis, and the spread of its elements."""

    kernel: Ints
    strides: Ints
    pads: Ints
    dilations: Ints


def window(n: CaffeNode, p: Params, x: Value) -> Window:
    """The window over the spatial axes of x; for Caffe's pooling and convolutions alike."""
    count = n.rank(x, 3) - 2
    kernel = _each(n, p, "kernel_size", "kernel", count, 0)
    found = Window(
        kernel,
        _each(n, p, "stride", "stride", count, 1),
        _each(n, p, "pad", "pad", count, 0),
        _each(n, p, "dilation", "dilation", count, 1),
    )
    if min((*found.kernel, *found.strides, *found.dilations, *(q + 1 for q in found.pads))) < 1:
        raise n.refuse(f"{n.op} has the kernel {list(kernel)}, strides {list(found.strides)}, pads {list(found.pads)}")
    return found


def _each(n: CaffeNode, p: Params, name: str, prefix: str, count: int, default: int) -> Ints:
    """One number for each axis: `name` once for all or once for each, or on planes `prefix`_h and `prefix`_w."""
    given = p.integers(name)
    single = [p.integer(f"{prefix}_{letter}", given[0] if len(given) == 1 else default) for letter in LETTERS]
    by_letter = any(f"{prefix}_{letter}" in p for letter in LETTERS)
    if by_letter and count == 2:
        return single[0], single[1]
    if by_letter or len(given) not in (0, 1, count):
        raise n.refuse(f"{n.op} has {name} {list(given)} for {count} axes")
    return given if len(given) == count else given * count or (default,) * count
