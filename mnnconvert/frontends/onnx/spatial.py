"""What the rules of convolution and pooling share: windows from attributes, an extra axis for 1-D, stored weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.ir import ArrayTensor, Builder, CodedTensor, Dim, FileTensor, HalfTensor, LazyTensor, Tensor, Value
from mnnconvert.ops.shape import Squeeze, Unsqueeze
from mnnconvert.ops.windows import same_pads

Ints = tuple[int, ...]
FIX_SIZES = "give the sizes of the input with --inputShape"


@dataclass(frozen=True)
class Window:
    """Kernel, strides, dilations, pads of a node. `same`: pads follow from sizes not known yet (SAME_UPPER)."""

    kernel: Ints
    strides: Ints
    dilations: Ints
    begin: Ints
    end: Ints
    same: bool = False

    @property
    def pads(self) -> Ints:
        return (*self.begin, *self.end)

    @property
    def extent(self) -> Ints:
        """Elements from the first to the last one that the window touches."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    def flat(self) -> Window:
        """The 1-D window with a second axis of size 1."""
        kernel, strides, dilations = ((*v, 1) for v in (self.kernel, self.strides, self.dilations))
        return Window(kernel, strides, dilations, (*self.begin, 0), (*self.end, 0), self.same)


def vector(n: OnnxNode, name: str, count: int, default: int) -> Ints:
    """An attribute with one integer per spatial axis."""
    values = n.attr(name)
    if values is None or not len(values):
        return (default,) * count
    if len(values) != count:
        raise n.refuse(f"the attribute {name} of {n.op_type} has {len(values)} values, the operand has {count} axes")
    return tuple(int(v) for v in values)


def spatial_sizes(n: OnnxNode, x: Value, count: int | None = None) -> tuple[Dim, ...]:
    """Sizes behind batch and channels; refuses operands of unsuitable rank, or of unknown rank unless `count` is given.

    `count` is the number of spatial axes that the weight has.
    """
    if x.shape is None and count in (1, 2, 3):
        return (None,) * count
    if x.shape is None:
        raise n.refuse(f"the rank of the operand of {n.op_type} is not known", hint=FIX_SIZES)
    if not 3 <= len(x.shape) <= 5:
        raise n.refuse(f"{n.op_type} has an operand of rank {len(x.shape)}; only 3, 4 and 5 are supported")
    return x.shape[2:]


def window(n: OnnxNode, kernel: Sequence[int], sizes: Sequence[Dim]) -> Window:
    """The window of a node over axes of these sizes."""
    count = len(kernel)
    strides, dilations = vector(n, "strides", count, 1), vector(n, "dilations", count, 1)
    if min(strides) < 1 or min(dilations) < 1:
        raise n.refuse(f"{n.op_type} has the strides {list(strides)} and the dilations {list(dilations)}")
    result = Window(tuple(kernel), strides, dilations, (0,) * count, (0,) * count)
    auto = n.attr("auto_pad", "NOTSET")
    if auto in ("NOTSET", ""):
        pads = vector(n, "pads", 2 * count, 0)
        return replace(result, begin=pads[:count], end=pads[count:])
    if auto == "VALID":
        return result
    if auto not in ("SAME_UPPER", "SAME_LOWER"):
        raise n.refuse(f"auto_pad is {auto!r}, which ONNX does not have")
    return _same(n, result, sizes, auto)


def _same(n: OnnxNode, w: Window, sizes: Sequence[Dim], auto: str) -> Window:
    """Pads such that out = ceil(in / stride); with stride 1 they do not depend on the size."""
    rows = list(zip(sizes, w.kernel, w.strides, w.dilations, strict=True))
    if any(not isinstance(size, int) and stride > 1 for size, _, stride, _ in rows):
        if auto == "SAME_LOWER":
            raise n.refuse("auto_pad SAME_LOWER with strides needs the sizes of the operand", hint=FIX_SIZES)
        return replace(w, same=True)
    pads = (same_pads(s if isinstance(s, int) else 1 << 20, k, stride, d) for s, k, stride, d in rows)
    small, large = zip(*pads, strict=True)
    return replace(w, begin=small, end=large) if auto == "SAME_UPPER" else replace(w, begin=large, end=small)


def with_axis(b: Builder, x: Value) -> Value:
    """x [.., L] as [.., L, 1]; the data of a constant stay where they are."""
    if x.tensor is not None and x.shape is not None:
        return b.constant(with_shape(x.tensor, (*x.tensor.shape, 1)), x.name)
    return b.add(Unsqueeze((3,)), x)


def without_axis(b: Builder, x: Value) -> Value:
    """x [.., L, 1] as [.., L]."""
    return b.add(Squeeze((3,)), x)


def with_shape(tensor: Tensor, shape: Ints) -> Tensor:
    """The same data under another shape, not loaded."""
    if isinstance(tensor, ArrayTensor):
        return ArrayTensor(tensor.array.reshape(shape))
    if isinstance(tensor, HalfTensor):
        return HalfTensor(with_shape(tensor.stored, shape))
    if isinstance(tensor, CodedTensor):
        return CodedTensor(tensor.coded, shape)
    if isinstance(tensor, FileTensor):
        return FileTensor(tensor.path, tensor.offset, tensor.dtype, shape)
    return LazyTensor(tensor, lambda a: a.reshape(shape), tensor.dtype, shape)


def stored(b: Builder, value: Value) -> Value:
    """A computed value whose content is known, as a constant, so that it can be stored inside an op."""
    if value.tensor is None and value.spec.constant is not None:
        return b.constant(np.asarray(value.spec.constant), value.name)
    return value
