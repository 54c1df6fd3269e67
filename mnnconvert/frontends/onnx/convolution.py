"""Import rules of convolutions. Weights are taken as they are: nothing is loaded or copied here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from mnnconvert.frontends.common.coded_weights import with_rows
from mnnconvert.frontends.common.compose import apply, calc, single
from mnnconvert.frontends.common.moves import clip
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.frontends.onnx.spatial import (
    FIX_SIZES,
    Ints,
    Window,
    spatial_sizes,
    stored,
    vector,
    window,
    with_axis,
    without_axis,
)
from mnnconvert.ir import Builder, Dim, Value
from mnnconvert.ops.activation import ReLU
from mnnconvert.ops.convolution import Convolution
from mnnconvert.ops.convolution3d import Convolution3D, ConvTranspose3D
from mnnconvert.ops.deconvolution import Deconvolution


def _weight(b: Builder, n: OnnxNode) -> tuple[Value, Ints]:
    """The weight and the sizes of its kernel."""
    w = stored(b, n.input(1))
    kernel = vector(n, "kernel_shape", len(w.shape or ()) - 2, 0) if w.shape else tuple(n.attr("kernel_shape", ()))
    sizes = tuple(d if isinstance(d, int) else k for d, k in zip((w.shape or ())[2:], kernel, strict=False))
    if not sizes or not all(sizes):
        raise n.refuse(f"the sizes of the weight of {n.op_type} are not known")
    if any(k not in (0, s) for k, s in zip(kernel, sizes, strict=True)):
        raise n.refuse(f"kernel_shape is {list(kernel)}, the weight has {list(sizes)}")
    return w, sizes


def _bias(b: Builder, n: OnnxNode, outputs: Dim) -> Value:
    """The bias, or zeros: the runtime needs one."""
    if n.has(2):
        return stored(b, n.input(2))
    if not isinstance(outputs, int):
        raise n.refuse(f"the number of output channels of {n.op_type} is not known")
    return b.constant(np.zeros(outputs, np.float32))


SAME_LOWER = "auto_pad SAME_LOWER with strides needs known sizes"


@onnx_op("Conv", limits=SAME_LOWER)
def conv(b: Builder, n: OnnxNode) -> Value:
    x = n.input(0)
    w, kernel = _weight(b, n)
    sizes = spatial_sizes(n, x, len(kernel))
    if len(kernel) != len(sizes):
        raise n.refuse(f"the operand has {len(sizes)} spatial axes, the weight {len(kernel)}")
    bias, group = _bias(b, n, w.shape[0] if w.shape else None), n.attr("group", 1)
    win = window(n, kernel, sizes)
    if len(sizes) == 1:
        return without_axis(b, _conv2d(b, with_axis(b, x), with_axis(b, w), bias, win.flat(), group))
    if len(sizes) == 2:
        return _conv2d(b, x, w, bias, win, group)
    mode = "SAME" if win.same else "CAFFE"
    return b.add(Convolution3D(win.strides, win.dilations, win.pads, group, "", mode), x, w, bias)


def _conv2d(b: Builder, x: Value, w: Value, bias: Value, win: Window, group: int) -> Value:
    (sy, sx), (dy, dx), (t, l), (d, r) = win.strides, win.dilations, win.begin, win.end
    return b.add(Convolution((sy, sx), (dy, dx), (t, l, d, r), group, "", "SAME" if win.same else "CAFFE"), x, w, bias)


ACTIVATIONS: dict[str, tuple[int, Callable[..., Value]]] = {  # how many parameters, and what is done with them
    "": (0, lambda b, y: y),
    "Relu": (0, lambda b, y: b.add(ReLU(), y)),
    "Tanh": (0, lambda b, y: apply(b, "TANH", y)),
    "Sigmoid": (0, lambda b, y: apply(b, "SIGMOID", y)),
    "LeakyRelu": (1, lambda b, y, alpha: b.add(ReLU(single(alpha)), y)),
    "Clip": (2, clip),
    "HardSigmoid": (2, lambda b, y, alpha, beta: clip(b, calc(b, "ADD", calc(b, "MUL", y, alpha), beta), 0.0, 1.0)),
}


@onnx_op("FusedConv", domain="com.microsoft", limits=SAME_LOWER)
def fused_conv(b: Builder, n: OnnxNode) -> Value:
    """An activation of a convolution, to which operand 3 is added first."""
    name, parameters = n.attr("activation", ""), n.attr("activation_params", ())
    if name not in ACTIVATIONS:
        raise n.refuse(f"FusedConv with the activation {name!r:.40} is not supported")
    count, activation = ACTIVATIONS[name]
    if len(parameters) < count:
        raise n.refuse(f"activation_params of {name} has {len(parameters)} values, not {count}")
    y = conv(b, n)
    return activation(b, calc(b, "ADD", y, n.input(3)) if n.has(3) else y, *parameters[:count])


@onnx_op("ConvTranspose", limits="output_shape needs known sizes of the operand")
def conv_transpose(b: Builder, n: OnnxNode) -> Value:
    x = n.input(0)
    w, kernel = _weight(b, n)
    sizes = spatial_sizes(n, x, len(kernel))
    group = n.attr("group", 1)
    per_group = w.shape[1] if w.shape else None
    w = with_rows(b, w, per_group * group if isinstance(per_group, int) else 0)
    bias = _bias(b, n, per_group * group if isinstance(per_group, int) else None)
    win, extra = _transposed_window(n, kernel, sizes)
    if len(sizes) == 1:
        x, w, win, extra = with_axis(b, x), with_axis(b, w), win.flat(), (*extra, 0)
    if len(sizes) == 3:
        return b.add(ConvTranspose3D(win.strides, win.dilations, win.pads, group, "", "CAFFE", extra), x, w, bias)
    (sy, sx), (dy, dx), (t, l), (d, r) = win.strides, win.dilations, win.begin, win.end
    y = b.add(Deconvolution((sy, sx), (dy, dx), (t, l, d, r), (extra[0], extra[1]), group), x, w, bias)
    return without_axis(b, y) if len(sizes) == 1 else y


def _transposed_window(n: OnnxNode, kernel: Ints, sizes: tuple[Dim, ...]) -> tuple[Window, Ints]:
    """The window with explicit pads, and what enlarges the far end."""
    count = len(kernel)
    extra = vector(n, "output_padding", count, 0)
    strides, dilations = vector(n, "strides", count, 1), vector(n, "dilations", count, 1)
    pads = vector(n, "pads", 2 * count, 0)
    win = Window(kernel, strides, dilations, pads[:count], pads[count:])
    auto, wanted = n.attr("auto_pad", "NOTSET"), n.attr("output_shape")
    if wanted:
        totals = _pads_for_shape(n, win, extra, sizes, wanted[-count:])
    elif auto in ("SAME_UPPER", "SAME_LOWER"):  # the result is in * stride, so the pads do not depend on the size
        totals = [e + o - s for e, o, s in zip(win.extent, extra, strides, strict=True)]
        if min(totals) < 0:
            raise n.refuse(
                f"auto_pad {auto} of ConvTranspose with strides beyond the kernel is computed in different ways",
                hint="give the pads or the output_shape instead",
            )
    elif auto == "VALID":
        totals = [0] * count
    else:
        return _without_spare(win, extra)
    extra = tuple(o - min(0, t) for o, t in zip(extra, totals, strict=True))
    small, large = [max(0, t) // 2 for t in totals], [-(-max(0, t) // 2) for t in totals]
    begin, end = (small, large) if auto == "SAME_UPPER" else (large, small)
    return _without_spare(replace(win, begin=tuple(begin), end=tuple(end)), extra)


def _pads_for_shape(n: OnnxNode, w: Window, extra: Ints, sizes: tuple[Dim, ...], wanted: Ints) -> list[int]:
    """Total pads that lead to the wanted sizes."""
    totals = []
    for size, stride, extent, more, out in zip(sizes, w.strides, w.extent, extra, wanted, strict=True):
        if not isinstance(size, int):
            raise n.refuse("output_shape of ConvTranspose needs the sizes of the operand", hint=FIX_SIZES)
        totals.append((size - 1) * stride + extent + more - out)
    return totals


def _without_spare(win: Window, extra: Ints) -> tuple[Window, Ints]:
    """Enlarging the far end only takes back pads there, as far as there are any."""
    shared = [min(e, o) for e, o in zip(win.end, extra, strict=True)]
    end = tuple(e - s for e, s in zip(win.end, shared, strict=True))
    return replace(win, end=end), tuple(o - s for o, s in zip(extra, shared, strict=True))
