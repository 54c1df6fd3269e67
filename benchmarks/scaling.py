"""Does the time per node stay the same when a model grows? Converts stacked blocks, 1, 4 and 16 times as many."""

from __future__ import annotations

import gc
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import mnnconvert

BLOCKS = 150  # of ten nodes: about the size of a real detector
IMAGE = [1, 8, 16, 16]


def block(index: int, x: str, random: np.random.Generator) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Convolution, batch normalisation, hard-swish as older exporters spell it, and a residual sum."""
    weights = {"w": random.standard_normal((8, 8, 3, 3)) * 0.1} | {n: random.uniform(0.5, 1.5, 8) for n in "gbmv"}
    initializers = [numpy_helper.from_array(a.astype(np.float32), f"{n}{index}") for n, a in weights.items()]
    constants = [
        helper.make_node("Constant", [], [f"{n}{index}"], value=numpy_helper.from_array(np.float32(v)))
        for n, v in (("three", 3), ("zero", 0), ("six", 6))
    ]
    c, n, a, h, p, q, y = (f"{name}{index}" for name in ("conv", "norm", "add", "hard", "mul", "div", "y"))
    nodes = [
        helper.make_node("Conv", [x, f"w{index}"], [c], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", [c, *(f"{k}{index}" for k in "gbmv")], [n]),
        *constants,
        helper.make_node("Add", [n, f"three{index}"], [a]),
        helper.make_node("Clip", [a, f"zero{index}", f"six{index}"], [h]),
        helper.make_node("Mul", [n, h], [p]),
        helper.make_node("Div", [p, f"six{index}"], [q]),
        helper.make_node("Add", [q, x], [y]),
    ]
    return nodes, initializers


def stack(blocks: int) -> onnx.ModelProto:
    random, nodes, initializers, x = np.random.default_rng(0), [], [], "x"
    for index in range(blocks):
        made, weights = block(index, x, random)
        nodes += made
        initializers += weights
        x = f"y{index}"
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, IMAGE)] for name in ("x", x)]
    graph = helper.make_graph(nodes, "stack", *ends, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def main() -> None:
    print("Stacked blocks, process time per node of a conversion")
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "m.onnx", Path(folder) / "m.mnn"
        for times in (1, 4, 16):
            model = stack(BLOCKS * times)
            onnx.save(model, source)
            nodes = len(model.graph.node)
            del model
            gc.collect()
            started = time.process_time()
            mnnconvert.convert(source, target, verify="never")
            seconds = time.process_time() - started
            print(f"{times:3}x  {nodes:6} nodes  {seconds:6.2f} s  {seconds / nodes * 1e6:5.0f} us per node")


if __name__ == "__main__":
    main()
