"""Import rules of convolutions."""

from __future__ import annotations

import numpy as np

from mnnconvert.frontends.caffe.node import CaffeNode, Params
from mnnconvert.frontends.caffe.registry import caffe_op
from mnnconvert.frontends.caffe.windows import Ints, Window, window
from mnnconvert.frontends.common.moves import squeezed, unsqueezed
from mnnconvert.ir import Builder, Value
from mnnconvert.ops.convolution import Convolution
from mnnconvert.ops.convolution3d import Convolution3D, ConvTranspose3D
from mnnconvert.ops.deconvolution import Deconvolution

SETTINGS = "convolution_param"


def _settings(n: CaffeNode) -> tuple[Params, Window, int]:
    p = n.params(SETTINGS)
    if n.axis(p.integer("axis", 1), n.rank(n.input())) != 1:
        raise n.refuse(f"axis of {n.op} is {p.integer('axis', 1)}")
    depthwise = n.op in ("ConvolutionDepthwise", "DepthwiseConv", "DepthwiseConvolution")
    given = p.integer("group", 1)
    return p, window(n, p, n.input()), n.sizes(n.input(), 1, 2)[0] if depthwise else given


def _bias(b: Builder, n: CaffeNode, p: Params, outputs: int) -> Value:
    if p.flag("bias_term", True):
        return n.weight(b, 1, (outputs,), "bias")
    n.limited(outputs)
    return b.constant(np.zeros(outputs, np.float32))


def _groups(n: CaffeNode, group: int, outputs: int, inputs: int) -> None:
    if group < 1 or outputs < 1 or outputs % group or inputs % group:
        raise n.refuse(f"{n.op} makes {outputs} channels of {inputs} in {group} groups")


@caffe_op(
    "Convolution", "Convolution3D", "ConvolutionDepthwise", "DepthwiseConv", "DepthwiseConvolution",
    "CuDNNGroupedConvolutionForward", limits="axis 1; one to three spatial axes",
)  # fmt: skip
def convolution(b: Builder, n: CaffeNode) -> tuple[Value, ...]:
    """The same convolution of every operand."""
    p, win, group = _settings(n)
    outputs, inputs = p.integer("num_output", 0), n.sizes(n.input(), 1, 2)[0]
    _groups(n, group, outputs, inputs)
    weight = n.weight(b, 0, (outputs, inputs // group, *_planar(win.kernel)))
    bias = _bias(b, n, p, outputs)
    return tuple(_convolved(b, n, x, weight, bias, win, group) for x in n.inputs)


def _planar(kernel: Ints) -> Ints:
    """The kernel of a sequence as one over planes that are one pixel wide."""
    return (*kernel, 1) if len(kernel) == 1 else kernel


def _convolved(b: Builder, n: CaffeNode, x: Value, weight: Value, bias: Value, win: Window, group: int) -> Value:
    count = len(win.kernel)
    if count == 3:
        return b.add(Convolution3D(win.strides, win.dilations, win.pads * 2, group), x, weight, bias)
    if count > 3:
        raise n.refuse(f"{n.op} over {count} axes")
    (sy, sx), (dy, dx), (py, px) = _pair(win.strides, 1), _pair(win.dilations, 1), _pair(win.pads, 0)
    return b.add(Convolution((sy, sx), (dy, dx), (py, px, py, px), group), x, weight, bias)


def _pair(values: Ints, other: int) -> tuple[int, int]:
    return values[0], values[1] if len(values) > 1 else other


@caffe_op("Deconvolution", limits="axis 1; one to three spatial axes")
def deconvolution(b: Builder, n: CaffeNode) -> tuple[Value, ...]:
    """The same transposed convolution of every operand."""
    p, win, group = _settings(n)
    outputs, inputs = p.integer("num_output", 0), n.sizes(n.input(), 1, 2)[0]
    _groups(n, group, outputs, inputs)
    weight = n.weight(b, 0, (inputs, outputs // group, *_planar(win.kernel)))
    bias = _bias(b, n, p, outputs)
    return tuple(_deconvolved(b, n, x, weight, bias, win, group) for x in n.inputs)


def _deconvolved(b: Builder, n: CaffeNode, x: Value, weight: Value, bias: Value, win: Window, group: int) -> Value:
    count = len(win.kernel)
    if count == 1:
        flat = Window((*win.kernel, 1), (*win.strides, 1), (*win.pads, 0), (*win.dilations, 1))
        return squeezed(b, _deconvolved(b, n, unsqueezed(b, x, 3), weight, bias, flat, group), 3)
    if count == 2:
        (sy, sx), (dy, dx), (py, px) = (_pair(v, 1) for v in (win.strides, win.dilations, win.pads))
        return b.add(Deconvolution((sy, sx), (dy, dx), (py, px, py, px), (0, 0), group), x, weight, bias)
    if count > 3:
        raise n.refuse(f"{n.op} over {count} axes")
    return b.add(ConvTranspose3D(win.strides, win.dilations, win.pads * 2, group), x, weight, bias)


@caffe_op("Im2col", limits="two spatial axes")
def im2col(b: Builder, n: CaffeNode) -> Value:
    """The windows of x [N,C,H,W] as channels [N, C*kH*kW, oH, oW]: a convolution in which each output copies one."""
    p, x = n.params(SETTINGS), n.input()
    win, channels = window(n, p, x), n.sizes(x, 1, 2)[0]
    if n.rank(x) != 4:
        raise n.refuse(f"Im2col of an operand of rank {n.rank(x)}")
    (ky, kx), (sy, sx), (dy, dx), (py, px) = win.kernel, win.strides, win.dilations, win.pads
    n.limited(channels, ky, kx, ky, kx)
    copies = np.tile(np.eye(ky * kx, dtype=np.float32), (channels, 1)).reshape(-1, 1, ky, kx)
    zeros = b.constant(np.zeros(len(copies), np.float32))
    op = Convolution((sy, sx), (dy, dx), (py, px, py, px), channels)
    return b.add(op, x, b.constant(copies), zeros)
