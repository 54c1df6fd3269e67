"""`mnnconvert quantize`: the configuration and all its mistakes, samples of every kind, and the work itself."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import mnnconvert
from mnnconvert.calibration import collect
from mnnconvert.calibration.config import CHECKS, read_config
from mnnconvert.calibration.images import center_crop, read_image, resize
from mnnconvert.cli.main import main
from mnnconvert.errors import ConversionError, UsageError
from mnnconvert.schema.reader import read_model

RNG = np.random.default_rng(0)


def onnx_file(path, inputs=("x",), size=16):
    """conv-relu, an average over the plane, a product: 4 classes."""
    names = {"a": (8, 3, 3, 3), "b": (8, 8, 3, 3), "w": (8, 4)}
    weights = [numpy_helper.from_array(RNG.standard_normal(s).astype("f") * 0.4, n) for n, s in names.items()]
    nodes = [helper.make_node("Conv", [inputs[0], "a"], ["p"], name="first", pads=[1, 1, 1, 1])]
    source = "p"
    if len(inputs) > 1:
        nodes.append(helper.make_node("Mul", ["p", inputs[1]], ["scaled"]))
        source = "scaled"
    nodes += [
        helper.make_node("Relu", [source], ["q"]), helper.make_node("Conv", ["q", "b"], ["r"], name="second"),
        helper.make_node("GlobalAveragePool", ["r"], ["s"]), helper.make_node("Flatten", ["s"], ["t"]),
        helper.make_node("MatMul", ["t", "w"], ["y"]),
    ]  # fmt: skip
    shapes = [(1, 3, size, size), (1,)]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in zip(inputs, shapes, strict=False)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 4))], weights,
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A folder with a.mnn (one input) and b.mnn (two)."""
    folder = tmp_path_factory.mktemp("models")
    for name, inputs in (("a", ("x",)), ("b", ("x", "k"))):
        onnx_file(folder / f"{name}.onnx", inputs)
        mnnconvert.convert(folder / f"{name}.onnx", folder / f"{name}.mnn", verify="never")
    return folder


IMAGE = {"format": "RGB", "mean": [127.5, 127.5, 127.5], "normal": [1 / 127.5], "width": 16, "height": 16}


@pytest.fixture
def place(tmp_path):
    """A folder with pictures in `pictures` and `write(**keys)` for the configuration."""

    class Place:
        folder = tmp_path
        target = tmp_path / "out.mnn"

        def write(self, **keys):
            path = tmp_path / "config.json"
            path.write_text(json.dumps({"path": "pictures", **IMAGE, **keys}))
            return path

    (tmp_path / "pictures").mkdir()
    for number in range(6):
        noise = np.random.default_rng(number).integers(0, 256, (20 + number, 30, 3)).astype(np.uint8)
        Image.fromarray(noise).resize((40, 30)).save(tmp_path / "pictures" / f"{number}.png")
    (tmp_path / "pictures" / "notes.txt").write_text("no picture")
    return Place()


def run(models, place, capsys, *words, model="a", **keys):
    code = main(["quantize", str(models / f"{model}.mnn"), str(place.target), str(place.write(**keys)), *words])
    return code, capsys.readouterr()


def test_a_model_is_quantized(models, place, capsys):
    code, said = run(models, place, capsys)
    assert code == 0, said.err
    assert "KL on 6 samples" in said.out
    names = [n.name for n in read_model(models / "a.mnn").nodes if n.op.kind == "Convolution"]
    assert len(names) == 3 and all(f"\n{name}" in said.out for name in names)
    assert "top-1 as in float" in said.out
    assert "3 layers in int8" in said.out
    graph = read_model(place.target)
    steps = {v.name: v.steps for v in graph.values() if v.steps is not None}
    assert {"x", "q", "s"} <= steps.keys()
    assert all(s.zero == 0 and (s.low, s.high) == (-127, 127) for name, s in steps.items() if name in ("x", "s"))


