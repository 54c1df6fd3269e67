"""Prototxt and caffemodel in all their forms, and what is said of files that cannot be read."""

from __future__ import annotations

import random as chance
import time

import numpy as np
import pytest
from caffe_cases import (
    caffemodel,
    check,
    feeds_for,
    field,
    files,
    import_net,
    inputs,
    layer,
    one,
    opencv_outputs,
    random,
    refusal,
)  # fmt: skip
from graphs import run_graph

import mnnconvert
from mnnconvert.errors import ConversionError, MnnConvertError, UsageError
from mnnconvert.frontends.caffe.importer import Importer
from mnnconvert.frontends.caffe.model import attach, parse_net
from mnnconvert.frontends.caffe.text import Message, parse
from mnnconvert.frontends.caffe.weights import parse_weights
from mnnconvert.ops.windows import correlate, pad_spatial
from mnnconvert.verify.opencv_engine import departure

CONV = "convolution_param { num_output: 4 kernel_size: 3 }"
OLD_INPUT = 'input: "x" input_dim: 1 input_dim: 2 input_dim: 6 input_dim: 6\n'


def refused(call, *arguments):
    with pytest.raises(ConversionError) as caught:
        call(*arguments)
    return caught.value.diagnostics[0]


def numbers(rng):
    return [random(rng, 4, 2, 3, 3), random(rng, 4)]


@pytest.mark.parametrize(
    "head",
    [
        inputs(x=(1, 2, 6, 6)),
        OLD_INPUT,
        'input: "x" input_shape { dim: 1 dim: 2 dim: 6 dim: 6 }',
        'name: "n"; input: "x", input_shape: < dim: [1, 2, 6, 6] > # a remark\n',
    ],
    ids=["layer", "dims", "shape", "marks"],
)
def test_inputs_in_all_forms(head, tmp_path, rng):
    text = head + layer("Convolution", "x", "y", CONV)
    assert parse_net(text).inputs == {"x": (1, 2, 6, 6)}
    if "<" not in head:
        check(text, {"y": numbers(rng)}, tmp_path)


V1 = f'layers {{ name: "y" type: CONVOLUTION bottom: "x" top: "y" {CONV} blobs_lr: 1 weight_decay: 0 }}'
V1 += 'layers { name: "r" type: RELU bottom: "y" top: "y" }'
V0 = (
    'layers { layer { name: "pad" type: "padding" pad: 1 } bottom: "x" top: "p" }'
    'layers { layer { name: "y" type: "conv" num_output: 4 kernelsize: 3 stride: 2 biasterm: false'
    ' weight_filler { type: "xavier" } blobs_lr: 1. } bottom: "p" top: "y" }'
    'layers { layer { name: "m" type: "pool" pool: MAX kernelsize: 2 stride: 1 } bottom: "y" top: "m" }'
    'layers { layer { name: "s" type: "softmax" } bottom: "m" top: "s" }'
)


def test_second_form(tmp_path, rng):
    blobs, feeds = {"y": numbers(rng)}, feeds_for(OLD_INPUT + V1)
    want = opencv_outputs(OLD_INPUT + V1, blobs, feeds, tmp_path)
    check(OLD_INPUT + V1, blobs, tmp_path, want=want)


def test_first_form(tmp_path, rng):
    weight, text = random(rng, 4, 2, 3, 3), OLD_INPUT + V0
    y = correlate(pad_spatial(feeds_for(text)["x"], (1, 1), (1, 1)), weight, (2, 2), (1, 1), 1)
    m = np.maximum(np.maximum(y[:, :, :-1, :-1], y[:, :, 1:, :-1]), np.maximum(y[:, :, :-1, 1:], y[:, :, 1:, 1:]))
    powers = np.exp(m - m.max(1, keepdims=True))
    check(text, {"y": [weight]}, tmp_path, want={"s": powers / powers.sum(1, keepdims=True)})


@pytest.mark.parametrize("net", ["new", "v1", "v0"])
@pytest.mark.parametrize("form", ["new", "old", "double", "half", "unpacked"])
def test_weights_in_all_forms(net, form, rng):
    arrays = [a.astype(np.float16).astype(np.float32) for a in numbers(rng)]
    found = parse_weights(caffemodel({"y": arrays}, net, form))
    assert list(found) == ["y"]
    for got, want in zip(found["y"], arrays, strict=True):
        np.testing.assert_array_equal(got.tensor(want.shape).numpy(), want)
        assert got.tensor(want.shape).numpy().dtype == np.float32


