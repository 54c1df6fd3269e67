"""A plug-in that teaches mnnconvert the op Wobble of the domain acme: y = x + gain * sin(rate * x)."""

from __future__ import annotations

import numpy as np

from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.ir import Builder, Spec, Value
from mnnconvert.ops.plugin import PluginOp, plugin


@plugin("Wobble")
class Wobble(PluginOp):
    """y = x + gain * sin(rate * x)."""

    gain: float = 1.0
    rate: float = 1.0
    label: str = ""
    axes: tuple[int, ...] = ()

    def infer(self, x: Spec) -> Spec:
        return Spec(x.dtype, x.shape)

    def ref(self, x: np.ndarray) -> np.ndarray:
        return (x + self.gain * np.sin(self.rate * x)).astype(x.dtype)


@onnx_op("Wobble", domain="acme")
def wobble(b: Builder, n: OnnxNode) -> Value:
    op = Wobble(n.attr("gain", 1.0), n.attr("rate", 1.0), n.attr("label", ""), n.attr("axes", ()))
    return b.add(op, n.input(0))
