"""TopK, Unique, Det and NonMaxSuppression."""

import numpy as np
import pytest
from onnx_cases import check, refusal


@pytest.mark.parametrize("size", ["n", "fixed"])
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(("k", "axis"), [(1, -1), (3, 1), (6, 2), (2, 0)])
def test_top_k_takes_the_lower_index_of_equals(k, axis, largest, size, rng):
    for kind in ("float", "int32"):
        x = rng.integers(-2, 3, (3, 4, 6)).astype({"float": "float32"}.get(kind, kind))
        shape = "[n,m,l]" if size == "n" else "[3,4,6]"
        outputs = f"({kind}[a,b,c] v, int64[a,b,c] i)"
        text = f"({kind}{shape} x) => {outputs} {{ v, i = TopK <axis={axis}, largest={largest}>(x, k) }}"
        check(text, {"x": x, "k": np.array([k])}, rtol=0)


def test_top_k_of_all_equal_and_of_large_integers():
    text = "(int32[2,4] x) => (int32[2,3] v, int64[2,3] i) { v, i = TopK(x, k) }"
    for x in (np.ones((2, 4)), np.array([[16777217, 16777216, 16777217, -1]] * 2)):
        check(text, {"x": x.astype("int32"), "k": np.array([3])}, rtol=0)


def test_top_k_of_opset_1_and_refusal():
    x = np.array([[3, 1, 2]], "float32")
    want = {"v": np.array([[3, 2]], "float32"), "i": np.array([[0, 2]])}
    check(
        "(float[1,3] x) => (float[1,2] v, int64[1,2] i) { v, i = TopK <k=2>(x) }", {"x": x}, opset=9, rtol=0, want=want
    )
    assert (
        "among 3"
        in refusal(
            "(float[1,3] x) => (float[1,4] v, int64[1,4] i) { v, i = TopK(x, k) }", {"x": x, "k": np.array([4])}
        )[0].message
    )


@pytest.mark.parametrize("ordered", [0, 1])
def test_unique(ordered):
    x = np.array([2, 1, 1, 3, 4, 3], "float32")
    outputs = "(float[u] y, int64[u] f, int64[6] i, int64[u] c)"
    text = f"(float[6] x) => {outputs} {{ y, f, i, c = Unique <sorted={ordered}>(x) }}"
    check(text, {"x": x}, rtol=0)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("kind", ["float", "int32"])
def test_unique_slices(axis, kind, rng):
    x = rng.integers(0, 2, (4, 5, 2)).astype({"float": "float32"}.get(kind, kind))
    results = f"({kind}[a,b,c] y, int64[u] f, int64[v] i, int64[w] n)"
    text = f"({kind}[4,k,2] x) => {results} {{ y, f, i, n = Unique <axis={axis}>(x) }}"
    want = np.unique(x, True, True, True, axis=axis)
    check(text, {"x": x}, rtol=0, want=dict(zip("yfin", want, strict=True)))


def test_unique_slices_in_their_order():
    x = np.array([[3, 1], [2, 2], [3, 1], [0, 5]], "float32")
    results = "(float[a,b] y, int64[u] f, int64[v] i, int64[w] n)"
    text = f"(float[k,2] x) => {results} {{ y, f, i, n = Unique <sorted=0, axis=0>(x) }}"
    check(text, {"x": x}, rtol=0)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_det_with_and_without_row_swaps(size, rng):
    x = rng.standard_normal((2, size, size)).astype("float32")
    x[0, 0, 0] = 0
    check(
        f"(float[n,{size},{size}] x) => (float[n] y) {{ y = Det(x) }}",
        {"x": x},
        rtol=1e-4,
        want={"y": np.linalg.det(x).astype("float32")},
    )


@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize(("most", "overlap", "score"), [(3, 0.5, 0.2), (2**62, 0.3, 0.0), (4, 0.1, 2.0), (0, 0.5, 0.1)])
def test_suppression(most, overlap, score, center, rng):
    boxes, scores = rng.uniform(0, 1, (2, 20, 4)), np.round(rng.uniform(0, 1, (2, 3, 20)), 1)
    arrays = {"boxes": boxes, "scores": scores, "o": np.array([overlap]), "s": np.array([score])}
    arrays = {k: v.astype("float32") for k, v in arrays.items()} | {"m": np.array([most])}
    text = """(float[2,n,4] boxes, float[2,3,n] scores) => (int64[k,3] y) {
        y = NonMaxSuppression <center_point_box=CENTER>(boxes, scores, m, o, s)
    }""".replace("CENTER", str(center))
    if most:
        check(text, arrays, opset=11, rtol=0)
    open_classes = text.replace("float[2,3,n]", "float[2,c,n]")
    assert "known numbers" in refusal(open_classes, arrays, opset=11)[0].message
