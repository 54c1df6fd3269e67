"""Import of image ops against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_cases import check, refusal


def noise(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def spread(*shape, seed=1, reach=1.6):
    return np.random.default_rng(seed).uniform(-reach, reach, shape).astype(np.float32)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space(mode):
    text = f'(float[n,12,h,w] x) => (float[n,3,a,b] y) {{ y = DepthToSpace <blocksize=2, mode="{mode}"> (x) }}'
    for shape in ((2, 12, 2, 3), (1, 12, 4, 1)):
        check(text, {"x": noise(*shape)}, rtol=0)


def test_space_to_depth():
    text = "(float[n,3,h,w] x) => (float[n,12,a,b] y) { y = SpaceToDepth <blocksize=2> (x) }"
    check(text, {"x": noise(2, 3, 4, 6)}, rtol=0)


@pytest.mark.parametrize("size", [3, 5])
def test_lrn(size):
    text = f"(float[n,7,3,w] x) => (float[n,7,3,w] y) {{ y = LRN <size={size}, alpha=0.5, beta=0.6, bias=2.0> (x) }}"
    check(text, {"x": noise(2, 7, 3, 4)}, rtol=1e-5)


def test_lrn_of_lines():
    x = noise(1, 3, 4)
    total = sum(np.pad(x**2, ((0, 0), (1, 1), (0, 0)))[:, i : i + 3] for i in range(3))
    text = "(float[1,3,4] x) => (float[1,3,4] y) { y = LRN <size=3, alpha=0.6, beta=0.5> (x) }"
    check(text, {"x": x}, rtol=1e-5, want={"y": x / np.sqrt(1 + 0.2 * total)})


def test_lrn_of_even_size_has_the_larger_half_behind():
    x = noise(1, 5, 2, 2)
    padded = np.pad(x**2, ((0, 0), (1, 2), (0, 0), (0, 0)))
    total = sum(padded[:, i : i + 5] for i in range(4))
    text = "(float[1,5,2,2] x) => (float[1,5,2,2] y) { y = LRN <size=4, alpha=0.5, beta=0.5> (x) }"
    check(text, {"x": x}, rtol=1e-5, want={"y": x / np.sqrt(1 + 0.5 / 4 * total)})


@pytest.mark.parametrize(
    "attributes",
    ["strides=[2, 2]", "pads=[1, 0, 1, 0], strides=[2, 1]", "dilations=[2, 1]", "dilations=[2, 1], strides=[2, 4]"],
)
def test_col2im(attributes):
    columns = {"strides=[2, 2]": 9, "pads=[1, 0, 1, 0], strides=[2, 1]": 24, "dilations=[2, 1]": 30}.get(attributes, 6)
    text = f"""(float[2,8,{columns}] x) => (float[2,2,7,7] y) <int64[2] image = {{7, 7}}, int64[2] block = {{2, 2}}> {{
        y = Col2Im <{attributes}> (x, image, block)
    }}"""
    check(text, {"x": noise(2, 8, columns)}, opset=18, rtol=1e-5)


ROIS = np.array([[1, 1, 9, 10], [-3, 2, 14, 17], [0, 2, 14, 15]], np.float32)


@pytest.mark.parametrize("rule", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize(("mode", "ratio"), [("avg", 2), ("avg", 0), ("max", 1), ("max", 2)])
def test_roi_align(mode, ratio, rule):
    text = f"""(float[2,2,8,8] x, float[3,4] rois) => (float[3,2,2,3] y) <int64[3] batch = {{1, 0, 0}}> {{
        y = RoiAlign <output_height=2, output_width=3, sampling_ratio={ratio}, spatial_scale=0.5, mode="{mode}",
                      coordinate_transformation_mode="{rule}"> (x, rois, batch)
    }}"""
    check(text, {"x": noise(2, 2, 8, 8), "rois": ROIS}, opset=16, rtol=1e-5)


def test_roi_align_of_opset_10_does_not_shift():
    text = """(float[2,2,8,8] x, float[3,4] rois) => (float[3,2,2,2] y) <int64[3] batch = {1, 0, 0}> {
        y = RoiAlign <output_height=2, output_width=2, sampling_ratio=2> (x, rois, batch)
    }"""
    check(text, {"x": noise(2, 2, 8, 8), "rois": ROIS / 2}, opset=10, rtol=1e-5)


def test_roi_align_max_without_a_ratio_is_refused():
    text = """(float[2,2,8,8] x, float[3,4] rois) => (float[3,2,1,1] y) <int64[3] batch = {1, 0, 0}> {
        y = RoiAlign <mode="max"> (x, rois, batch)
    }"""
    (problem,) = refusal(text, opset=16)
    assert "sampling_ratio" in problem.message


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grid_sample(mode, padding, align):
    text = f"""(float[2,3,5,6] x, float[2,4,3,2] grid) => (float[2,3,4,3] y) {{
        y = GridSample <mode="{mode}", padding_mode="{padding}", align_corners={align}> (x, grid)
    }}"""
    check(text, {"x": noise(2, 3, 5, 6), "grid": spread(2, 4, 3, 2)}, opset=20, rtol=2e-5)


def test_grid_sample_nearest_takes_the_even_pixel_of_two():
    text = '(float[1,1,1,6] x, float[1,1,5,2] grid) => (float[1,1,1,5] y) { y = GridSample <mode="nearest"> (x, grid) }'
    grid = np.zeros((1, 1, 5, 2), np.float32)
    grid[..., 0] = (np.arange(1, 6) * 2) / 6 - 1  # between pixels 0 and 1, 1 and 2 ...
    check(text, {"x": noise(1, 1, 1, 6), "grid": grid}, opset=20, rtol=0)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_grid_sample_of_volumes(mode, padding):
    text = f"""(float[1,2,3,4,5] x, float[1,2,3,2,3] grid) => (float[1,2,2,3,2] y) {{
        y = GridSample <mode="{mode}", padding_mode="{padding}"> (x, grid)
    }}"""
    check(text, {"x": noise(1, 2, 3, 4, 5), "grid": spread(1, 2, 3, 2, 3)}, opset=20, rtol=2e-5)


def test_grid_sample_of_opset_16_names_its_modes_differently():
    text = (
        '(float[1,2,5,6] x, float[1,4,3,2] grid) => (float[1,2,4,3] y) { y = GridSample <mode="bilinear"> (x, grid) }'
    )
    check(text, {"x": noise(1, 2, 5, 6), "grid": spread(1, 4, 3, 2)}, opset=16, rtol=2e-5)


def test_grid_sample_cubic_of_open_sizes_is_refused():
    text = '(float[1,2,h,w] x, float[1,4,3,2] g) => (float[1,2,4,3] y) { y = GridSample <mode="cubic"> (x, g) }'
    (problem,) = refusal(text, opset=20)
    assert "GridSample" in problem.message and "--inputShape" in problem.hint
