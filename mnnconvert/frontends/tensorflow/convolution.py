"""Import rules of convolutions: channels first in MNN, and weights with the output channels first."""

from __future__ import annotations

from collections.abc import Callable

from mnnconvert.frontends.common.channels_last import Ints
from mnnconvert.frontends.common.compose import apply, calc, reshape, single
from mnnconvert.frontends.common.nodes import FIX_SIZES
from mnnconvert.frontends.tensorflow.compose import (
    dims_of,
    explicit_pads,
    from_planes,
    has_channels_first,
    no_bias,
    pads_of,
    spatial,
    to_planes,
)
from mnnconvert.frontends.tensorflow.node import TfNode
from mnnconvert.frontends.tensorflow.registry import tf_op
from mnnconvert.frontends.tensorflow.wire import BAD
from mnnconvert.ir import Builder, Dim, Value
from mnnconvert.ir.types import add, mul
from mnnconvert.ops.activation import ELU, ReLU, ReLU6
from mnnconvert.ops.convolution import Convolution
from mnnconvert.ops.convolution3d import Convolution3D, ConvTranspose3D
from mnnconvert.ops.deconvolution import Deconvolution
from mnnconvert.ops.matmul import MatMul

FUSED = "biases, batch norms and usual activations fused into it"


def _steps(n: TfNode, rank: int = 4) -> tuple[Ints, Ints]:
    """Strides and dilations of the spatial axes."""
    strides = spatial(n, n.ints_attr("strides"), "strides", rank)
    dilations = spatial(n, n.ints_attr("dilations"), "dilations", rank)
    if len(strides) == 1:  # depthwise convolutions may name one for both axes
        raise n.refuse(f"{n.op} has {len(strides)} strides", reference=BAD)
    return strides, dilations


def _conv2d(b: Builder, n: TfNode, x: Value, w: Value, group: int) -> Value:
    outputs, _, *kernel = dims_of(n, w)
    strides, dilations = _steps(n)
    pads = pads_of(n, (x.shape or ())[2:], tuple(kernel), strides, dilations)
    (t, l), (d, r) = pads or ((0, 0), (0, 0))
    op = Convolution(
        (strides[0], strides[1]), (dilations[0], dilations[1]), (t, l, d, r), group, "",
        "SAME" if pads is None else "CAFFE",
    )  # fmt: skip
    return from_planes(b, n, b.add(op, x, w, no_bias(b, outputs)))


def _group(n: TfNode, x: Value, per_group: int) -> int:
    """How many groups there are, from the channels of the operand."""
    channels = (x.shape or (None, None))[1]
    if isinstance(channels, int) and (per_group < 1 or channels % per_group):
        raise n.refuse(f"{n.op} of {channels} channels with a weight for {per_group}", reference=BAD)
    return channels // per_group if isinstance(channels, int) else 1


@tf_op("Conv2D")
def conv_2d(b: Builder, n: TfNode) -> Value:
    """The weight is [H, W, I/group, O]."""
    x, w = to_planes(b, n, n.input(0), 4), n.weight(b, 1, (3, 2, 0, 1))
    return _conv2d(b, n, x, w, _group(n, x, dims_of(n, w)[1]))


def _depthwise_weight(b: Builder, n: TfNode) -> tuple[Value, int]:
    """[H, W, C, m] as [C * m, 1, H, W], and C: the results of a channel lie beside each other."""
    w = n.weight(b, 1, (2, 3, 0, 1))
    channels, multiplier, *kernel = dims_of(n, w)
    return reshape(b, w, (channels * multiplier, 1, *kernel)), channels


@tf_op("DepthwiseConv2dNative")
def depthwise_conv_2d(b: Builder, n: TfNode) -> Value:
    w, channels = _depthwise_weight(b, n)
    return _conv2d(b, n, to_planes(b, n, n.input(0), 4), w, channels)


def _crops(n: TfNode, sizes: tuple[Dim, ...], kernel: Ints, strides: Ints, dilations: Ints) -> tuple[Ints, Ints, Ints]:
    """Pads before and after, and what enlarges the far end, with which a result has the sizes that operand 0 names."""
    rank = len(kernel) + 2
    wanted = n.sizes(0)
    rule = n.text("padding", "VALID")
    given = explicit_pads(n, rank)[0] if rule == "EXPLICIT" else (0,) * len(kernel)
    if wanted is None or len(wanted) != rank:
        outs: list[Dim] = [None] * len(kernel)
    else:
        outs = wanted[2:] if has_channels_first(n) else wanted[1:-1]
    begin, end, extra = [], [], []
    for size, k, s, d, out, first in zip(sizes, kernel, strides, dilations, outs, given, strict=True):
        total = _surplus(n, size, (k - 1) * d + 1, s, out, rule)
        first = max(0, total) // 2 if rule == "SAME" else first
        begin.append(first)
        end.append(max(0, total - first))
        extra.append(max(0, first - total))
    return tuple(begin), tuple(end), tuple(extra)


def _surplus(n: TfNode, size: Dim, kernel: int, stride: int, out: Dim, rule: str) -> int:
    """How much of a full transposed convolution is cropped, along one axis, to give `out`."""
    if isinstance(size, int) and isinstance(out, int):
        return (size - 1) * stride + kernel - out
    if rule == "SAME" and (out == mul(size, stride) or stride == 1):
        return kernel - stride
    if rule == "VALID" and out == add(mul(add(size, -1), stride), kernel):
        return 0
    if rule == "VALID" and (out == add(mul(size, stride), max(kernel - stride, 0)) or stride == 1):
        return min(kernel - stride, 0)
    raise n.refuse(f"{n.op} needs to know the sizes of its result", hint=FIX_SIZES)


