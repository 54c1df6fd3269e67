"""Shape ops of ONNX against onnxruntime; targets that are computed from sizes become constants."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import import_proto, run_graph, through_file
from onnx_cases import check, model, refusal

from mnnconvert.ops.shape import Reshape

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.mark.parametrize("target", [[6, 4], [-1], [0, -1], [0, 0, 2, 2], [4, -1, 1], [1, 24]])
def test_reshape_to_a_constant(target):
    check(
        "(float[2,3,4] x) => (float y) { y = Reshape(x, s) }",
        {"x": X, "s": np.array(target)},
        rtol=0,
    )


def test_reshape_before_opset_five():
    check("(float[2,3,4] x) => (float[4,6] y) { y = Reshape <shape=[4,-1]> (x) }", {"x": X}, opset=1, rtol=0,
          want={"y": X.reshape(4, 6)})  # fmt: skip


def test_reshape_to_a_target_known_at_run_time():
    check(
        "(float[2,3,4] x, int64[2] s) => (float[a,b] y) { y = Reshape(x, s) }", {"x": X, "s": np.array([-1, 8])}, rtol=0
    )


def test_reshape_allowzero_means_no_elements():
    text = "(float[0,3] x) => (float[3,0] y) { y = Reshape <allowzero=1> (x, s) }"
    check(text, {"x": np.zeros((0, 3), np.float32), "s": np.array([3, 0])}, rtol=0)


COMPUTED = """(float[n,c,h,w] x) => (float[n,m,h] y)
    <int64 zero = {0}, int64 two = {2}, int64[1] axes = {0}, int64[1] rest = {-1}> {
    s = Shape(x)
    batch = Gather(s, zero)
    rows = Gather(s, two)
    batch1 = Unsqueeze(batch, axes)
    rows1 = Unsqueeze(rows, axes)
    target = Concat <axis=0> (batch1, rest, rows1)
    y = Reshape(x, target)
}"""
HEADS = """(float[b,t,64] x) => (float[b,8,t,8] y)
    <int64[1] heads = {8}, int64[1] first = {0}, int64[1] one = {1}, int64[1] two = {2}> {
    s = Shape(x)
    b1 = Slice(s, first, one)
    t1 = Slice(s, one, two)
    size = Shape <start=2> (x)
    head = Div(size, heads)
    target = Concat <axis=0> (b1, t1, heads, head)
    r = Reshape(x, target)
    y = Transpose <perm=[0,2,1,3]> (r)
}"""
MERGED = """(float[b,t,4] x) => (float[m,4] y)
    <int64 zero = {0}, int64 one = {1}, int64[1] axes = {0}, int64[1] four = {4}> {
    s = Shape(x)
    b0 = Gather(s, zero)
    t0 = Gather(s, one)
    m = Mul(b0, t0)
    m1 = Unsqueeze(m, axes)
    target = Concat <axis=0> (m1, four)
    y = Reshape <allowzero=1> (x, target)
}"""


@pytest.mark.parametrize(("text", "shapes", "dims"), [
    (COMPUTED, [(2, 3, 4, 5), (1, 3, 8, 5)], None),
    (HEADS, [(2, 3, 64), (1, 7, 64)], (0, 0, 8, 8)),
    (MERGED, [(2, 3, 4), (1, 7, 4)], (-1, 4)),
])  # fmt: skip
def test_shape_arithmetic_disappears(text, shapes, dims, rng):
    for shape in shapes:
        check(text, {"x": rng.random(shape, np.float32)}, rtol=0)
    graph = import_proto(model(text)[0])
    graph.prune()
    reshapes = [n.op for n in graph.nodes if isinstance(n.op, Reshape)]
    if dims is not None:
        assert reshapes == [Reshape(dims)]
        assert {n.op.kind for n in graph.nodes} <= {"Reshape", "Permute"}


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1])
def test_flatten(axis):
    check(f"(float[2,3,4] x) => (float[a,b] y) {{ y = Flatten <axis={axis}> (x) }}", {"x": X}, rtol=0)


@pytest.mark.parametrize("axes", [[0], [-2], [0, 2], [0, -2]])
@pytest.mark.parametrize("op", ["Squeeze", "Unsqueeze"])
def test_axes_as_constant_attribute_and_input(op, axes):
    x = np.ones((1, 3, 1, 5), np.float32)
    head = "(float[1,3,1,5] x{}) => (float y) {{ y = {} {} }}"
    check(head.format("", op, "(x, a)"), {"x": x, "a": np.array(axes)}, rtol=0)
    check(head.format(", int64[k] a", op, "(x, a)"), {"x": x, "a": np.array(axes)}, rtol=0)
    check(head.format("", op, f"<axes={axes}> (x)"), {"x": x}, opset=11, rtol=0)


def test_squeeze_all(rng):
    check("(float[1,n,1] x) => (float y) { y = Squeeze(x) }", {"x": rng.random((1, 4, 1), np.float32)}, rtol=0)


@pytest.mark.parametrize("attributes", ["", "<perm=[1,0,2]>", "<perm=[2,0,1]>"])
def test_transpose(attributes):
    check(f"(float[2,3,4] x) => (float y) {{ y = Transpose {attributes} (x) }}", {"x": X}, rtol=0)


@pytest.mark.parametrize(
    "attributes", ["", "<start=1>", "<start=-2>", "<end=-1>", "<start=-9, end=2>", "<start=1, end=9>"]
)
def test_shape_of_a_symbolic_input(attributes):
    check(f"(float[n,3,m] x) => (int64[k] y) {{ y = Shape {attributes} (x) }}", {"x": X}, opset=15, rtol=0)


def test_size_and_empty_shape():
    check("(float[n,3,m] x) => (int64 y) { y = Size(x) }", {"x": X}, rtol=0)
    text = "(float[n,3] x) => (float y) { s = Shape <start=1, end=1> (x) c = ConstantOfShape(s) y = Add(x, c) }"
    check(text, {"x": X[0, :, :3]}, rtol=0)


CONSTANTS = ["value_float=1.5", "value_floats=[1.5,2.5]", "value=float[2] {3,4}", "value=float {7}"]


@pytest.mark.parametrize("attribute", CONSTANTS)
def test_constants(attribute):
    check(
        f"(float[2] x) => (float y) {{ c = Constant <{attribute}> () y = Add(x, c) }}",
        {"x": np.array([1, 2], np.float32)},
        rtol=0,
    )


def test_integer_constants_in_shape_arithmetic():
    check(
        "(float[2,3,4] x) => (float y) { c = Constant <value_ints=[3,-1]> () d = Identity(c) y = Reshape(x, d) }",
        {"x": X},
        rtol=0,
    )


def test_the_largest_integer_is_refused_only_where_it_is_used():
    end = "e = Constant <value=int64[1] {9223372036854775807}> ()"
    check(f"(float[2,3,4] x) => (float y) <int64[1] s = {{1}}> {{ {end} y = Slice(x, s, e) }}", {"x": X}, rtol=0)
    found = refusal(f"(int64[1] x) => (int64 y) <int64[1] s = {{1}}> {{ {end} c = Add(s, e) y = Add(x, c) }}")
    assert "9223372036854775807" in found[0].message


def test_a_string_constant_is_refused():
    found = refusal('(float[2] x) => (float y) { c = Constant <value_string="a"> () y = Neg(x) }')
    assert "strings" in found[0].message


def test_transpose_of_unknown_rank_and_names_survive_a_file():
    found = refusal("(float[2,3] x, int64[k] s) => (float y) { t = Reshape(x, s) y = Transpose(t) }")
    assert "unknown rank" in found[0].message
    graph = through_file(import_proto(model("(float[n,3] x) => (float y) { y = Transpose(x) }")[0]))
    assert run_graph(graph, {"x": X[0, :, :3]})["y"].shape == (3, 3)


@pytest.mark.parametrize("negative", ["Neg(n)", "Mul(n, minus)"])
@pytest.mark.parametrize("length", [2, 5])
def test_the_last_elements_up_to_a_size_have_that_size(negative, length):
    """x[-n:] has n elements, so that what is computed from it needs no broadcast at run time."""
    text = f"""(float[1,9] x, float[k] y) => (float[k] z) {{
        n = Shape(y) m = {negative}
        w = Slice(x, m, far, one) v = Reshape(w, all) z = Add(v, y) }}"""
    minus = {"minus": np.array([-1])} if "minus" in negative else {}
    arrays = {"x": np.arange(9, dtype=np.float32)[None], "y": np.ones(length, np.float32), **minus,
              "far": np.array([2**31 - 1]), "one": np.array([1]), "all": np.array([-1])}  # fmt: skip
    check(text, arrays, rtol=1e-6)
    (w,) = (v for v in import_proto(model(text, arrays)[0]).values() if v.name == "w")
    assert w.shape == (1, "k")


@pytest.mark.parametrize("rows", [1, 4])
def test_sizes_of_minus_one_that_mean_unchanged_are_resolved(rows):
    """What exporters write for `x.expand(n, -1, 3)`: sizes of -1 are replaced by 1 before Expand sees them."""
    text = """(float[m,1] x, float[n] y) => (float[n,m,3] z) {
        n = Shape(y) sizes = Concat <axis = 0> (n, rest) unchanged = Equal(sizes, minus)
        given = Where(unchanged, ones, sizes) z = Expand(x, given) }"""
    arrays = {"x": np.arange(2, dtype=np.float32)[:, None], "y": np.ones(rows, np.float32),
              "rest": np.array([-1, 3]), "minus": np.array([-1, -1, -1]), "ones": np.ones(3, np.int64)}  # fmt: skip
    check(text, arrays, rtol=1e-6)
    (z,) = (v for v in import_proto(model(text, arrays)[0]).values() if v.name == "z")
    assert z.shape == ("n", "m", 3)


@pytest.mark.parametrize(
    ("named", "size"),
    [("past + s", "(past+s)"), ("s+past", "(past+s)"), ("past + 1", "(past+1)"), ("2*past + s", "2*past + s"),
     ("past", "past"), ("7", "7")],
)  # fmt: skip
def test_sums_of_sizes_are_those_that_ops_compute(named, size):
    proto, _ = model("(float[n] a, float[past] b, float[s] c) => (float[m] y) { y = Concat<axis=0>(b, c) }")
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = named
    graph = import_proto(proto)
    assert graph.inputs[0].shape == (size,)
    assert graph.outputs[0][1].shape == ("(past+s)",)
