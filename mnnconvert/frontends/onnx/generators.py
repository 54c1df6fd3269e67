"""Import rules of ops that make values from sizes and bounds."""

from __future__ import annotations

import numpy as np

from mnnconvert.frontends.common.compose import cast, widened
from mnnconvert.frontends.common.tensors import to_graph_type
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.frontends.onnx.tensors import graph_type
from mnnconvert.ir import ArrayTensor, Builder, Value
from mnnconvert.ops.generators import EyeLike, Fill, RandomNormal, RandomUniform, Range
from mnnconvert.ops.shape import Reshape, ShapeOf


@onnx_op("ConstantOfShape", since=9)
def constant_of_shape(b: Builder, n: OnnxNode) -> Value:
    """Stays an op when the result is large: the file holds the one value."""
    array = n.attr("value", np.zeros(1, np.float32))
    value = b.constant(to_graph_type(ArrayTensor(np.asarray(array).reshape(())), n.name))
    shape = n.input(0)
    if shape.shape == (0,):
        return value
    return cast(b, b.add(Fill(), shape, widened(b, value)), value.dtype)


@onnx_op("Range", since=11)
def range_(b: Builder, n: OnnxNode) -> Value:
    return b.add(Range(), *(v if v.rank == 0 else b.add(Reshape(()), v) for v in (n.input(0), n.input(1), n.input(2))))


@onnx_op("EyeLike", since=9)
def eye_like(b: Builder, n: OnnxNode) -> Value:
    x = n.input(0)
    dtype = graph_type(n.attr("dtype"), n.name) if n.has_attr("dtype") else x.dtype
    return cast(b, b.add(EyeLike(), widened(b, x), b.ints(n.attr("k", 0))), dtype)


def _random(b: Builder, n: OnnxNode, shape: Value) -> Value:
    seed = int(n.attr("seed", 0.0))
    if n.op_type.startswith("RandomUniform"):
        return b.add(RandomUniform(n.attr("low", 0.0), n.attr("high", 1.0), seed), shape)
    return b.add(RandomNormal(n.attr("mean", 0.0), n.attr("scale", 1.0), seed), shape)


@onnx_op("RandomUniform", "RandomNormal", limits="other numbers than the source's: no two runtimes share a generator")
def random(b: Builder, n: OnnxNode) -> Value:
    return _random(b, n, b.ints(n.attr("shape", ())))


@onnx_op("RandomUniformLike", "RandomNormalLike", limits="other numbers than the source's")
def random_like(b: Builder, n: OnnxNode) -> Value:
    return _random(b, n, b.add(ShapeOf(), n.input(0)))