def _transposed(b: Builder, n: TfNode, w: Value, group: int) -> Value:
    x = to_planes(b, n, n.input(2), 4)
    _, per_group, *kernel = dims_of(n, w)
    strides, dilations = _steps(n)
    (t, l), (d, r), extra = _crops(n, (x.shape or ())[2:], tuple(kernel), strides, dilations)
    op = Deconvolution(
        (strides[0], strides[1]), (dilations[0], dilations[1]), (t, l, d, r), (extra[0], extra[1]), group
    )
    return from_planes(b, n, b.add(op, x, w, no_bias(b, per_group * group)))


@tf_op("Conv2DBackpropInput", limits="the sizes of the result must be known, or follow from those of the operand")
def conv_2d_transposed(b: Builder, n: TfNode) -> Value:
    """Operands: sizes of the result, weight [H, W, O, I], x."""
    return _transposed(b, n, n.weight(b, 1, (3, 2, 0, 1)), 1)


@tf_op("DepthwiseConv2dNativeBackpropInput", limits="as Conv2DBackpropInput")
def depthwise_conv_2d_transposed(b: Builder, n: TfNode) -> Value:
    return _transposed(b, n, *_depthwise_weight(b, n))


@tf_op("Conv3D", limits="SAME padding with strides needs known sizes")
def conv_3d(b: Builder, n: TfNode) -> Value:
    """The weight is [D, H, W, I/group, O]."""
    x, w = to_planes(b, n, n.input(0), 5), n.weight(b, 1, (4, 3, 0, 1, 2))
    outputs, per_group, *kernel = dims_of(n, w)
    strides, dilations = _steps(n, 5)
    pads = pads_of(n, (x.shape or ())[2:], tuple(kernel), strides, dilations)
    if pads is None:
        raise n.refuse(f"SAME padding of {n.op} needs the sizes of the operand", hint=FIX_SIZES)
    op = Convolution3D(strides, dilations, (*pads[0], *pads[1]), _group(n, x, per_group))
    return from_planes(b, n, b.add(op, x, w, no_bias(b, outputs)))


@tf_op("Conv3DBackpropInputV2", limits="as Conv2DBackpropInput; no dilation")
def conv_3d_transposed(b: Builder, n: TfNode) -> Value:
    """Operands: sizes of the result, weight [D, H, W, O, I], x."""
    x, w = to_planes(b, n, n.input(2), 5), n.weight(b, 1, (4, 3, 0, 1, 2))
    _, outputs, *kernel = dims_of(n, w)
    strides, dilations = _steps(n, 5)
    if any(d != 1 for d in dilations):
        raise n.refuse(f"{n.op} with the dilations {list(dilations)} is not supported")
    begin, end, extra = _crops(n, (x.shape or ())[2:], tuple(kernel), strides, dilations)
    op = ConvTranspose3D(strides, (1, 1, 1), (*begin, *end), 1, "", "CAFFE", extra)
    return from_planes(b, n, b.add(op, x, w, no_bias(b, outputs)))


@tf_op("_FusedConv2D", "_FusedDepthwiseConv2dNative", limits=FUSED)
def fused_convolution(b: Builder, n: TfNode) -> Value:
    """A convolution with what optimizers of graphs have put into it."""
    rule = conv_2d if n.op == "_FusedConv2D" else depthwise_conv_2d
    return _fused(b, n, rule(b, n))


@tf_op("_FusedMatMul", limits=FUSED)
def fused_matmul(b: Builder, n: TfNode) -> Value:
    op = MatMul(n.flag("transpose_a"), n.flag("transpose_b"))
    return _fused(b, n, b.add(op, n.input(0), n.input(1)))


ACTIVATIONS: dict[str, Callable[[Builder, TfNode, Value], Value]] = {
    "Relu": lambda b, n, y: b.add(ReLU(), y),
    "Relu6": lambda b, n, y: b.add(ReLU6(), y),
    "Elu": lambda b, n, y: b.add(ELU(1.0), y),
    "LeakyRelu": lambda b, n, y: b.add(ReLU(single(n.float_attr("leakyrelu_alpha", 0.2))), y),
    "Tanh": lambda b, n, y: apply(b, "TANH", y),
    "Sigmoid": lambda b, n, y: apply(b, "SIGMOID", y),
    "GeluApproximate": lambda b, n, y: apply(b, "GELU", y),
    "GeluExact": lambda b, n, y: apply(b, "GELU_STANDARD", y),
}


def _fused(b: Builder, n: TfNode, y: Value) -> Value:
    """What the attribute fused_ops names, one after the other; operands from the third on belong to it."""
    place = 2
    for name in (op.decode() for op in n.attr("fused_ops", None) or []):
        if name == "BiasAdd":
            y, place = calc(b, "ADD", y, _channelled(b, n, n.input(place))), place + 1
        elif name == "FusedBatchNorm":
            scale, offset, mean, variance = (n.input(place + i) for i in range(4))
            factor = calc(b, "MUL", scale, apply(b, "RSQRT", calc(b, "ADD", variance, n.float_attr("epsilon", 1e-4))))
            moved = calc(b, "SUB", offset, calc(b, "MUL", mean, factor))
            y = calc(b, "ADD", calc(b, "MUL", y, _channelled(b, n, factor)), _channelled(b, n, moved))
            place += 4
        elif name in ACTIVATIONS:
            y = ACTIVATIONS[name](b, n, y)
        else:
            raise n.refuse(f"{n.op} with {name} fused into it is not supported")
    return y


def _channelled(b: Builder, n: TfNode, v: Value) -> Value:
    """A vector over the channels in the data_format of the node."""
    return reshape(b, v, (-1, 1, 1)) if n.op != "_FusedMatMul" and has_channels_first(n) else v