def test_json_tells_everything(models, place, capsys):
    code, said = run(models, place, capsys, "--json", "--quiet", feature_quantize_method="MSE", debug=True)
    document = json.loads(said.out)
    assert code == document["exit_code"] == 0
    assert document["samples"] == 6
    assert len(document["layers"]) == 3
    for layer in document["layers"]:
        assert layer["weight_sqnr"] > 35
        assert layer["output_sqnr"] > 20
        assert layer["output_cosine"] > 0.99
        assert 0 <= layer["clipped"] < 0.05
        assert layer["output"]["scale"] > 0
    assert document["outputs"]["y"]["sqnr"] > 20


def test_quiet_says_the_result_only(models, place, capsys):
    code, said = run(models, place, capsys, "--quiet")
    assert code == 0
    assert len(said.out.splitlines()) == 2


@pytest.mark.parametrize("method", ["KL", "ADMM", "EMA", "MSE", "PERCENTILE", "MINMAX", "ACIQ"])
@pytest.mark.parametrize("weights", ["MAX_ABS", "ADMM", "MSE"])
def test_every_method_gives_a_model_that_agrees(models, place, capsys, method, weights):
    keys = {"feature_quantize_method": method, "weight_quantize_method": weights, "min_sqnr": 0}
    code, said = run(models, place, capsys, "--json", **keys)
    assert code == 0, said.err
    report = json.loads(said.out)
    assert report["layers"][0]["weight_method"] == weights
    assert report["outputs"]["y"]["sqnr"] > (4 if method == "ACIQ" else 12)


def test_everything_that_improves_does(models, place, capsys):
    keys = {"quant_bits": 4, "feature_quantize_method": "MSE", "min_sqnr": 0}
    plain = {"bias_correction": False}
    better = {"weight_quantize_method": "MSE", "weight_rounding": "adaptive", "equalize": True}
    figures = []
    for more in (plain, {}, better):
        code, said = run(models, place, capsys, "--json", **keys, **more)
        assert code == 0, said.err
        report = json.loads(said.out)
        figures.append(report["outputs"]["y"]["sqnr"])
    assert report["equalized_pairs"] == 1
    assert figures[1] > figures[0]
    assert figures[2] > figures[0]


def test_layers_that_cost_most_stay_in_floats(models, place, capsys):
    code, said = run(models, place, capsys, "--json", quant_bits=2, min_sqnr=60)
    assert code == 0, said.err
    report = json.loads(said.out)
    (skipped,) = report["skipped"]
    assert "min_sqnr 60 dB" in skipped["reason"]
    assert skipped["name"] not in [layer["name"] for layer in report["layers"]]
    kept = next(n for n in read_model(place.target).nodes if n.name == skipped["name"])
    before = next(n for n in read_model(models / "a.mnn").nodes if n.name == skipped["name"])
    np.testing.assert_array_equal(kept.inputs[1].tensor.numpy(), before.inputs[1].tensor.numpy())


def test_named_layers_are_skipped(models, place, capsys):
    names = [n.name for n in read_model(models / "a.mnn").nodes if n.op.kind == "Convolution"]
    code, said = run(models, place, capsys, skip_quant_op_names=names[:1])
    assert code == 0
    assert f"{names[0]} stays in floats: named in skip_quant_op_names" in said.err
    code, said = run(models, place, capsys, skip_quant_op_names=names)
    assert code == 1
    assert "nothing-to-quantize" in said.err
    longest = max(names, key=len)
    code, said = run(models, place, capsys, skip_quant_op_names=[longest[:-1] + "~"])
    assert code == 2
    assert "unknown-layer" in said.err and f"Did you mean {longest}?" in said.err


def test_steps_of_sixteen_bits(models, place, capsys):
    code, said = run(models, place, capsys, feature_quantize_method="ACIQ", activation_bits=16)
    assert code == 0, said.err
    steps = [v.steps for v in read_model(place.target).values() if v.steps is not None]
    assert steps and all((s.low, s.high, s.dtype) == (-32767, 32767, np.int16) for s in steps)


