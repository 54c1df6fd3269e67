"""onnxruntime's own ops on 8-bit codes, and its convolution with an activation: in our executor and in MNN's runtime.

Operands of products have one kind of sign, since sums of mixed products may saturate in onnxruntime.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from attribute_runs import in_mnn
from graphs import import_proto
from onnx_cases import assert_equal, check, model, onnxruntime_outputs, refusal

from mnnconvert.passes.pipeline import run_pipeline

MS = ("com.microsoft",)
Case = tuple[str, dict[str, np.ndarray], dict[str, np.ndarray] | None]  # text, arrays, what must come out
KINDS = ["uint8", "int8"]
STEP = 0.0201  # of the results below, which are made float so that one step of a code is allowed


def codes(kind: str, *shape: int, seed: int = 0, low: int | None = None, high: int | None = None) -> np.ndarray:
    info = np.iinfo(kind)
    low, high = info.min if low is None else low, info.max if high is None else high
    return np.random.default_rng(seed).integers(low, high, shape, endpoint=True).astype(kind)


def scheme(kind: str) -> dict[str, np.ndarray]:
    """Scales and zero points of an operand (s, z), another (t, w) and the result (u, v)."""
    zeros = {"z": 100, "w": 140, "v": 120} if kind == "uint8" else {"z": -20, "w": 5, "v": 3}
    scales = {"s": np.float32(0.02), "t": np.float32(0.013), "u": np.float32(0.02)}
    return scales | {name: np.array(zero, kind) for name, zero in zeros.items()}


def quantised_inside(text: str, arrays) -> tuple[str, dict[str, np.ndarray]]:
    """Takes int8 operands as floats and quantises them: no int8 may enter a file, as MNN's runtime adds 128 to it."""
    for sizes, name in re.findall(r"\bint8\[([\d,]*)\] (\w+)", text):
        text = text.replace(f"int8[{sizes}] {name}", f"float[{sizes}] {name}_real")
        text = text.replace("{", f"{{ {name} = QuantizeLinear({name}_real, one, none)", 1)
        arrays = arrays | {f"{name}_real": arrays[name].astype("f"), "one": np.float32(1), "none": np.int8(0)}
        del arrays[name]
    return text, arrays


def everywhere(cases: list[Case], rtol: float, atol: float = 1e-6) -> None:
    """Our executor, and MNN's runtime after all passes, compute what onnxruntime or a case gives. (One run of MNN.)"""
    graphs, fed, wanted = [], [], []
    for text, arrays, want in cases:
        text, arrays = quantised_inside(text, arrays)
        proto, feeds = model(text, arrays, domains=MS)
        want = want or onnxruntime_outputs(proto, feeds)
        check(text, arrays, domains=MS, rtol=rtol, atol=atol, want=want)
        graph = import_proto(proto)
        run_pipeline(graph)
        graphs.append(graph), fed.append(feeds), wanted.append(want)
    for got, want, (text, *_) in zip(in_mnn(graphs, fed), wanted, cases, strict=True):
        assert not isinstance(got, str), (got, text)
        for name, value in want.items():
            assert_equal(got[name].reshape(value.shape), value, rtol, atol, text)


def on_codes(node: str, arrays, inputs: str, result: str, kind: str) -> Case:
    """A node that writes codes `q`, which leave the graph as floats."""
    text = f"({inputs}) => (float[{result}] y) {{ q = com.microsoft.{node} y = DequantizeLinear(q, u, v) }}"
    return text, scheme(kind) | arrays, None


