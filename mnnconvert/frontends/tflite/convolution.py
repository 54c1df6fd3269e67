"""Import rules of convolutions: channels last in TFLite, first in MNN. Weights keep their codes."""

from __future__ import annotations

import numpy as np

from mnnconvert.frontends.common.channels_last import Ints, channels_first, channels_last, crop_to
from mnnconvert.frontends.common.nodes import FIX_SIZES, known_rank
from mnnconvert.frontends.tflite.compose import activated, bias_of, pads_of
from mnnconvert.frontends.tflite.model import BAD
from mnnconvert.frontends.tflite.node import TfliteNode
from mnnconvert.frontends.tflite.registry import tflite_op
from mnnconvert.ir import Builder, Value
from mnnconvert.ops.convolution import Convolution
from mnnconvert.ops.convolution3d import Convolution3D, ConvTranspose3D
from mnnconvert.ops.deconvolution import Deconvolution


def _sizes(n: TfliteNode, w: Value) -> tuple[int, ...]:
    """The sizes of a weight; they have to be known."""
    if w.shape is None or not all(isinstance(d, int) and d > 0 for d in w.shape):
        raise n.refuse(f"the sizes of the weight of {n.op} are not known")
    return tuple(d for d in w.shape if isinstance(d, int))


def _operand(b: Builder, n: TfliteNode, index: int, rank: int) -> Value:
    x = n.input(index)
    if known_rank(n, x) != rank:
        raise n.refuse(f"{n.op} takes an operand of rank {rank}, not {x.rank}", reference=BAD)
    return channels_first(b, n, x)


def _steps(n: TfliteNode, *names: str) -> Ints:
    return tuple(int(n.option(name, 1)) for name in names)


def _conv2d(b: Builder, n: TfliteNode, x: Value, w: Value, group: int) -> Value:
    outputs, _, *kernel = _sizes(n, w)
    strides, dilations = _steps(n, "StrideH", "StrideW"), _steps(n, "DilationHFactor", "DilationWFactor")
    pads = pads_of(n, (x.shape or ())[2:], tuple(kernel), strides, dilations)
    (t, l), (d, r) = pads or ((0, 0), (0, 0))
    op = Convolution(
        (strides[0], strides[1]),
        (dilations[0], dilations[1]),
        (t, l, d, r),
        group,
        "",
        "SAME" if pads is None else "CAFFE",
    )
    y = b.add(op, x, w, bias_of(b, n, 2, outputs))
    return activated(b, n, channels_last(b, y))


@tflite_op("CONV_2D")
def conv_2d(b: Builder, n: TfliteNode) -> Value:
    """The weight [O, H, W, I/group] tells the number of groups."""
    x, w = _operand(b, n, 0, 4), n.weight(b, 1, (0, 3, 1, 2), 0)
    channels, per_group = (x.shape or (None, None))[1], _sizes(n, w)[1]
    group = channels // per_group if isinstance(channels, int) else 1
    return _conv2d(b, n, x, w, max(1, group))


@tflite_op("DEPTHWISE_CONV_2D")
def depthwise_conv_2d(b: Builder, n: TfliteNode) -> Value:
    """The weight [1, H, W, C * m] makes m results of each channel, which lie beside each other."""
    x, w = _operand(b, n, 0, 4), n.weight(b, 1, (3, 0, 1, 2), 3)
    outputs, channels = _sizes(n, w)[0], (x.shape or (None, None))[1]
    group = channels if isinstance(channels, int) else outputs // max(1, int(n.option("DepthMultiplier", 1)))
    if group < 1 or outputs % group:
        raise n.refuse(f"{n.op} makes {outputs} results of {group} channels", reference=BAD)
    return _conv2d(b, n, x, w, group)


def _is_same(n: TfliteNode) -> bool:
    return n.choice("Padding", "Padding", "VALID") == "SAME"


def _transposed(
    b: Builder, n: TfliteNode, x: Value, w: Value, bias: Value, strides: Ints, outs: Ints, same: bool
) -> Value:
    """A transposed convolution of planes, x [N,C,H,W], with results of these sizes, channels last."""
    kernel = _sizes(n, w)[2:]
    (t, l), (d, r), extra = crop_to(n, (x.shape or ())[2:], kernel, strides, outs, same)
    op = Deconvolution((strides[0], strides[1]), (1, 1), (t, l, d, r), (extra[0], extra[1]))
    return channels_last(b, b.add(op, x, w, bias))


