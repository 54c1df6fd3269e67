"""Normalisations, layers that move values, reductions and resizing against OpenCV, or Caffe's definitions in numpy."""

from __future__ import annotations

import numpy as np
import pytest
from caffe_cases import check, feeds_for, inputs, layer, one, random, refusal

from mnnconvert.frontends.caffe.model import parse_net
from mnnconvert.ops.resample import positions, resampled
from mnnconvert.verify.opencv_engine import departure

PLANE = (2, 6, 4, 5)


def plane(**shapes):
    return feeds_for(inputs(**(shapes or {"x": PLANE})))["x"]


def test_batch_norm(tmp_path, rng):
    blobs = [random(rng, 6), np.abs(random(rng, 6)) + 0.5, np.array([2.5], np.float32)]
    check(one("BatchNorm", "", x=PLANE), {"y": blobs}, tmp_path)
    check(one("BatchNorm", "batch_norm_param { eps: 0.01 use_global_stats: true }", x=PLANE), {"y": blobs}, tmp_path)
    nothing = [*blobs[:2], np.zeros(1, np.float32)]
    check(one("BatchNorm", "batch_norm_param { eps: 1 }", x=PLANE), {"y": nothing}, tmp_path, want={"y": plane()})


def test_batch_norm_of_other_ranks_and_by_the_batch(tmp_path, rng):
    mean, variance = random(rng, 6), np.abs(random(rng, 6)) + 0.5
    for shape in ((3, 6), (2, 6, 4)):
        x, spread = plane(x=shape), (6, *(1,) * (len(shape) - 2))
        want = (x - (mean / 2).reshape(spread)) / np.sqrt(variance / 2 + 1e-5).reshape(spread)
        check(one("BatchNorm", "", x=shape), {"y": [mean, variance, np.array([2.0])]}, tmp_path, want={"y": want})
    x = plane()
    want = (x - x.mean((0, 2, 3), keepdims=True)) / np.sqrt(x.var((0, 2, 3), keepdims=True) + 1e-5)
    check(one("BatchNorm", "batch_norm_param { use_global_stats: false }", x=PLANE), None, tmp_path, want={"y": want})


def test_batch_norm_of_forks(tmp_path, rng):
    mean, variance, scale, bias = random(rng, 6), np.abs(random(rng, 6)) + 0.5, random(rng, 6), random(rng, 6)
    columns = [v.reshape(6, 1, 1) for v in (mean, variance, scale, bias)]
    want = (plane() - columns[0]) / np.sqrt(columns[1] + 1e-5) * columns[2] + columns[3]
    blobs = {"y": [mean, variance, np.ones(1), scale, bias]}
    check(one("BatchNorm", "batch_norm_param { scale_bias: true }", x=PLANE), blobs, tmp_path, want={"y": want})
    check(one("BN", "", x=PLANE), {"y": [scale, bias, mean, variance]}, tmp_path, want={"y": want})
    want = plane() * columns[2] + columns[3]
    check(one("BN", "bn_param { bn_mode: INFERENCE }", x=PLANE), {"y": [scale, bias]}, tmp_path, want={"y": want})


LRN = {"across": "local_size: 3 alpha: 0.5 beta: 0.6", "within": "alpha: 0.5 norm_region: WITHIN_CHANNEL"}


@pytest.mark.parametrize("case", LRN)
def test_lrn(case, tmp_path):
    check(one("LRN", f"lrn_param {{ {LRN[case]} }}", x=PLANE), None, tmp_path)