FUNCTIONS = [
    "QLinearLeakyRelu <alpha = 0.3>", "QLinearSoftmax <axis = 1, opset = 13>", "QLinearSoftmax <axis = 1, opset = 12>",
    "QLinearSigmoid",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_functions(kind):
    x = {"x": codes(kind, 2, 3, 4)}
    cases = [on_codes(f"{node} (x, s, z, u, v)", x, f"{kind}[2,3,4] x", "2,3,4", kind) for node in FUNCTIONS]
    everywhere(cases, rtol=0, atol=STEP)


@pytest.mark.parametrize("kind", KINDS)
def test_codes_leave_as_integers(kind):
    text = f"({kind}[2,30] x) => ({kind}[2,30] y) {{ y = com.microsoft.QLinearLeakyRelu (x, s, z, u, v) }}"
    check(text, scheme(kind) | {"x": codes(kind, 2, 30)}, domains=MS, rtol=0)


WINDOWS = [
    "kernel_shape = [2,3]", "kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1]",
    "kernel_shape = [3,3], pads = [1,0,1,1], count_include_pad = 1",
    "kernel_shape = [2,2], strides = [2,2], ceil_mode = 1", 'kernel_shape = [3,3], auto_pad = "SAME_UPPER"',
]  # fmt: skip


@pytest.mark.parametrize("last", [0, 1])
def test_average_pool(last):
    """onnxruntime pools unsigned codes only."""
    shape = (2, 5, 7, 3) if last else (2, 3, 5, 7)
    x, given = {"x": codes("uint8", *shape)}, f"uint8[{','.join(map(str, shape))}] x"
    nodes = [f"QLinearAveragePool <channels_last = {last}, {window}> (x, s, z, u, v)" for window in WINDOWS]
    everywhere([on_codes(node, x, given, "a,b,c,d", "uint8") for node in nodes], rtol=0, atol=STEP)


@pytest.mark.parametrize("kind", KINDS)
def test_global_average_pool(kind):
    cases = []
    for last, shape in enumerate([(2, 3, 5, 7), (2, 5, 7, 3)]):
        node = f"QLinearGlobalAveragePool <channels_last = {last}> (x, s, z, u, v)"
        given = f"{kind}[{','.join(map(str, shape))}] x"
        cases.append(on_codes(node, {"x": codes(kind, *shape)}, given, "a,b,c,d", kind))
    everywhere(cases, rtol=0, atol=STEP)


@pytest.mark.parametrize("kind", KINDS)
def test_concat_and_where(kind):
    x, c = codes(kind, 2, 3, 4), codes(kind, 2, 3, 4, seed=1)
    both = f"{kind}[2,3,4] x, {kind}[2,3,4] c"
    nodes = [f"QLinearConcat <axis = {axis}> (u, v, x, s, z, c, t, w)" for axis in (1, -1)]
    cases = [on_codes(node, {"x": x, "c": c}, both, "a,b,d", kind) for node in nodes]
    arrays = {"k": codes("uint8", 2, 1, 4) > 99, "x": x, "c": c[0, :, :1]}
    node, given = "QLinearWhere (k, x, s, z, c, t, w, u, v)", f"bool[2,1,4] k, {kind}[2,3,4] x, {kind}[3,1] c"
    everywhere([*cases, on_codes(node, arrays, given, "2,3,4", kind)], rtol=0, atol=STEP)


def reduced_mean(kind: str, axes: tuple[int, ...], keep: int) -> Case:
    x, given, info = codes(kind, 2, 3, 4), scheme(kind), np.iinfo(kind)
    real = (x.astype(np.float32) - given["z"]) * given["s"]
    mean = real.mean(axis=axes or None, keepdims=bool(keep))
    want = (np.clip(np.rint(mean / given["u"]) + given["v"], info.min, info.max) - given["v"]) * given["u"]
    listed = f"axes = {list(axes)}, " if axes else ""
    node = f"QLinearReduceMean <{listed}keepdims = {keep}> (x, s, z, u, v)"
    rank = ",".join("abc"[: want.ndim])
    return *on_codes(node, {"x": x}, f"{kind}[2,3,4] x", rank, kind)[:2], {"y": want.astype(np.float32)}


@pytest.mark.parametrize("kind", KINDS)
def test_reduce_mean(kind):
    """Against its definition: onnxruntime declares the op and has no kernel for it."""
    everywhere([reduced_mean(kind, *form) for form in (((1,), 1), ((0, -1), 0), ((), 1))], rtol=0, atol=STEP)


def gemm(form: str, turned: tuple[int, int], kind: str) -> Case:
    m, k = (8, 5) if turned[0] else (5, 8)
    r, c = (3, 8) if turned[1] else (8, 3)
    arrays = {"x": codes(kind, m, k), "c": codes(kind, r, c, seed=1)}
    arrays |= {"b": codes("int16", 3, low=-400, high=400).astype("int32"), "u": np.float32(0.05)}
    if form == "columns":
        arrays |= {"t": np.array([0.01, 0.02, 0.013], "f"), "w": np.array([3, 1, 0], kind)}
    given = f"{kind}[{m},{k}] x" + (f", {kind}[{r},{c}] c" if form == "fed" else "")
    node = f"QGemm <transA = {turned[0]}, transB = {turned[1]}, alpha = 0.5>"
    text = f"""({given}) => (float[5,3] y, float[5,3] f) {{
        q = com.microsoft.{node} (x, s, z, c, t, w, b, u, v)
        y = DequantizeLinear(q, u, v)
        f = com.microsoft.{node} (x, s, z, c, t, w) }}"""
    return text, scheme(kind) | arrays, None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["columns", "one", "fed"])
def test_gemm(form, kind):
    everywhere([gemm(form, turned, kind) for turned in np.ndindex(2, 2)], rtol=1e-6, atol=0.0501)


MASKS = {
    '""': np.zeros((), "int32"), "raw": np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], "int32"),
    "lengths": np.array([3, 5], "int32"),
}  # fmt: skip


def attention(mask: str, causal: int, columns: bool, kind: str) -> Case:
    """`kind` is that of the weight, whose codes are small; onnxruntime has a kernel for unsigned x only."""
    low, high, zero = (80, 120, 97) if kind == "uint8" else (-20, 20, 0)
    arrays = {"x": codes("uint8", 2, 5, 8, low=80, high=120), "q": codes(kind, 8, 24, low=low, high=high, seed=1)}
    arrays |= {"b": np.random.default_rng(2).standard_normal(24).astype("f"), "w": np.array(zero, kind)}
    if columns:
        arrays |= {"t": np.linspace(0.01, 0.05, 24, dtype="f"), "w": np.full(24, zero, kind)}
    arrays |= {mask: MASKS[mask]} if mask != '""' else {}
    text = f"""(uint8[2,5,8] x) => (float[2,5,8] y) {{
        y = com.microsoft.QAttention <num_heads = 2, unidirectional = {causal}> (x, q, b, s, t, {mask}, z, w) }}"""
    return text, scheme("uint8") | arrays, None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [0, 1])
