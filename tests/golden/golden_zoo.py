"""A small zoo whose optimized graphs are kept as text, and the operator table; `make golden` writes both anew.

Weights follow from their shape by arithmetic alone, so that a dump is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import ModelProto, numpy_helper, parser

from mnnconvert import api
from mnnconvert.cli.ops import markdown_table
from mnnconvert.frontends.onnx.importer import Importer
from mnnconvert.ir import Graph, to_text
from mnnconvert.passes.pipeline import run_pipeline

FOLDER = Path(__file__).parent
OPERATORS = FOLDER.parents[1] / "docs/operators.md"
TFLITE_OPERATORS = FOLDER.parents[1] / "docs/tflite.md"
CAFFE_LAYERS = FOLDER.parents[1] / "docs/caffe.md"
TENSORFLOW_OPERATORS = FOLDER.parents[1] / "docs/tensorflow.md"
OPERATORS_HEAD = """\
# Supported ONNX operators

Made from the import rules by `make golden`; `mnnconvert ops` prints the same. *Since* is the opset of the operator from
which a rule applies; an operator with several rows changed its meaning between opsets. Everything else of an operator's
text is supported, with operands of any rank and open sizes, unless its limits say otherwise. An operator that works
*through its function body* has no rule: the standard defines it through others, by which it is replaced.

"""
TFLITE_HEAD = """\
# TFLite models

`mnnconvert -f TFLITE --modelFile m.tflite --MNNModel m.mnn` reads a model with `pip install 'mnnconvert[tflite]'`; with
`mnnconvert[litert]` the written file is also proved against LiteRT.

* **Names.** Inputs and outputs are called as the signature of the model calls them, or like their tensors where there
  is none. Of several signatures the one that calls the first subgraph is converted. Inputs keep their layout: what was
  channels last stays so.
* **Quantized models.** The graph computes on the numbers that codes stand for and rounds where TFLite does, to the same
  scales and zero points; the file also says in which steps each value is stored. Weights keep their codes. int8 inputs
  and outputs are int32 in the file, as the released runtime gives int8 ones with 128 added; uint8 ones stay. A proof
  allows one step, and two in one of a thousand values. Means are rounded as LiteRT rounds them, twice: of four codes, a
  quarter over makes one more.
* **Weights of other types.** float16 weights, integer weights of float models (2 to 8 bits) and sparse weights are
  taken as they are; for the proof LiteRT is given the decoded weights, as it would round the other operand to 8 bits.
* **State.** A variable NAME becomes an input NAME and an output NAME/next that the caller feeds back; so does a state
  tensor of a recurrent operator. The metadata `initial/NAME` of the file tells with what to start, otherwise zeros.
* **Control flow.** WHILE and IF become subgraphs; a condition that is known is decided when the model is converted.
* **Custom operators** that are not in the table are refused by name, all at once.

## Supported operators

Made from the import rules by `make golden`; `mnnconvert ops --framework TFLITE` prints the same. All versions and types
of an operator are supported, unless its limits say otherwise.

"""
CAFFE_HEAD = """\
# Caffe models

`mnnconvert -f CAFFE --prototxt net.prototxt --modelFile net.caffemodel --MNNModel m.mnn` reads a net and its trained
weights. Nothing has to be installed for that; with `mnnconvert[caffe]` the written file is also proved against OpenCV's
dnn module, of a version below 5, which does not read Caffe nets any more.

* **Forms.** All three forms of a prototxt are read (`layer`, `layers` with types in capitals, `layers` around `layer`),
  inputs as layers or by `input` with `input_dim` or `input_shape`, and weights as floats, doubles or halves in blobs of
  any form. Weights are found by the name of their layer and stay where they are in the file, of any size.
* **Phase.** The net is converted as it is tested: rules that include and exclude layers are obeyed for the phase TEST,
  with the level and stages of the net's `state`. What no layer reads is an output, under the name of its blob (under
  that of its layer, where that works in place of an input).
