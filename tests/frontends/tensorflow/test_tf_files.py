"""Frozen graphs, SavedModels and Keras files from end to end, and files that are none of these."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from tf_cases import array, check, raw, refusal, refused, source_of, tf, traced

import mnnconvert
from mnnconvert.errors import ConversionError, UsageError
from mnnconvert.frontends.tensorflow import framework
from mnnconvert.frontends.tensorflow.model import SourceTensor, load_frozen, read_tensor
from mnnconvert.frontends.tensorflow.reader import read_tensorflow
from mnnconvert.frontends.tensorflow.wire import Message, fields
from mnnconvert.ir import verify
from mnnconvert.verify.tensorflow_engine import TensorFlowEngine


def frozen(path, function, *specs):
    """A frozen graph file of a Python function."""
    path.write_bytes(traced(function, specs).graph.as_graph_def().SerializeToString())
    return path


def convert(source, folder, **keywords):
    """Convert, with proof in our executor and in the released runtime."""
    report = mnnconvert.convert(source, folder / "m.mnn", verify="always", **keywords)
    assert report.verification is not None and report.verification.passed
    return mnnconvert.load(folder / "m.mnn")


class Scaled(tf.Module):
    """A model of variables with two signatures."""

    def __init__(self):
        super().__init__()
        self.w = tf.Variable(array((3, 4)))

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, name="rows")])
    def product(self, rows):
        return {"sums": tf.reduce_sum(rows, 1), "product": tf.nn.relu(rows @ self.w)}

    @tf.function(input_signature=[tf.TensorSpec([2], tf.float32, name="b"), tf.TensorSpec([2], tf.float32, name="a")])
    def difference(self, b, a):
        return {"y": b - a}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "model"
    module = Scaled()
    tf.saved_model.save(module, str(folder), {"serving_default": module.product, "other": module.difference})
    return folder


def test_saved_model_keeps_the_names_of_its_signature(saved, tmp_path):
    session = convert(saved, tmp_path)
    assert [i.name for i in session.inputs] == ["rows"]
    assert [o.name for o in session.outputs] == ["product", "sums"]
    session = convert(saved / "saved_model.pb", tmp_path, signature="other", framework="TF")
    assert [i.name for i in session.inputs] == ["a", "b"]
    got = session.run({"a": np.float32([1, 2]), "b": np.float32([5, 5])})
    np.testing.assert_array_equal(got["y"], [4, 3])


def test_signatures_are_named_where_the_choice_is_open(saved, tmp_path):
    with pytest.raises(UsageError) as caught:
        read_tensorflow(saved, signature="third")
    assert "other, serving_default" in caught.value.diagnostics[0].hint
    module = Scaled()
    tf.saved_model.save(module, str(tmp_path / "m"), {"one": module.product, "two": module.difference})
    with pytest.raises(UsageError) as caught:
        read_tensorflow(tmp_path / "m")
    assert "one, two" in caught.value.diagnostics[0].hint


def test_signature_is_for_saved_models_only(tmp_path):
    path = frozen(tmp_path / "m.pb", lambda x: x + 1.0, tf.TensorSpec([2], tf.float32, name="x"))
    with pytest.raises(UsageError):
        mnnconvert.convert(path, tmp_path / "m.mnn", signature="a")
    with pytest.raises(UsageError):
        mnnconvert.convert(path, tmp_path / "m.mnn", framework="ONNX", signature="a")


def test_first_generation_saved_model(tmp_path):
    graph = tf.Graph()
    with graph.as_default(), tf.compat.v1.Session(graph=graph) as session:
        x = tf.compat.v1.placeholder(tf.float32, [None, 3], name="x")
        w = tf.compat.v1.get_variable("w", [3, 2], use_resource=False)
        y = tf.matmul(x, w, name="y")
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.saved_model.simple_save(session, str(tmp_path / "model"), {"in": x}, {"out": y})
    session = convert(tmp_path / "model", tmp_path)
    assert [i.name for i in session.inputs] == ["in"] and [o.name for o in session.outputs] == ["out"]


def small_keras():
    tf.keras.utils.set_random_seed(0)
    layers = tf.keras.layers
    image = layers.Input((12, 10, 3), name="image")
    y = layers.Conv2D(6, 3, strides=2, padding="same", activation="relu")(image)
    y = layers.BatchNormalization()(y)
    y = layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2)(y)
    y = layers.Conv2DTranspose(4, 3, strides=2, padding="same")(y)
    y = layers.UpSampling2D(interpolation="bilinear")(y)
    features = layers.GlobalAveragePooling2D(name="features")(y)
    return tf.keras.Model(image, [layers.Dense(5, activation="softmax", name="scores")(features), features])


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_keras_file(suffix, tmp_path):
    path = tmp_path / f"m{suffix}"
    small_keras().save(path)
    session = convert(path, tmp_path)
    assert [(i.name, i.shape[1:]) for i in session.inputs] == [("image", (12, 10, 3))]
    assert [o.name for o in session.outputs] == ["scores", "features"]


def test_keras_model_with_several_inputs(tmp_path):
    layers = tf.keras.layers
    words, more = layers.Input((7,), dtype="int32", name="words"), layers.Input((4,), name="more")
    y = layers.Flatten()(layers.Embedding(20, 3)(words))
    model = tf.keras.Model({"words": words, "more": more}, layers.Concatenate(name="all")([y, more]))
    model.save(tmp_path / "m.keras")
    assert {i.name for i in convert(tmp_path / "m.keras", tmp_path).inputs} == {"words", "more"}


def recurrent_keras(kind, steps):
    tf.keras.utils.set_random_seed(0)
    layers = tf.keras.layers
    x = layers.Input((steps, 3), name="x")
    layer = getattr(layers, kind)
    y = layers.Bidirectional(layer(4, return_sequences=True))(x)
    return tf.keras.Model(x, layer(3, name="last")(y))


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        ("LSTM", None),
        ("SimpleRNN", 5),
        *(pytest.param(*c, marks=pytest.mark.slow) for c in [("GRU", None), ("LSTM", 5)]),
    ],
)
def test_recurrent_keras_model(kind, steps, tmp_path):
    recurrent_keras(kind, steps).save(tmp_path / "m.keras")
    convert(tmp_path / "m.keras", tmp_path)


def test_recurrent_saved_model(tmp_path):
    tf.keras.utils.set_random_seed(0)
    x = tf.keras.layers.Input((None, 3), name="x")
    tf.keras.Model(x, tf.keras.layers.GRU(3)(x)).export(str(tmp_path / "saved"), verbose=False)
    convert(tmp_path / "saved", tmp_path)


def test_transformer_block(tmp_path):
    tf.keras.utils.set_random_seed(0)
    layers = tf.keras.layers
    x = layers.Input((6, 8), name="x")
    y = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x))
    y = layers.LayerNormalization()(y + layers.Dense(8)(layers.Dense(16, activation="gelu")(y)))
    tf.keras.Model(x, y).save(tmp_path / "m.keras")
    convert(tmp_path / "m.keras", tmp_path)


def test_frozen_graph_needs_no_tensorflow_to_be_read(tmp_path, monkeypatch):
    path = frozen(tmp_path / "m.pb", lambda x: tf.nn.relu(x), tf.TensorSpec([None, 2], tf.float32, name="x"))

    def missing(name, *_):
        return None

    monkeypatch.setattr(framework, "find_spec", missing)
    graph = read_tensorflow(path)
    verify(graph, "import")
    framework._opened.cache_clear()
    with pytest.raises(ConversionError) as caught:
        read_tensorflow(tmp_path)
    assert caught.value.diagnostics[0].reference in ("bad-tensorflow-file", "missing-extra")


def test_input_sizes_can_be_fixed(tmp_path):
    path = frozen(tmp_path / "m.pb", lambda x: x * 2.0, tf.TensorSpec([None, None, 3], tf.float32, name="x"))
    assert read_tensorflow(path, {"x": (2, 5, 3)}).inputs[0].shape == (2, 5, 3)
    assert read_tensorflow(path, batch=4).inputs[0].shape == (4, "x.1", 3)
    for shapes in ({"y": (1,)}, {"x": (2, 5)}, {"x": (2, 5, 4)}):
        with pytest.raises(ConversionError) as caught:
            read_tensorflow(path, shapes)
        assert caught.value.diagnostics[0].reference == "unknown-input"


def test_order_and_names_of_ports(tmp_path):
    def function(b, a):
        top = raw.TopKV2(input=b + a, k=2)
        return top, raw.Identity(input=a, name="end")

    specs = [tf.TensorSpec([3], tf.float32, name=name) for name in ("b", "a")]
    model = load_frozen(frozen(tmp_path / "m.pb", function, *specs))
    assert [name for name, _ in model.inputs] == ["b", "a"]
    assert [name for name, _ in model.outputs][:1] != [] and all(
        ":" not in n or n.endswith(":1") for n, _ in model.outputs
    )


@pytest.mark.parametrize("cut", [0.1, 0.5, 0.9, 0.99])
def test_cut_off_files_are_named(cut, tmp_path):
    path = frozen(tmp_path / "m.pb", lambda x: x @ array((3, 4)), tf.TensorSpec([None, 3], tf.float32, name="x"))
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * cut)])
    with pytest.raises(ConversionError) as caught:
        read_tensorflow(path)
    assert caught.value.diagnostics[0].reference == "bad-tensorflow-file"


@pytest.mark.parametrize(
    "content", [b"", b"hello, this is no model", b"node { name: 'x' }", bytes(50), b"\x0a\xff\xff\xff\xff\x7f"]
)
def test_other_files_are_named(content, tmp_path):
    (tmp_path / "m.pb").write_bytes(content)
    with pytest.raises(ConversionError) as caught:
        read_tensorflow(tmp_path / "m.pb")
    assert caught.value.diagnostics[0].reference == "bad-tensorflow-file"


def test_damaged_bytes_never_give_another_error(tmp_path):
    path = frozen(
        tmp_path / "m.pb", lambda x: tf.nn.softmax(x @ array((3, 4))), tf.TensorSpec([2, 3], tf.float32, name="x")
    )
    content = path.read_bytes()
    random = np.random.default_rng(0)
    for _ in range(150):
        damaged = bytearray(content)
        for at in random.integers(0, len(content), 3):
            damaged[at] = random.integers(256)
        path.write_bytes(damaged)
        try:
            read_tensorflow(path)
        except ConversionError as error:
            assert error.diagnostics


def test_folders_and_keras_files_that_are_none(tmp_path):
    with pytest.raises(ConversionError):
        read_tensorflow(tmp_path)
    (tmp_path / "saved_model.pb").write_bytes(b"nothing")
    with pytest.raises(ConversionError):
        read_tensorflow(tmp_path)
    (tmp_path / "m.keras").write_bytes(b"nothing")
    with pytest.raises(ConversionError):
        read_tensorflow(tmp_path / "m.keras")


def test_loops_in_the_wiring_are_named():
    from tf_cases import model_of

    definition = tf.compat.v1.GraphDef()
    for name, operand in (("a", "b"), ("b", "a"), ("c", "a")):
        definition.node.add(name=name, op="Relu", input=[operand])
    with pytest.raises(ConversionError) as caught:
        from mnnconvert.frontends.tensorflow.importer import Importer

        Importer(model_of(definition)).run()
    assert "depends on itself" in caught.value.diagnostics[0].message


def test_all_problems_are_reported():
    def function(x):
        bad = raw.MaxPool(input=x, ksize=[1, 1, 1, 2], strides=[1, 1, 1, 2], padding="VALID")
        worse = raw.QuantizeAndDequantizeV2(input=x, input_min=0.0, input_max=0.0)
        return bad, worse, tf.nn.relu(worse)

    assert len(refusal(function, array((1, 4, 4, 2)))) == 2


def test_strings_and_tables_are_refused_together():
    @tf.function(autograph=False)
    def function(x):
        table = raw.MutableHashTableV2(key_dtype=tf.string, value_dtype=tf.int64)
        found = raw.LookupTableFindV2(table_handle=table, keys=raw.AsString(input=x), default_value=np.int64(0))
        return raw.StringLength(input=raw.AsString(input=x)), found

    concrete = function.get_concrete_function(tf.TensorSpec([2], tf.float32))
    problems = refused(source_of(concrete))
    assert {p.context["op"] for p in problems} == {
        "AsString",
        "StringLength",
        "LookupTableFindV2",
        "MutableHashTableV2",
    }


KINDS = (
    "float32", "float64", "float16", "bfloat16", "int32", "int64", "int16", "uint8", "int8", "bool", "uint16", "uint32",
    "uint64",
)  # fmt: skip
FIELDS = {
    "float32": "float_val", "float64": "double_val", "int64": "int64_val", "bool": "bool_val", "float16": "half_val",
    "bfloat16": "half_val", "uint32": "uint32_val", "uint64": "uint64_val",
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("listed", [False, True])
def test_constants_of_all_types(kind, listed):
    values = np.array([[0, 1, 2], [3, 1, 1]])
    content = values.astype(bool) if kind == "bool" else values
    proto = tf.make_tensor_proto(tf.cast(content, kind).numpy(), shape=(2, 3))
    if listed:  # the last number stands for the rest
        proto = type(proto)(dtype=proto.dtype, tensor_shape=proto.tensor_shape)
        field = FIELDS.get(kind, "int_val")
        numbers = [0, 1, 2, 3, 1]
        if field == "half_val":
            numbers = tf.cast(numbers, kind).numpy().view(np.uint16).tolist()
        getattr(proto, field).extend([bool(v) for v in numbers] if kind == "bool" else numbers)
    tensor = read_tensor(Message(memoryview(proto.SerializeToString())))
    assert isinstance(tensor, SourceTensor) and tensor.type == kind
    np.testing.assert_array_equal(tensor.array().astype(np.float64), content.astype(np.float64))


def test_fields_of_the_wire_format():
    data = b"\x08\x96\x01" + b"\x15" + struct.pack("<f", 1.5) + b"\x1a\x02hi" + b"\x19" + bytes(8)
    assert [(number, kind) for number, kind, _ in fields(memoryview(data))] == [(1, 0), (2, 5), (3, 2), (3, 1)]
    for wrong in (b"\x08", b"\x0b", b"\x1a\x05hi", b"\x08" + b"\xff" * 11):
        with pytest.raises(ConversionError):
            list(fields(memoryview(wrong)))


def test_inputs_that_nothing_depends_on_stay(tmp_path):
    class Two(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([2], tf.float32, name=name) for name in ("used", "unused")])
        def call(self, used, unused):
            return {"y": used * 2.0}

    module = Two()
    tf.saved_model.save(module, str(tmp_path / "m"), {"serving_default": module.call})
    session = convert(tmp_path / "m", tmp_path)
    assert {i.name for i in session.inputs} == {"used", "unused"}


def test_inputs_of_unknown_rank(tmp_path):
    spec = tf.TensorSpec(None, tf.float32, name="x")
    path = frozen(tmp_path / "m.pb", lambda x: tf.reduce_sum(tf.nn.relu(x), -1), spec)
    assert read_tensorflow(path).inputs[0].shape is None
    assert read_tensorflow(path, {"x": (2, 3)}).outputs[0][1].shape == (2,)
    convert(path, tmp_path, input_shape={"x": (2, 3)})


def test_weights_without_a_network(tmp_path):
    small_keras().save_weights(tmp_path / "m.weights.h5")
    with pytest.raises(ConversionError) as caught:
        read_tensorflow(tmp_path / "m.weights.h5")
    assert caught.value.diagnostics[0].reference == "weights-without-network"


def test_layers_are_compared_one_by_one(tmp_path):
    w = array((3, 3, 3, 4))
    path = frozen(
        tmp_path / "m.pb",
        lambda x: tf.nn.softmax(tf.reduce_mean(tf.nn.relu(tf.nn.conv2d(x, w, 1, "SAME")), [1, 2])),
        tf.TensorSpec([1, 6, 6, 3], tf.float32, name="x"),
    )
    convert(path, tmp_path)
    result = mnnconvert.verify(path, tmp_path / "m.mnn", per_layer=True)
    assert result.passed and result.layers is not None
    assert [(layer.name, layer.op) for layer in result.layers.layers] == [
        ("Relu", "Convolution"), ("Mean", "Pooling"), ("Identity", "Softmax"),
    ]  # fmt: skip
    assert all(not layer.reason for layer in result.layers.layers)


@pytest.mark.parametrize("form", ["keras", "saved"])
def test_a_broken_layer_is_named_in_every_form(form, tmp_path):
    """The file has another weight than the model beside it, in one layer."""
    model = tf.keras.Sequential([
        tf.keras.Input((6, 6, 3)), tf.keras.layers.Conv2D(4, 3, activation="relu"), tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(5, activation="tanh", name="middle"), tf.keras.layers.Dense(2),
    ])  # fmt: skip
    path = tmp_path / ("m.keras" if form == "keras" else "m")

    def store():
        model.save(path) if form == "keras" else model.export(str(path), verbose=False)

    store()
    convert(path, tmp_path)
    result = mnnconvert.verify(path, tmp_path / "m.mnn", per_layer=True)
    assert result.passed and result.layers.first_bad is None and len(result.layers.layers) >= 4
    kernel, bias = model.get_layer("middle").get_weights()
    model.get_layer("middle").set_weights([kernel * 1.5, bias])
    store()
    result = mnnconvert.verify(path, tmp_path / "m.mnn", per_layer=True, repro=tmp_path / "layer")
    assert not result.passed and [bool(r.reason) for r in result.layers.layers].count(True) == 1
    assert "middle" in result.layers.first_bad.name and (tmp_path / "layer" / "expected.npz").is_file()


def test_values_inside_of_branches_that_are_not_taken_are_left_out(tmp_path):
    from test_tf_control import first_generation_graph

    path = tmp_path / "m.pb"
    path.write_bytes(first_generation_graph().SerializeToString())
    engine = TensorFlowEngine(path)
    names = [name for layer in engine.layers() for name in layer.outputs]
    feeds = {"x0": np.ones((2, 3), np.float32), "x1": np.array(True)}
    found = engine.run_values(feeds, names)
    assert 0 < len(found) < len(names) and set(found) <= set(names)


def test_engine_tells_what_a_model_takes(saved):
    engine = TensorFlowEngine(saved)
    assert [(i.name, i.shape) for i in engine.inputs] == [("rows", ("rows.0", 3))]
    got = engine.run({"rows": np.ones((2, 3), np.float32)})
    assert set(got) == {"sums", "product"} and got["sums"].tolist() == [3, 3]
    with pytest.raises(ConversionError) as caught:
        engine.run({"rows": np.ones((2, 4), np.float32)})
    assert caught.value.diagnostics[0].reference == "source-engine-failed"


def test_command_line(saved, tmp_path, capfd):
    from mnnconvert.cli.main import main

    target = str(tmp_path / "m.mnn")
    assert main(["-f", "TF", "--modelFile", str(saved), "--MNNModel", target, "--signature=other", "--json"]) == 0
    out = capfd.readouterr()
    assert json.loads(out.out)["verification"]["passed"] is True and "absl" not in out.err
    assert main(["verify", str(saved), target, "--json"]) != 0  # the default signature is another model
    capfd.readouterr()
    assert main(["ops", "--framework", "TF", "--json"]) == 0
    assert len(json.loads(capfd.readouterr().out)["operators"]) >= 180


def test_converted_graph_stays_small():
    """Between the layers of an image network no layout is changed."""
    w = array((3, 3, 3, 3))

    def function(x):
        for _ in range(4):
            x = tf.nn.relu6(tf.nn.conv2d(x, w, 1, "SAME") * array((3,)) + array((3,), seed=1))
            x = tf.nn.max_pool2d(x, 2, 1, "SAME") + x
        return tf.reduce_mean(x, [1, 2])

    graph = check(function, array((1, 8, 8, 3)), rtol=1e-4)
    moves = [n.op.kind for n in graph.nodes if n.op.kind in ("Permute", "ConvertTensor")]
    assert len(moves) <= 4


@pytest.mark.parametrize("name", ["m.ckpt-7.meta", ".meta", "m.index"])
def test_checkpoints_are_refused_with_the_way_out(name, tmp_path):
    (tmp_path / name).write_bytes(b"\n\3abc")
    with pytest.raises(mnnconvert.ConversionError, match="part of a checkpoint") as caught:
        mnnconvert.convert(tmp_path / name, tmp_path / "m.mnn")
    assert "import_meta_graph" in (caught.value.diagnostics[0].hint or "")
