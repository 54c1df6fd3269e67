"""Import rules of convolutions."""

from __future__ import annotations

import numpy as np

from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.ir import Builder, Value
from mnnconvert.ops.convolution import Convolution


@onnx_op("Conv")
def conv(b: Builder, n: OnnxNode) -> Value:
    x, w = n.input(0), n.input(1)
    outputs = w.shape[0] if w.shape else 0
    bias = n.optional(2) or b.constant(np.zeros(outputs, np.float32))
    sy, sx = n.attr("strides", (1, 1))
    dy, dx = n.attr("dilations", (1, 1))
    return b.add(Convolution((sy, sx), (dy, dx), n.attr("pads", (0, 0, 0, 0)), n.attr("group", 1)), x, w, bias)
