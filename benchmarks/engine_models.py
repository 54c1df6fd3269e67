"""The models of benchmarks/engine.py that are generated: each function gives an ONNX model with seeded weights.

Sizes are parameters, so that tests can have small ones of the same structure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx.backend.test
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

BLOCK = 64  # input channels per scale of the 4-bit weights


@dataclass
class Maker:
    """Collects nodes and weights; `random` makes the weights."""

    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    nodes: list[NodeProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add a node of one output; returns the name of that."""
        name = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, array: Any, dtype: Any = np.float32) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def normal(self, *shape: int, fan_in: int, gain: float = 1.0) -> str:
        """Weights that keep values of size 1: with `gain` 2 before a ReLU, as He et al. scale them."""
        return self.constant(self.random.standard_normal(shape, np.float32) * math.sqrt(gain / fan_in))

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        """MatMul and Add, as torch exports a linear layer on sequences."""
        product = self.node("MatMul", x, self.normal(inputs, outputs, fan_in=inputs))
        return self.node("Add", self.constant(self.random.standard_normal(outputs) * 0.1), product)

    def model(self, name: str, inputs: list[ValueInfoProto], shape: list[int], **domains: int) -> ModelProto:
        """What was made; the result of the last node is the output "y"."""
        self.nodes[-1].output[0] = "y"
        graph = helper.make_graph(self.nodes, name, inputs, [floats("y", *shape)], self.weights)
        versions = [helper.make_opsetid("", 17), *(helper.make_opsetid(d, v) for d, v in domains.items())]
        return helper.make_model(graph, opset_imports=versions, ir_version=8)


def floats(name: str, *shape: int) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def resnet50() -> ModelProto:
    """The ResNet-50 that the onnx package brings without weights, with weights.

    Its weights are ConstantOfShape nodes; in their place come normal ones for convolutions (scaled as He et al. do)
    and those of an untrained batch normalisation.
    """
    path = Path(onnx.backend.test.__file__).with_name("data") / "light/light_resnet50.onnx"
    model, make = onnx.load(path), Maker()
    graph = model.graph
    sizes = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    empty = [n for n in graph.node if n.op_type == "ConstantOfShape"]
    for node in empty:
        shape = sizes.pop(node.input[0])
        graph.initializer.append(numpy_helper.from_array(_resnet_weight(node.output[0], shape, make), node.output[0]))
        graph.node.remove(node)
    made = {i.name for i in graph.initializer}
    for useless in [i for i in graph.initializer if i.name.endswith("__SHAPE")]:
        graph.initializer.remove(useless)
    for weight in [i for i in graph.input if i.name in made]:
        graph.input.remove(weight)
    model.ir_version = 4  # the first in which weights are no inputs
    return model


def _resnet_weight(name: str, shape: np.ndarray, make: Maker) -> np.ndarray:
    if name.endswith("_w_0"):
        fan_in = math.prod(shape[1:])
        gain = 1.0 if "pred" in name else 2.0
        return make.random.standard_normal(shape, np.float32) * np.float32(math.sqrt(gain / fan_in))
    is_factor = name.endswith(("_bn_s_0", "_bn_riv_0"))
    return np.full(shape, 1 if is_factor else 0, np.float32)


