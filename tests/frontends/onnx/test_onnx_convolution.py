"""Import of Conv and ConvTranspose against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_cases import check, model, onnxruntime_outputs, refusal


def noise(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def run(op: str, attributes: str, x, w, b=None, *, symbolic=False, opset=17, want=None):
    """One node on x; with `symbolic` all sizes behind the channels are open."""
    sizes = ",".join(map(str, x.shape[:2])) + "," + ",".join(f"s{i}" for i in range(x.ndim - 2))
    shape = sizes if symbolic else ",".join(map(str, x.shape))
    arrays = {"x": x, "w": w} | ({} if b is None else {"b": b})
    given = f"<{attributes}>" if attributes else ""
    text = f"(float[{shape}] x) => (float y) {{ y = {op} {given} ({', '.join(arrays)}) }}"
    check(without_output_shape(text), arrays, opset=opset, rtol=2e-6, want=want)


def without_output_shape(text: str) -> str:
    """A model text may not leave out the rank of its output, so it is given one that says nothing."""
    rank = text[text.index("[") + 1 : text.index("]")].count(",") + 1
    return text.replace("(float y)", f"(float[{','.join(f'o{i}' for i in range(rank))}] y)")


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(
    "attributes",
    [
        "", "kernel_shape=[3, 2]", "strides=[2, 1]", "pads=[1, 0, 2, 1]",
        "dilations=[2, 1], pads=[0, 1, 0, 1]", 'auto_pad="VALID"',
        'auto_pad="SAME_UPPER"', 'auto_pad="SAME_UPPER", strides=[2, 3]', 'auto_pad="SAME_LOWER"',
    ],
)  # fmt: skip
def test_conv_2d(attributes, symbolic):
    run("Conv", attributes, noise(2, 4, 9, 8), noise(6, 4, 3, 2, seed=1), noise(6, seed=2), symbolic=symbolic)


@pytest.mark.parametrize(("group", "outputs"), [(2, 6), (4, 4), (4, 8), (1, 1)])
def test_conv_groups(group, outputs):
    x, w = noise(1, 4, 6, 5), noise(outputs, 4 // group, 3, 3, seed=1)
    run("Conv", f"group={group}, pads=[1, 1, 1, 1]", x, w)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(
    "attributes", ["", "dilations=[2], pads=[2, 1]", "strides=[2]", 'auto_pad="SAME_UPPER", strides=[2]']
)
def test_conv_1d_keeps_rank_3(attributes, symbolic):
    run("Conv", attributes, noise(2, 4, 11), noise(6, 4, 3, seed=1), noise(6), symbolic=symbolic)


@pytest.mark.parametrize(
    "attributes",
    [
        "",
        "strides=[1, 2, 1], pads=[0, 1, 1, 1, 1, 1]",
        "dilations=[2, 1, 1]",
        'auto_pad="SAME_LOWER", strides=[2, 1, 2]',
    ],
)
def test_conv_3d(attributes):
    run("Conv", attributes, noise(1, 3, 5, 6, 7), noise(4, 3, 2, 3, 3, seed=1), noise(4, seed=2))


def test_conv_3d_in_groups():
    run("Conv", "group=2", noise(1, 4, 5, 6, 7), noise(6, 2, 2, 3, 3, seed=1))


def test_conv_1d_same_lower_with_dilation_equals_explicit_pads():
    x, w = noise(1, 2, 9), noise(4, 2, 2, seed=1)
    text = "(float[1,2,9] x) => (float[1,4,9] y) { y = Conv <PADS, dilations=[3]> (x, w) }"
    want = onnxruntime_outputs(*model(text.replace("PADS", "pads=[2, 1]"), {"x": x, "w": w}))
    check(text.replace("PADS", 'auto_pad="SAME_LOWER"'), {"x": x, "w": w}, rtol=2e-6, want=want)


def test_conv_with_a_weight_that_is_fed():
    arrays = {"x": noise(1, 3, 6, 6), "w": noise(4, 3, 3, 3, seed=1)}
    check(
        "(float[1,3,6,6] x, float[4,3,3,3] w) => (float[1,4,6,6] y) { y = Conv <pads=[1, 1, 1, 1]> (x, w) }",
        arrays,
        rtol=2e-6,
    )


def test_conv_1d_with_a_weight_that_is_computed():
    arrays = {"x": noise(1, 3, 6), "w": noise(4, 3, 3, seed=1), "s": noise(1, seed=2)}
    check("(float[1,3,6] x, float[1] s) => (float[1,4,4] y) { v = Mul(w, s) y = Conv(x, v) }", arrays, rtol=2e-6)


@pytest.mark.parametrize("kernel", [(1, 1), (3, 2)])
def test_conv_of_one_window_per_image(kernel):
    arrays = {"x": noise(6, 5, *kernel), "w": noise(4, 5, *kernel, seed=1), "b": noise(4, seed=2)}
    check(f"(float[n,5,{kernel[0]},{kernel[1]}] x) => (float[n,4,1,1] y) {{ y = Conv(x, w, b) }}", arrays, rtol=2e-6)


def test_conv_takes_the_rank_of_its_operand_from_the_weight():
    """Branches of different rank: which one runs is only known with the sizes."""
    text = """(float[1,3,n] x) => (float[1,4,m] y) {
        s = Shape(x) k = Gather(s, last) short = Equal(k, five)
        v = If (short) <then_branch = t () => (float[a,b,c] p) { p = Abs(x) },
                        else_branch = e () => (float[a,b,c,d] q) { q = Unsqueeze(x, last) }>
        y = Conv(v, w) }"""
    arrays = {"x": noise(1, 3, 5), "w": noise(4, 3, 3, seed=1), "last": np.array([-1]), "five": np.array([5])}
    check(text, arrays, rtol=2e-6)


def test_same_lower_on_unknown_sizes_with_strides_is_refused():
    (problem,) = refusal(
        '(float[1,3,h,w] x) => (float[1,4,oh,ow] y) { y = Conv <auto_pad="SAME_LOWER", strides=[2, 2]> (x, k) }',
        {"k": noise(4, 3, 3, 3)},
    )
    assert "SAME_LOWER" in problem.message and "--inputShape" in problem.hint


def test_a_weight_that_does_not_fit_is_refused():
    (problem,) = refusal("(float[1,3,8,8] x) => (float[1,4,6,6] y) { y = Conv(x, k) }", {"k": noise(4, 2, 3, 3)})
    assert problem.reference == "shape-mismatch" and "3 channels" in problem.message


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(
    "attributes",
    [
        "", "strides=[2, 3]", "strides=[2, 2], pads=[1, 0, 0, 1]", "strides=[3, 2], output_padding=[2, 1]",
        "strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1]", "dilations=[2, 1]",
        'auto_pad="SAME_UPPER", strides=[2, 2]',
        'auto_pad="SAME_LOWER", strides=[2, 2]', 'auto_pad="VALID"',
    ],
)  # fmt: skip
def test_conv_transpose_2d(attributes, symbolic):
    run("ConvTranspose", attributes, noise(2, 4, 4, 5), noise(4, 3, 3, 3, seed=1), noise(3, seed=2), symbolic=symbolic)


@pytest.mark.parametrize(("group", "per_group"), [(2, 3), (4, 1), (4, 2)])
def test_conv_transpose_groups(group, per_group):
    run("ConvTranspose", f"group={group}, strides=[2, 1]", noise(1, 4, 4, 5), noise(4, per_group, 3, 2, seed=1))


@pytest.mark.parametrize("auto", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("shape", [(8, 14), (7, 13), (9, 15), (10, 16)])
def test_conv_transpose_output_shape(shape, auto):
    attributes = f'strides=[2, 3], output_shape=[{shape[0]}, {shape[1]}], auto_pad="{auto}"'
    run("ConvTranspose", attributes, noise(1, 2, 4, 5), noise(2, 3, 3, 3, seed=1))


@pytest.mark.parametrize(
    "attributes", ["", "strides=[2], pads=[1, 0]", "strides=[2], output_padding=[1]", "output_shape=[10], strides=[2]"]
)
def test_conv_transpose_1d(attributes):
    run("ConvTranspose", attributes, noise(2, 3, 5), noise(3, 2, 3, seed=1), noise(2))


@pytest.mark.parametrize(
    "attributes", ["", "strides=[1, 2, 2], pads=[0, 1, 1, 1, 0, 1]", "strides=[2, 1, 2], output_padding=[1, 0, 1]"]
)
def test_conv_transpose_3d(attributes):
    run("ConvTranspose", attributes, noise(1, 4, 3, 2, 4), noise(4, 2, 2, 3, 3, seed=1), noise(2))


def test_output_shape_on_unknown_sizes_is_refused():
    text = "(float[1,2,h,w] x) => (float[1,3,8,8] y) { y = ConvTranspose <output_shape=[8, 8]> (x, k) }"
    (problem,) = refusal(text, {"k": noise(2, 3, 3, 3)})
    assert "output_shape" in problem.message


def test_same_with_strides_beyond_the_kernel_is_refused():
    node = 'ConvTranspose <auto_pad="SAME_UPPER", strides=[4, 4]> (x, k)'
    text = f"(float[1,2,4,4] x) => (float[1,3,16,16] y) {{ y = {node} }}"
    (problem,) = refusal(text, {"k": noise(2, 3, 3, 3)})
    assert "SAME_UPPER" in problem.message