NO_OBJECTS = ["", "[]", "{", '{"path": "a", "path": "b"}', "\xff", "[" * 100000]

WRONG = [
    ({"formatt": "RGB"}, "unknown-config-key", "Did you mean format?"),
    ({"format": "YUV"}, "bad-config-value", "one of RGB, BGR"),
    ({"mean": [1, 2]}, "bad-config-value", "2 numbers for 3 channels"),
    ({"mean": 127.5}, "bad-config-value", "a list of one number for each channel"),
    ({"width": "16"}, "bad-config-value", "a whole number from 1 to 16384"),
    ({"width": True}, "bad-config-value", "a whole number"),
    ({"used_image_num": 0}, "bad-config-value", "from 1"),
    ({"used_image_num": 2, "used_sample_num": 2}, "bad-config-value", "mean the same"),
    ({"feature_quantize_method": "kl"}, "bad-config-value", "one of KL, ADMM, EMA"),
    ({"weight_quantize_method": "HQQ"}, "bad-config-value", "one of MAX_ABS"),
    ({"feature_clamp_value": 128}, "bad-config-value", "from 1 to 127"),
    ({"quant_bits": 1}, "bad-config-value", "from 2 to 8"),
    ({"skip_quant_op_names": "conv"}, "bad-config-value", "a list of names"),
    ({"input_type": "video"}, "bad-config-value", "image, sequence, array"),
    ({"debug": 1}, "bad-config-value", "true or false"),
    ({"center_crop_h": 1.5}, "bad-config-value", "at most 1"),
    ({"winogradOpt": True}, "bad-config-value", "method EMA"),
    ({"winogradOpt": True, "feature_quantize_method": "EMA"}, "bad-config-value", "not written"),
    ({"activation_bits": 16}, "bad-config-value", "for 8 bits"),
    ({"input_type": "array", "batch_size": 2}, "bad-config-value", "only images"),
    ({"input_type": "array", "center_crop_w": 0.5}, "bad-config-value", "for images"),
    ({"min_sqnr": -1}, "bad-config-value", "from 0"),
    ({"path": "nowhere"}, "missing-file", "is no folder"),
    ({"path": "."}, "no-samples", "no images"),
]


@pytest.mark.parametrize(("keys", "reference", "words"), WRONG)
def test_a_wrong_configuration_is_named(models, place, capsys, keys, reference, words):
    code, said = run(models, place, capsys, **keys)
    assert code in (1, 2)
    assert f"error[{reference}]" in said.err
    assert words in said.err
    assert not place.target.exists()


def test_all_problems_at_once(models, place, capsys):
    _, said = run(models, place, capsys, formatt="RGB", width=-1, debug=7)
    assert said.err.count("error[") == 3


@pytest.mark.parametrize("text", NO_OBJECTS, ids=range(len(NO_OBJECTS)))
def test_what_is_no_configuration(place, text):
    path = place.folder / "bad.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match="bad-config"):
        read_config(path)


def test_absent_files(models, place, capsys):
    assert main(["quantize", str(models / "no.mnn"), str(place.target), str(place.write())]) == 1
    assert main(["quantize", str(models / "a.mnn"), str(place.target), str(place.folder / "no.json")]) == 1
    assert main(["quantize", str(models / "a.mnn"), str(models / "a.mnn"), str(place.write())]) == 2
    assert main(["quantize", str(models / "a.mnn")]) == 2
    assert "missing-word" in capsys.readouterr().err


def test_mnns_own_template_is_understood(place):
    config = read_config(place.write(used_image_num=5, feature_quantize_method="KL", weight_quantize_method="MAX_ABS"))
    assert (config.wanted, config.feature_clamp, config.weight_clamp) == (5, 127, 127)
    assert config.path == place.folder / "pictures"
    assert set(CHECKS) >= {"format", "mean", "normal", "width", "height", "path", "used_image_num", "used_sample_num",
                           "feature_quantize_method", "weight_quantize_method", "feature_clamp_value",
                           "weight_clamp_value", "batch_size", "quant_bits", "skip_quant_op_names", "input_type",
                           "debug", "winogradOpt"}  # fmt: skip