@pytest.mark.parametrize("form", ["old", "double", "half"])
def test_a_net_with_weights_in_another_form(form, tmp_path, rng):
    text, arrays = inputs(x=(1, 2, 6, 6)) + layer("Convolution", "x", "y", CONV), numbers(rng)
    net = parse_net(text)
    attach(net, parse_weights(caffemodel({"y": arrays}, form=form)))
    got = run_graph(Importer(net).run(), feeds_for(text))["y"]
    want = run_graph(import_net(text, {"y": arrays}), feeds_for(text))["y"]
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-2 if form == "half" else 0)


def test_batch_norm_and_relu_in_place(tmp_path, rng):
    """Case: prototxt with input and input_dim; the factor blob divides both statistics."""
    mean, variance, factor = random(rng, 4), np.abs(random(rng, 4)) + 0.5, np.array([3.0], np.float32)
    scale, bias = random(rng, 4), random(rng, 4)
    text = OLD_INPUT + layer("Convolution", "x", "c", CONV)
    text += layer("BatchNorm", "c", "c", "batch_norm_param { use_global_stats: true }", "bn")
    text += layer("Scale", "c", "c", "scale_param { bias_term: true }", "sc") + layer("ReLU", "c", "c", "", "re")
    weight, own = numbers(rng)
    y = correlate(feeds_for(text)["x"], weight, (1, 1), (1, 1), 1) + own.reshape(4, 1, 1)
    columns = [v.reshape(4, 1, 1) for v in (mean / 3, variance / 3, scale, bias)]
    want = np.maximum((y - columns[0]) / np.sqrt(columns[1] + 1e-5) * columns[2] + columns[3], 0)
    blobs = {"c": [weight, own], "bn": [mean, variance, factor], "sc": [scale, bias]}
    check(text, blobs, tmp_path, want={"c": want})
    check(text, blobs, tmp_path)
    names = [v.name for n in import_net(text, blobs).nodes for v in n.outputs]
    assert names == ["c", "bn", "sc", "re"]


def test_a_large_product(tmp_path, rng):
    """Case: 64 MB of weights, which the text-and-copy parsers of protocol buffers refuse."""
    weight = np.zeros((4096, 4096), np.float32)
    weight[np.arange(4096), np.arange(4096)[::-1]] = 2
    text = one("InnerProduct", "inner_product_param { num_output: 4096 bias_term: false }", x=(1, 4096))
    prototxt, model = files(tmp_path, text, {"y": [weight]})
    mnnconvert.convert(model, tmp_path / "m.mnn", prototxt=str(prototxt), verify="never")
    x = random(rng, 1, 4096)
    np.testing.assert_array_equal(mnnconvert.load(tmp_path / "m.mnn").run({"x": x})["y"], 2 * x[:, ::-1])


def test_rules_of_phases(tmp_path):
    text = (
        inputs(x=(1, 3))
        + layer("ReLU", "x", "a", "include { phase: TRAIN }")
        + layer("TanH", "x", "b", "include { phase: TEST }")
    )
    text += layer("AbsVal", "x", "c", "exclude { phase: TEST }") + layer("ELU", "x", "d", "exclude { phase: TRAIN }")
    text += layer("BNLL", "x", "e", 'include { stage: "deploy" }') + layer(
        "Power", "x", "f", "include { min_level: 1 }"
    )
    text += layer("Sigmoid", "x", "g", 'include { phase: TRAIN } include { not_stage: "deploy" }')
    assert [x.tops[0] for x in parse_net(text).layers] == ["b", "d", "g"]
    staged = parse_net('state { level: 1 stage: "deploy" }' + text)
    assert [x.tops[0] for x in staged.layers] == ["b", "d", "e", "f"]
    both = layer("ReLU", "x", "a", "include { phase: TRAIN } exclude { phase: TEST }")
    assert "include" in refused(parse_net, both).message


def test_outputs_are_what_nothing_reads():
    text = inputs(x=(1, 3)) + layer("Split", "x", "b a c") + layer("ReLU", "b", "b") + layer("ReLU", "c", "d")
    assert [name for name, _ in import_net(text).outputs] == ["a", "b", "d"]


