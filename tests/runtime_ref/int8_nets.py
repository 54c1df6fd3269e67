"""Small nets whose values have steps."""

from __future__ import annotations

import numpy as np

from mnnconvert.ir import Builder, CodedTensor, CodedWeights, Graph, Steps, Value
from mnnconvert.ops.base import OPS
from mnnconvert.passes.layout import PlaceLayout
from mnnconvert.passes.names import NameOutputs
from mnnconvert.passes.settle_steps import SettleSteps
from mnnconvert.runtime_ref.session import Session


def placed(graph: Graph) -> Graph:
    """Laid out for MNN."""
    for each in (PlaceLayout(), SettleSteps(), NameOutputs()):
        each.run(graph)
    return graph


def convolution(b: Builder, rng, x: Value, outputs: int, kernel: int, name: str, *, group=1, **attributes) -> Value:
    """A convolution with weights of 8 bits and one scale per channel."""
    columns = x.shape[1] // group * kernel * kernel
    weights = rng.standard_normal((outputs, columns)).astype(np.float32) * np.float32((2 / columns) ** 0.5)
    scale = np.abs(weights).max(1, keepdims=True) / np.float32(127)
    codes = np.rint(weights / scale).astype(np.int8)
    tensor = CodedTensor(CodedWeights(codes, scale, None, 8), (outputs, x.shape[1] // group, kernel, kernel))
    op = OPS["Convolution"](pads=(kernel // 2,) * 4, group=group, **attributes)
    bias = (rng.standard_normal(outputs) * 0.1).astype(np.float32)
    return b.add(op, x, b.constant(tensor, f"{name}.w"), b.constant(bias, f"{name}.b"), name=name)


def calibrate(graph: Graph, feeds: dict[str, np.ndarray], symmetric: bool) -> None:
    """Give every float value the steps that just hold what it is for these inputs; what moves keeps them."""
    values = {v.name: v for v in graph.values() if not v.is_constant and v.dtype.kind == "f"}
    arrays = Session(graph, "reference").run(feeds, list(values))
    for name, value in values.items():
        low, high = float(arrays[name].min()), float(arrays[name].max())
        if symmetric:
            value.steps = Steps(max(-low, high) / 127, 0, -127, 127)
        else:
            scale = (max(high, 0) - min(low, 0)) / 255
            value.steps = Steps(scale, round(-128 - min(low, 0) / scale))
    for node in graph.nodes:
        if node.op.kind in ("Pooling", "Reshape", "Concat", "Interp"):
            node.output.steps = node.inputs[0].steps
            for value in node.inputs[1:]:
                if value.dtype.kind == "f":
                    node.output.steps = value.steps = node.inputs[0].steps


def small_net(symmetric: bool, channels: int = 16, size: int = 32) -> tuple[Graph, dict[str, np.ndarray]]:
    """Convolutions of all kinds, pooling, a sum, an activation in floats, and a classifier; and an input."""
    rng = np.random.default_rng(1)
    b = Builder()
    x = b.input("x", np.dtype("float32"), (2, 3, size, size))
    a = convolution(b, rng, x, channels, 3, "a", strides=(2, 2), activation="relu")
    p = b.add(OPS["Pooling"]("MAXPOOL", (3, 3), (2, 2), (1, 1, 1, 1)), a, name="p")
    c = convolution(b, rng, p, channels, 3, "c", group=channels, activation="relu6")
    d = convolution(b, rng, c, channels, 1, "d")
    e = b.add(OPS["Binary"]("ADD"), d, p, name="e")
    f = b.add(OPS["Unary"]("HARDSWISH"), e, name="f")
    g = convolution(b, rng, f, channels + 5, 3, "g", activation="relu")
    h = b.add(OPS["Pooling"]("AVEPOOL", (2, 2), (2, 2)), g, name="h")
    i = b.add(OPS["Pooling"]("AVEPOOL", whole=True), h, name="i")
    j = convolution(b, rng, i, 10, 1, "j")
    b.output(b.add(OPS["Reshape"](()), j, b.ints([2, 10]), name="y"), "y")
    feeds = {"x": rng.standard_normal((2, 3, size, size)).astype(np.float32)}
    calibrate(b.graph, feeds, symmetric)
    return placed(b.graph), feeds
