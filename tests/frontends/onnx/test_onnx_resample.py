"""Import of Resize and Upsample against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import import_proto
from onnx_cases import check, model


def noise(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def text(shape, attributes: str, by: str, symbolic=False) -> str:
    """One Resize whose last operand is `by`; with `symbolic` the spatial sizes are open."""
    sizes = [str(s) if i < 2 or not symbolic else f"s{i}" for i, s in enumerate(shape)]
    outs = ",".join(f"o{i}" for i in range(len(shape)))
    operands = 'x, "", scales' if by == "scales" else 'x, "", "", sizes'
    return f"(float[{','.join(sizes)}] x) => (float[{outs}] y) {{ y = Resize <{attributes}> ({operands}) }}"


def scaled(shape, attributes, scales, *, symbolic=False, opset=17):
    arrays = {"x": noise(*shape), "scales": np.array(scales, np.float32)}
    check(text(shape, attributes, "scales", symbolic), arrays, opset=opset, rtol=3e-6)


def sized(shape, attributes, sizes, *, symbolic=False, opset=17):
    arrays = {"x": noise(*shape), "sizes": np.array(sizes, np.int64)}
    check(text(shape, attributes, "sizes", symbolic), arrays, opset=opset, rtol=3e-6)


RULES = ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "half_pixel_symmetric"]
ROUNDING = ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("mode", ["linear", "cubic", *ROUNDING])
def test_modes(mode, rule):
    attributes = f'mode="{mode}"' if mode in ("linear", "cubic") else f'mode="nearest", nearest_mode="{mode}"'
    attributes += f', coordinate_transformation_mode="{rule}"'
    for scales in ((2, 3), (1.4, 0.7), (0.5, 0.75), (1, 1.3)):
        scaled((1, 2, 6, 7), attributes, (1, 1, *scales), opset=19)
    for sizes in ((12, 21), (4, 9), (1, 1), (6, 5)):
        sized((1, 2, 6, 7), attributes, (1, 2, *sizes), opset=19)


@pytest.mark.parametrize("rounding", ROUNDING)
def test_nearest_of_opset_11_with_the_rule_of_tensorflow(rounding):
    attributes = f'mode="nearest", nearest_mode="{rounding}", coordinate_transformation_mode="tf_half_pixel_for_nn"'
    source = (
        f"(float[2,2,5,6] x) => (float[a,b,c,d] y) <float[0] roi = {{}}> {{ y = Resize <{attributes}> (x, roi, s) }}"
    )
    for scales in ((3, 3), (0.5, 1.5)):
        check(source, {"x": noise(2, 2, 5, 6), "s": np.array((1, 1, *scales), np.float32)}, opset=11, rtol=0)


@pytest.mark.parametrize("shape", [(2, 3, 7), (1, 2, 3, 4, 5)])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_other_ranks(mode, shape):
    scaled(shape, f'mode="{mode}"', (1, 1, *(2, 1.5, 0.7)[: len(shape) - 2]))


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("shape", [(2, 3, 7), (1, 2, 5, 6)])
def test_open_sizes(mode, shape):
    rank = len(shape)
    scaled(shape, f'mode="{mode}"', (1, 1, *(2,) * (rank - 2)), symbolic=True)
    sized(shape, f'mode="{mode}"', (*shape[:2], *(4, 9)[: rank - 2]), symbolic=True)


@pytest.mark.parametrize("rule", ["half_pixel", "asymmetric"])
def test_open_sizes_with_a_broken_scale(rule):
    scaled((1, 2, 5, 7), f'mode="linear", coordinate_transformation_mode="{rule}"', (1, 1, 1.5, 0.6), symbolic=True)


def test_sizes_that_are_computed():
    source = """(float[1,2,h,w] x, float[1,3,p,q] like) => (float[1,2,p,q] y)
        <int64[1] two = {2}, int64[1] four = {4}, int64[2] front = {1, 2}> {
        shape = Shape(like)
        back = Slice(shape, two, four)
        sizes = Concat <axis=0> (front, back)
        y = Resize <mode="linear", coordinate_transformation_mode="align_corners"> (x, "", "", sizes)
    }"""
    for size in ((4, 5), (9, 3)):
        check(source, {"x": noise(1, 2, 3, 4), "like": noise(1, 3, *size)}, rtol=3e-6)


def test_sizes_that_are_fed():
    source = """(float[1,2,h,w] x, int64[4] sizes) => (float[a,b,c,d] y) {
        y = Resize <mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">
            (x, "", "", sizes)
    }"""
    check(source, {"x": noise(1, 2, 3, 4), "sizes": np.array([1, 2, 7, 8])}, rtol=0)


def test_axes_and_aspect_ratio():
    sized((1, 3, 5, 6), 'mode="linear", axes=[2, 3]', (9, 4), opset=18)
    sized((1, 3, 5, 6), 'mode="nearest", axes=[-1, 2]', (4, 9), opset=18)
    for policy in ("not_larger", "not_smaller"):
        sized((1, 3, 5, 6), f'mode="linear", axes=[2, 3], keep_aspect_ratio_policy="{policy}"', (9, 14), opset=18)


def test_batch_and_channels_are_resized_too():
    scaled((3, 2, 4, 5), 'mode="nearest"', (2, 1.5, 1, 2))
    scaled((3, 4), 'mode="linear"', (2, 1.5))


@pytest.mark.parametrize(
    "attributes", ["cubic_coeff_a=-0.5, exclude_outside=1", "exclude_outside=1", "cubic_coeff_a=-0.5"]
)
def test_cubic_coefficient_and_border(attributes):
    sized((1, 1, 7, 7), f'mode="cubic", {attributes}', (1, 1, 4, 10))


def test_crop_and_resize():
    attributes = 'mode="{}", coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=10.0'
    roi = np.array([0, 0, 0.4, -0.2, 1, 1, 1.2, 0.7], np.float32)
    source = """(float[1,2,6,7] x) => (float[1,2,5,3] y) {{ y = Resize <{}> (x, roi, "", sizes) }}"""
    for mode in ("linear", "nearest"):
        arrays = {"x": noise(1, 2, 6, 7), "roi": roi, "sizes": np.array([1, 2, 5, 3])}
        check(source.format(attributes.format(mode)), arrays, rtol=3e-6)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_antialias(mode):
    sized((1, 2, 9, 11), f'mode="{mode}", antialias=1', (1, 2, 4, 5), opset=18)
    sized((1, 2, 9, 11), f'mode="{mode}", antialias=1', (1, 2, 12, 5), opset=18)


@pytest.mark.parametrize("opset", [7, 9])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_upsample(mode, opset):
    scales = "" if opset == 9 else "scales=[1.0, 1.0, 2.0, 3.0], "
    operand = "(x, s)" if opset == 9 else "(x)"
    source = f'(float[1,2,3,4] x) => (float[1,2,6,12] y) {{ y = Upsample <{scales}mode="{mode}"> {operand} }}'
    check(source, {"x": noise(1, 2, 3, 4), "s": np.array([1, 1, 2, 3], np.float32)}, opset=opset, rtol=3e-6)


def test_resize_of_opset_10():
    source = '(float[1,2,3,4] x) => (float[1,2,6,2] y) { y = Resize <mode="linear"> (x, s) }'
    check(source, {"x": noise(1, 2, 3, 4), "s": np.array([1, 1, 2, 0.5], np.float32)}, opset=10, rtol=3e-6)


def test_nearest_of_bytes():
    x = np.random.default_rng(0).integers(0, 255, (1, 2, 3, 4)).astype("uint8")
    source = '(uint8[1,2,3,4] x) => (uint8[1,2,6,8] y) { y = Resize <mode="nearest"> (x, "", s) }'
    check(source, {"x": x, "s": np.array([1, 1, 2, 2], np.float32)}, rtol=0)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_plain_upsampling_is_one_op(mode):
    attributes = f'mode="{mode}", coordinate_transformation_mode="asymmetric", nearest_mode="floor"'
    arrays = {"scales": np.array([1, 1, 2, 2], np.float32)}
    proto, _ = model(text((1, 2, 4, 4), attributes, "scales", symbolic=True), arrays)
    assert [n.op.kind for n in import_proto(proto).nodes] == ["Interp"]


@pytest.mark.parametrize("attributes", ['mode="cubic"', 'mode="linear", antialias=1', 'nearest_mode="ceil"'])
def test_known_scales_of_open_sizes(attributes):
    source = f"(float[1,2,h,w] x) => (float[a,b,c,d] y) {{ y = Resize <{attributes}> (x, , s) }}"
    for scales in ((2, 3), (0.5, 0.7)):
        x = noise(1, 2, 6, 10)
        check(source, {"x": x, "s": np.array((1, 1, *scales), np.float32)}, opset=18, rtol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_scales_that_are_fed(mode):
    source = f'(float[1,2,h,w] x, float[4] s) => (float[a,b,c,d] y) {{ y = Resize <mode="{mode}"> (x, "", s) }}'
    for scales in ((2, 3), (1.5, 0.6)):
        check(source, {"x": noise(1, 2, 5, 7), "s": np.array((1, 1, *scales), np.float32)}, rtol=3e-6)


def test_symmetric_half_pixels():
    """Their offset depends on how far the rounded size is from the scaled one."""
    body = 'y = Resize <mode="linear", coordinate_transformation_mode="half_pixel_symmetric"> (x, , s)'
    x = np.arange(1, 5, dtype=np.float32).reshape(1, 1, 1, 4)
    for fed in ("", ", float[4] s"):
        text = f"(float[1,1,1,4] x{fed}) => (float[1,1,h,w] y) {{ {body} }}"
        check(text, {"x": x, "s": np.array([1, 1, 1, 0.6], np.float32)}, opset=19, rtol=1e-6)
