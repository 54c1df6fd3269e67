"""Values from sizes and bounds: ONNX against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import import_proto, run_graph, through_file
from onnx_cases import check, model

from mnnconvert.ops.generators import Fill


@pytest.mark.parametrize(("kind", "bounds"), [
    ("int64", (2, 9, 3)), ("int64", (9, 2, -2)), ("int64", (5, 2, 1)), ("float", (0.5, 3.1, 0.5)), ("int32", (0, 4, 1)),
])  # fmt: skip
def test_range(kind, bounds):
    dtype = {"float": np.float32}.get(kind, kind)
    arrays = {k: np.array(v, dtype) for k, v in zip("abc", bounds, strict=True)}
    check(f"({kind} b) => ({kind} y) {{ y = Range(a, b, c) }}", arrays, rtol=1e-6)


def test_range_over_a_size_is_known_as_that_size():
    text = """(float[n,4] x) => (float y) <int64 zero = {0}, int64 one = {1}, int64[1] ax = {1}> {
        s = Shape(x)
        n0 = Gather(s, zero)
        r = Range(zero, n0, one)
        f = Cast <to=1> (r)
        c = Unsqueeze(f, ax)
        y = Add(x, c)
    }"""
    check(text, {"x": np.ones((3, 4), np.float32)}, rtol=0)
    assert import_proto(model(text)[0]).outputs[0][1].shape == ("n", 4)


@pytest.mark.parametrize(
    "value", ["", "<value=float[1] {2.5}>", "<value=int64[1] {7}>", "<value=uint8[1] {200}>", "<value=bool[1] {1}>"]
)
def test_constant_of_shape(value):
    kind = value.split("=")[1].split("[")[0] if value else "float"
    check(f"(int64[2] s) => ({kind} y) {{ y = ConstantOfShape {value} (s) }}", {"s": np.array([2, 3])}, rtol=0)


def test_a_large_constant_of_shape_stays_small():
    graph = import_proto(
        model("(float x) => (float y) { c = ConstantOfShape(s) y = Add(x, c) }", {"s": np.array([1024, 1024])})[0]
    )
    assert [type(n.op) for n in graph.nodes][:1] == [Fill]


@pytest.mark.parametrize("attributes", ["", "<k=1>", "<k=-2, dtype=7>", "<dtype=1>"])
def test_eye_like(attributes):
    kind = "int64" if "dtype=7" in attributes or not attributes or attributes == "<k=1>" else "float"
    check(f"(int64[n,4] x) => ({kind} y) {{ y = EyeLike {attributes} (x) }}", {"x": np.ones((3, 4), np.int64)}, rtol=0)


@pytest.mark.parametrize(("text", "mean", "spread"), [
    ("y = RandomUniform <shape=[50,40], low=-1.0, high=3.0, seed=1.0> ()", 1.0, 4 / np.sqrt(12)),
    ("y = RandomNormal <shape=[50,40], mean=2.0, scale=0.5, seed=2.0> ()", 2.0, 0.5),
    ("y = RandomUniformLike (x)", 0.5, 1 / np.sqrt(12)),
    ("y = RandomNormalLike <mean=-1.0> (x)", -1.0, 1.0),
])  # fmt: skip
def test_random_numbers_have_the_right_distribution(text, mean, spread):
    proto, _ = model(f"(float[50,40] x) => (float y) {{ {text} }}")
    for graph in (import_proto(proto), through_file(import_proto(proto))):
        y = run_graph(graph, {"x": np.zeros((50, 40), np.float32)})["y"]
        assert y.shape == (50, 40) and y.dtype == np.float32
        assert abs(y.mean() - mean) < 0.15 and abs(y.std() - spread) < 0.15
