"""Reductions, positions of extremes, running sums and products."""

import numpy as np
import pytest
from onnx_cases import check, refusal

REDUCTIONS = ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare"]


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axes", [None, [1], [-1, 0]])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduce_axes_as_attribute_and_as_input(name, axes, keep, rng):
    x = rng.uniform(0.2, 2, (2, 3, 4)).astype("float32")
    rank = 3 if keep else 3 - len(axes or (0, 1, 2))
    result = "float" + (f"[{','.join(f'o{i}' for i in range(rank))}]" if rank else "")
    listed = f"axes={axes}, " if axes else ""
    check(
        f"(float[2,3,4] x) => ({result} y) {{ y = Reduce{name} <{listed}keepdims={keep}>(x) }}",
        {"x": x},
        opset=11,
        rtol=1e-5,
    )
    arrays, operand = ({"x": x, "a": np.array(axes)}, ", a") if axes else ({"x": x}, "")
    text = f"(float[n,3,m] x) => ({result} y) {{ y = Reduce{name} <keepdims={keep}>(x{operand}) }}"
    check(text, arrays, opset=18, rtol=1e-5)


@pytest.mark.parametrize("noop", [0, 1])
def test_an_empty_list_of_axes(noop, rng):
    x = rng.standard_normal((2, 3)).astype("float32")
    want = {"y": -x if noop else -x.sum(keepdims=True)}
    text = f"(float[2,3] x) => (float[a,b] y) {{ t = ReduceSum <noop_with_empty_axes={noop}>(x, axes) y = Neg(t) }}"
    check(text, {"x": x, "axes": np.zeros(0, "int64")}, rtol=1e-6, want=want)


def test_computed_axes_need_a_known_number(rng):
    x = rng.standard_normal((2, 3, 4)).astype("float32")
    check(
        "(float[2,3,4] x, int64[2] a) => (float[i,j,k] y) { y = ReduceMax(x, a) }",
        {"x": x, "a": np.array([0, 2])},
        opset=18,
        rtol=0,
    )
    found = refusal(
        "(float[2,3] x, int64[n] a) => (float[i,j] y) { y = ReduceMax(x, a) }", {"x": x, "a": np.array([0])}, 18
    )
    assert found[0].reference == "unsupported-attribute" and "ReduceMax" in found[0].message


@pytest.mark.parametrize(
    ("name", "want"), [("Sum", 0), ("Prod", 1), ("Max", -np.inf), ("Min", np.inf), ("LogSumExp", -np.inf)]
)
def test_over_nothing(name, want):
    text = f"(float[0,3] x) => (float[1,3] y) {{ y = Reduce{name}(x, a) }}"
    arrays = {"x": np.zeros((0, 3), "float32"), "a": np.array([0])}
    check(text, arrays, opset=20, rtol=0, want={"y": np.full((1, 3), want, "float32")})


@pytest.mark.parametrize("kind", ["int32", "uint8", "bool"])
@pytest.mark.parametrize("name", ["Max", "Min"])
def test_extremes_of_integers_and_booleans(name, kind, rng):
    x = rng.integers(0, 2, (3, 4)).astype(kind)
    want = {"y": (x.max if name == "Max" else x.min)(0, keepdims=True)}
    check(
        f"({kind}[3,4] x) => ({kind}[1,4] y) {{ y = Reduce{name}(x, a) }}",
        {"x": x, "a": np.array([0])},
        opset=20,
        rtol=0,
        want=want,
    )


def test_log_sum_exp_is_stable():
    x = np.array([[1000, 1000, -1000], [-np.inf, -np.inf, -np.inf], [np.inf, 0, 1], [-1e4, -1e4, -1e4]], "float32")
    want = {"y": np.array([1000 + np.log(2), -np.inf, np.inf, -1e4 + np.log(3)], "float32")}
    check(
        "(float[4,3] x) => (float[4] y) { y = ReduceLogSumExp <axes=[1], keepdims=0>(x) }",
        {"x": x},
        rtol=1e-6,
        want=want,
    )


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("kind", ["float", "int32"])
@pytest.mark.parametrize("name", ["ArgMax", "ArgMin"])
def test_position_of_the_first_or_last_extreme(name, kind, keep, last):
    x = np.array([[0, 5, 3, 5], [0, -7, 16777217, 16777216]], {"float": "float32"}.get(kind, kind))
    shape = "[2,1]" if keep else "[2]"
    text = (
        f"({kind}[2,n] x) => (int64{shape} y) {{ y = {name} <axis=-1, keepdims={keep}, select_last_index={last}>(x) }}"
    )
    turned = x[:, ::-1] if last else x
    at = (np.argmax if name == "ArgMax" else np.argmin)(turned, 1)
    want = 3 - at if last else at
    check(text, {"x": x}, rtol=0, want={"y": want[:, None] if keep else want})


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_running_sums_and_products(exclusive, reverse, rng):
    for kind in ("float", "int32"):
        x = rng.integers(-4, 5, (3, 4)).astype({"float": "float32"}.get(kind, kind))
        text = f"({kind}[3,4] x) => ({kind}[3,4] y) {{ y = CumSum <exclusive={exclusive}, reverse={reverse}>(x, a) }}"
        check(text, {"x": x, "a": np.array(-2)}, rtol=0)
    y = rng.uniform(0.5, 2, (3, 4)).astype("float32")
    turned = y[::-1] if reverse else y
    product = np.cumprod(turned, 0)
    product = np.concatenate([np.ones((1, 4), "float32"), product[:-1]]) if exclusive else product
    text = f"(float[3,4] x) => (float[3,4] y) {{ y = CumProd <exclusive={exclusive}, reverse={reverse}>(x, a) }}"
    check(text, {"x": y, "a": np.array(0)}, opset=26, rtol=1e-6, want={"y": product[::-1] if reverse else product})


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_running_products_of_integers_are_exact(size, rng):
    x = rng.integers(-20, 20, (2, size)).astype("int32")
    text = f"(int32[2,{size}] x) => (int32[2,{size}] y) {{ y = CumProd (x, a) }}"
    check(text, {"x": x, "a": np.array(1)}, opset=26, rtol=0, want={"y": np.cumprod(x, 1, dtype="int32")})


def test_running_products_of_integers_along_an_open_axis_are_refused():
    (problem,) = refusal("(int32[n] x) => (int32[n] y) { y = CumProd (x, a) }", {"a": np.array(0)}, opset=26)
    assert problem.reference == "open-size"
