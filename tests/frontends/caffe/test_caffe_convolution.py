"""Convolutions, products and pooling against OpenCV, or Caffe's definitions in numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from caffe_cases import check, feeds_for, inputs, layer, one, random, refusal

from mnnconvert.ops.windows import correlate, correlate_transposed, pad_spatial

CONVOLUTIONS = {
    "plain": ("num_output: 4 kernel_size: 3", (4, 6, 3, 3)),
    "no bias": ("num_output: 4 kernel_size: 3 bias_term: false", (4, 6, 3, 3)),
    "strides and pads": ("num_output: 4 kernel_size: 3 stride: 2 pad: 1", (4, 6, 3, 3)),
    "by letters": (
        "num_output: 4 kernel_h: 3 kernel_w: 2 stride_h: 2 stride_w: 1 pad_h: 1 pad_w: 0", (4, 6, 3, 2),
    ),
    "dilated": ("num_output: 4 kernel_size: 3 dilation: 2 pad: 2", (4, 6, 3, 3)),
    "grouped": ("num_output: 4 kernel_size: 3 group: 2", (4, 3, 3, 3)),
    "depthwise": ("num_output: 6 kernel_size: 3 group: 6 pad: 1", (6, 1, 3, 3)),
}  # fmt: skip


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolution(case, tmp_path, rng):
    settings, shape = CONVOLUTIONS[case]
    blobs = [random(rng, *shape), random(rng, shape[0])][: 1 + ("false" not in settings)]
    check(one("Convolution", f"convolution_param {{ {settings} }}", x=(2, 6, 9, 8)), {"y": blobs}, tmp_path)


def test_convolution_with_two_sizes(tmp_path, rng):
    settings = "convolution_param { num_output: 4 kernel_size: 3 kernel_size: 2 stride: [2, 1] pad: 1 pad: 0 }"
    weight, bias = random(rng, 4, 6, 3, 2), random(rng, 4)
    text = one("Convolution", settings, x=(2, 6, 9, 8))
    padded = pad_spatial(feeds_for(text)["x"], (1, 0), (1, 0))
    want = correlate(padded, weight, (2, 1), (1, 1), 1) + bias.reshape(4, 1, 1)
    check(text, {"y": [weight, bias]}, tmp_path, want={"y": want})


def test_shared_convolution_of_two_blobs(tmp_path, rng):
    weight, bias = random(rng, 4, 6, 3, 3), random(rng, 4)
    text = one(
        "Convolution", "convolution_param { num_output: 4 kernel_size: 3 }", "y z", a=(1, 6, 9, 8), c=(1, 6, 5, 7)
    )
    feeds = feeds_for(text)
    want = [correlate(feeds[k], weight, (1, 1), (1, 1), 1) + bias.reshape(4, 1, 1) for k in "ac"]
    check(text, {"y": [weight, bias]}, tmp_path, want=dict(zip("yz", want, strict=True)))


@pytest.mark.parametrize("kind", ["ConvolutionDepthwise", "DepthwiseConv"])
def test_depthwise_layers_of_forks(kind, tmp_path, rng):
    weight = random(rng, 6, 1, 3, 3)
    text = one(kind, "convolution_param { num_output: 6 kernel_size: 3 bias_term: false }", x=(2, 6, 9, 8))
    check(text, {"y": [weight]}, tmp_path, want={"y": correlate(feeds_for(text)["x"], weight, (1, 1), (1, 1), 6)})


@pytest.mark.parametrize("rank", [3, 5])
@pytest.mark.parametrize("kind", ["Convolution", "Deconvolution"])
def test_sequences_and_volumes(kind, rank, tmp_path, rng):
    count = rank - 2
    settings = "convolution_param { num_output: 3 kernel_size: 3 stride: 2 pad: 1 }"
    shape = (4, 3) if kind == "Deconvolution" else (3, 4)
    weight, bias = random(rng, *shape, *(3,) * count), random(rng, 3)
    text = one(kind, settings, x=(1, 4, 7, 6, 5)[:rank])
    x, ones = feeds_for(text)["x"], (1,) * count
    if kind == "Convolution":
        want = correlate(pad_spatial(x, ones, ones), weight, (2,) * count, ones, 1)
    else:
        want = correlate_transposed(x, weight, (2,) * count, ones, 1)
        want = want[(slice(None), slice(None), *(slice(1, -1),) * count)]
    want = want + bias.reshape(-1, *ones)
    check(text, {"y": [weight, bias]}, tmp_path, want={"y": want})


DECONVOLUTIONS = {
    "plain": ("num_output: 4 kernel_size: 3", (6, 4, 3, 3)),
    "strides and pads": ("num_output: 4 kernel_size: 4 stride: 2 pad: 1", (6, 4, 4, 4)),
    "depthwise": ("num_output: 6 kernel_size: 4 stride: 2 pad: 1 group: 6 bias_term: false", (6, 1, 4, 4)),
    "grouped": ("num_output: 4 kernel_size: 3 stride: 3 group: 2", (6, 2, 3, 3)),
}


@pytest.mark.parametrize("case", DECONVOLUTIONS)
def test_deconvolution(case, tmp_path, rng):
    settings, shape = DECONVOLUTIONS[case]
    blobs = [random(rng, *shape), random(rng, 6 if "depth" in case else 4)][: 1 + ("false" not in settings)]
    check(one("Deconvolution", f"convolution_param {{ {settings} }}", x=(2, 6, 5, 4)), {"y": blobs}, tmp_path)


def test_windows_as_channels(tmp_path):
    text = one("Im2col", "convolution_param { kernel_size: 3 stride: 2 pad: 1 }", x=(2, 3, 6, 5))
    padded = pad_spatial(feeds_for(text)["x"], (1, 1), (1, 1))
    want = np.stack(
        [padded[:, c, y : y + 5 : 2, x : x + 5 : 2] for c in range(3) for y in range(3) for x in range(3)], 1
    )
    check(text, None, tmp_path, want={"y": want})


PRODUCTS = {
    "image": ("num_output: 5", (2, 3, 4, 2), (5, 24)),
    "vector": ("num_output: 5 bias_term: false", (3, 6), (5, 6)),
}


@pytest.mark.parametrize("case", PRODUCTS)
def test_inner_product(case, tmp_path, rng):
    settings, shape, weight = PRODUCTS[case]
    blobs = [random(rng, *weight), random(rng, 5)][: 1 + ("false" not in settings)]
    check(one("InnerProduct", f"inner_product_param {{ {settings} }}", x=shape), {"y": blobs}, tmp_path)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_inner_product_from_an_axis_on(axis, transpose, tmp_path, rng):
    text = one(
        "InnerProduct", f"inner_product_param {{ num_output: 5 axis: {axis} transpose: {str(transpose).lower()} }}",
        x=(2, 3, 4),
    )  # fmt: skip
    x, start = feeds_for(text)["x"], axis % 3
    weight, bias = random(rng, 5, math.prod(x.shape[start:])), random(rng, 5)
    want = x.reshape(*x.shape[:start], -1) @ weight.T + bias
    check(text, {"y": [weight.T if transpose else weight, bias]}, tmp_path, want={"y": want})


def test_embed(tmp_path, rng):
    table, bias = random(rng, 7, 4), random(rng, 4)
    text = one("Embed", "embed_param { num_output: 4 input_dim: 7 }", x=(2, 3))
    feeds = {"x": np.array([[0, 6, 2], [3, 3, 5]], np.float32)}
    check(text, {"y": [table, bias]}, tmp_path, feeds=feeds, want={"y": table[feeds["x"].astype(int)] + bias})


def pooled(x, settings):
    """Caffe's definition: windows rounded up, the last one dropped where it begins behind the pads."""
    kernel, stride, pad = (settings.get(k, d) for k, d in (("kernel_size", 0), ("stride", 1), ("pad", 0)))
    height, width = x.shape[2:]
    outs = []
    for size in (height, width):
        out = -(-(size + 2 * pad - kernel) // stride) + 1
        outs.append(out - 1 if pad and (out - 1) * stride >= size + pad else out)
    y = np.empty((*x.shape[:2], *outs), np.float32)
    for r in range(outs[0]):
        for c in range(outs[1]):
            top, left = r * stride - pad, c * stride - pad
            bottom, right = min(top + kernel, height + pad), min(left + kernel, width + pad)
            area = (bottom - top) * (right - left)
            part = x[:, :, max(0, top) : min(bottom, height), max(0, left) : min(right, width)]
            y[:, :, r, c] = part.max((2, 3)) if settings.get("pool", "MAX") == "MAX" else part.sum((2, 3)) / area
    return y


@pytest.mark.parametrize("pool", ["MAX", "AVE"])
@pytest.mark.parametrize(
    "kernel, stride, pad", [(2, 2, 0), (3, 2, 0), (3, 2, 1), (3, 1, 1), (3, 3, 1), (4, 3, 2), (5, 4, 2)]
)
@pytest.mark.parametrize("size", [(7, 8), (9, 6)])
def test_pooling(pool, kernel, stride, pad, size, tmp_path):
    settings = {"pool": pool, "kernel_size": kernel, "stride": stride, "pad": pad}
    text = one("Pooling", f"pooling_param {{ {' '.join(f'{k}: {v}' for k, v in settings.items())} }}", x=(2, 3, *size))
    x = feeds_for(text)["x"]
    check(text, None, tmp_path, want={"y": pooled(x, settings)}, peer=size == (7, 8))


@pytest.mark.parametrize("pool", ["MAX", "AVE"])
def test_pooling_is_opencvs(pool, tmp_path):
    check(one("Pooling", f"pooling_param {{ pool: {pool} kernel_size: 3 stride: 2 }}", x=(2, 3, 8, 7)), None, tmp_path)
    check(one("Pooling", f"pooling_param {{ pool: {pool} global_pooling: true }}", x=(2, 3, 8, 7)), None, tmp_path)
    by_letter = "kernel_h: 3 kernel_w: 2 stride_h: 2 stride_w: 1 pad_h: 1 pad_w: 0"
    check(one("Pooling", f"pooling_param {{ pool: {pool} {by_letter} }}", x=(2, 3, 8, 7)), None, tmp_path)


@pytest.mark.parametrize("word", ["round_mode: FLOOR", "ceil_mode: false"])
def test_pooling_that_rounds_down(word, tmp_path):
    text = one("Pooling", f"pooling_param {{ kernel_size: 2 stride: 2 {word} }}", x=(1, 2, 7, 5))
    x = feeds_for(text)["x"]
    check(text, None, tmp_path, want={"y": x[:, :, :6, :4].reshape(1, 2, 3, 2, 2, 2).max((3, 5))})


def test_pooling_of_sequences_and_volumes(tmp_path):
    text = one("Pooling", "pooling_param { kernel_size: 2 stride: 2 }", x=(1, 2, 7))
    x = feeds_for(text)["x"]
    want = np.concatenate([x[:, :, :6].reshape(1, 2, 3, 2).max(3), x[:, :, 6:]], 2)
    check(text, None, tmp_path, want={"y": want})
    text = one("Pooling", "pooling_param { pool: AVE kernel_size: 2 stride: 2 }", x=(1, 2, 4, 6, 2))
    x = feeds_for(text)["x"]
    check(text, None, tmp_path, want={"y": x.reshape(1, 2, 2, 2, 3, 2, 1, 2).mean((3, 5, 7))})


def test_unpooling_puts_maxima_back(tmp_path):
    text = inputs(x=(2, 3, 6, 8)) + layer("Pooling", "x", "p m", "pooling_param { kernel_size: 2 stride: 2 }")
    text += layer("Upsample", "p m", "y", "upsample_param { scale: 2 }")
    x = feeds_for(text)["x"]
    largest = x.reshape(2, 3, 3, 2, 4, 2).max((3, 5), keepdims=True)
    want = np.where(x.reshape(2, 3, 3, 2, 4, 2) == largest, largest, 0).reshape(x.shape)
    check(text, None, tmp_path, want={"y": want})


@pytest.mark.parametrize("pool", ["MAX", "AVE"])
def test_spatial_pyramid(pool, tmp_path):
    text = one("SPP", f"spp_param {{ pyramid_height: 3 pool: {pool} }}", x=(2, 3, 9, 9))
    x = feeds_for(text)["x"]
    levels = []
    for bins in (1, 2, 4):
        kernel = -(-9 // bins)
        settings = {"pool": pool, "kernel_size": kernel, "stride": kernel, "pad": (kernel * bins - 9 + 1) // 2}
        levels.append(pooled(x, settings).reshape(2, -1))
    check(text, None, tmp_path, want={"y": np.concatenate(levels, 1)})


def test_refusals():
    (found,) = refusal(one("Pooling", "pooling_param { pool: STOCHASTIC kernel_size: 2 }", x=(1, 2, 4, 4)))
    assert "STOCHASTIC" in found.message
    (found,) = refusal(one("Pooling", "pooling_param { kernel_size: 2 pad: 2 }", x=(1, 2, 4, 4)))
    assert "pads" in found.message
    (found,) = refusal(one("Upsample", x=(1, 2, 4, 4), places=(1, 2, 4, 5)))
    assert "places" in found.message
    (found,) = refusal(one("Pooling", "pooling_param { kernel_size: 9 }", x=(1, 2, 4, 4)))
    assert found.reference in ("bad-caffe-file", "shape-mismatch")
    (found,) = refusal(
        one("Convolution", "convolution_param { num_output: 3 kernel_size: 2 group: 2 }", x=(1, 4, 4, 4))
    )
    assert "groups" in found.message
    (found,) = refusal(one("Convolution", "convolution_param { num_output: 3 kernel_size: 2 }", x=(1, 4, 4, 4)))
    assert found.reference == "missing-weights"
    blobs = {"y": [np.zeros((3, 4, 2, 3)), np.zeros(3)]}
    (found,) = refusal(one("Convolution", "convolution_param { num_output: 3 kernel_size: 2 }", x=(1, 4, 4, 4)), blobs)
    assert found.reference == "bad-caffe-file"
    assert "[3, 4, 2, 3]" in found.message