def test_a_picture_that_is_none(models, place, capsys):
    (place.folder / "pictures" / "00.png").write_bytes(b"\x89PNG\r\n\x1a\n rubbish")
    code, said = run(models, place, capsys)
    assert code == 1
    assert "error[bad-image]" in said.err and "00.png" in said.err


def test_used_image_num_takes_the_first(models, place, capsys):
    _, said = run(models, place, capsys, "--json", used_image_num=2)
    assert json.loads(said.out)["samples"] == 2


def test_images_need_one_input(models, place, capsys):
    code, said = run(models, place, capsys, model="b")
    assert code == 2
    assert "this one has 2" in said.err


def feeds(number):
    rng = np.random.default_rng(number)
    return {"x": rng.standard_normal((1, 3, 16, 16)).astype("f"), "k": np.array([0.5 + number / 4], "f")}


def test_folders_of_recorded_inputs(models, place, capsys):
    for number in range(3):
        folder = place.folder / "recorded" / f"input_{number}"
        folder.mkdir(parents=True)
        described = [{"name": n, "shape": list(a.shape)} for n, a in feeds(number).items()]
        (folder / "input.json").write_text(json.dumps({"inputs": described, "outputs": ["y"]}))
        for name, array in feeds(number).items():
            (folder / f"{name}.txt").write_text("\n".join(repr(float(v)) for v in array.ravel()))
    keys = {"path": "recorded", "input_type": "sequence"}
    code, said = run(models, place, capsys, "--json", model="b", **keys)
    assert code == 0, said.err
    assert json.loads(said.out)["samples"] == 3
    by_text = place.target.read_bytes()
    (place.folder / "arrays").mkdir()
    for number in range(3):
        np.savez(place.folder / "arrays" / f"{number}.npz", **feeds(number))
    assert run(models, place, capsys, model="b", path="arrays", input_type="array")[0] == 0
    assert place.target.read_bytes() == by_text
    (folder / "k.txt").write_text("1 2 3")
    code, said = run(models, place, capsys, model="b", **keys)
    assert code == 2
    assert "'k.txt' has 3 numbers" in said.err


def test_npy_files_are_for_one_input(models, place, capsys):
    (place.folder / "arrays").mkdir()
    for number in range(3):
        np.save(place.folder / "arrays" / f"{number}.npy", feeds(number)["x"])
    assert run(models, place, capsys, path="arrays", input_type="array")[0] == 0
    code, said = run(models, place, capsys, model="b", path="arrays", input_type="array")
    assert code == 1
    assert "the model takes several" in said.err
    np.save(place.folder / "arrays" / "3.npy", np.full((1, 3, 16, 16), np.inf, "f"))
    code, said = run(models, place, capsys, path="arrays", input_type="array")
    assert code == 1
    assert "error[non-finite-activation]" in said.err


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.full((1, 3, 16, 16), "a"), "holds <U1"),
        (np.zeros((1, 3, 16, 15), "f"), "size 15 on axis 3"),
        (np.array([None]), "no .npz or .npy file"),
    ],
)
def test_arrays_that_are_no_inputs_are_named(models, place, capsys, array, words):
    (place.folder / "arrays").mkdir()
    np.save(place.folder / "arrays" / "0.npy", array)
    code, said = run(models, place, capsys, path="arrays", input_type="array")
    assert code == 1
    assert words in said.err and "0.npy" in said.err


def test_endings_in_capitals_are_read(models, place, capsys):
    (place.folder / "arrays").mkdir()
    np.savez(place.folder / "arrays" / "0.npz", x=feeds(0)["x"])
    (place.folder / "arrays" / "0.npz").rename(place.folder / "arrays" / "0.NPZ")
    assert run(models, place, capsys, path="arrays", input_type="array")[0] == 0


