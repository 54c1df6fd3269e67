"""The models that `make quality` compresses, as ONNX files made from real weights.

Tables of embeddings and the head of the language model stay outside, in float: the files take vectors and return
vectors, so that what is measured is the compression of the matrices alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from quality_files import MINILM, SMOLLM

from mnnconvert.frontends.llm.gguf import GgufFile, read_gguf
from mnnconvert.frontends.llm.safetensors import read_safetensors


class Net:
    """An ONNX graph under construction: calling it adds a node and returns the name of its result."""

    def __init__(self, shape: tuple[int | str, ...]):
        self.shape = shape
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def __call__(self, op: str, *inputs: str, results: int = 1, name: str = "", **attributes: object) -> str:
        name = name or f"{op}_{len(self.nodes)}"
        outputs = [name] if results == 1 else [f"{name}.{i}" for i in range(results)]
        self.nodes.append(helper.make_node(op, inputs, outputs, name, **attributes))
        return outputs[0]

    def constant(self, array: object, dtype: type = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def linear(self, x: str, weight: np.ndarray, bias: np.ndarray | None, name: str) -> str:
        """x W^T + b for W [out, in]."""
        y = self("MatMul", x, self.constant(np.ascontiguousarray(weight.T)), name=name)
        return y if bias is None else self("Add", y, self.constant(bias))

    def heads(self, x: str, count: int, size: int) -> str:
        """[n, s, count * size] -> [n, count, s, size]."""
        split = self("Reshape", x, self.constant([0, 0, count, size], np.int64))
        return self("Transpose", split, perm=[0, 2, 1, 3])

    def attend(self, q: str, k: str, v: str, scale: float, mask: np.ndarray | None = None) -> str:
        """softmax(q k^T scale + mask) v as [n, s, heads * size]."""
        scores = self("MatMul", q, self("Transpose", k, perm=[0, 1, 3, 2]))
        scores = self("Mul", scores, self.constant(scale))
        scores = scores if mask is None else self("Add", scores, self.constant(mask))
        mixed = self("MatMul", self("Softmax", scores, axis=-1), v)
        return self("Reshape", self("Transpose", mixed, perm=[0, 2, 1, 3]), self.constant([0, 0, -1], np.int64))

    def layer_norm(self, x: str, gain: np.ndarray, bias: np.ndarray, epsilon: float) -> str:
        centred = self("Sub", x, self("ReduceMean", x, axes=[-1]))
        power = self("ReduceMean", self("Mul", centred, centred), axes=[-1])
        deviation = self("Sqrt", self("Add", power, self.constant(epsilon)))
        scaled = self("Mul", self("Div", centred, deviation), self.constant(gain))
        return self("Add", scaled, self.constant(bias))

    def rms_norm(self, x: str, gain: np.ndarray, epsilon: float) -> str:
        power = self("ReduceMean", self("Mul", x, x), axes=[-1])
        deviation = self("Sqrt", self("Add", power, self.constant(epsilon)))
        return self("Mul", self("Div", x, deviation), self.constant(gain))

    def gelu(self, x: str) -> str:
        error = self("Erf", self("Mul", x, self.constant(np.sqrt(0.5))))
        return self("Mul", self("Mul", x, self("Add", error, self.constant(1))), self.constant(0.5))

    def save(self, result: str, path: Path) -> None:
        """Write the graph from the input `x` to `result`."""
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)]
        outputs = [helper.make_tensor_value_info(result, TensorProto.FLOAT, self.shape)]
        graph = helper.make_graph(self.nodes, path.stem, inputs, outputs, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
        onnx.save(model, path)


def minilm_weights() -> dict[str, np.ndarray]:
    """The float32 tensors of all-MiniLM-L6-v2."""
    tensors = read_safetensors(MINILM / "model.safetensors")
    return {name: tensor.numpy() for name, tensor in tensors.items() if tensor.dtype == np.float32}


def write_minilm(path: Path) -> None:
    """all-MiniLM-L6-v2 behind its embeddings: x [n, s, 384] -> hidden states of the last layer. No padding."""
    weights = minilm_weights()
    net = Net(("n", "s", 384))

    def linear(x: str, key: str) -> str:
        return net.linear(x, weights[f"{key}.weight"], weights[f"{key}.bias"], key)

    def norm(x: str, key: str) -> str:
        return net.layer_norm(x, weights[f"{key}.weight"], weights[f"{key}.bias"], 1e-12)

    x = norm("x", "embeddings.LayerNorm")
    for number in range(6):
        key = f"encoder.layer.{number}"
        q, k, v = (net.heads(linear(x, f"{key}.attention.self.{n}"), 12, 32) for n in ("query", "key", "value"))
        mixed = linear(net.attend(q, k, v, 32**-0.5), f"{key}.attention.output.dense")
        x = norm(net("Add", x, mixed), f"{key}.attention.output.LayerNorm")
        inner = net.gelu(linear(x, f"{key}.intermediate.dense"))
        x = norm(net("Add", x, linear(inner, f"{key}.output.dense")), f"{key}.output.LayerNorm")
    net.save(x, path)


def minilm_embeddings(ids: np.ndarray) -> np.ndarray:
    """What the layers of MiniLM are fed for token ids [n, s]."""
    weights = minilm_weights()
    words, places, types = (weights[f"embeddings.{n}_embeddings.weight"] for n in ("word", "position", "token_type"))
    return words[ids] + places[: ids.shape[1]] + types[0]


@dataclass(frozen=True)
class Llama:
    """Sizes of a decoder with rotary positions, grouped keys and gated linear units."""

    layers: int
    width: int
    heads: int
    groups: int
    base: float
    epsilon: float

    @property
    def size(self) -> int:
        return self.width // self.heads


SMOLLM2 = Llama(30, 576, 9, 3, 1e5, 1e-5)


def write_smollm(path: Path, length: int) -> None:
    """SmolLM2-135M-Instruct between its embeddings and its head: x [n, length, 576] -> normalised hidden states."""
    file = read_gguf(SMOLLM)
    write_llama(path, SMOLLM2, length, lambda name: _as_published(file, name))


def _as_published(file: GgufFile, name: str) -> np.ndarray:
    """Queries and keys with the halves of a rotation apart: the file has their rows interleaved."""
    tensor = file.tensor(f"{name}.weight").numpy()
    if not name.endswith(("attn_q", "attn_k")):
        return tensor
    return tensor.reshape(-1, SMOLLM2.size // 2, 2, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape)


def write_llama(path: Path, sizes: Llama, length: int, weight: Callable[[str], np.ndarray]) -> None:
    """A decoder of the Llama family; `weight` gives its matrices and gains by their names in GGUF files."""
    net = Net(("n", length, sizes.width))
    angles = np.outer(np.arange(length), sizes.base ** (-np.arange(0, sizes.size, 2) / sizes.size))
    cosine, sine = (net.constant(np.tile(f(angles), 2)) for f in (np.cos, np.sin))
    group_of_head = net.constant(np.repeat(range(sizes.groups), sizes.heads // sizes.groups), np.int64)
    mask = np.triu(np.full((length, length), -1e9, np.float32), 1)

    def rotated(x: str) -> str:
        first = net("Split", x, axis=-1, results=2)
        turned = net("Concat", net("Neg", first[:-1] + "1"), first, axis=-1)
        return net("Add", net("Mul", x, cosine), net("Mul", turned, sine))

    def repeated(x: str) -> str:
        return net("Gather", x, group_of_head, axis=1)

    x = "x"
    for number in range(sizes.layers):
        key = f"blk.{number}"
        y = net.rms_norm(x, weight(f"{key}.attn_norm"), sizes.epsilon)
        q, k, v = (
            net.heads(net.linear(y, weight(f"{key}.attn_{n}"), None, f"{key}.{n}"), count, sizes.size)
            for n, count in (("q", sizes.heads), ("k", sizes.groups), ("v", sizes.groups))
        )
        mixed = net.attend(rotated(q), repeated(rotated(k)), repeated(v), sizes.size**-0.5, mask)
        x = net("Add", x, net.linear(mixed, weight(f"{key}.attn_output"), None, f"{key}.o"))
        y = net.rms_norm(x, weight(f"{key}.ffn_norm"), sizes.epsilon)
        gate, up = (net.linear(y, weight(f"{key}.ffn_{n}"), None, f"{key}.{n}") for n in ("gate", "up"))
        gated = net("Mul", net("Mul", gate, net("Sigmoid", gate)), up)
        x = net("Add", x, net.linear(gated, weight(f"{key}.ffn_down"), None, f"{key}.down"))
    net.save(net.rms_norm(x, weight("output_norm"), sizes.epsilon), path)