@pytest.mark.parametrize(
    ("shapes", "want"),
    [
        ("shape { dim: 2 } shape { dim: 3 dim: 4 }", {"a": (2,), "b": (3, 4)}),
        ("shape { dim: 2 }", {"a": (2,), "b": (2,)}),
        ("", {"a": (), "b": ()}),
    ],
)
def test_layers_of_several_inputs(shapes, want):
    text = layer("Input", "", "a b", f"input_param {{ {shapes} }}") + layer("Eltwise", "a b", "y")
    assert parse_net(text).inputs == want


def test_outputs_in_place_of_inputs(tmp_path):
    text = inputs(x=(1, 3)) + layer("ReLU", "x", "x", "", "r")
    check(text, None, tmp_path, want={"r": np.maximum(feeds_for(text)["x"], 0)})
    check(text, None, tmp_path)
    text = inputs(x=(1, 3)) + layer("Dropout", "x", "x", "", "d")
    check(text, None, tmp_path, want={"d": feeds_for(text)["x"]})


def test_sizes_of_inputs():
    text = inputs(x=(1, 2, 6, 6)) + layer("ReLU", "x", "y")
    assert import_net(text, shapes={"x": (3, 2, 8, 9)}).inputs[0].shape == (3, 2, 8, 9)
    assert import_net(text, batch=4).inputs[0].shape == (1, 2, 6, 6)
    assert import_net(text.replace("dim: 1", "dim: 0"), batch=4).inputs[0].shape == (4, 2, 6, 6)
    bare = 'input: "x"' + layer("ReLU", "x", "y")
    assert refusal(bare)[0].reference == "open-size"
    assert import_net(bare, shapes={"x": (3, 2)}).inputs[0].shape == (3, 2)
    assert refusal(text, shapes={"z": (1,)})[0].reference == "unknown-input"
    assert refusal(text, shapes={"x": (1,)})[0].reference == "unknown-input"
    huge = inputs(x=(1 << 30, 1 << 30)) + layer("ReLU", "x", "y")
    assert refusal(huge)[0].reference == "too-large"


def test_all_unknown_layers_are_named_at_once():
    text = inputs(x=(1, 3)) + layer("Warp", "x", "a") + layer("Warp", "x", "b") + layer("Accuracy", "x", "c")
    first, second = refusal(text)
    assert first.reference == second.reference == "unsupported-op"
    assert first.context == {"op": "Warp", "uses": "2", "nodes": "a, b"}
    assert "deploy.prototxt" in second.hint


def test_all_problems_are_named_at_once():
    text = inputs(x=(1, 3, 4, 4)) + layer("Pooling", "x", "a", "pooling_param { pool: STOCHASTIC kernel_size: 2 }")
    text += layer("ReLU", "a", "b") + layer("LRN", "x", "c", "lrn_param { local_size: 2 }")
    assert [d.context["node"] for d in refusal(text)] == ["a", "c"]


def test_settings_of_forks_are_not_lost():
    (found,) = refusal(one("ReLU", "relu_param { negative_slope: 0 upper: 6 }", x=(1, 3)))
    assert "upper" in found.message
    assert "relu_param" in found.message
    known = "quantize_param { bits: 8 } param { lr_mult: 1 } relu_param { engine: CAFFE } loss_weight: 1"
    assert len(import_net(one("ReLU", known, x=(1, 3))).nodes) == 1


TEXTS = {
    "layer { name": "end of the file",
    "layer { name: }": "a value",
    "layer name": "':'",
    "layer: [1 2]": "',' or ']'",
    "layer { ] }": "the name of a field",
    'layer { name: "a': "cannot be read",
    "layer { a: 1 } @": "cannot be read",
    "layer { name: 'a' name: 'b' }": "given 2 times",
    "layer: 3": "a message is meant",
    "layer { name { } }": "a value is meant",
    "net: 'train.prototxt'": "no layers",
    "a {" * 40: "nested",
    'input: "x" input_dim: 1 layer { }': "4 each",
    'input: "x" input_dim: one layer { }': "no whole number",
    'input: "x" input_shape { } input_shape { } layer { }': "2 input_shape",
}


@pytest.mark.parametrize("text", TEXTS)
def test_texts_that_are_none(text):
    found = refused(parse_net, text)
    assert found.reference == "bad-caffe-file"
    assert TEXTS[text] in found.message, found


def test_text_values():
    root = parse('a: "x\\n\\x41\\101" "y" b: -0x10 c: 1.5f d: [true, f] e: .5e1 f: 010')
    assert root.text("a") == "x\nAAy"
    assert root.texts("d") == ["true", "f"]
    assert isinstance(root, Message) and root.unread == ["b", "c", "e", "f"]
    text = one("Power", "power_param { power: 1.5f scale: -2 shift: 010 }", x=(1, 3))
    assert refusal(text)[0].reference == "bad-caffe-file" if "08" in text else import_net(text).nodes