def test_samples_without_elements_have_no_ranges(place, capsys):
    arrays = {"w": RNG.standard_normal((8, 4)).astype("f")}
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", 8))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ("n", 4))],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )  # fmt: skip
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), place.folder / "m.onnx"
    )
    mnnconvert.convert(place.folder / "m.onnx", place.folder / "m.mnn", verify="never")
    (place.folder / "arrays").mkdir()
    np.save(place.folder / "arrays" / "0.npy", np.zeros((0, 8), "f"))
    code, said = run(place.folder, place, capsys, model="m", path="arrays", input_type="array")
    assert code == 1
    assert "no elements on any sample" in said.err and not place.target.exists()


@pytest.mark.parametrize("names", [("a.mnn", "config.json", "config.json"), ("a.mnn", "a.mnn", "config.json")])
def test_what_is_read_is_not_written_over(models, place, capsys, names):
    place.write()
    (place.folder / "a.mnn").write_bytes((models / "a.mnn").read_bytes())
    before = [(place.folder / n).read_bytes() for n in names]
    assert main(["quantize", *(str(place.folder / n) for n in names)]) == 2
    assert "would overwrite" in capsys.readouterr().err
    assert [(place.folder / n).read_bytes() for n in names] == before


@pytest.mark.parametrize("position", [0, 1, 2])
def test_names_that_are_too_long_are_told(models, place, capsys, position):
    words = [str(models / "a.mnn"), str(place.target), str(place.write())]
    words[position] = "n" * 5000
    assert main(["quantize", *words, "--resume"]) == 1
    assert "File name too long" in capsys.readouterr().err


def test_interrupted_work_goes_on_where_it_was(models, place, capsys, monkeypatch):
    state = place.folder / "out.mnn.state.npz"
    assert run(models, place, capsys)[0] == 0
    whole = place.target.read_bytes()
    place.target.unlink()
    monkeypatch.setattr(collect, "SAVE_EVERY", 0.0)
    take, seen = collect.Collector._take, []

    def stop_after(self, which, name, array):
        seen.append((which, tuple(self._done)))
        if which == 1 and self._done[1] == 3:
            raise KeyboardInterrupt
        take(self, which, name, array)

    monkeypatch.setattr(collect.Collector, "_take", stop_after)
    assert run(models, place, capsys, "--resume")[0] == 130
    assert state.exists() and not place.target.exists()
    monkeypatch.setattr(collect.Collector, "_take", lambda *a: (seen.append((a[1], tuple(a[0]._done))), take(*a))[1])
    seen.clear()
    assert run(models, place, capsys, "--resume")[0] == 0
    assert {which for which, _ in seen} == {1}
    assert min(done for _, done in seen) == (6, 3)
    assert place.target.read_bytes() == whole
    assert not state.exists()


def test_a_state_of_other_work_is_refused(models, place, capsys):
    state = place.folder / "out.mnn.state.npz"
    for content in (b"", b"rubbish"):
        state.write_bytes(content)
        code, said = run(models, place, capsys, "--resume")
        assert code == 1
        assert "error[state-mismatch]" in said.err
    np.savez(state, key="another", done=[6, 0], names=["x"])
    assert run(models, place, capsys, "--resume")[0] == 1


def test_python_has_it_too(models, place):
    stages = []
    report = mnnconvert.quantize(models / "a.mnn", place.target, place.write(), progress=lambda s, f: stages.append(s))
    assert report.outputs["y"].cosine > 0.99
    assert {"ranges", "distributions"} <= set(stages)


def test_resize_is_bilinear_between_corners():
    ramp = np.arange(5, dtype=np.uint8)[None, :, None].repeat(3, 0).repeat(4, 2) * 50
    assert resize(ramp, 2, 9)[0, :, 0].tolist() == [0, 25, 50, 75, 100, 125, 150, 175, 200]
    assert resize(ramp, 3, 3)[1, :, 0].tolist() == [0, 100, 200]
    assert resize(ramp, 1, 1).tolist() == [[[0.0] * 4]]
    np.testing.assert_array_equal(resize(ramp, 3, 5), ramp)


