"""A small network as a file, and variants of it that differ in one known thing each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CHANNELS = 64


def network(
    path: Path, *, scale: float = 1.0, activation: str = "Relu", name: str = "fc1", head: int = 8, seed: int = 3
) -> Path:
    """x[n,64] -> product "fc1" -> activation -> product "fc2" -> y[n,head], written as ONNX.

    `scale` multiplies the second weight, `name` is that of the first product and of its result.
    """
    rng = np.random.default_rng(seed)
    first = rng.standard_normal((CHANNELS, CHANNELS)).astype(np.float32) / 8
    second = (scale * rng.standard_normal((CHANNELS, head)) / 8).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], [name], name),
        helper.make_node(activation, [name], ["act"], "act"),
        helper.make_node("MatMul", ["act", "w2"], ["y"], "fc2"),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", CHANNELS])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", head])],
        [numpy_helper.from_array(first, "w1"), numpy_helper.from_array(second, "w2")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path