def test_weights_that_are_none(tmp_path):
    good = caffemodel({"y": [np.ones((2, 3))]})
    for bad, word in (
        (good[:-5], "goes beyond"),
        (b"\x07" + good, "unknown kind"),
        (field(100, field(1, b"y") + field(7, field(7, field(1, b"\x02")) + field(5, bytes(12)))), "with 3 numbers"),
        (field(100, field(7, field(5, bytes(11)))), "11 bytes"),
        (field(100, field(7, field(10, 3) + field(12, bytes(4)))), "unknown type"),
        (b"\xff" * 12, "too many bytes"),
    ):
        found = refused(parse_weights, bad)
        assert found.reference == "bad-caffe-file"
        assert word in found.message
        assert "byte" in found.message


def test_pairs_of_files_that_do_not_fit(tmp_path, rng):
    text = inputs(x=(1, 2, 6, 6)) + layer("Convolution", "x", "y", CONV)
    prototxt, model = files(tmp_path, text, {"y": numbers(rng)})
    target = tmp_path / "m.mnn"
    with pytest.raises(UsageError, match="--prototxt"):
        mnnconvert.convert(model, target)
    with pytest.raises(UsageError, match="--modelFile"):
        mnnconvert.convert(prototxt, target)
    with pytest.raises(ConversionError, match="no text"):
        mnnconvert.convert(prototxt, target, prototxt=str(model))
    with pytest.raises(ConversionError, match="not trained weights"):
        mnnconvert.convert(prototxt, target, prototxt=str(prototxt))
    for content, word in ((b"", "no trained weights"), (b"\x89HDF\r\n", "HDF5"), (field(1, b"net"), "no trained")):
        model.write_bytes(content)
        with pytest.raises(ConversionError, match=word):
            mnnconvert.convert(model, target, prototxt=str(prototxt))
    with pytest.raises(ConversionError, match="missing-file"):
        mnnconvert.convert(tmp_path / "no.caffemodel", target, prototxt=str(prototxt))
    assert not target.exists()


def test_conversion_is_proved_with_opencv(tmp_path, rng):
    text = inputs(x=(1, 2, 6, 6)) + layer("Convolution", "x", "y", CONV)
    prototxt, model = files(tmp_path, text, {"y": numbers(rng)})
    report = mnnconvert.convert(model, tmp_path / "m.mnn", prototxt=prototxt, verify="always")
    assert report.verification is not None and report.verification.reference == "OpenCV"
    report = mnnconvert.convert(
        model, tmp_path / "m.mnn", prototxt=prototxt, verify="always", input_shape={"x": (2, 2, 7, 8)}
    )
    assert report.verification is not None and report.verification.passed
    assert mnnconvert.verify(model, tmp_path / "m.mnn", prototxt=prototxt, engine="mnn").passed


def test_conversion_says_where_opencv_departs(tmp_path):
    text = one("LRN", "lrn_param { k: 2 alpha: 1 }", x=(1, 6, 4, 4)) + layer("Scale", "y", "z")
    prototxt, model = files(tmp_path, text, {"z": [np.ones(6)]})
    (note,) = mnnconvert.convert(model, tmp_path / "m.mnn", prototxt=prototxt).diagnostics
    assert note.reference == "not-verified"
    assert "LRN" in note.message
    with pytest.raises(ConversionError, match="ignores k"):
        mnnconvert.convert(model, tmp_path / "m.mnn", prototxt=prototxt, verify="always")


DEPARTURES = {
    "Concat": "concat_param { concat_dim: 0 }",
    "Deconvolution": "convolution_param { num_output: 2 kernel_size: 3 dilation: 2 bias_term: false }",
    "InnerProduct": "inner_product_param { num_output: 5 transpose: true bias_term: false }",
    "Log": "log_param { shift: 3 }",
    "MVN": "mvn_param { eps: 0.5 }",
}