def test_crop_keeps_the_middle():
    pixels = np.arange(60, dtype=np.uint8).reshape(6, 10, 1)
    assert center_crop(pixels, 0.5, 0.4)[..., 0].tolist() == [[13, 14, 15, 16], [23, 24, 25, 26], [33, 34, 35, 36]]
    assert center_crop(pixels, 0.01, 1).shape == (1, 10, 1)
    assert center_crop(pixels, 1, 1) is pixels


@pytest.mark.parametrize("name", ["RGB", "BGR", "RGBA", "BGRA", "GRAY"])
def test_pictures_become_inputs(place, name):
    path = place.folder / "one.png"
    Image.new("RGBA", (7, 5), (10, 20, 40, 255)).save(path)
    config = read_config(place.write(format=name, mean=[1], normal=[0.5]))
    got = read_image(path, 3, 2, config)
    want = {"R": 10, "G": 20, "B": 40, "A": 255}
    channels = [round(0.299 * 10 + 0.587 * 20 + 0.114 * 40)] if name == "GRAY" else [want[c] for c in name]
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, np.broadcast_to((np.array(channels).reshape(1, -1, 1, 1) - 1) / 2, got.shape))
    assert got.shape == (1, len(channels), 2, 3)


def test_pillow_is_asked_for(place, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(ConversionError, match="pillow-missing"):
        read_image(place.folder / "pictures" / "0.png", 4, 4, read_config(place.write()))


@pytest.fixture
def outlier(tmp_path):
    """Two products 64-64-64: one channel between them is 200 times as large as the others; and samples."""
    first, second = RNG.standard_normal((2, 64, 64)).astype("f") / 8
    first[:, 5] *= 200
    second[5] /= 200
    nodes = [helper.make_node("MatMul", ["x", "a"], ["p"]), helper.make_node("Relu", ["p"], ["q"]),
             helper.make_node("MatMul", ["q", "b"], ["y"])]  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", 64))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ("n", 64))],
        [numpy_helper.from_array(first, "a"), numpy_helper.from_array(second, "b")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), tmp_path / "m.onnx")
    mnnconvert.convert(tmp_path / "m.onnx", tmp_path / "m.mnn")
    (tmp_path / "samples").mkdir()
    for i in range(8):
        np.save(tmp_path / "samples" / f"{i}.npy", RNG.standard_normal((16, 64)).astype("f"))
    return tmp_path


def test_smoothing_makes_up_for_channels_that_are_too_large(outlier):
    found = {}
    for smooth in (False, True):
        keys = {"path": "samples", "input_type": "array", "feature_quantize_method": "MINMAX", "min_sqnr": 0}
        (outlier / "c.json").write_text(json.dumps(keys | {"smooth": smooth}))
        report = mnnconvert.quantize(outlier / "m.mnn", outlier / f"{smooth}.mnn", outlier / "c.json")
        assert report.smoothed == smooth
        assert len(report.layers) == 2
        found[smooth] = report.outputs["y"].sqnr
        assert min(layer.agreement.sqnr for layer in report.layers) > found[smooth] - 10
    assert found[True] > found[False] + 15


def test_outputs_worse_than_asked_for_are_warned_of(outlier, capsys):
    keys = {"path": "samples", "input_type": "array", "feature_quantize_method": "MINMAX"}
    for min_sqnr, poor in ((200, ["y"]), (0, [])):
        (outlier / "c.json").write_text(json.dumps(keys | {"min_sqnr": min_sqnr}))
        words = [str(outlier / name) for name in ("m.mnn", "q.mnn", "c.json")]
        assert main(["quantize", *words, "--json"]) == 0
        captured = capsys.readouterr()
        assert json.loads(captured.out)["below_min_sqnr"] == poor
        assert ("less than the 200 dB" in captured.err) == bool(poor)
