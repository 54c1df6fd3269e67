"""Parameters that are inputs of the model: axes, sizes, amounts, steps."""

import numpy as np
import pytest
from onnx_cases import check


def listed(attributes):
    return f"<{attributes}>" if attributes else ""


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("attributes", ["", "exclusive=1", "reverse=1", "exclusive=1, reverse=1"])
@pytest.mark.parametrize("kind", ["float32", "int32"])
def test_running_products_along_an_axis_that_is_fed(axis, attributes, kind, rng):
    x = rng.integers(1, 4, (3, 5, 2)).astype(kind)
    turned = np.flip(x, axis) if "reverse" in attributes else x
    if "exclusive" in attributes:
        ones = np.ones_like(turned.take([0], axis))
        turned = np.concatenate([ones, turned.take(range(x.shape[axis] - 1), axis)], axis)
    want = np.cumprod(turned, axis, dtype=kind)
    want = np.flip(want, axis) if "reverse" in attributes else want
    name = {"float32": "float"}.get(kind, kind)
    text = f"({name}[3,5,2] x, int64 a) => ({name}[3,5,2] y) {{ y = CumProd {listed(attributes)}(x, a) }}"
    check(text, {"x": x, "a": np.array(axis)}, opset=26, rtol=1e-6, want={"y": want})


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("axes", [None, [1], [0, -1]])
def test_amounts_and_axes_of_padding_that_are_fed(mode, axes, rng):
    x, count = rng.standard_normal((4, 5)).astype("float32"), 2 if axes is None else len(axes)
    operands, call = f"int64[{2 * count}] p", "x, p, v"
    arrays = {"x": x, "p": np.arange(1, 2 * count + 1) % 4, "v": np.float32(0.5)}
    if axes is not None:
        operands, call = f"{operands}, int64[{count}] axes", "x, p, v, axes"
        arrays["axes"] = np.array(axes)
    text = f'(float[4,m] x, {operands}) => (float[a,b] y) {{ y = Pad <mode="{mode}">({call}) }}'
    check(text, arrays, opset=19, rtol=0)


@pytest.mark.parametrize("target", [[3, 9, 5], [7, 2, 4], [4, 5, 6]])
@pytest.mark.parametrize("kind", ["float", "int32", "uint8"])
def test_center_crop_pad_to_a_shape_that_is_fed(target, kind, rng):
    x = rng.integers(1, 100, (4, 5, 6)).astype({"float": "float32"}.get(kind, kind))
    text = f"({kind}[4,n,6] x, int64[3] t) => ({kind}[a,b,c] y) {{ y = CenterCropPad(x, t) }}"
    check(text, {"x": x, "t": np.array(target)}, opset=18, rtol=0)
    some = f"({kind}[4,n,6] x, int64[2] t) => ({kind}[a,b,c] y) {{ y = CenterCropPad <axes=[2,-3]>(x, t) }}"
    check(some, {"x": x, "t": np.array(target[:2])}, opset=18, rtol=0)


@pytest.mark.parametrize("attributes", ["", "strides=[2,1]", "pads=[1,0,2,1]", "dilations=[1,2], pads=[0,1,0,1]"])
def test_columns_to_an_image_that_is_fed(attributes, rng):
    fed = "float[2,12,n] x, int64[2] i, int64[2] k"
    text = f"({fed}) => (float[a,b,c,d] y) {{ y = Col2Im {listed(attributes)}(x, i, k) }}"
    columns = {"": 20, "strides=[2,1]": 10, "pads=[1,0,2,1]": 42}.get(attributes, 24)
    x = rng.standard_normal((2, 12, columns)).astype("float32")
    check(text, {"x": x, "i": np.array([5, 6]), "k": np.array([2, 2])}, opset=18, rtol=1e-6)


@pytest.mark.parametrize("spatial", [[4], [3, 4, 5]])
def test_columns_to_images_of_other_ranks(spatial, rng):
    count = len(spatial)
    sizes = ",".join("abc"[:count])
    text = f"(float[1,r,n] x) => (float[q,c,{sizes}] y) {{ y = Col2Im(x, i, k) }}"
    block, columns = 2**count, int(np.prod(np.array(spatial) - 1))
    x = rng.standard_normal((1, 3 * block, columns)).astype("float32")
    check(text, {"x": x, "i": np.array(spatial), "k": np.full(count, 2)}, opset=18, rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, -2])