def test_attention(causal, kind):
    everywhere([attention(mask, causal, columns, kind) for mask in MASKS for columns in (False, True)], rtol=1e-5)


@pytest.mark.parametrize(("batch", "words"), [(1, 5), (3, 2)])
def test_attention_of_open_sizes(batch, words):
    _, arrays, _ = attention('""', 1, True, "uint8")
    arrays |= {"x": codes("uint8", batch, words, 8), "lengths": np.full(batch, 2, "int32")}
    text = """(uint8[n,t,8] x, int32[n] lengths) => (float[n,t,8] y) {
        y = com.microsoft.QAttention <num_heads = 2, unidirectional = 1> (x, q, b, s, t, lengths, z, w) }"""
    everywhere([(text, scheme("uint8") | arrays, None)], rtol=1e-5)


@pytest.mark.parametrize("op", ["Attention", "MultiHeadAttention"])
def test_masks_of_float_attention_that_are_lengths(op, rng):
    arrays = {"x": rng.standard_normal((2, 5, 8)).astype("f"), "lengths": MASKS["lengths"]}
    if op == "Attention":
        operands = "x, q, b, lengths"
        arrays |= {"q": rng.standard_normal((8, 24)).astype("f"), "b": rng.standard_normal(24).astype("f")}
    else:
        operands = 'x, x, x, "", lengths'
    node = f"com.microsoft.{op} <num_heads = 2> ({operands})"
    everywhere([(f"(float[2,5,8] x) => (float[2,5,8] y) {{ y = {node} }}", arrays, None)], rtol=1e-5)


ACTIVATIONS = [
    "", 'activation = "Relu"', 'activation = "Tanh"', 'activation = "Sigmoid"',
    'activation = "LeakyRelu", activation_params = [0.2]', 'activation = "Clip", activation_params = [-0.5, 1.5]',
    'activation = "HardSigmoid", activation_params = [0.3, 0.4]',
]  # fmt: skip


@pytest.mark.parametrize("summand", ["", ", z"])
def test_fused_conv(summand, rng):
    arrays = {"x": (2, 4, 6, 5), "w": (6, 2, 3, 3), "b": (6,), "z": (2, 6, 6, 5)}
    arrays = {name: rng.standard_normal(shape).astype("f") for name, shape in arrays.items()}
    cases = []
    for activation in ACTIVATIONS:
        attributes = "group = 2, pads = [1,1,1,1], kernel_shape = [3,3]" + (f", {activation}" if activation else "")
        node = f"com.microsoft.FusedConv <{attributes}> (x, w, b{summand})"
        text = f"(float[2,4,6,5] x, float[2,6,6,5] z) => (float[2,6,6,5] y) {{ y = {node} }}"
        cases.append((text, arrays, None))
    everywhere(cases, rtol=1e-5)


def test_fused_conv_on_one_axis(rng):
    arrays = {"x": rng.standard_normal((1, 3, 9)).astype("f"), "w": rng.standard_normal((4, 3, 3)).astype("f")}
    node = 'com.microsoft.FusedConv <activation = "Relu", strides = [2]> (x, w)'
    everywhere([(f"(float[1,3,9] x) => (float[1,4,4] y) {{ y = {node} }}", arrays, None)], rtol=1e-5)


@pytest.mark.parametrize("attributes", ['activation = "Softplus"', 'activation = "Clip", activation_params = [1.0]'])
def test_other_activations_of_a_convolution_are_refused(attributes):
    text = f"(float[1,2,5,5] x) => (float y) {{ y = com.microsoft.FusedConv <{attributes}> (x, w) }}"
    (fault,) = refusal(text, {"w": np.ones((2, 2, 3, 3), "f")}, domains=MS)
    assert fault.reference == "unsupported-attribute" and "activation" in fault.message


@pytest.mark.parametrize(
    ("rest", "reason"), [('"", z, w, past', "past"), ("ends, z, w", "mask of rank 1"), ("wide, z, w", "mask of rank 3")]
)
def test_other_attention_is_refused(rest, reason):
    given = scheme("uint8") | {"q": codes("uint8", 8, 24), "b": np.zeros(24, "f")}
    given |= {"past": np.zeros((2, 2, 2, 3, 4), "f"), "ends": np.array([3, 5, 0, 0], "int32")}
    given["wide"] = np.ones((2, 5, 5), "int32")
    node = f"com.microsoft.QAttention <num_heads = 2> (x, q, b, s, t, {rest})"
    (fault,) = refusal(f"(uint8[2,5,8] x) => (float[2,5,8] y) {{ y = {node} }}", given, domains=MS)
    assert reason in fault.message
