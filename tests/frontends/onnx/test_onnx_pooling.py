"""Import of pooling against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_cases import check, refusal


def noise(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def run(op: str, attributes: str, x, *, symbolic=False, opset=17, results="y", rtol=2e-6, want=None):
    """One node on x; with `symbolic` all sizes behind the channels are open."""
    rank = x.ndim
    sizes = [*map(str, x.shape[:2]), *(f"s{i}" if symbolic else str(s) for i, s in enumerate(x.shape[2:]))]
    given = f"<{attributes}>" if attributes else ""
    open_shape = ",".join(f"o{i}" for i in range(rank))
    kind = {"float32": "float", "uint8": "uint8", "int8": "int8"}[str(x.dtype)]
    outputs = ", ".join(f"{'int64' if i else kind}[{open_shape}] {name}" for i, name in enumerate(results))
    text = f"({kind}[{','.join(sizes)}] x) => ({outputs}) {{ {', '.join(results)} = {op} {given} (x) }}"
    check(text, {"x": x}, opset=opset, rtol=rtol, want=want)


WINDOWS_2D = [
    "kernel_shape=[3, 2]", "kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 0, 1]",
    "kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]",
    'kernel_shape=[3, 2], auto_pad="SAME_UPPER", strides=[2, 3]', 'kernel_shape=[2, 3], auto_pad="VALID"',
]  # fmt: skip


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("attributes", WINDOWS_2D)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_pool_2d(op, attributes, symbolic):
    run(op, attributes, noise(2, 3, 8, 7), symbolic=symbolic)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_same_lower_puts_the_odd_pad_in_front(op):
    run(op, 'kernel_shape=[3, 2], auto_pad="SAME_LOWER", strides=[2, 2]', noise(1, 2, 6, 7))


CEIL = [
    "kernel_shape=[3, 3], strides=[2, 2]", "kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]",
    "kernel_shape=[2, 2], strides=[3, 3]",
    "kernel_shape=[2, 2], strides=[3, 3], pads=[0, 0, 1, 1]", "kernel_shape=[1, 1], strides=[2, 2]",
    "kernel_shape=[2, 3], strides=[2, 4], pads=[0, 1, 1, 1]",
]  # fmt: skip


@pytest.mark.parametrize("size", [(4, 4), (7, 6), (8, 9)])
@pytest.mark.parametrize("attributes", CEIL)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_ceil_mode_starts_no_window_in_the_far_padding(op, attributes, size):
    run(op, attributes + ", ceil_mode=1", noise(1, 2, *size), opset=19)


@pytest.mark.parametrize("size", [7, 8])
def test_ceil_mode_of_unknown_sizes(size):
    run("MaxPool", "kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1", noise(1, 2, size, 9), symbolic=True)


def test_ceil_mode_of_unknown_sizes_is_refused_where_the_rule_differs():
    node = "MaxPool <kernel_shape=[2, 2], strides=[3, 3], ceil_mode=1> (x)"
    (problem,) = refusal(f"(float[1,2,h,w] x) => (float[1,2,a,b] y) {{ y = {node} }}")
    assert "ceil_mode" in problem.message and "--inputShape" in problem.hint


@pytest.mark.parametrize("ceil", [0, 1])
@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 1, 1, 1), (1, 0, 0, 1)])
def test_average_that_counts_padding(pads, ceil):
    attributes = f"kernel_shape=[3, 3], strides=[2, 2], pads={list(pads)}, ceil_mode={ceil}, count_include_pad=1"
    run("AveragePool", attributes, noise(1, 2, 6, 7), opset=19)


def test_average_with_ceil_divides_by_what_lies_in_the_padded_plane():
    x = np.arange(1, 17, dtype=np.float32).reshape(1, 1, 4, 4)
    want = np.array([[14 / 9, 10 / 3, 2], [19 / 3, 11, 6], [4.5, 7.5, 4]], np.float32).reshape(1, 1, 3, 3)
    attributes = "kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1, count_include_pad=1"
    for opset in (18, 19):
        run("AveragePool", attributes, x, opset=opset, want={"y": want})


@pytest.mark.parametrize(
    "attributes",
    [
        "dilations=[2, 1]",
        "dilations=[2, 2], strides=[2, 1], pads=[1, 1, 0, 1]",
        "dilations=[1, 3], ceil_mode=1, strides=[2, 2]",
    ],
)
@pytest.mark.parametrize(
    ("op", "more"), [("MaxPool", ""), ("AveragePool", ""), ("AveragePool", ", count_include_pad=1")]
)
def test_dilated_windows(op, more, attributes):
    run(op, f"kernel_shape=[3, 2], {attributes}{more}", noise(1, 2, 9, 8), opset=19)


@pytest.mark.parametrize(
    "attributes", ["", "pads=[1, 0], strides=[2]", "strides=[2], ceil_mode=1", "dilations=[2]", 'auto_pad="SAME_LOWER"']
)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_pool_1d(op, attributes):
    run(op, f"kernel_shape=[3]{', ' if attributes else ''}{attributes}", noise(2, 3, 10), opset=19)


@pytest.mark.parametrize(
    "attributes",
    [
        "",
        "strides=[2, 1, 2], pads=[1, 1, 0, 1, 1, 0]",
        "pads=[0, 1, 0, 1, 1, 0]",
        "strides=[2, 2, 2], ceil_mode=1",
        "dilations=[1, 2, 1]",
    ],
)
@pytest.mark.parametrize(
    ("op", "more"), [("MaxPool", ""), ("AveragePool", ""), ("AveragePool", ", count_include_pad=1")]
)
def test_pool_3d(op, more, attributes):
    run(op, f"kernel_shape=[2, 3, 2]{', ' if attributes else ''}{attributes}{more}", noise(1, 2, 6, 7, 5), opset=19)


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize(
    "attributes", ["strides=[2, 2]", "pads=[1, 0, 1, 1], strides=[2, 1]", "dilations=[2, 1], pads=[1, 1, 1, 0]"]
)
def test_max_pool_indices(attributes, order):
    run("MaxPool", f"kernel_shape=[3, 2], {attributes}, storage_order={order}", noise(2, 3, 7, 6), results=("y", "i"))


def test_max_pool_indices_1d():
    run("MaxPool", "kernel_shape=[3], strides=[2], pads=[1, 1]", noise(2, 3, 9), results=("y", "i"))


def test_max_pool_of_bytes():
    x = np.random.default_rng(0).integers(0, 256, (1, 2, 6, 6)).astype("uint8")
    run("MaxPool", "kernel_shape=[2, 2]", x)


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize(
    "attributes", ["", "strides=[2, 1], pads=[1, 0, 1, 1]", 'auto_pad="SAME_UPPER"', "strides=[2, 2], ceil_mode=1"]
)
def test_lp_pool(attributes, p):
    run(
        "LpPool",
        f"kernel_shape=[3, 2], p={p}{', ' if attributes else ''}{attributes}",
        noise(1, 2, 7, 6),
        opset=18,
        rtol=1e-5,
    )


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 5), (1, 2, 3, 4, 5)])
@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
def test_global_pools(op, shape):
    run(op, "", noise(*shape), rtol=1e-5)
    run(op, "", noise(*shape), symbolic=True, rtol=1e-5)


@pytest.mark.parametrize("shape", ["", "5, 6"])
def test_max_unpool(shape):
    x, places = noise(1, 1, 2, 2), np.array([5, 7, 13, 15]).reshape(1, 1, 2, 2)
    want = np.zeros((1, 1, 4, 4), np.float32)
    want.reshape(-1)[places.reshape(-1)] = x.reshape(-1)
    operands = "x, i, s" if shape else "x, i"
    text = f"""(float[1,1,2,2] x, int64[1,1,2,2] i) => (float[1,1,h,w] y) <int64[4] s = {{1, 1, {shape or "4, 4"}}}> {{
        y = MaxUnpool <kernel_shape=[2, 2], strides=[2, 2]> ({operands})
    }}"""
    want = np.pad(want, ((0, 0), (0, 0), (0, 1), (0, 2))) if shape else want
    check(text, {"x": x, "i": places}, rtol=0, want={"y": want})
