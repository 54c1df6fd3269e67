"""Import rules of onnxruntime's own transformer ops: packed and grouped attention, embeddings with a norm."""

from __future__ import annotations

from collections.abc import Sequence

from mnnconvert.frontends.common.compose import calc, chain, reshape
from mnnconvert.frontends.onnx.attention import (
    Masks,
    head_scale,
    length,
    merge_heads,
    padding_mask,
    positions,
    repeat_heads,
    rotate_by,
    scores,
    split_heads,
)
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.normalization import EPSILON, layer_norm
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.ir import Builder, Value
from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.matmul import MatMul
from mnnconvert.ops.reduction import Reduction
from mnnconvert.ops.slicing import Slice

PARTS = ("query", "key", "value")


def causal(b: Builder, q: Value, k: Value, past: Value | None) -> Value:
    """1 where a query may see a key: not behind it, the past counted."""
    rows = reshape(b, positions(b, length(b, q, 2)), (-1, 1))
    rows = rows if past is None else calc(b, "ADD", rows, length(b, past, 2))
    return calc(b, "GREATER_EQUAL", rows, positions(b, length(b, k, 2)))


@onnx_op("Attention", domain="com.microsoft", limits="no past, no rotary embedding, masks of rank 1 (lengths) and 2")
def packed_attention(b: Builder, n: OnnxNode) -> Value:
    """Operands x [batch, length, hidden], weight [hidden, q + k + v], bias, mask, past, attention bias."""
    weight = n.input(1)
    if n.has(4) or n.attr("do_rotary", 0):
        raise n.refuse("Attention with a past or a rotary embedding")
    product = b.add(MatMul(), n.input(0), weight)
    if n.has(2):
        product = calc(b, "ADD", product, n.input(2))
    total = weight.shape[1] if weight.shape is not None else None
    if not isinstance(total, int):
        raise n.refuse("Attention needs to know the shape of its weight", reference="open-size")
    sizes = n.attr("qkv_hidden_sizes", ()) or (total // 3,) * 3
    return attended(b, n, product, sizes, 3, [n.input(5)] if n.has(5) else [])


def attended(b: Builder, n: OnnxNode, product: Value, sizes: Sequence[int], mask: int, added: list[Value]) -> Value:
    """Attention of query, key and value that stand side by side in `product`; `mask` is the operand of that name."""
    heads = n.required("num_heads", int)
    q, k, v = (split_heads(b, part, heads) for part in b.add(Slice(2, tuple(sizes)), product, names=PARTS))
    masks = Masks()
    if n.has(mask):
        padding_mask(b, n, mask, masks, k)
    masks.added += added
    if n.attr("unidirectional", 0):
        masks.allowed.append(causal(b, q, k, None))
    result = scores(b, q, k, head_scale(n, q), 0.0, masks)
    return merge_heads(b, b.add(MatMul(), result.probabilities, v))


@onnx_op("GroupQueryAttention", domain="com.microsoft",
         limits="sequences of a batch have one length; the cache grows; no local window")  # fmt: skip
def group_query_attention(b: Builder, n: OnnxNode) -> tuple[Value, ...]:
    """Operands q, k, v (or all in q), past key and value, lengths, total length, cos, sin."""
    heads, groups = n.required("num_heads", int), n.required("kv_num_heads", int)
    if n.attr("local_window_size", -1) != -1 or n.attr("smooth_softmax", 0) or any(n.has(i) for i in (9, 10, 11)):
        raise n.refuse("GroupQueryAttention with a local window, a smooth softmax, positions or a bias")
    q, k, v = (split_heads(b, x, count) for x, count in zip(_unpacked(b, n), (heads, groups, groups), strict=True))
    past = n.optional(3)
    if n.attr("do_rotary", 0):
        start = positions(b, length(b, q, 2))
        at = reshape(b, start if past is None else calc(b, "ADD", start, length(b, past, 2)), (1, -1))
        q, k = (rotate_by(b, n, x, n.input(7), n.input(8), at, bool(n.attr("rotary_interleaved", 0))) for x in (q, k))
    if past is not None:
        k, v = b.add(Concat(2), past, k), b.add(Concat(2), n.input(4), v)
    masks = Masks(allowed=[causal(b, q, k, past)])
    result = scores(b, q, repeat_heads(b, n, k, heads), head_scale(n, q), n.attr("softcap", 0.0), masks)
    y = merge_heads(b, b.add(MatMul(), result.probabilities, repeat_heads(b, n, v, heads)))
    return y, k, v


def _unpacked(b: Builder, n: OnnxNode) -> tuple[Value, ...]:
    """Query, key and value, also where they stand side by side in operand 0."""
    if n.has(1):
        return n.input(0), n.input(1), n.input(2)
    packed = n.input(0)
    total = packed.shape[2] if packed.shape is not None and len(packed.shape) == 3 else None
    if not isinstance(total, int):
        raise n.refuse("GroupQueryAttention needs to know the packed size", reference="open-size")
    heads, groups = n.required("num_heads", int), n.required("kv_num_heads", int)
    size = total // (heads + 2 * groups)
    return b.add(Slice(2, (heads * size, groups * size, groups * size)), packed, names=PARTS)


@onnx_op("EmbedLayerNormalization", domain="com.microsoft", limits="the mask index is not computed")
def embed_layer_normalization(b: Builder, n: OnnxNode) -> tuple[Value | None, ...]:
    """The norm of word, position and segment embeddings together; their sum is output 2.

    Output 1 counts the words that a mask leaves; without a mask it is 0 for each sequence.
    """
    words = n.input(0)
    places = n.optional(8) or reshape(b, positions(b, length(b, words, 1)), (1, -1))
    parts = [b.add(GatherV2(0), n.input(2), words), b.add(GatherV2(0), n.input(3), places)]
    if n.has(1):
        parts.append(b.add(GatherV2(0), n.input(4), n.input(1)))
    if n.wants(1) and n.has(7):
        raise n.refuse("EmbedLayerNormalization with a mask index")
    total = chain(b, "ADD", parts)
    y = layer_norm(b, total, (-1,), n.attr("epsilon", EPSILON), n.input(5), n.input(6))
    index = calc(b, "MUL", b.add(Reduction("MINIMUM", (1,), False), words), 0) if n.wants(1) else None
    return y, index, total