@pytest.mark.parametrize(
    ("settings", "size", "alpha", "k"), [("", 5, 1, 1), ("local_size: 3 alpha: 0.5 k: 2", 3, 0.5, 2)]
)
def test_lrn_where_opencv_departs_from_caffe(settings, size, alpha, k, tmp_path):
    text = one("LRN", f"lrn_param {{ {settings} }}", x=PLANE)
    padded = np.pad(np.square(plane()), ((0, 0), (size // 2, size // 2), (0, 0), (0, 0)))
    total = sum(padded[:, i : i + 6] for i in range(size))
    check(text, None, tmp_path, want={"y": plane() / (k + alpha / size * total) ** 0.75})
    assert "LRN 'y'" in departure(parse_net(text))


MVN = {
    "default": ("", (2, 3), True, 1e-9),
    "across": ("across_channels: true", (1, 2, 3), True, 1e-9),
    "mean": ("normalize_variance: false", (2, 3), False, 0),
    "eps": ("eps: 0.5", (2, 3), True, 0.5),
}


@pytest.mark.parametrize("case", MVN)
def test_mvn(case, tmp_path):
    settings, axes, variance, eps = MVN[case]
    x = plane()
    want = x - x.mean(axes, keepdims=True)
    want = want / (x.std(axes, keepdims=True) + eps) if variance else want
    check(one("MVN", f"mvn_param {{ {settings} }}", x=PLANE), None, tmp_path, want={"y": want})


@pytest.mark.parametrize("across", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_normalize(across, shared, tmp_path, rng):
    settings = f"norm_param {{ across_spatial: {across} channel_shared: {shared} eps: 0.01 }}".lower()
    x, scale = plane(), random(rng, 1 if shared else 6)
    power = np.square(x).sum((1, 2, 3) if across else 1, keepdims=True)
    want = x / np.sqrt(power + 0.01) * scale.reshape(-1, 1, 1)
    check(one("Normalize", settings, x=PLANE), {"y": [scale]}, tmp_path, want={"y": want})


def test_softmax(tmp_path):
    check(one("Softmax", "", x=PLANE), None, tmp_path)
    check(one("Softmax", "softmax_param { axis: -1 }", x=PLANE), None, tmp_path)
    check(one("Softmax", "softmax_param { axis: 1 }", x=(3, 7)), None, tmp_path)


def test_concat(tmp_path):
    check(one("Concat", "", a=PLANE, b=(2, 3, 4, 5)), None, tmp_path)
    check(one("Concat", "concat_param { axis: -2 }", a=PLANE, b=(2, 6, 1, 5)), None, tmp_path)
    text = one("Concat", "concat_param { concat_dim: 0 }", a=PLANE, b=(1, 6, 4, 5))
    feeds = feeds_for(text)
    check(text, None, tmp_path, want={"y": np.concatenate([feeds["a"], feeds["b"]])})


SLICES = {
    "equal": ("", "y z", 1, [3]),
    "points": ("slice_point: 1 slice_point: 4", "y z v", 1, [1, 4]),
    "axis": ("axis: 3 slice_point: 2", "y z", 3, [2]),
    "slice_dim": ("slice_dim: 0", "y z", 0, [1]),
    "one": ("", "y", 1, []),
}


@pytest.mark.parametrize("case", SLICES)
def test_slice(case, tmp_path):
    settings, tops, axis, points = SLICES[case]
    text = one("Slice", f"slice_param {{ {settings} }}", tops, x=PLANE)
    parts = np.split(plane(), points, axis)
    check(text, None, tmp_path, want=dict(zip(tops.split(), parts, strict=True)))


def test_flatten_and_permute(tmp_path):
    check(one("Flatten", "", x=PLANE), None, tmp_path)
    check(one("Flatten", "flatten_param { axis: 0 end_axis: 2 }", x=PLANE), None, tmp_path)
    check(one("Flatten", "flatten_param { axis: -3 end_axis: -2 }", x=PLANE), None, tmp_path)
    check(one("Permute", "permute_param { order: 0 order: 2 order: 3 order: 1 }", x=PLANE), None, tmp_path)
    text = one("Permute", "permute_param { order: 2 }", x=PLANE)
    check(text, None, tmp_path, want={"y": plane().transpose(2, 0, 1, 3)})


RESHAPES = {
    "whole": ("shape { dim: 2 dim: -1 }", (2, 120)),
    "copies": ("shape { dim: 0 dim: 3 dim: -1 dim: 0 }", (2, 3, 8, 5)),
    "from an axis": ("shape { dim: 3 dim: 2 } axis: 1 num_axes: 1", (2, 3, 2, 4, 5)),
    "insert": ("shape { dim: 1 } axis: -1 num_axes: 0", (2, 6, 4, 5, 1)),
    "drop": ("shape { } axis: 1 num_axes: 0", PLANE),
}


@pytest.mark.parametrize("case", RESHAPES)
def test_reshape(case, tmp_path):
    settings, shape = RESHAPES[case]
    text = one("Reshape", f"reshape_param {{ {settings} }}", x=PLANE)
    check(text, None, tmp_path, want={"y": plane().reshape(shape)})


CROPS = {
    "planes": ("offset: 1 offset: 2", np.s_[:, :, 1:3, 2:5]),
    "one offset": ("offset: 1", np.s_[:, :, 1:3, 1:4]),
    "no offset": ("", np.s_[:, :, :2, :3]),
    "one axis": ("axis: 3 offset: 2", np.s_[:, :, :, 2:5]),
}


@pytest.mark.parametrize("case", CROPS)
def test_crop(case, tmp_path):
    settings, part = CROPS[case]
    text = one("Crop", f"crop_param {{ {settings} }}", x=PLANE, size=(2, 6, 2 if "axis" not in case else 4, 3))
    check(text, None, tmp_path, want={"y": plane()[part]})


def test_tile_shuffle_and_reorg(tmp_path):
    check(
        one("Tile", "tile_param { axis: 2 tiles: 3 }", x=PLANE),
        None,
        tmp_path,
        want={"y": np.tile(plane(), (1, 1, 3, 1))},
    )
    want = plane().reshape(2, 3, 2, 4, 5).transpose(0, 2, 1, 3, 4).reshape(PLANE)
    check(one("ShuffleChannel", "shuffle_channel_param { group: 3 }", x=PLANE), None, tmp_path, want={"y": want})


def test_filter_and_batch_reindex(tmp_path):
    text = inputs(x=(4, 3, 2, 2), z=(4, 2), s=(4,)) + layer("Filter", "x z s", "y v")
    feeds = {**feeds_for(text), "s": np.array([1, 0, 0, 2], np.float32)}
    want = {"y": feeds["x"][[0, 3]], "v": feeds["z"][[0, 3]]}
    check(text, None, tmp_path, feeds=feeds, want=want)
    text = one("BatchReindex", "", x=(4, 3), i=(5,))
    feeds = {**feeds_for(text), "i": np.array([3, 0, 0, 2, 1], np.float32)}
    check(text, None, tmp_path, feeds=feeds, want={"y": feeds["x"][[3, 0, 0, 2, 1]]})


def test_constants(tmp_path, rng):
    settings = 'dummy_data_param { shape { dim: 2 dim: 3 } data_filler { type: "constant" value: 1.5 } }'
    text = inputs(x=(2, 3)) + layer("DummyData", "", "c", settings) + layer("Eltwise", "x c", "y")
    check(text, None, tmp_path, want={"y": feeds_for(text)["x"] + 1.5})
    old = "dummy_data_param { num: 2 channels: 3 height: 1 width: 1 }"
    text = inputs(x=(2, 3, 1, 1)) + layer("DummyData", "", "c", old) + layer("Eltwise", "x c", "y")
    check(text, None, tmp_path, want={"y": feeds_for(text)["x"]})
    value = random(rng, 2, 3)
    text = inputs(x=(2, 3)) + layer("Parameter", "", "c", "parameter_param { shape { dim: 2 dim: 3 } }")
    text += layer("Eltwise", "x c", "y")
    check(text, {"c": [value]}, tmp_path, want={"y": feeds_for(text)["x"] + value})


REDUCTIONS = {
    "sum": ("", lambda x: x.sum()),
    "mean": ("operation: MEAN axis: 1", lambda x: x.mean((1, 2, 3))),
    "magnitudes": ("operation: ASUM axis: 2", lambda x: np.abs(x).sum((2, 3))),
    "squares": ("operation: SUMSQ axis: -1 coeff: 0.5", lambda x: 0.5 * np.square(x).sum(3)),
    "by number": ("operation: 4 axis: 3", lambda x: x.mean(3)),
}


@pytest.mark.parametrize("case", REDUCTIONS)
def test_reduction(case, tmp_path):
    settings, definition = REDUCTIONS[case]
    text = one("Reduction", f"reduction_param {{ {settings} }}", x=PLANE)
    check(text, None, tmp_path, want={"y": np.asarray(definition(plane()), np.float32)})


def test_arg_max(tmp_path):
    x = np.array([[1, 5, 5, 0], [2, 2, 2, 2]], np.float32)
    text = one("ArgMax", "argmax_param { axis: 1 }", x=(2, 4))
    check(text, None, tmp_path, feeds={"x": x}, want={"y": np.array([[2.0], [3.0]], np.float32)})
    text = one("ArgMax", "argmax_param { axis: 1 top_k: 2 out_max_val: true }", x=(2, 4))
    check(text, None, tmp_path, feeds={"x": x}, want={"y": np.array([[5, 5], [2, 2]], np.float32)})
    text = one("ArgMax", "argmax_param { top_k: 3 }", x=(2, 4))
    check(text, None, tmp_path, feeds={"x": x}, want={"y": np.array([[[2, 1, 0]], [[3, 2, 1]]], np.float32)})
    text = one("ArgMax", "argmax_param { out_max_val: true }", x=(2, 4))
    check(text, None, tmp_path, feeds={"x": x}, want={"y": np.array([[[2], [5]], [[3], [2]]], np.float32)})
    y = plane()
    text = one("ArgMax", "argmax_param { axis: 1 }", x=PLANE)
    check(text, None, tmp_path, want={"y": y.argmax(1, keepdims=True).astype(np.float32)})


INTERPS = {
    "size": ("height: 7 width: 9", (7, 9)),
    "zoom": ("zoom_factor: 3", (10, 13)),
    "shrink": ("shrink_factor: 2", (2, 3)),
    "both": ("shrink_factor: 2 zoom_factor: 3", (4, 7)),
    "cut": ("zoom_factor: 2 pad_beg: 0 pad_end: -1", (5, 7)),
}


@pytest.mark.parametrize("case", INTERPS)
def test_interp(case, tmp_path):
    settings, size = INTERPS[case]
    x = plane()
    if case == "cut":
        x = x[:, :, :-1, :-1]
    want = x
    for axis, out in enumerate(size, 2):
        want = resampled(want, axis, positions(x.shape[axis], out, out / x.shape[axis], "AlignCorners"), 2, 0)
    check(one("Interp", f"interp_param {{ {settings} }}", x=PLANE), None, tmp_path, want={"y": want})


def test_interp_is_opencvs(tmp_path):
    check(one("Interp", "interp_param { height: 7 width: 9 }", x=PLANE), None, tmp_path)
    check(one("Interp", "interp_param { zoom_factor: 3 }", x=PLANE), None, tmp_path)


def test_upsample(tmp_path):
    want = plane().repeat(3, 2).repeat(3, 3)
    check(one("Upsample", "upsample_param { scale: 3 }", x=PLANE), None, tmp_path, want={"y": want})


def test_refusals():
    for kind, settings, word in (
        ("Reshape", "reshape_param { shape { dim: 7 dim: -1 } }", "Reshape"),
        ("Slice", "slice_param { slice_point: 9 }", "Slice"),
        ("Permute", "permute_param { order: 0 order: 0 }", "Permute"),
        ("Tile", "tile_param { tiles: 0 }", "Tile"),
        ("LRN", "lrn_param { local_size: 4 }", "local_size"),
        ("Interp", "interp_param { height: 3 width: 3 pad_beg: 1 }", "pads"),
        ("Concat", "concat_param { axis: 7 }", "axis"),
        ("Flatten", "flatten_param { axis: 2 end_axis: 1 }", "Flatten"),
        ("ShuffleChannel", "shuffle_channel_param { group: 5 }", "groups"),
        ("ArgMax", "argmax_param { axis: 1 top_k: 9 }", "largest"),
    ):
        (found,) = refusal(one(kind, settings, x=PLANE))
        assert word in found.message, found
        assert found.context["node"] == "y"
