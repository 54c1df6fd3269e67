"""What the rules of several families share: where the channels are, and what belongs to the axes of an image."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mnnconvert.frontends.common.channels_last import Ints, channels_first, channels_last, window_pads
from mnnconvert.frontends.common.nodes import known_rank
from mnnconvert.frontends.tensorflow.node import TfNode
from mnnconvert.frontends.tensorflow.wire import BAD
from mnnconvert.ir import Builder, Dim, Value

FORMATS = ("NHWC", "NCHW", "NDHWC", "NCDHW", "NCHW_VECT_C", "NHWC_VECT_W")


def has_channels_first(n: TfNode) -> bool:
    """Whether the attribute data_format says that channels are the second axis."""
    found = n.text("data_format", "NHWC")
    if found not in FORMATS[:4]:
        raise n.refuse(f"{n.op} with the data_format {found} is not supported")
    return found.startswith("NC")


def to_planes(b: Builder, n: TfNode, x: Value, rank: int = 0) -> Value:
    """An operand as [N, C, spatial..], whatever its data_format; refused unless it has the given rank."""
    if known_rank(n, x) != (rank or x.rank):
        raise n.refuse(f"{n.op} takes an operand of rank {rank}, not {x.rank}", reference=BAD)
    return x if has_channels_first(n) else channels_first(b, n, x)


def from_planes(b: Builder, n: TfNode, y: Value) -> Value:
    """[N, C, spatial..] in the data_format of the node."""
    return y if has_channels_first(n) else channels_last(b, y)


def spatial(n: TfNode, values: Sequence[int], what: str, rank: int = 4) -> Ints:
    """Of one number for each axis those of the spatial axes; batch and channels have to have 1."""
    values = values or (1,) * rank
    if len(values) != rank:
        raise n.refuse(f"{n.op} has the {what} {list(values)} for {rank} axes", reference=BAD)
    inner = values[2:] if has_channels_first(n) else values[1:-1]
    rest = (*values[:2],) if has_channels_first(n) else (values[0], values[-1])
    if any(v != 1 for v in rest):
        raise n.refuse(f"{n.op} with the {what} {list(values)}, over batch or channels, is not supported")
    return tuple(inner)


def pads_of(n: TfNode, sizes: Sequence[Dim], kernel: Ints, strides: Ints, dilations: Ints) -> tuple[Ints, Ints] | None:
    """Pads before and after of the attribute padding; None where SAME depends on sizes that are not known."""
    rule = n.text("padding", "VALID")
    if rule == "EXPLICIT":
        return explicit_pads(n, len(kernel) + 2)
    if rule not in ("SAME", "VALID"):
        raise n.refuse(f"{n.op} with the padding '{rule}' is not supported")
    return window_pads(n, rule == "SAME", sizes, kernel, strides, dilations)


def explicit_pads(n: TfNode, rank: int) -> tuple[Ints, Ints]:
    """Pads before and after of the attribute explicit_paddings."""
    pads = n.ints_attr("explicit_paddings")
    if len(pads) != 2 * rank:
        raise n.refuse(f"{n.op} has the explicit_paddings {list(pads)}", reference=BAD)
    first, last = (tuple(pads[side::2]) for side in (0, 1))
    inner = slice(2, None) if has_channels_first(n) else slice(1, -1)
    return first[inner], last[inner]


def dims_of(n: TfNode, w: Value) -> Ints:
    """The sizes of a weight; they have to be known."""
    if w.shape is None or not all(isinstance(d, int) and d > 0 for d in w.shape):
        raise n.refuse(f"the sizes of the weight of {n.op} are not known")
    return tuple(d for d in w.shape if isinstance(d, int))


def no_bias(b: Builder, outputs: int) -> Value:
    """Zeros: the runtime needs a bias."""
    return b.constant(np.zeros(outputs, np.float32))
