"""Small nets of the kinds that are in use, from two files to a file that is proved, in both runtimes."""

from __future__ import annotations

import numpy as np
from caffe_cases import check, feeds_for, files, import_net, inputs, layer, random
from graphs import run_graph

import mnnconvert


class Net:
    """A net in the making: its text, and weights that fit."""

    def __init__(self, rng, **shapes):
        self.rng, self.text, self.blobs = rng, inputs(**shapes), {}

    def add(self, kind, bottoms, tops, settings="", blobs=(), name=""):
        self.text += layer(kind, bottoms, tops, settings, name)
        if blobs:
            self.blobs[name or tops.split()[0]] = [0.3 * random(self.rng, *shape) for shape in blobs]
        return self

    def conv(self, bottom, top, shape, settings=""):
        sizes = f"num_output: {shape[0]} kernel_size: {shape[2]}"
        return self.add("Convolution", bottom, top, f"convolution_param {{ {sizes} {settings} }}", [shape, shape[:1]])

    def proved(self, folder, **options):
        """Convert the net, prove it with OpenCV, and have the released runtime agree."""
        prototxt, weights = files(folder, self.text, self.blobs)
        report = mnnconvert.convert(weights, folder / "m.mnn", prototxt=prototxt, verify="always", **options)
        assert report.verification is not None and report.verification.passed
        assert mnnconvert.verify(weights, folder / "m.mnn", prototxt=prototxt, engine="mnn").passed
        return report


def test_classifier_of_old(tmp_path, rng):
    """As AlexNet: groups, local normalisation, pooling that rounds up, dropout and activations in place."""
    net = Net(rng, data=(2, 3, 33, 31)).conv("data", "c1", (8, 3, 5, 5), "stride: 2")
    net.add("ReLU", "c1", "c1", name="r1").add("LRN", "c1", "n1", "lrn_param { alpha: 0.1 }")
    net.add("Pooling", "n1", "p1", "pooling_param { kernel_size: 3 stride: 2 }")
    net.conv("p1", "c2", (12, 4, 3, 3), "group: 2 pad: 1").add("ReLU", "c2", "c2", name="r2")
    net.add("Pooling", "c2", "p2", "pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 }")
    net.add("InnerProduct", "p2", "f1", "inner_product_param { num_output: 20 }", [(20, 192), (20,)])
    net.add("ReLU", "f1", "f1", name="r3").add("Dropout", "f1", "f1", name="d")
    net.add("InnerProduct", "f1", "f2", "inner_product_param { num_output: 5 }", [(5, 20), (5,)]).add(
        "Softmax", "f2", "prob"
    )
    net.proved(tmp_path)
    net.proved(tmp_path, weight_bits=8)


def test_layers_are_compared_with_those_of_opencv(tmp_path, rng):
    """Also those that work in place, and a broken one is named."""
    net = Net(rng, data=(1, 3, 12, 12)).conv("data", "c1", (8, 3, 3, 3)).add("ReLU", "c1", "c1", name="r1")
    net.add("Scale", "c1", "c1", "", [(8,)], "s1").conv("c1", "c2", (4, 8, 3, 3)).add("TanH", "c2", "y")
    net.proved(tmp_path)
    prototxt, weights = files(tmp_path, net.text, net.blobs)
    result = mnnconvert.verify(weights, tmp_path / "m.mnn", prototxt=prototxt, per_layer=True)
    assert result.layers is not None and result.layers.first_bad is None
    assert "y" in [row.name for row in result.layers.layers]
    net.blobs["c2"] = [a + 0.1 for a in net.blobs["c2"]]
    prototxt, weights = files(tmp_path, net.text, net.blobs)
    result = mnnconvert.verify(weights, tmp_path / "m.mnn", prototxt=prototxt, per_layer=True)
    assert not result.passed and result.layers is not None
    assert result.layers.first_bad.node == "c2"


def test_mobile_net(tmp_path, rng):
    """Depthwise convolutions with norms in place, shuffled channels, and a sum."""
    net = Net(rng, data=(1, 3, 16, 16)).conv("data", "a", (8, 3, 3, 3), "pad: 1 bias_term: false")
    net.add("BatchNorm", "a", "a", name="bn")
    net.blobs["a"] = net.blobs["a"][:1]
    net.blobs["bn"] = [random(rng, 8), np.abs(random(rng, 8)) + 0.5, np.array([2.0])]
    net.add("Scale", "a", "a", "scale_param { bias_term: true }", [(8,), (8,)], "sc").add("ReLU6", "a", "a", name="r")
    net.conv("a", "b", (8, 1, 3, 3), "pad: 1 group: 8").add(
        "ShuffleChannel", "b", "s", "shuffle_channel_param { group: 2 }"
    )
    net.add("Eltwise", "s a", "e").add("PReLU", "e", "e", "", [(8,)], "pr").add("Slice", "e", "h1 h2")
    net.add("Concat", "h2 h1", "k").add("Pooling", "k", "y", "pooling_param { pool: AVE global_pooling: true }")
    net.proved(tmp_path)