@pytest.mark.parametrize("kind", DEPARTURES)
def test_opencv_departs_from_caffe_where_it_is_said_to(kind, tmp_path, rng):
    """Otherwise a net could be proved that is not."""
    text = one(kind, DEPARTURES[kind], **dict.fromkeys("xz" if kind == "Concat" else "x", (2, 3, 4, 5)))
    assert f"{kind} 'y'" in departure(parse_net(text))
    blobs = {"InnerProduct": [random(rng, 60, 5)], "Deconvolution": [random(rng, 3, 2, 3, 3)]}.get(kind, [np.ones(1)])
    feeds = feeds_for(text)
    other, own = (
        opencv_outputs(text, {"y": blobs}, feeds, tmp_path)["y"],
        run_graph(import_net(text, {"y": blobs}), feeds)["y"],
    )
    assert own.shape != other.shape or not np.allclose(own, other, rtol=1e-2)


@pytest.mark.parametrize("kind", ["Filter", "BatchNorm"])
def test_conversion_of_what_opencv_lacks_or_dies_of(kind, tmp_path):
    settings = "batch_norm_param { use_global_stats: false }" if kind == "BatchNorm" else ""
    shapes = {"x": (4, 3)} | ({"s": (4,)} if kind == "Filter" else {})
    prototxt, model = files(tmp_path, one(kind, settings, **shapes), {"other": [np.ones(1)]})
    (note,) = mnnconvert.convert(model, tmp_path / "m.mnn", prototxt=prototxt).diagnostics
    assert note.reference == "not-verified"
    assert "OpenCV could not run" in note.message
    with pytest.raises(ConversionError, match="source-engine-failed"):
        mnnconvert.convert(model, tmp_path / "m.mnn", prototxt=prototxt, verify="always")


def test_conversion_without_opencv(tmp_path, rng, monkeypatch):
    monkeypatch.setattr("mnnconvert.verify.opencv_engine.find_spec", lambda name: None)
    text = inputs(x=(1, 2, 6, 6)) + layer("Convolution", "x", "y", CONV)
    prototxt, model = files(tmp_path, text, {"y": numbers(rng)})
    (note,) = mnnconvert.convert(model, tmp_path / "m.mnn", prototxt=prototxt).diagnostics
    assert note.reference == "not-verified" and "mnnconvert[caffe]" in note.hint
    with pytest.raises(ConversionError, match="source-engine-missing"):
        mnnconvert.convert(model, tmp_path / "m.mnn", prototxt=prototxt, verify="always")


NET = (
    inputs(x=(1, 2, 8, 8)) + layer("Convolution", "x", "c", CONV) + layer("BatchNorm", "c", "c", "", "n")
    + layer("Pooling", "c", "p", "pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 }")
    + layer("Slice", "p", "a b", "slice_param { slice_point: 1 }") + layer("Concat", "b a", "d")
    + layer("Reshape", "d", "e", "reshape_param { shape { dim: 0 dim: -1 } }")
    + layer("InnerProduct", "e", "f", "inner_product_param { num_output: 3 }") + layer("Softmax", "f", "y")
)  # fmt: skip
WORDS = ["-1", "0", "99999999999999", "1e39", "nan", '"', "{", "}", "top", "bottom", "MAX", ":", "-3", "dim", "4"]


def blobs_of_net():
    rng = np.random.default_rng(0)
    shapes = {"c": [(4, 2, 3, 3), (4,)], "n": [(4,), (4,), (1,)], "f": [(3, 64), (3,)]}
    return {name: [np.abs(random(rng, *s)) for s in parts] for name, parts in shapes.items()}


def ends_well(text, weights):
    """The net becomes a graph, or a diagnostic, soon."""
    started = time.monotonic()
    try:
        net = parse_net(text)
        attach(net, parse_weights(weights))
        Importer(net).run()
    except MnnConvertError as error:
        assert all(d.reference and d.message for d in error.diagnostics)
    assert time.monotonic() - started < 5


def test_the_net_of_damage_is_sound():
    assert import_net(NET, blobs_of_net()).outputs[0][0] == "y"


@pytest.mark.parametrize("seed", range(4))
def test_damaged_texts(seed):
    luck, weights = chance.Random(seed), caffemodel(blobs_of_net())
    for _ in range(100):
        words = NET.split(" ")
        for _ in range(luck.randint(1, 3)):
            words[luck.randrange(len(words))] = luck.choice(WORDS)
        ends_well(" ".join(words), weights)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_weights(seed):
    luck, weights = chance.Random(seed), caffemodel(blobs_of_net())
    for _ in range(100):
        damaged = bytearray(weights)
        for _ in range(luck.randint(1, 4)):
            damaged[luck.randrange(len(damaged))] = luck.randrange(256)
        ends_well(NET, bytes(damaged[: luck.randrange(len(damaged)) if luck.random() < 0.2 else None]))
