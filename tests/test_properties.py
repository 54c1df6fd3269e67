"""What must hold for every model: batches, names, nodes that do nothing, weights that are quantized twice, defaults."""

import json

import numpy as np
import onnx
import pytest
from onnx import defs, helper
from onnx_cases import assert_equal, model, onnxruntime_outputs

import mnnconvert
from mnnconvert import api

rng = np.random.default_rng(0)


def noise(*shape):
    return rng.standard_normal(shape).astype(np.float32)


NETWORK = (
    "(float[n,2,8,8] x) => (float[n,k] y) {"
    " c = Conv <kernel_shape=[3,3], pads=[1,1,1,1]> (x, w, b)"
    " r = Relu (c) p = MaxPool <kernel_shape=[2,2], strides=[2,2]> (r)"
    " f = Flatten <axis=1> (p) m = MatMul (f, v) a = Add (m, u) g = Sigmoid (a) h = Mul (g, a)"
    " y = Softmax <axis=-1> (h) }"
)
WEIGHTS = {"w": 0.2 * noise(8, 2, 3, 3), "b": noise(8), "v": 0.05 * noise(128, 12), "u": noise(12)}


def converted(proto, folder, name="m", **options):
    onnx.save(proto, folder / f"{name}.onnx")
    report = mnnconvert.convert(folder / f"{name}.onnx", folder / f"{name}.mnn", verify="never", **options)
    return report, mnnconvert.load(folder / f"{name}.mnn")


@pytest.mark.parametrize("copies", [2, 5])
@pytest.mark.parametrize("options", [{}, {"weight_bits": 8}], ids=str)
def test_a_batch_of_one_sample(options, copies, tmp_path):
    _, session = converted(model(NETWORK, WEIGHTS)[0], tmp_path, **options)
    x = noise(1, 2, 8, 8)
    one, many = (session.run({"x": np.repeat(x, k, axis=0)})["y"] for k in (1, copies))
    np.testing.assert_allclose(many, np.repeat(one, copies, axis=0), rtol=1e-5)  # products may be summed in blocks


def renamed(proto, prefix):
    """The model with `prefix` before the name of every node and tensor."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for i, node in enumerate(copy.graph.node):
        node.name = f"{prefix}node_{i}"
        node.input[:] = [prefix + name for name in node.input]
        node.output[:] = [prefix + name for name in node.output]
    for named in (*copy.graph.input, *copy.graph.output, *copy.graph.initializer):
        named.name = prefix + named.name
    return copy


@pytest.mark.parametrize("options", [{}, {"weight_bits": 4}], ids=str)
def test_other_names_change_names_only(options, tmp_path):
    texts = []
    for prefix in ("one_", "two_"):
        converted(renamed(model(NETWORK, WEIGHTS)[0], prefix), tmp_path, prefix, **options)
        api.to_json(tmp_path / f"{prefix}.mnn", tmp_path / "m.json")
        document = json.loads((tmp_path / "m.json").read_text())
        del document["extraInfo"], document["mnn_uuid"]  # the names once more as bytes, and a digest of all
        texts.append(json.dumps(document))
    assert "one_" in texts[0]
    assert texts[0].replace("one_", "two_") == texts[1]


def with_no_op(proto, edge, kind):
    """The model with a node that does nothing on the edge `edge` = (node, operand)."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    node, operand = edge
    source = copy.graph.node[node].input[operand]
    attributes = {"to": onnx.TensorProto.FLOAT} if kind == "Cast" else {}
    copy.graph.node.insert(node, helper.make_node(kind, [source], ["nothing"], **attributes))
    copy.graph.node[node + 1].input[operand] = "nothing"
    return copy


@pytest.mark.parametrize("kind", ["Identity", "Cast"])
def test_nodes_that_do_nothing(kind, tmp_path):
    proto = model(NETWORK, WEIGHTS)[0]
    x = noise(2, 2, 8, 8)
    plain, session = converted(proto, tmp_path)
    want = session.run({"x": x})["y"]
    edges = [(i, k) for i, node in enumerate(proto.graph.node) for k in range(len(node.input))]
    for number in rng.choice(len(edges), 8, replace=False):
        report, session = converted(with_no_op(proto, edges[number], kind), tmp_path)
        assert report.nodes_after == plain.nodes_after, edges[number]
        np.testing.assert_array_equal(session.run({"x": x})["y"], want)