@tflite_op("TRANSPOSE_CONV", limits="the sizes of the result must be known")
def transpose_conv(b: Builder, n: TfliteNode) -> Value:
    """Operands: sizes of the result, weight [O, H, W, I], x[, bias]."""
    x, w = _operand(b, n, 2, 4), n.weight(b, 1, (3, 0, 1, 2), 0)
    bias, outs = bias_of(b, n, 3, _sizes(n, w)[1]), n.ints(0, "the sizes of the result")[1:3]
    return activated(b, n, _transposed(b, n, x, w, bias, _steps(n, "StrideH", "StrideW"), outs, _is_same(n)))


@tflite_op("Convolution2DTransposeBias", custom=True, limits="the sizes of the operand must be known")
def convolution_2d_transpose_bias(b: Builder, n: TfliteNode) -> Value:
    """MediaPipe's transposed convolution: x, weight [O, H, W, I], bias; options: padding (1 SAME), strides x and y."""
    padding, sx, sy = (int(v) for v in np.frombuffer(n.operator.custom_options[:12].ljust(12, b"\0"), "<i4"))
    x, w = _operand(b, n, 0, 4), n.weight(b, 1, (3, 0, 1, 2), 0)
    sizes = [d for d in (x.shape or ())[2:] if isinstance(d, int)]
    if padding not in (1, 2) or min(sx, sy) < 1 or len(sizes) != 2:
        raise n.refuse(f"{n.op} with padding {padding}, strides {sx} and {sy} and the sizes {sizes}")
    rows = list(zip(sizes, _sizes(n, w)[2:], (sy, sx), strict=True))
    outs = tuple(size * s if padding == 1 else (size - 1) * s + k for size, k, s in rows)
    return _transposed(b, n, x, w, bias_of(b, n, 2, _sizes(n, w)[1]), (sy, sx), outs, padding == 1)


VOLUME = ("StrideD", "StrideH", "StrideW"), ("DilationDFactor", "DilationHFactor", "DilationWFactor")


@tflite_op("CONV_3D", limits="SAME padding with strides needs known sizes")
def conv_3d(b: Builder, n: TfliteNode) -> Value:
    """The weight is [D, H, W, I, O]."""
    x, w = _operand(b, n, 0, 5), n.weight(b, 1, (4, 3, 0, 1, 2), 4)
    outputs, per_group, *kernel = _sizes(n, w)
    strides, dilations = (_steps(n, *names) for names in VOLUME)
    pads = pads_of(n, (x.shape or ())[2:], tuple(kernel), strides, dilations)
    if pads is None:
        raise n.refuse(f"SAME padding of {n.op} needs the sizes of the operand", hint=FIX_SIZES)
    channels = (x.shape or (None, None))[1]
    group = channels // per_group if isinstance(channels, int) else 1
    op = Convolution3D(strides, dilations, (*pads[0], *pads[1]), max(1, group))
    return activated(b, n, channels_last(b, b.add(op, x, w, bias_of(b, n, 2, outputs))))


@tflite_op("CONV_3D_TRANSPOSE", limits="the sizes of the result must be known")
def conv_3d_transpose(b: Builder, n: TfliteNode) -> Value:
    """Operands: sizes of the result, weight [D, H, W, O, I], x[, bias]."""
    outs = n.ints(0, "the sizes of the result")[1:4]
    x, w = _operand(b, n, 2, 5), n.weight(b, 1, (4, 3, 0, 1, 2), 3)
    _, outputs, *kernel = _sizes(n, w)
    strides = _steps(n, *VOLUME[0])
    begin, end, extra = crop_to(n, (x.shape or ())[2:], tuple(kernel), strides, outs, _is_same(n))
    op = ConvTranspose3D(strides, (1, 1, 1), (*begin, *end), 1, "", "CAFFE", extra)
    return activated(b, n, channels_last(b, b.add(op, x, w, bias_of(b, n, 3, outputs))))