* **Sizes** are those of the prototxt; `--input-shape data:1x3x300x300` gives others, as Caffe itself allows.
* **Forks.** A setting of a layer that is not known is refused by name, as it would be lost; other additions of forks
  (`param`, `transform_param` and the like) are passed over. Unknown layers are refused, all at once. Layers of Python
  code are refused, except the proposals of Faster R-CNN, and so are layers whose definition is not public (`Lstm`,
  `OCRLSTM`, `Im2seq` and others that MNN's own converter names).
* **Verification.** `mnnconvert verify net.caffemodel m.mnn --prototxt net.prototxt --per-layer` compares all layers.
  OpenCV runs in a process of its own, as it ends on some nets; what it cannot run is not proved, as the report says.
* **Where OpenCV departs from Caffe**, Caffe's definition is what is written, and the report says that there is no
  proof.

## Supported layers

Made from the import rules by `make golden`; `mnnconvert ops --framework CAFFE` prints the same.

"""
TENSORFLOW_HEAD = """\
# TensorFlow models

`mnnconvert -f TF --modelFile m.pb --MNNModel m.mnn` reads a frozen graph with what every installation has. SavedModel
folders and Keras files (`.keras`, `.h5`, `.hdf5`) are frozen by TensorFlow, and written files of all forms are proved
against it: `pip install 'mnnconvert[tf]'`. `-f` may be left out.

* **Inputs and outputs.** Of a frozen graph the placeholders that are needed, and the nodes that no other node reads
  (`name:1` for a second result), each by its own name and in the order of the file. A SavedModel has the names of its
  signature, in the order of the alphabet: `serving_default`, the only one, or that which `--signature NAME` names. A
  Keras model has the names of its input and output layers. Inputs keep their layout: what was channels last stays so.
* **Placeholders with a default.** A single number, such as the switch for training, is taken as it is by default. A
  tensor stays an input, and the metadata `default/NAME` of the file tells its default. A default that is computed by
  the model takes the place of the placeholder.
* **Control flow** of both generations: functions (If, Case, While) and single nodes (Switch, Merge, Enter, Exit). A
  condition that is known is decided when the model is converted, a loop of up to 64 known turns is written out, and
  the rest becomes subgraphs. Calls are put in place.
* **Lists of tensors** (TensorList, TensorArray) become tensors; the sizes of their elements have to be known, or be
  those of something else in the model.
* **Types.** 64-bit integers have to fit into 32 bits; float64, float16 and bfloat16 are computed in float32. int8
  inputs and outputs are int32 in the file, as the released runtime gives int8 ones with 128 added.
* **What has no result for the outputs** (assertions, summaries, savers) is left out. Strings, hash tables and whatever
  else is not in the table are refused by name, all at once.

## Supported operators

Made from the import rules by `make golden`; `mnnconvert ops --framework TF` prints the same. All attributes of an
operator are supported, unless its limits say otherwise.

"""


@dataclass(frozen=True)
class Animal:
    """A model: ONNX text from the graph's inputs on, and the shapes of its float weights."""

    text: str
    weights: dict[str, tuple[int, ...]]
    opset: int = 17


ZOO = {
    "conv_bn_relu": Animal(
        """(float[n, 3, h, w] image) => (float[n, 4, H, W] features)
        {
            c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]> (image, kernel)
            b = BatchNormalization <epsilon = 0.0> (c, gamma, beta, mean, var)
            features = Relu(b)
        }""",
        {"kernel": (4, 3, 3, 3), "gamma": (4,), "beta": (4,), "mean": (4,), "var": (4,)},
    ),
    "mlp": Animal(
        """(float[n, 16] x) => (float[n, 4] y)
        {
            a0 = MatMul(x, w0)
            a1 = Add(a0, b0)
            root = Constant <value = float {1.4142135}> ()
            one = Constant <value = float {1.0}> ()
            half = Constant <value = float {0.5}> ()
            g0 = Div(a1, root)
            g1 = Erf(g0)
            g2 = Add(g1, one)
            g3 = Mul(a1, g2)
            g4 = Mul(g3, half)
            z = Gemm <transB = 1> (g4, w1, b1)
            y = Softmax <axis = -1> (z)
        }""",
        {"w0": (16, 32), "b0": (32,), "w1": (4, 32), "b1": (4,)},
    ),
    "attention": Animal(
        """(float[n, s, 16] x) => (float[n, s, 16] y)
        <int64[4] heads = {0, 0, 2, 8}, int64[3] joined = {0, 0, 16}, float scale = {0.35355339}>
        {
            q0 = MatMul(x, wq)
            k0 = MatMul(x, wk)
            v0 = MatMul(x, wv)
            q1 = Reshape(q0, heads)
            k1 = Reshape(k0, heads)
            v1 = Reshape(v0, heads)
            q = Transpose <perm = [0, 2, 1, 3]> (q1)
            k = Transpose <perm = [0, 2, 3, 1]> (k1)
            v = Transpose <perm = [0, 2, 1, 3]> (v1)
            logits = MatMul(q, k)
            scaled = Mul(logits, scale)
            weights = Softmax <axis = -1> (scaled)
            mixed = MatMul(weights, v)
            turned = Transpose <perm = [0, 2, 1, 3]> (mixed)
            flat = Reshape(turned, joined)
            projected = MatMul(flat, wo)
            added = Add(projected, x)
            y = LayerNormalization <axis = -1> (added, gamma, beta)
        }""",
        {"wq": (16, 16), "wk": (16, 16), "wv": (16, 16), "wo": (16, 16), "gamma": (16,), "beta": (16,)},
    ),
    "dynamic_reshape": Animal(
        """(float[n, c, h, w] x) => (float[n, p, c] y)
        <int64[1] zero = {0}, int64[1] two = {2}, int64[1] four = {4}, int64[1] rest = {-1}>
        {
            shape = Shape(x)
            nc = Slice(shape, zero, two)
            hw = Slice(shape, two, four)
            target = Concat <axis = 0> (nc, rest)
            flat = Reshape(x, target)
            y = Transpose <perm = [0, 2, 1]> (flat)
        }""",
        {},
    ),
}


def weight(shape: tuple[int, ...], first: int) -> np.ndarray:
    """Positive numbers that float32 holds exactly, starting with another for each weight, so that no two are equal."""
    numbers = (np.arange(int(np.prod(shape)), dtype=np.float32) + first) % 13 + 1
    return (numbers / 16).reshape(shape)


def model(animal: Animal) -> ModelProto:
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["": {animal.opset}]> zoo {animal.text}')
    for first, (name, shape) in enumerate(animal.weights.items()):
        proto.graph.initializer.append(numpy_helper.from_array(weight(shape, first), name))
    return proto


def optimized(name: str) -> Graph:
    """The graph as it is written for the default target."""
    graph = Importer(model(ZOO[name]), FOLDER).run()
    run_pipeline(graph)
    return graph


def operators() -> str:
    """The operator table as a page."""
    listed = sorted(api.supported_ops("ONNX"), key=lambda op: (str(op["name"]).lower(), op["since"]))
    rows = [(op["name"], op["since"], op["limits"]) for op in listed]
    return f"{OPERATORS_HEAD}{markdown_table(('Operator', 'Since', 'Limits'), rows)}\n"


def tflite_operators() -> str:
    """What there is to know about TFLite models, with the table of operators."""
    rows = [(op["name"], op["limits"]) for op in api.supported_ops("TFLITE")]
    return f"{TFLITE_HEAD}{markdown_table(('Operator', 'Limits'), rows)}\n"


def caffe_layers() -> str:
    """What there is to know about Caffe models, with the table of layers."""
    rows = [(op["name"], op["limits"]) for op in api.supported_ops("CAFFE")]
    return f"{CAFFE_HEAD}{markdown_table(('Layer', 'Limits'), rows)}\n"


def tensorflow_operators() -> str:
    """What there is to know about TensorFlow models, with the table of operators."""
    rows = [(op["name"], op["limits"]) for op in api.supported_ops("TF")]
    return f"{TENSORFLOW_HEAD}{markdown_table(('Operator', 'Limits'), rows)}\n"


def dumps() -> Iterator[tuple[Path, str]]:
    """Every kept file and what it has to hold."""
    for name in ZOO:
        yield FOLDER / f"{name}.txt", to_text(optimized(name))
    yield OPERATORS, operators()
    yield TFLITE_OPERATORS, tflite_operators()
    yield CAFFE_LAYERS, caffe_layers()
    yield TENSORFLOW_OPERATORS, tensorflow_operators()


def main() -> None:
    for path, text in dumps():
        changed = not path.exists() or path.read_text(encoding="utf-8") != text
        path.write_text(text, encoding="utf-8")
        print(f"{'written' if changed else 'same   '} {path.relative_to(FOLDER.parents[1])}")


if __name__ == "__main__":
    main()