MOBILE_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, channels, repetitions and first stride of each stage of MobileNetV2."""


def mobilenet_v2(image: int = 224, stages: tuple[tuple[int, int, int, int], ...] = MOBILE_STAGES) -> ModelProto:
    """MobileNetV2 with batch normalisation folded into convolutions, ReLU6 as Clip."""
    make, channels = Maker(), 32
    x = _mobile_conv(make, "x", 3, channels, kernel=3, stride=2)
    for expansion, outputs, repetitions, first_stride in stages:
        for i in range(repetitions):
            x = _inverted_residual(make, x, channels, outputs, expansion, first_stride if i == 0 else 1)
            channels = outputs
    x = _mobile_conv(make, x, channels, 1280)
    x = make.node("Flatten", make.node("GlobalAveragePool", x))
    bias = make.constant(np.zeros(1000))
    make.node("Gemm", x, make.normal(1000, 1280, fan_in=1280), bias, transB=1)
    return make.model("mobilenet_v2", [floats("x", 1, 3, image, image)], [1, 1000])


def _inverted_residual(make: Maker, x: str, inputs: int, outputs: int, expansion: int, stride: int) -> str:
    wide = inputs * expansion
    y = _mobile_conv(make, x, inputs, wide) if expansion > 1 else x
    y = _mobile_conv(make, y, wide, wide, kernel=3, stride=stride, group=wide)
    y = _mobile_conv(make, y, wide, outputs, active=False)
    return make.node("Add", x, y) if stride == 1 and inputs == outputs else y


def _mobile_conv(make: Maker, x: str, inputs: int, outputs: int, *, kernel: int = 1, stride: int = 1, group: int = 1,
                 active: bool = True) -> str:  # fmt: skip
    fan_in = inputs // group * kernel * kernel
    weight = make.normal(outputs, inputs // group, kernel, kernel, fan_in=fan_in, gain=2.0 if active else 1.0)
    bias = make.constant(make.random.standard_normal(outputs) * 0.1)
    pads, strides = [kernel // 2] * 4, [stride, stride]
    y = make.node("Conv", x, weight, bias, kernel_shape=[kernel] * 2, strides=strides, pads=pads, group=group)
    return make.node("Clip", y, make.constant(0), make.constant(6)) if active else y


@dataclass(frozen=True)
class Bert:
    """Sizes of an encoder; the defaults are those of MiniLM with a sequence of 128."""

    layers: int = 6
    width: int = 384
    heads: int = 12
    inner: int = 1536
    sequence: int = 128


def bert(size: Bert = Bert()) -> ModelProto:
    """The layers of an encoder as torch exports them: reshapes and transposes of heads, GELU by erf.

    Inputs are the embedded tokens and a mask of ones and zeros.
    """
    make = Maker()
    mask = make.node("Cast", make.node("Unsqueeze", "mask", make.constant([1, 2], np.int64)), to=TensorProto.FLOAT)
    mask = make.node("Mul", make.node("Sub", make.constant(1), mask), make.constant(-10000))
    x = _layer_norm(make, "x", size.width)
    for _ in range(size.layers):
        attended = make.linear(_attention(make, x, mask, size), size.width, size.width)
        x = _layer_norm(make, make.node("Add", attended, x), size.width)
        inner = _gelu(make, make.linear(x, size.width, size.inner))
        x = _layer_norm(make, make.node("Add", make.linear(inner, size.inner, size.width), x), size.width)
    tokens = helper.make_tensor_value_info("mask", TensorProto.INT64, [1, size.sequence])
    shape = [1, size.sequence, size.width]
    return make.model("bert", [floats("x", *shape), tokens], shape)


def _attention(make: Maker, x: str, mask: str, size: Bert) -> str:
    each = size.width // size.heads
    split = make.constant([1, size.sequence, size.heads, each], np.int64)

    def heads(order: list[int]) -> str:
        rows = make.node("Reshape", make.linear(x, size.width, size.width), split)
        return make.node("Transpose", rows, perm=order)

    query, key, value = heads([0, 2, 1, 3]), heads([0, 2, 3, 1]), heads([0, 2, 1, 3])
    scores = make.node("Div", make.node("MatMul", query, key), make.constant(math.sqrt(each)))
    weights = make.node("Softmax", make.node("Add", scores, mask), axis=-1)
    joined = make.node("Transpose", make.node("MatMul", weights, value), perm=[0, 2, 1, 3])
    return make.node("Reshape", joined, make.constant([1, size.sequence, size.width], np.int64))


def _layer_norm(make: Maker, x: str, width: int) -> str:
    return make.node("LayerNormalization", x, make.constant(np.ones(width)), make.constant(np.zeros(width)), axis=-1)


def _gelu(make: Maker, x: str) -> str:
    cdf = make.node("Erf", make.node("Div", x, make.constant(math.sqrt(2))))
    return make.node("Mul", make.node("Mul", x, make.node("Add", cdf, make.constant(1))), make.constant(0.5))


def products(rows: int, layers: int = 1, size: int = 2048, *, coded: bool = False) -> ModelProto:
    """A chain of products x [rows,size] @ W. W has values that 4 bits hold, so that all engines multiply by the same.

    `coded`: in onnxruntime's own operator for 4-bit weights, else as float32 for converters to round.
    """
    make, x = Maker(), "x"
    for _ in range(layers):
        weight = make.random.standard_normal((size, size), np.float32) / np.float32(math.sqrt(size))
        codes, scales, zeros = four_bits(weight)
        if coded:
            x = _coded_product(make, x, codes, scales, zeros)
        else:
            blocks = (codes - zeros[..., None]) * scales[..., None]
            x = make.node("MatMul", x, make.constant(blocks.reshape(size, size).T))
    domains = {"com.microsoft": 1} if coded else {}
    return make.model("products", [floats("x", rows, size)], [rows, size], **domains)


def _coded_product(make: Maker, x: str, codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray) -> str:
    outputs, blocks, _ = codes.shape
    parts = _nibbles(codes), scales.reshape(-1), _nibbles(zeros).reshape(-1)
    names = [make.constant(part, part.dtype) for part in parts]
    sizes = {"K": blocks * BLOCK, "N": outputs, "bits": 4, "block_size": BLOCK}
    # accuracy_level 4: activations may be rounded to 8 bits, which is what the fast kernels of all engines do
    return make.node("MatMulNBits", x, *names, **sizes, accuracy_level=4, domain="com.microsoft")


def four_bits(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows [n,k] rounded to 4 bits per block: codes [n,k/64,64], scales and zero points [n,k/64]."""
    blocks = rows.reshape(len(rows), -1, BLOCK)
    low, high = np.minimum(blocks.min(-1), 0), np.maximum(blocks.max(-1), 0)
    scales = (high - low) / np.float32(15)
    zeros = np.round(-low / scales)
    return np.clip(np.round(blocks / scales[..., None]) + zeros[..., None], 0, 15), scales, zeros


def _nibbles(values: np.ndarray) -> np.ndarray:
    """Pairs along the last axis in one byte, the first in the low half; an odd end gets a zero."""
    wide = np.concatenate([values, np.zeros((*values.shape[:-1], values.shape[-1] % 2))], -1).astype(np.uint8)
    return wide[..., ::2] | wide[..., 1::2] << 4
