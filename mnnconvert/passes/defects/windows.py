"""Convolutions and pooling that the runtime computes wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from mnnconvert.ir import F32, Builder, CodedTensor, Node, Value
from mnnconvert.ir.types import Dim, Shape
from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.convolution import Convolution, number
from mnnconvert.ops.convolution3d import Convolution3D, ConvTranspose3D
from mnnconvert.ops.deconvolution import Deconvolution
from mnnconvert.ops.elementwise import Binary, Cast
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.matmul import MatMul
from mnnconvert.ops.padding import Padding
from mnnconvert.ops.pooling import Pooling, Pooling3D
from mnnconvert.ops.recurrent import GRU
from mnnconvert.ops.resample import CUBIC, NEAREST, Interp
from mnnconvert.ops.search import Det
from mnnconvert.ops.shape import Reshape, Squeeze, Unsqueeze
from mnnconvert.ops.slicing import FAR, Slice, StridedSlice
from mnnconvert.ops.windows import same_pads
from mnnconvert.passes.defects.base import Defect, RefusedError, is_read

Made = Sequence[Value] | None
LARGEST_DET = 16  # rows
CUBIC_A = -0.75  # the only coefficient that the runtime knows
LOWEST = float(np.finfo(np.float32).min)


def _line(b: Builder, node: Node) -> Made:
    """A convolution of rank 3 as one of rank 4 with a width of 1."""
    op, x = node.op, node.inputs[0]
    if not isinstance(op, Convolution) or x.rank != 3:
        return None
    return [b.add(Squeeze((3,)), b.add(op, b.add(Unsqueeze((3,)), x), *node.inputs[1:]))]


def _groups(b: Builder, node: Node) -> Made:
    """One op per group, side by side."""
    op, (x, w, *rest) = node.op, node.inputs
    if not isinstance(op, Convolution | Deconvolution | Convolution3D | ConvTranspose3D) or op.group == 1:
        return None
    if isinstance(op, Convolution) and (all(v.is_constant for v in node.inputs[1:]) or _is_depthwise(w, op.group)):
        return None
    if isinstance(op, Deconvolution) and _is_depthwise(w, op.group):
        return None
    xs, ws = _parts(b, x, 1, op.group), _parts(b, w, 0, op.group)
    biases = _parts(b, rest[0], 0, op.group) if rest and rest[0].dtype == F32 else None
    others = rest[1:] if biases is not None else rest
    one = dataclasses.replace(op, group=1)
    results = [b.add(one, xs[i], ws[i], *([biases[i]] if biases is not None else []), *others) for i in range(op.group)]
    return [b.add(Concat(1), *results)]


def _is_depthwise(w: Value, group: int) -> bool:
    return w.shape is not None and w.shape[:2] == (group, 1)


def _parts(b: Builder, value: Value, axis: int, count: int) -> Sequence[Value]:
    """A value in equal parts; those of a constant are constants."""
    if isinstance(value.tensor, CodedTensor) and value.tensor.coded.shape[0] % count == 0:
        return [b.constant(part) for part in _coded_parts(value.tensor, count)]
    if value.tensor is not None:
        return [b.constant(np.ascontiguousarray(p)) for p in np.split(value.tensor.numpy(), count, axis)]
    size = value.shape[axis] if value.shape is not None else None
    if not isinstance(size, int):
        raise RefusedError("a grouped convolution of an unknown number of channels")
    return b.add(Slice(axis, (size // count,) * count), value, names=[""] * count)


def _coded_parts(tensor: CodedTensor, count: int) -> list[CodedTensor]:
    """Equal parts along the first axis: as many runs of codes for each."""
    coded, shape = tensor.coded, (tensor.shape[0] // count, *tensor.shape[1:])
    rows = coded.shape[0] // count
    pieces = [slice(i * rows, (i + 1) * rows) for i in range(count)]
    minima = [None if coded.minimum is None else coded.minimum[p] for p in pieces]
    parts = zip(pieces, minima, strict=True)
    return [
        CodedTensor(dataclasses.replace(coded, codes=coded.codes[p], scale=coded.scale[p], minimum=m), shape)
        for p, m in parts
    ]


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


def _open_weight(b: Builder, node: Node) -> Made:
    if not all(isinstance(d, int) for d in node.inputs[1].shape or (None,)):
        raise RefusedError(f"{node.op.kind} with a weight of unknown sizes")
    return None


def _computed_weight(b: Builder, node: Node) -> Made:
    if all(v.is_constant for v in node.inputs[1:]):
        return None
    raise RefusedError(f"{node.op.kind} with a weight or bias that is computed ends the process")


def _batches(b: Builder, node: Node) -> Made:
    op, x = node.op, node.inputs[0]
    if not isinstance(op, Pooling3D) or (x.shape and x.shape[0] == 1):
        return None
    return [_pooled(b, op, x)]


def _pooled(b: Builder, op: Pooling3D, x: Value) -> Value:
    """The pooling of a batch as that of one image with more channels."""
    batch, channels = (x.shape or (None, None))[:2]
    if batch == 0:
        raise RefusedError("Pooling3D of no images")
    if batch == 1:
        return b.add(op, x)
    if isinstance(channels, int):
        back = (-1, channels, 0, 0, 0)
    elif isinstance(batch, int):
        back = (batch, -1, 0, 0, 0)
    else:
        raise RefusedError("Pooling3D of unknown batch and channels")
    return b.add(Reshape(back), b.add(op, b.add(Reshape((1, -1, 0, 0, 0)), x)))


def _average(b: Builder, node: Node) -> Made:
    """The mean of a padded input over the mean of padded ones: what the padding takes away, it takes from both."""
    op, x = node.op, node.inputs[0]
    if not isinstance(op, Pooling3D) or op.function != "AVEPOOL" or op.whole or not any(op.pads):
        return None
    if op.pad_mode != "CAFFE":
        return [_pooled(b, dataclasses.replace(op, pads=(0, 0, 0)), x)]
    plain = dataclasses.replace(op, pads=(0, 0, 0))
    pads = b.ints([0, 0, 0, 0, *(p for pad in op.pads for p in (pad, pad))])
    if x.shape is not None and all(isinstance(d, int) for d in x.shape[2:]):
        ones = b.constant(np.ones((1, 1, *x.shape[2:]), F32))  # type: ignore[arg-type]
    else:
        ones = b.add(Cast("DT_FLOAT"), b.add(Binary("EQUAL"), x, x))
    share = _pooled(b, plain, b.add(Padding(), ones, pads))
    return [b.add(Binary("REALDIV"), _pooled(b, plain, b.add(Padding(), x, pads)), share)]


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


def _positions(b: Builder, node: Node) -> Made:
    """The operand padded first, and its positions turned into those of the operand without padding."""
    op, x = node.op, node.inputs[0]
    if not isinstance(op, Pooling) or not op.indices or op.whole or not any(op.pads[:2]):
        return None
    if not all(isinstance(d, int) for d in (x.shape or (None,))[2:]):
        raise RefusedError("positions of maxima in a padded plane of unknown size")
    (top, left, bottom, right), (height, width) = op.pads, (number(d, 0) for d in (x.shape or ())[2:])
    pads = b.ints([0, 0, 0, 0, top, bottom, left, right])
    padded = b.add(Padding(), x, pads, b.floats(LOWEST))
    y, found = b.add(dataclasses.replace(op, pads=(0, 0, 0, 0)), padded, names=["", ""])
    rows, columns = np.arange(-top, height + bottom)[:, None] * width, np.arange(-left, width + right)
    return [y, b.add(GatherV2(), b.ints((rows + columns).reshape(-1)), found, b.ints(0))]


def _determinant(b: Builder, node: Node) -> Made:
    """The sign is lost at a row exchange: no pivot of rotated rows is zero, and their determinant is the same."""
    x = node.inputs[0]
    rows = x.shape[-1] if x.shape else None
    if not isinstance(rows, int) or rows > LARGEST_DET:
        raise RefusedError("the determinant of a matrix of unknown or large size")
    if x.producer is not None and isinstance(x.producer.op, MatMul) and x.producer.inputs[0].is_constant:
        return None
    q, _ = np.linalg.qr(np.random.default_rng(rows).standard_normal((rows, rows)))
    q[0] *= np.sign(np.linalg.det(q))
    return [b.add(Det(), b.add(MatMul(), b.constant(q.astype(F32)), x))]


def _interpolation(b: Builder, node: Node) -> Made:
    op, x = node.op, node.inputs[0]
    if not isinstance(op, Interp) or x.rank == 4:
        return None
    sizes, out = (x.shape or ())[2:], (node.output.shape or ())[2:]
    if op.resize_type == NEAREST and x.rank == 5:
        return None
    if x.rank not in (3, 5) or not all(isinstance(d, int) for d in (*sizes, *out)) or not _whole(op, sizes, out):
        raise RefusedError(f"interpolation of a tensor of rank {x.rank} to sizes that are not known")
    return [_line_resized(b, op, x, out) if x.rank == 3 else _volume_resized(b, op, x, sizes, out)]


def _cubic(b: Builder, node: Node) -> Made:
    """A plane as a product with the weights of the rows and of the columns."""
    op, x = node.op, node.inputs[0]
    if not isinstance(op, Interp) or op.resize_type != CUBIC or _is_right_cubic(op):
        return None
    sizes, out = (x.shape or ())[2:], (node.output.shape or ())[2:]
    fixed = len(sizes) == 2 and all(isinstance(d, int) for d in (*sizes, *out))
    if not fixed or op.rule == "TensorflowHalfPixels" or (len(node.inputs) > 1 and node.inputs[1].dtype == F32):
        raise RefusedError("cubic interpolation by other rules than AlignCorners and Asymmetric to sizes not known")
    height, width = (np.eye(number(d, 0), dtype=F32) for d in sizes)
    rows = _plane(op, out[0], sizes[0]).ref(height[None, None])[0, 0]
    columns = _plane(op, sizes[1], out[1]).ref(width[None, None])[0, 0]
    return [b.add(MatMul(), b.add(MatMul(), b.constant(rows), x), b.constant(columns))]


def _is_right_cubic(op: Interp) -> bool:
    if op.rule == "NotSet":
        return op.cubic_a == CUBIC_A and (op.align_corners or not op.half_pixels)
    return op.cubic_a == CUBIC_A and op.rule in ("AlignCorners", "Asymmetric")


def _whole(op: Interp, sizes: Shape, out: Shape) -> bool:
    """Whether the scales are exactly those of the sizes."""
    scales = (op.depth_scale, op.height_scale, op.width_scale)[-len(sizes) :]
    return all(s in (0, 1) or s * size == o for s, size, o in zip(scales, sizes, out, strict=True))  # type: ignore[operator]


def _plane(op: Interp, height: Dim, width: Dim) -> Interp:
    """The interpolation of a plane to this size."""
    sizes = {"out_depth": 0, "out_height": height, "out_width": width}
    return dataclasses.replace(op, depth_scale=0.0, height_scale=0.0, width_scale=0.0, **sizes)  # type: ignore[arg-type]


def _line_resized(b: Builder, op: Interp, x: Value, out: Shape) -> Value:
    return b.add(Squeeze((2,)), b.add(_plane(op, 1, out[0]), b.add(Unsqueeze((2,)), x)))


def _volume_resized(b: Builder, op: Interp, x: Value, sizes: Shape, out: Shape) -> Value:
    """The depth first, with each plane as one row, then the planes."""
    depth, height, width = (number(d, 0) for d in sizes)
    rows = b.add(Reshape((0, 0, depth, height * width)), x)
    deep = b.add(_plane(op, out[0], height * width), rows)
    planes = b.add(_plane(op, out[1], out[2]), b.add(Reshape((0, -1, height, width)), deep))
    return b.add(Reshape((0, -1, *(number(d, 0) for d in out))), planes)


def _last_states(b: Builder, node: Node) -> Made:
    """The last states of a bidirectional GRU, taken from its sequence: the second direction ends at the first step."""
    op = node.op
    if not isinstance(op, GRU) or not op.bidirectional or len(node.outputs) < 2 or not is_read(b, node.outputs[1]):
        return None
    sequence, *_ = b.add(op, *node.inputs, names=[""] * len(node.outputs))
    ends = [_state(b, sequence, -1, 0, FAR, 1), _state(b, sequence, 0, 1, 1, 2)]
    return [sequence, b.add(Concat(0), *ends)]


def _state(b: Builder, sequence: Value, step: int, direction: int, step_end: int, direction_end: int) -> Value:
    bounds = b.ints([step, direction]), b.ints([step_end, direction_end])
    return b.add(Squeeze((0,)), b.add(StridedSlice(), sequence, *bounds, b.ints([0, 1]), b.ints([1, 1])))


DEFECTS = (
    Defect("Convolution", "groups of rank 3 crash", _line),
    Defect("Convolution", "channels are counted in the table only", _open_weight),
    Defect("Deconvolution", "channels are counted in the table only", _open_weight),
    Defect("Convolution", "groups with a computed weight or bias are computed wrong", _groups),
    Defect("Deconvolution", "groups are computed wrong", _groups),
    Defect("Convolution3D", "a computed weight ends the process", _computed_weight),
    Defect("ConvTranspose3D", "a computed weight ends the process", _computed_weight),
    Defect("Convolution3D", "groups are computed wrong", _groups),
    Defect("ConvTranspose3D", "groups are computed wrong", _groups),
    Defect("Convolution3D", "padding SAME is not applied", _same),
    Defect("Pooling3D", "an average counts the padding within the plane", _average),
    Defect("Pooling3D", "of a batch only the first image is computed right", _batches),
    Defect("Pooling", "windows of padding only read what is beside them", _empty_windows),
    Defect("Pooling", "positions are wrong behind padding in front", _positions),
    Defect("Det", "the sign is lost when rows are exchanged", _determinant),
    Defect("Interp", "cubic interpolation is wrong at half pixels and by coefficients other than -0.75", _cubic),
    Defect("Interp", "lines, and volumes other than nearest, are not computed", _interpolation),
    Defect("GRU", "the last state of the second direction is missing", _last_states),
)
