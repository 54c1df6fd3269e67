"""Convolutions and pooling that the runtime computes wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from mnnconvert.ir import F32, Builder, CodedTensor, Node, Value
from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.convolution import Convolution
from mnnconvert.ops.convolution3d import Convolution3D, ConvTranspose3D
from mnnconvert.ops.deconvolution import Deconvolution
from mnnconvert.ops.elementwise import Binary, Cast
from mnnconvert.ops.matmul import MatMul
from mnnconvert.ops.padding import Padding
from mnnconvert.ops.pooling import Pooling, Pooling3D
from mnnconvert.ops.search import Det
from mnnconvert.ops.shape import Squeeze, Unsqueeze
from mnnconvert.ops.slicing import Slice
from mnnconvert.ops.windows import same_pads
from mnnconvert.passes.defects.base import Defect, RefusedError

Made = Sequence[Value] | None
LARGEST_DET = 16  # rows


def _line(b: Builder, node: Node) -> Made:
    """A convolution of rank 3 as one of rank 4 with a width of 1."""
    op, x = node.op, node.inputs[0]
    if not isinstance(op, Convolution) or x.rank != 3:
        return None
    return [b.add(Squeeze((3,)), b.add(op, b.add(Unsqueeze((3,)), x), *node.inputs[1:]))]


def _groups(b: Builder, node: Node) -> Made:
    """One op per group, side by side."""
    op, (x, w, *rest) = node.op, node.inputs
    if not isinstance(op, Deconvolution | Convolution3D | ConvTranspose3D) or op.group == 1:
        return None
    if isinstance(op, Deconvolution) and w.shape is not None and w.shape[:2] == (op.group, 1):
        return None
    xs, ws = _parts(b, x, 1, op.group), _parts(b, w, 0, op.group)
    biases = _parts(b, rest[0], 0, op.group) if rest and rest[0].dtype == F32 else None
    others = rest[1:] if biases is not None else rest
    one = dataclasses.replace(op, group=1)
    results = [
        b.add(one, xs[i], ws[i], *([biases[i]] if biases is not None else []), *others) for i in range(op.group)
    ]
    return [b.add(Concat(1), *results)]


def _parts(b: Builder, value: Value, axis: int, count: int) -> Sequence[Value]:
    """A value in equal parts; those of a constant are constants."""
    if isinstance(value.tensor, CodedTensor):
        raise RefusedError("a grouped convolution whose weight is quantized")
    if value.tensor is not None:
        return [b.constant(np.ascontiguousarray(p)) for p in np.split(value.tensor.numpy(), count, axis)]
    size = value.shape[axis] if value.shape is not None else None
    if not isinstance(size, int):
        raise RefusedError("a grouped convolution of an unknown number of channels")
    return b.add(Slice(axis, (size // count,) * count), value, names=[""] * count)


def _same(b: Builder, node: Node) -> Made:
    op, (x, w, *_) = node.op, node.inputs
    if not isinstance(op, Convolution3D) or op.pad_mode != "SAME" or op.group > 1:
        return None
    sizes, kernel = (x.shape or ())[2:], (w.shape or ())[2:]
    if len(sizes) != 3 or not all(isinstance(d, int) for d in (*sizes, *kernel)):
        raise RefusedError("Convolution3D with padding SAME of unknown size")
    pads = [same_pads(sizes[i], kernel[i], op.strides[i], op.dilations[i]) for i in range(3)]  # type: ignore[arg-type]
    explicit = (pads[0][0], pads[1][0], pads[2][0], pads[0][1], pads[1][1], pads[2][1])
    return [b.add(dataclasses.replace(op, pad_mode="CAFFE", pads=explicit), *node.inputs)]


def _average(b: Builder, node: Node) -> Made:
    """The mean of a padded input over the mean of padded ones: what the padding takes away, it takes from both."""
    op, x = node.op, node.inputs[0]
    if not isinstance(op, Pooling3D) or op.function != "AVEPOOL" or op.whole or not any(op.pads):
        return None
    if op.pad_mode != "CAFFE":
        return [b.add(dataclasses.replace(op, pads=(0, 0, 0)), x)]
    plain = dataclasses.replace(op, pads=(0, 0, 0))
    pads = b.ints([0, 0, 0, 0, *(p for pad in op.pads for p in (pad, pad))])
    if x.shape is not None and all(isinstance(d, int) for d in x.shape[2:]):
        ones = b.constant(np.ones((1, 1, *x.shape[2:]), F32))  # type: ignore[arg-type]
    else:
        ones = b.add(Cast("DT_FLOAT"), b.add(Binary("EQUAL"), x, x))
    share = b.add(plain, b.add(Padding(), ones, pads))
    return [b.add(Binary("REALDIV"), b.add(plain, b.add(Padding(), x, pads)), share)]


def _empty_windows(b: Builder, node: Node) -> Made:
    """Windows of padding only."""
    op, x = node.op, node.inputs[0]
    if not isinstance(op, Pooling) or op.whole or op.pad_mode != "CAFFE" or x.shape is None:
        return None
    results = node.output.shape or ()
    for i, axis in enumerate((2, 3)):
        size, count = x.shape[axis], results[axis] if len(results) == 4 else None
        if not isinstance(size, int) or not isinstance(count, int):
            continue
        kernel = min(op.kernel[i], size + op.pads[i] + op.pads[i + 2])
        if kernel <= op.pads[i] or (count - 1) * op.strides[i] >= size + op.pads[i]:
            raise RefusedError("pooling over windows that lie wholly in the padding")
    return None


def _determinant(b: Builder, node: Node) -> Made:
    """The runtime loses the sign at a row exchange: of rotated rows no pivot is zero, and the determinant is the same."""
    x = node.inputs[0]
    rows = x.shape[-1] if x.shape else None
    if not isinstance(rows, int) or rows > LARGEST_DET:
        raise RefusedError("the determinant of a matrix of unknown or large size")
    if x.producer is not None and isinstance(x.producer.op, MatMul) and x.producer.inputs[0].is_constant:
        return None
    q, _ = np.linalg.qr(np.random.default_rng(rows).standard_normal((rows, rows)))
    q[0] *= np.sign(np.linalg.det(q))
    return [b.add(Det(), b.add(MatMul(), b.constant(q.astype(F32)), x))]


def _cubic(b: Builder, node: Node) -> Made:
    if getattr(node.op, "resize_type", 0) == 3:
        raise RefusedError("cubic interpolation")
    return None


DEFECTS = (
    Defect("Convolution", "groups of rank 3 crash", _line),
    Defect("Deconvolution", "groups are computed wrong", _groups),
    Defect("Convolution3D", "groups are computed wrong", _groups),
    Defect("ConvTranspose3D", "groups are computed wrong", _groups),
    Defect("Convolution3D", "padding SAME is not applied", _same),
    Defect("Pooling3D", "an average counts the padding within the plane", _average),
    Defect("Pooling", "windows of padding only read what is beside them", _empty_windows),
    Defect("Det", "the sign is lost when rows are exchanged", _determinant),
    Defect("Interp", "cubic interpolation is computed wrong", _cubic),
)
