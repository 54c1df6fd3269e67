"""Matrix products: MatMul, Gemm, FusedMatMul, Einsum."""

import numpy as np
import pytest
from onnx_cases import check, import_proto, model, refusal

SHAPES = [
    ((4,), (4,)),
    ((4,), (4, 3)),
    ((2, 4), (4,)),
    ((2, 3, 4), (4, 5)),
    ((5, 1, 3, 4), (2, 4, 1)),
    ((4,), (2, 4, 3)),
]


def sizes(shape) -> str:
    return "[" + ",".join(map(str, shape)) + "]" if shape else ""


@pytest.mark.parametrize(("a", "b"), SHAPES)
@pytest.mark.parametrize("kind", ["float", "int32"])
def test_matmul_follows_numpy(a, b, kind, rng):
    dtype = {"float": "float32"}.get(kind, kind)
    x, y = (rng.integers(-9, 9, s).astype(dtype) for s in (a, b))
    text = f"({kind}{sizes(a)} x, {kind}{sizes(b)} y) => ({kind}{sizes((x @ y).shape)} z) {{ z = MatMul(x, y) }}"
    check(text, {"x": x, "y": y}, rtol=0, want={"z": x @ y})


def test_matmul_of_open_sizes(rng):
    for n, k in ((1, 4), (3, 2)):
        x, y = rng.standard_normal((n, 5, k)), rng.standard_normal((n, k, 3))
        check(
            "(float[n,5,k] x, float[n,k,3] y) => (float[n,5,3] z) { z = MatMul(x, y) }",
            {"x": x.astype("float32"), "y": y.astype("float32")},
            rtol=1e-5,
        )


def test_a_constant_factor_is_not_touched(rng):
    w = rng.standard_normal((8, 6)).astype("float32")
    text = "(float[2,8] x) => (float[2,6] y) { y = Gemm <alpha=0.5>(x, w) }"
    proto, _ = model(text, {"x": np.zeros((2, 8), "float32"), "w": w})
    graph = import_proto(proto)
    assert [v.tensor.array is not None and v.shape for v in graph.constants() if v.shape == (8, 6)] == [(8, 6)]
    assert [n.op.kind for n in graph.nodes] == ["MatMul", "Binary"]


@pytest.mark.parametrize("bias", [None, (), (1,), (5,), (3, 1), (3, 5)])
@pytest.mark.parametrize(
    ("trans_a", "trans_b", "alpha", "beta"), [(0, 0, 1.0, 1.0), (1, 0, 0.5, 2.0), (0, 1, 1.0, 0.0), (1, 1, 2.0, 1.0)]
)
def test_gemm(bias, trans_a, trans_b, alpha, beta, rng):
    a, b = (4, 3) if trans_a else (3, 4), (5, 4) if trans_b else (4, 5)
    arrays = {"a": rng.standard_normal(a).astype("float32"), "b": rng.standard_normal(b).astype("float32")}
    inputs, operands = f"float{sizes(a)} a", "a, b"
    if bias is not None:
        arrays["c"], inputs, operands = (
            rng.standard_normal(bias).astype("float32"),
            inputs + f", float{sizes(bias)} c",
            "a, b, c",
        )
    attributes = f"transA={trans_a}, transB={trans_b}, alpha={alpha}, beta={beta}"
    check(f"({inputs}) => (float[3,5] y) {{ y = Gemm <{attributes}>({operands}) }}", arrays, rtol=1e-5)


@pytest.mark.parametrize("attributes", ["alpha=0.25", "transA=1, transB=1", "transBatchA=1"])
def test_fused_matmul(attributes, rng):
    a = (2, 4, 3) if "transA=" in attributes else (3, 2, 4) if "Batch" in attributes else (2, 3, 4)
    b = (2, 5, 4) if "transB=" in attributes else (2, 4, 5)
    arrays = {"a": rng.standard_normal(a).astype("float32"), "b": rng.standard_normal(b).astype("float32")}
    inputs = f"(float{sizes(a)} a, float{sizes(b)} b)"
    text = f"{inputs} => (float[2,3,5] y) {{ y = com.microsoft.FusedMatMul <{attributes}>(a, b) }}"
    check(text, arrays, domains=("com.microsoft",), rtol=1e-5)


SIZES = dict(zip("abcdefhijkn", (2, 3, 4, 5, 2, 3, 2, 3, 4, 5, 2), strict=True))
EQUATIONS = [
    "ij,jk->ik", "bhid,bhjd->bhij", "i,j->ij", "bhid->bdh", "ij->", "ij", "ij,kj->ki", "abcd,cd->ab",
    "i...,i...->...",
    "...ij,...jk->...ik", "ab,bc,cd->ad", "a,b,c->cba", "bind,bjnd->bnij", "abcd,efcd->aebf", "ij, jk", "ba",
    "aij,ajk->aki",
]  # fmt: skip


def _einsum(equation, rng, open_sizes):
    terms = [t.strip() for t in equation.split("->")[0].split(",")]
    shapes = [[d for c in t.replace("...", ".") for d in ((2, 3) if c == "." else (SIZES[c],))] for t in terms]
    arrays = {f"x{i}": rng.standard_normal(s).astype("float32") for i, s in enumerate(shapes)}
    want = np.einsum(equation, *arrays.values())
    names = [[f"s{i}_{k}" if open_sizes else d for k, d in enumerate(s)] for i, s in enumerate(shapes)]
    inputs = ", ".join(f"float{sizes(s)} x{i}" for i, s in enumerate(names))
    result = "float" + sizes([f"o{i}" for i in range(want.ndim)])
    text = f'({inputs}) => ({result} y) {{ t = Einsum <equation="{equation}">({", ".join(arrays)}) y = Neg(t) }}'
    return text, arrays, {"y": -want}


@pytest.mark.parametrize("open_sizes", [False, True])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum(equation, open_sizes, rng):
    text, arrays, want = _einsum(equation, rng, open_sizes)
    check(text, arrays, rtol=1e-5, want=want)


@pytest.mark.parametrize("equation", ["ii->i", "ii", "bii->bi", "bii->b"])
def test_einsum_diagonals_need_known_sizes(equation, rng):
    text, arrays, want = _einsum(equation, rng, False)
    check(text, arrays, rtol=1e-5, want=want)
    text, arrays, _ = _einsum(equation, rng, True)
    assert "diagonal" in refusal(text, arrays)[0].message


def test_einsum_broadcasts_sizes_of_one_and_multiplies_integers(rng):
    a, b = rng.integers(-9, 9, (1, 3, 4)).astype("int32"), rng.integers(-9, 9, (5, 4, 2)).astype("int32")
    text = '(int32[1,3,4] a, int32[5,4,2] b) => (int32[5,3,2] y) { y = Einsum <equation="bij,bjk->bik">(a, b) }'
    check(text, {"a": a, "b": b}, rtol=0, want={"y": np.einsum("bij,bjk->bik", np.repeat(a, 5, 0), b)})
