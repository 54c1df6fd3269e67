"""Attention and rotary embeddings against the definitions in onnx, and onnxruntime for its own ops."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator
from onnx_cases import check, model, refusal

MICROSOFT = ("com.microsoft",)
Q, KV = "float[2,4,3,8]", "float[2,2,5,8]"


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def operands(**more) -> dict[str, np.ndarray]:
    return {"q": noise(2, 4, 3, 8), "k": noise(2, 2, 5, 8, seed=1), "v": noise(2, 2, 5, 8, seed=2), **more}


def check_by_definition(text: str, arrays, opset: int) -> None:
    proto, feeds = model(text, arrays, opset)
    names = [o.name for o in proto.graph.output]
    check(
        text,
        arrays,
        opset=opset,
        rtol=1e-5,
        want=dict(zip(names, ReferenceEvaluator(proto).run(names, feeds), strict=True)),
    )


@pytest.mark.parametrize("attributes", ["", "<is_causal=1>", "<scale=0.3>", "<softcap=2.0, is_causal=1>"])
def test_grouped_heads(attributes):
    text = f"({Q} q, {KV} k, {KV} v) => ({Q} y) {{ y = Attention {attributes} (q, k, v) }}"
    check_by_definition(text, operands(), 23)


@pytest.mark.parametrize("shape", [(3, 5), (4, 3, 5), (2, 1, 3, 5), (1, 1, 1, 5), (3, 3)])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks_of_any_rank(shape, kind):
    """A short mask forbids the keys behind it; a row without any key gives zeros."""
    mask = np.random.default_rng(3).random(shape) > 0.3
    mask[..., 0, :] = shape[-2] == 1
    values = mask if kind == "bool" else np.where(mask, noise(*shape), -np.inf).astype(np.float32)
    sizes = ",".join(map(str, shape))
    text = f"({Q} q, {KV} k, {KV} v, {kind}[{sizes}] m) => ({Q} y) {{ y = Attention(q, k, v, m) }}"
    check_by_definition(text, operands(m=values), 24)


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_scores_at_each_step(mode):
    text = (f"({Q} q, {KV} k, {KV} v, float[3,5] m) => ({Q} y, float[2,4,3,5] s) "
            f'{{ y, "", "", s = Attention <qk_matmul_output_mode={mode}> (q, k, v, m) }}')  # fmt: skip
    check_by_definition(text, operands(m=noise(3, 5, seed=5)), 24)


@pytest.mark.parametrize("causal", [0, 1])
def test_cache_of_keys_and_values_grows(causal):
    text = (
        f"({Q} q, float[2,2,3,8] k, float[2,2,3,8] v, float[2,2,p,8] pk, float[2,2,p,8] pv) => "
        f"({Q} y, float[2,2,t,8] nk, float[2,2,t,8] nv) "
        f'{{ y, nk, nv = Attention <is_causal={causal}> (q, k, v, "", pk, pv) }}'
    )
    for past in (2, 4):
        arrays = {"q": noise(2, 4, 3, 8), "k": noise(2, 2, 3, 8, seed=1), "v": noise(2, 2, 3, 8, seed=2),
                  "pk": noise(2, 2, past, 8, seed=3), "pv": noise(2, 2, past, 8, seed=4)}  # fmt: skip
        check_by_definition(text, arrays, 23)


def test_causal_of_lengths_known_at_run_time():
    text = "(float[1,2,s,8] q, float[1,2,s,8] k) => (float[1,2,s,8] y) { y = Attention <is_causal=1> (q, k, k) }"
    for length in (2, 5):
        check_by_definition(text, {"q": noise(1, 2, length, 8), "k": noise(1, 2, length, 8, seed=1)}, 23)


def test_three_dimensional_operands_with_counted_heads():
    text = ("(float[2,3,32] q, float[2,5,16] k, float[2,5,16] v) => (float[2,3,32] y) "
            "{ y = Attention <q_num_heads=4, kv_num_heads=2> (q, k, v) }")  # fmt: skip
    check_by_definition(text, {"q": noise(2, 3, 32), "k": noise(2, 5, 16, seed=1), "v": noise(2, 5, 16, seed=2)}, 23)


def test_lengths_of_padded_keys():
    text = f'({Q} q, {KV} k, {KV} v, int64[2] n) => ({Q} y) {{ y = Attention <is_causal=1> (q, k, v, "", "", "", n) }}'
    check_by_definition(text, operands(n=np.array([3, 5])), 24)


def test_heads_that_do_not_divide_are_refused():
    (diagnostic,) = refusal(
        "(float[1,3,2,8] q, float[1,2,2,8] k) => (float[1,3,2,8] y) { y = Attention(q, k, k) }", opset=23
    )
    assert "3 query heads on 2 key heads" in diagnostic.message


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("size", [0, 4])
@pytest.mark.parametrize("rank", [3, 4])
def test_rotary_embedding(interleaved, size, rank):
    pairs = (size or 8) // 2
    shape, heads = ((1, 3, 16), ", num_heads=2") if rank == 3 else ((1, 2, 3, 8), "")
    sizes = ",".join(map(str, shape))
    text = (f"(float[{sizes}] x, int64[1,3] at) => (float[{sizes}] y) {{ y = RotaryEmbedding "
            f"<interleaved={interleaved}, rotary_embedding_dim={size}{heads}> (x, cos, sin, at) }}")  # fmt: skip
    angle = np.arange(6)[:, None] * np.geomspace(1, 0.1, pairs)
    arrays = {"x": noise(*shape), "at": np.array([[0, 2, 5]]), "cos": np.cos(angle).astype(np.float32),
              "sin": np.sin(angle).astype(np.float32)}  # fmt: skip
    check_by_definition(text, arrays, 23)


@pytest.mark.parametrize("at", [np.array([[0, 2, 5]]), np.array([2])])
def test_rotary_embedding_of_microsoft(at):
    angle = np.arange(6)[:, None] * np.geomspace(1, 0.1, 4)
    sizes = ",".join(map(str, at.shape))
    tables = {"cos": np.cos(angle).astype(np.float32), "sin": np.sin(angle).astype(np.float32)}
    rotated = "y = com.microsoft.RotaryEmbedding (x, at, cos, sin)"
    check(f"(float[1,3,16] x, int64[{sizes}] at) => (float[1,3,16] y) {{ {rotated} }}",
          {"x": noise(1, 3, 16), "at": at, **tables}, domains=MICROSOFT, rtol=1e-5)  # fmt: skip


@pytest.mark.parametrize(
    "given", ["q, k, v", "q, k, v, bias", 'q, k, v, "", mask', 'q, k, v, "", "", add', "q, k, v, bias, mask, add"]
)
def test_multi_head_attention(given):
    check("(float[2,3,16] q, float[2,5,16] k, float[2,5,16] v, int32[2,5] mask, float[2,2,3,5] add) => "
          f"(float[2,3,16] y) {{ y = com.microsoft.MultiHeadAttention <num_heads=2> ({given}) }}",
          {"q": noise(2, 3, 16), "k": noise(2, 5, 16, seed=1), "v": noise(2, 5, 16, seed=2), "bias": noise(48, seed=3),
           "mask": np.int32([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]), "add": noise(2, 2, 3, 5, seed=4)},
          domains=MICROSOFT, rtol=1e-5)  # fmt: skip


@pytest.mark.parametrize("given", ["x, w, bias", "x, w, bias, mask"])
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_packed_attention_of_microsoft(given, unidirectional):
    node = f"com.microsoft.Attention <num_heads=2, unidirectional={unidirectional}> ({given})"
    check(f"(float[2,3,8] x, int32[2,3] mask) => (float[2,3,8] y) {{ y = {node} }}",
          {"x": noise(2, 3, 8), "w": noise(8, 24, seed=1), "bias": noise(24, seed=2),
           "mask": np.int32([[1, 1, 0], [1, 1, 1]])}, domains=MICROSOFT, rtol=1e-5)  # fmt: skip


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rotary", [0, 1])
def test_group_query_attention(packed, rotary):
    """One step with four keys in the cache; onnxruntime wants the numbers of keys in two more operands."""
    angle = np.arange(8)[:, None] * np.geomspace(1, 0.1, 8)
    q, k, v = noise(1, 1, 64), noise(1, 1, 32, seed=1), noise(1, 1, 32, seed=2)
    first = {"q": np.concatenate([q, k, v], 2)} if packed else {"q": q, "k": k, "v": v}
    names = "float[1,1,128] q" if packed else "float[1,1,64] q, float[1,1,32] k, float[1,1,32] v"
    given = 'q, "", ""' if packed else "q, k, v"
    node = f"com.microsoft.GroupQueryAttention <num_heads=4, kv_num_heads=2, do_rotary={rotary}>"
    tables = {"cos": np.cos(angle).astype(np.float32), "sin": np.sin(angle).astype(np.float32)}
    check(f"({names}, float[1,2,4,16] pk, float[1,2,4,16] pv) => "
          "(float[1,1,64] y, float[1,2,5,16] nk, float[1,2,5,16] nv) <int32[1] last = {4}, int32[1] total = {5}> "
          f"{{ y, nk, nv = {node} ({given}, pk, pv, last, total, cos, sin) }}",
          {**first, "pk": noise(1, 2, 4, 16, seed=3), "pv": noise(1, 2, 4, 16, seed=4), **tables},
          domains=MICROSOFT, rtol=1e-5)  # fmt: skip


def test_embeddings_with_a_norm():
    check("(int32[2,3] words, int32[2,3] segments) => (float[2,3,8] y, int32[2] i) "
          "{ y, i = com.microsoft.EmbedLayerNormalization (words, segments, w, p, s, g, b) }",
          {"words": np.int32([[1, 0, 4], [2, 2, 3]]), "segments": np.int32([[0, 0, 1], [0, 1, 1]]), "w": noise(5, 8),
           "p": noise(6, 8, seed=1), "s": noise(2, 8, seed=2), "g": noise(8, seed=3), "b": noise(8, seed=4)},
          domains=MICROSOFT, rtol=1e-5)  # fmt: skip