@pytest.mark.parametrize("length", [None, 3, 8])
@pytest.mark.parametrize(("parts", "attributes"), [(1, ""), (1, "onesided=1"), (2, ""), (2, "inverse=1")])
def test_transform_along_an_axis_that_is_fed(axis, length, parts, attributes, rng):
    x = rng.standard_normal((6, 5, parts)).astype("float32")
    signal = x[..., 0] + (1j * x[..., 1] if parts == 2 else 0)
    place = {0: 0, 1: 1, -2: 1}[axis]
    y = (np.fft.ifft if "inverse" in attributes else np.fft.fft)(signal, length, place)
    if "onesided" in attributes:
        y = y.take(range(y.shape[place] // 2 + 1), place)
    want = np.stack([y.real, y.imag], -1).astype("float32")
    fed, call = ("", "") if length is None else ("int64 n, ", "n")
    node = f"DFT {listed(attributes)}(x, {call}, axis)"
    text = f"(float[6,5,{parts}] x, {fed}int64 axis) => (float[a,b,2] y) {{ y = {node} }}"
    arrays = {"x": x, "axis": np.array(axis)} | ({} if length is None else {"n": np.array(length)})
    check(text, arrays, opset=20, rtol=1e-5, want={"y": want})


@pytest.mark.parametrize("samples", [10, 11])
def test_real_signals_from_half_a_spectrum_whose_axis_is_fed(samples, rng):
    signal = rng.standard_normal((3, samples))
    half = np.fft.rfft(signal)
    x = np.stack([half.real, half.imag], -1).astype("float32")
    text = "(float[3,k,2] x, int64 n, int64 axis) => (float[3,m,1] y) { y = DFT <inverse=1, onesided=1>(x, n, axis) }"
    arrays = {"x": x, "n": np.array(samples), "axis": np.array(1)}
    check(text, arrays, opset=20, rtol=1e-5, want={"y": signal[..., None].astype("float32")})


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("window", ["", "w"])
def test_frames_whose_step_is_fed(window, onesided, rng):
    fed = "float[16] w, " if window else ""
    text = f"""(float[2,n,1] x, int64 step, {fed}int64 size) => (float[2,f,b,2] y) {{
        y = STFT <onesided={onesided}>(x, step, {window}, size)
    }}"""
    arrays = {"x": rng.standard_normal((2, 64, 1)).astype("float32"), "step": np.array(8), "size": np.array(16)}
    check(text, arrays | ({"w": np.hanning(16).astype("float32")} if window else {}), rtol=1e-5)


@pytest.mark.parametrize("name", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("periodic", [0, 1])
def test_windows_whose_size_is_fed(name, periodic):
    check(f"(int64 n) => (float[m] y) {{ y = {name} <periodic={periodic}>(n) }}", {"n": np.array(10)}, rtol=1e-6)


def test_mel_weights_whose_operands_are_fed():
    text = (
        """(int64 m, int64 l, int64 r, float lo, float hi) => (float[a,b] y) { y = MelWeightMatrix(m, l, r, lo, hi) }"""
    )
    for mels, length in ((8, 16), (20, 512)):
        arrays = {"m": np.array(mels), "l": np.array(length), "r": np.array(8192)}
        check(text, arrays | {"lo": np.float32(0), "hi": np.float32(4000)}, rtol=1e-5)


RULES = ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "half_pixel_symmetric"]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_of_axes_by_scales_that_are_fed(mode, rule, rng):
    attributes = f'mode="{mode}", coordinate_transformation_mode="{rule}", axes=[2,3]'
    text = f"(float[1,2,h,w] x, float[2] s) => (float[a,b,c,d] y) {{ y = Resize <{attributes}>(x, , s) }}"
    for scales in ((1.6, 0.7), (2, 1)):
        arrays = {"x": rng.standard_normal((1, 2, 5, 6)).astype("float32"), "s": np.array(scales, "float32")}
        check(text, arrays, opset=19, rtol=2e-5)


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_to_sizes_that_are_fed(mode, policy, rng):
    attributes = f'mode="{mode}", keep_aspect_ratio_policy="{policy}", axes=[3,2]'
    text = f"(float[1,2,h,w] x, int64[2] s) => (float[a,b,c,d] y) {{ y = Resize <{attributes}>(x, , , s) }}"
    arrays = {"x": rng.standard_normal((1, 2, 5, 6)).astype("float32"), "s": np.array([9, 8])}
    check(text, arrays, opset=18, rtol=2e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_of_a_region_that_is_fed(mode, rng):
    attributes = f'mode="{mode}", coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=9.0'
    text = f"""(float[1,1,5,6] x, float[8] r, int64[4] s) => (float[a,b,c,d] y) {{
        y = Resize <{attributes}>(x, r, , s)
    }}"""
    arrays = {"x": rng.standard_normal((1, 1, 5, 6)).astype("float32"), "s": np.array([1, 1, 4, 3])}
    check(text, arrays | {"r": np.array([0, 0, 0.2, 0.1, 1, 1, 0.9, 1.3], "float32")}, opset=18, rtol=2e-5)


def test_splits_into_a_sequence_by_sizes_that_are_fed():
    text = """(float[6] x, int64[3] sizes) => (float[n] y) <int64 second = {1}> {
        parts = SplitToSequence(x, sizes)
        part = SequenceAt(parts, second)
        y = Neg(part)
    }"""
    check(text, {"x": np.arange(6, dtype="float32"), "sizes": np.array([1, 3, 2])}, rtol=0)