def codes(path):
    """The decoded weights of a file by name, and their integers."""
    from mnnconvert.ir import CodedTensor
    from mnnconvert.schema.reader import read_model

    tensors = {v.name: v.tensor for v in read_model(path).constants() if isinstance(v.tensor, CodedTensor)}
    return {name: (t.numpy(), np.asarray(t.coded.codes)) for name, t in tensors.items()}


@pytest.mark.parametrize(
    "options",
    [{"weight_bits": 8}, {"weight_bits": 4}, {"weight_bits": 4, "weight_block": 32},
     {"weight_bits": 8, "weight_quant_asymmetric": False}],
    ids=str,
)  # fmt: skip
def test_weights_quantized_again_are_the_same_integers(options, tmp_path):
    converted(model(NETWORK, WEIGHTS)[0], tmp_path, "a", **options)
    first = codes(tmp_path / "a.mnn")
    assert first
    mnnconvert.convert(tmp_path / "a.mnn", tmp_path / "b.mnn", verify="never", **options)
    second = codes(tmp_path / "b.mnn")
    for name, (_, integers) in first.items():
        np.testing.assert_array_equal(second[name][1], integers)


X, NARROW = noise(2, 3, 6, 5), noise(2, 3, 4)
BARE: dict[str, tuple[str, dict]] = {  # op -> nodes without an optional attribute, and arrays
    "Softmax": ("y = Softmax (x)", {"x": X}), "LogSoftmax": ("y = LogSoftmax (x)", {"x": X}),
    "Hardmax": ("y = Hardmax (x)", {"x": X}), "Flatten": ("y = Flatten (x)", {"x": X}),
    "LeakyRelu": ("y = LeakyRelu (x)", {"x": X}), "Elu": ("y = Elu (x)", {"x": X}), "Selu": ("y = Selu (x)", {"x": X}),
    "HardSigmoid": ("y = HardSigmoid (x)", {"x": X}), "ThresholdedRelu": ("y = ThresholdedRelu (x)", {"x": X}),
    "Transpose": ("y = Transpose (x)", {"x": X}), "ArgMax": ("y = ArgMax (x)", {"x": X}),
    "ArgMin": ("y = ArgMin (x)", {"x": X}), "ReduceSum": ("y = ReduceSum (x)", {"x": X}),
    "ReduceMean": ("y = ReduceMean (x)", {"x": X}), "ReduceMax": ("y = ReduceMax (x)", {"x": X}),
    "ReduceL2": ("y = ReduceL2 (x)", {"x": X}), "Squeeze": ("y = Squeeze (x)", {"x": noise(1, 3, 1)}),
    "Gather": ("y = Gather (x, i)", {"x": X, "i": np.array([1, 0])}),
    "Conv": ("y = Conv (x, w)", {"x": X, "w": noise(4, 3, 2, 3)}),
    "ConvTranspose": ("y = ConvTranspose (x, w)", {"x": X, "w": noise(3, 2, 2, 3)}),
    "MaxPool": ("y = MaxPool <kernel_shape=[2,3]> (x)", {"x": X}),
    "AveragePool": ("y = AveragePool <kernel_shape=[2,3]> (x)", {"x": X}),
    "LpPool": ("y = LpPool <kernel_shape=[2,3]> (x)", {"x": X}),
    "LRN": ("y = LRN <size=3> (x)", {"x": X}),
    "Gemm": ("y = Gemm (x, w, b)", {"x": noise(3, 4), "w": noise(4, 5), "b": noise(5)}),
    "BatchNormalization": ("y = BatchNormalization (x, s, b, m, v)",
                           {"x": X, "s": noise(3), "b": noise(3), "m": noise(3), "v": np.abs(noise(3))}),
    "InstanceNormalization": ("y = InstanceNormalization (x, s, b)", {"x": X, "s": noise(3), "b": noise(3)}),
    "LayerNormalization": ("y = LayerNormalization (x, s)", {"x": X, "s": noise(5)}),
    "DepthToSpace": ("y = DepthToSpace <blocksize=2> (x)", {"x": noise(1, 8, 2, 3)}),
    "CumSum": ("y = CumSum (x, i)", {"x": X, "i": np.array(1)}),
    "TopK": ("y, z = TopK (x, k)", {"x": X, "k": np.array([2])}),
    "OneHot": ("y = OneHot (x, d, v)",
               {"x": np.array([1, 0, 2]), "d": np.array([3]), "v": np.array([0, 1], np.float32)}),
    "Resize": ("y = Resize (x, roi, s)", {"x": X, "roi": noise(0), "s": np.array([1, 1, 2, 2], np.float32)}),
    "Gelu": ("y = Gelu (x)", {"x": X}), "Trilu": ("y = Trilu (x)", {"x": X}), "Mod": ("y = Mod (x, i)",
             {"x": np.array([5, -7, 8]), "i": np.array([3, 3, -3])}),
    "QuantizeLinear": ("y = QuantizeLinear (x, s)", {"x": X, "s": np.float32(0.1)}),
    "GatherElements": ("y = GatherElements (x, i)", {"x": NARROW, "i": np.array([[[1, 0, 1, 0]]])}),
    "LSTM": ("y = LSTM <hidden_size=2> (x, w, r)", {"x": NARROW, "w": noise(1, 8, 4), "r": noise(1, 8, 2)}),
    "GRU": ("y = GRU <hidden_size=2> (x, w, r)", {"x": NARROW, "w": noise(1, 6, 4), "r": noise(1, 6, 2)}),
    "RNN": ("y = RNN <hidden_size=2> (x, w, r)", {"x": NARROW, "w": noise(1, 2, 4), "r": noise(1, 2, 2)}),
    "Pad": ("y = Pad (x, p)", {"x": X, "p": np.array([0, 0, 1, 2, 0, 0, 0, 1])}),
    "GridSample": ("y = GridSample (x, g)", {"x": X, "g": np.clip(noise(2, 4, 4, 2), -0.9, 0.9)}),
}  # fmt: skip
ONNX_TYPES = {"float32": "float", "int64": "int64", "uint8": "uint8"}