def test_segmentation_by_deconvolution(tmp_path, rng):
    """As FCN: scores made larger, cropped to the image, and added."""
    net = (
        Net(rng, data=(1, 3, 18, 21))
        .conv("data", "c", (4, 3, 3, 3), "pad: 4 stride: 2")
        .conv("data", "s", (2, 3, 1, 1))
    )
    up = "convolution_param { num_output: 2 kernel_size: 4 stride: 2 bias_term: false }"
    net.add("Deconvolution", "c", "u", up, [(4, 2, 4, 4)]).add("Crop", "u s", "k", "crop_param { axis: 2 offset: 3 }")
    net.add("Eltwise", "k s", "e").add("Interp", "e", "i", "interp_param { zoom_factor: 2 }").add("Softmax", "i", "y")
    net.proved(tmp_path)


def test_segmentation_by_positions(tmp_path, rng):
    """As SegNet: maxima go back to where they came from. OpenCV is not asked, as it has another layer of that name."""
    net = Net(rng, data=(1, 3, 8, 12)).conv("data", "c", (4, 3, 3, 3), "pad: 1")
    net.add("Pooling", "c", "p m", "pooling_param { kernel_size: 2 stride: 2 }").conv("p", "d", (4, 4, 3, 3), "pad: 1")
    net.add("Upsample", "d m", "y", "upsample_param { scale: 2 upsample_h: 8 upsample_w: 12 }")

    feeds = feeds_for(net.text)
    want = run_graph(import_net(net.text, net.blobs), feeds)
    assert np.count_nonzero(want["y"]) == 4 * 4 * 6
    check(net.text, net.blobs, tmp_path, feeds=feeds, want=want)


def test_single_shot_detector(tmp_path, rng):
    net = (
        Net(rng, data=(1, 3, 32, 32))
        .conv("data", "c1", (8, 3, 3, 3), "pad: 1 stride: 4")
        .add("ReLU", "c1", "c1", name="r")
    )
    net.add("Normalize", "c1", "n1", "norm_param { across_spatial: false channel_shared: false }", [(8,)])
    net.conv("n1", "c2", (8, 8, 3, 3), "pad: 1 stride: 2")
    for source, size in (("n1", 8), ("c2", 16)):
        settings = f"min_size: {size} max_size: {2 * size} aspect_ratio: 2 clip: true variance: [0.1, 0.1, 0.2, 0.2]"
        for what, count in (("loc", 16), ("conf", 12)):
            net.conv(source, f"{source}_{what}", (count, 8, 3, 3), "pad: 1")
            net.add("Permute", f"{source}_{what}", f"{source}_{what}_p", "permute_param { order: [0, 2, 3, 1] }")
            net.add("Flatten", f"{source}_{what}_p", f"{source}_{what}_f")
        net.add("PriorBox", f"{source} data", f"{source}_prior", f"prior_box_param {{ {settings} }}")
    for what, axis in (("loc_f", 1), ("conf_f", 1), ("prior", 2)):
        net.add("Concat", f"n1_{what} c2_{what}", what, f"concat_param {{ axis: {axis} }}")
    net.add("Reshape", "conf_f", "conf_r", "reshape_param { shape { dim: 0 dim: -1 dim: 3 } }")
    net.add("Softmax", "conf_r", "conf_s", "softmax_param { axis: 2 }").add("Flatten", "conf_s", "conf")
    settings = "num_classes: 3 share_location: true background_label_id: 0 keep_top_k: 30 code_type: CENTER_SIZE"
    settings += " confidence_threshold: 0.1 nms_param { nms_threshold: 0.45 top_k: 50 }"
    net.add("DetectionOutput", "loc_f conf prior", "y", f"detection_output_param {{ {settings} }}")
    net.proved(tmp_path)


def test_regions_of_proposals(tmp_path, rng):
    """As Faster R-CNN: proposals, pooled regions, and two products on them."""
    net = Net(rng, data=(1, 3, 64, 96), im_info=(1, 3)).conv("data", "c", (8, 3, 3, 3), "pad: 1 stride: 16")
    net.conv("c", "cls", (18, 8, 1, 1)).conv("c", "box", (36, 8, 1, 1))
    net.add("Reshape", "cls", "cls2", "reshape_param { shape { dim: 0 dim: 2 dim: -1 dim: 0 } }").add(
        "Softmax", "cls2", "prob"
    )
    settings = "proposal_param { feat_stride: 16 min_size: 0 ratio: [0.5, 1, 2] scale: [8, 16, 32] post_nms_topn: 12 }"
    net.add("Reshape", "prob", "prob2", "reshape_param { shape { dim: 0 dim: 18 dim: -1 dim: 0 } }")
    net.add("Proposal", "prob2 box im_info", "rois", settings)
    net.add("ROIPooling", "c rois", "p", "roi_pooling_param { pooled_w: 2 pooled_h: 2 spatial_scale: 0.0625 }")
    net.add("InnerProduct", "p", "f", "inner_product_param { num_output: 4 }", [(4, 32), (4,)]).add("Softmax", "f", "y")
    feeds = {**feeds_for(net.text), "im_info": np.array([[64, 96, 1]], np.float32)}
    check(net.text, net.blobs, tmp_path, feeds=feeds)
