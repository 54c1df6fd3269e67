"""Write the large model of the benchmarks: `python benchmarks/large_model.py FOLDER` makes FOLDER/large.onnx.

Products with weights of 4096 x 4096 float32 in external data, 1.4 GB unless told otherwise, written one weight at a
time.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, save_model

LAYERS, SIZE = 21, 4096
WEIGHT_BYTES = 4 * SIZE * SIZE


def write(folder: Path, layers: int = LAYERS) -> Path:
    """Write the model and its data; the model appears last, so that a half-written one is never used."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    with (folder / "large.bin").open("wb") as stream:
        for _ in range(layers):
            weight = rng.standard_normal((SIZE, SIZE), np.float32)
            weight /= np.float32(np.sqrt(SIZE))  # keeps values of size 1 through all layers
            weight.tofile(stream)
    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"], name=f"layer{i}") for i in range(layers)]
    vector = [1, SIZE]
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, vector)],
        [helper.make_tensor_value_info(f"x{layers}", TensorProto.FLOAT, vector)],
        [external_weight(i) for i in range(layers)],
    )
    save_model(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "large.onnx"
    )
    return folder / "large.onnx"


def external_weight(index: int) -> TensorProto:
    """A weight that lies in large.bin."""
    tensor = TensorProto(name=f"w{index}", data_type=TensorProto.FLOAT, dims=[SIZE, SIZE])
    tensor.data_location = TensorProto.EXTERNAL
    facts = {"location": "large.bin", "offset": index * WEIGHT_BYTES, "length": WEIGHT_BYTES}
    for key, value in facts.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