def versions(op):
    """The opsets from 7 to 23 at which the op, as it is written above, has another schema."""
    text, arrays = BARE[op]
    operands = len(arrays)
    schemas = {}
    for opset in range(7, 24):
        if not defs.has(op, opset, ""):
            continue
        schema = defs.get_schema(op, opset, "")
        if schema.min_input <= operands <= schema.max_input and not any(
            a.required and a.name not in text for a in schema.attributes.values()
        ):
            schemas.setdefault(schema.since_version, opset)
    return list(schemas.values())


@pytest.mark.parametrize(("op", "opset"), [(op, opset) for op in BARE for opset in versions(op)])
def test_attributes_left_out_take_the_defaults_of_their_opset(op, opset):
    from graphs import import_proto, run_graph

    text, arrays = BARE[op]
    inputs = ", ".join(
        f"{ONNX_TYPES[str(np.asarray(a).dtype)]}{list(np.shape(a)) or ''} {name}"
        for name, a in arrays.items()
        if name == "x"
    )
    results = ", ".join(f"float {r.strip()}" for r in text.split("=")[0].split(","))
    proto, feeds = model(f"({inputs}) => ({results}) {{ {text} }}", arrays, opset)
    for output in proto.graph.output:
        output.ClearField("type")
    typed = onnx.shape_inference.infer_shapes(proto)
    want = onnxruntime_outputs(typed, feeds)
    got = run_graph(import_proto(typed), feeds)
    for name, value in want.items():
        assert_equal(got[name], value, 1e-5, 1e-6, name)


def test_whatever_convert_raises_is_a_conversion_error():
    """One class to catch, as the interface promises; the exit codes of the command line stay apart."""
    from mnnconvert.errors import ConversionError, GateError, UsageError

    assert issubclass(UsageError, ConversionError) and issubclass(GateError, ConversionError)
    assert (ConversionError.exit_code, UsageError.exit_code, GateError.exit_code) == (1, 2, 3)
