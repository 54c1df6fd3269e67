"""Import rules of attention as one op, composed of products and a softmax, and of rotary position embeddings."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mnnconvert.frontends.common.compose import apply, calc, cast, chain, choose, reshape
from mnnconvert.frontends.common.moves import permuted
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.ir import I32, Builder, Value
from mnnconvert.ops.arrange import Concat
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.generators import Range
from mnnconvert.ops.matmul import MatMul
from mnnconvert.ops.normalization import Softmax
from mnnconvert.ops.shape import ShapeOf, Unsqueeze


@dataclass
class Masks:
    """What keeps a query from a key: numbers added to the scores, and conditions (0 forbids), all of them together.

    `may_forbid_all` says that a row may be left without any key; such a row gives zeros.
    """

    added: list[Value] = field(default_factory=list)
    allowed: list[Value] = field(default_factory=list)
    may_forbid_all: bool = False


@dataclass
class Scores:
    """The scores at each step: scaled product, after the soft cap, after the masks, after the softmax."""

    product: Value
    capped: Value
    masked: Value
    probabilities: Value


def split_heads(b: Builder, x: Value, heads: int) -> Value:
    """[batch, length, heads * size] -> [batch, heads, length, size]."""
    return permuted(b, reshape(b, x, (0, 0, heads, -1)), (0, 2, 1, 3))


def merge_heads(b: Builder, x: Value) -> Value:
    """[batch, heads, length, size] -> [batch, length, heads * size]."""
    return reshape(b, permuted(b, x, (0, 2, 1, 3)), (0, 0, -1))


def repeat_heads(b: Builder, n: OnnxNode, x: Value, heads: int | str | None) -> Value:
    """Each key or value head as often as there are query heads for it."""
    own = x.shape[1] if x.shape is not None else None
    if own == heads and own is not None:
        return x
    if not isinstance(own, int) or not isinstance(heads, int) or own < 1 or heads % own:
        raise n.refuse(f"{n.op_type} with {heads} query heads on {own} key heads")
    n.limited(heads)
    return b.add(GatherV2(1), x, b.ints(np.repeat(np.arange(own), heads // own)))


def length(b: Builder, x: Value, axis: int) -> Value:
    """The size of an axis as a scalar int32."""
    return reshape(b, b.add(ShapeOf(axis, axis + 1), x), ())


def positions(b: Builder, count: Value) -> Value:
    """0, 1, ... count - 1."""
    return b.add(Range(), b.ints(0), count, b.ints(1))


def scores(b: Builder, q: Value, k: Value, scale: float, softcap: float, masks: Masks) -> Scores:
    """softmax(mask(cap(q k^T scale))), all of shape [batch, heads, queries, keys]."""
    product = calc(b, "MUL", b.add(MatMul(False, True), q, k), scale)
    capped = product
    if softcap:
        capped = calc(b, "MUL", apply(b, "TANH", calc(b, "REALDIV", product, softcap)), softcap)
    masked = chain(b, "ADD", [capped, *masks.added])
    allowed = chain(b, "MUL", masks.allowed) if masks.allowed else None
    if allowed is not None:
        masked = choose(b, allowed, masked, -np.inf, masked)
    result = b.add(Softmax(-1), masked)
    if allowed is not None and masks.may_forbid_all:
        result = choose(b, allowed, result, 0.0, result)
    return Scores(product, capped, masked, result)


@onnx_op("Attention", since=23, limits="a mask that is shorter than the keys must have known sizes")
def attention(b: Builder, n: OnnxNode) -> tuple[Value | None, ...]:
    """Attention with grouped heads, masks, soft cap, and a cache of keys and values (outputs 1 and 2)."""
    q, k, v = (_heads(b, n, i) for i in (0, 1, 2))
    past = n.optional(4)
    if past is not None:
        k, v = b.add(Concat(2), past, k), b.add(Concat(2), n.input(5), v)
    heads = q.shape[1] if q.shape is not None else None
    result = scores(
        b, q, repeat_heads(b, n, k, heads), head_scale(n, q), n.attr("softcap", 0.0), _masks(b, n, q, k, past)
    )
    y = b.add(MatMul(), result.probabilities, repeat_heads(b, n, v, heads))
    steps = (result.product, result.capped, result.masked, result.probabilities)
    return merge_heads(b, y) if n.input(0).rank == 3 else y, k, v, steps[n.attr("qk_matmul_output_mode", 0)]


def _heads(b: Builder, n: OnnxNode, index: int) -> Value:
    """Operand `index` as [batch, heads, length, size]."""
    x = n.input(index)
    if x.rank == 4:
        return x
    count = n.attr("q_num_heads" if index == 0 else "kv_num_heads")
    if x.rank != 3 or not count:
        raise n.refuse(f"{n.op_type} of an operand whose heads are not known")
    return split_heads(b, x, count)


def head_scale(n: OnnxNode, q: Value) -> float:
    """The factor of the scores: 1 / sqrt(head size) unless given."""
    size = q.shape[3] if q.shape is not None else None
    if n.attr("scale"):
        return float(n.attr("scale"))
    if not isinstance(size, int):
        raise n.refuse(f"{n.op_type} without a scale needs to know the head size", reference="open-size")
    return float(1 / np.sqrt(size))


def _masks(b: Builder, n: OnnxNode, q: Value, k: Value, past: Value | None) -> Masks:
    masks = Masks()
    if n.has(3):
        _explicit_mask(b, n, k, masks)
    left, right = n.attr("left_window_size", -1), n.attr("right_window_size", -1)
    columns = positions(b, length(b, k, 2)) if n.has(6) or n.attr("is_causal", 0) or left >= 0 or right >= 0 else None
    if columns is None:
        return masks
    valid = reshape(b, n.input(6), (-1, 1, 1, 1)) if n.has(6) else None
    rows = reshape(b, positions(b, length(b, q, 2)), (-1, 1))
    if past is not None:
        rows = calc(b, "ADD", rows, length(b, past, 2))
    elif valid is not None:
        rows = calc(b, "ADD", rows, calc(b, "SUB", valid, length(b, q, 2)))
    if n.attr("is_causal", 0):
        masks.allowed.append(calc(b, "GREATER_EQUAL", rows, columns))
    if left >= 0:
        masks.allowed.append(calc(b, "GREATER_EQUAL", columns, calc(b, "SUB", rows, left)))
    if right >= 0:
        masks.allowed.append(calc(b, "GREATER_EQUAL", calc(b, "ADD", rows, right), columns))
    if valid is not None:
        masks.allowed.append(calc(b, "GREATER", valid, columns))
    masks.may_forbid_all |= valid is not None or left >= 0 or right >= 0
    return masks


def _explicit_mask(b: Builder, n: OnnxNode, k: Value, masks: Masks) -> None:
    """Operand 3: a condition, or numbers to add, of which -inf forbids."""
    mask, is_condition = n.input(3), n.source_type(3) == "bool"
    mask = _lengthened(b, n, mask, k, 0 if is_condition else -np.inf)
    masks.may_forbid_all = True
    if is_condition:
        masks.allowed.append(mask)
        return
    masks.added.append(mask)
    if mask.constant is None or np.isneginf(mask.constant).any():
        masks.allowed.append(calc(b, "GREATER", mask, -np.inf))


def _lengthened(b: Builder, n: OnnxNode, mask: Value, k: Value, filler: float) -> Value:
    """A mask that is shorter than the keys forbids the rest."""
    have, want = (mask.shape or (None,))[-1], k.shape[2] if k.shape is not None else None
    if have == want or not (isinstance(have, int) and isinstance(want, int)) or have == 1:
        return mask
    sizes = [d for d in mask.shape or () if isinstance(d, int)]
    if len(sizes) != mask.rank:
        raise n.refuse(f"a mask of {have} columns for {want} keys needs known sizes", reference="open-size")
    n.limited(*sizes[:-1], want)
    rest = np.full((*sizes[:-1], want - have), filler, mask.dtype)
    return b.add(Concat(len(sizes) - 1), mask, b.constant(rest))


@onnx_op(
    "MultiHeadAttention",
    domain="com.microsoft",
    limits="separate query, key and value; masks of rank 1 (lengths) and 2",
)
def multi_head_attention(b: Builder, n: OnnxNode) -> tuple[Value | None, ...]:
    """Operands query, key, value, bias, key_padding_mask, attention_bias, past_key, past_value."""
    heads = n.required("num_heads", int)
    operands = [n.input(i) for i in (0, 1, 2)]
    if n.has(3):
        operands = [calc(b, "ADD", x, part) for x, part in zip(operands, _bias_parts(n), strict=True)]
    q, k, v = (split_heads(b, x, heads) if x.rank == 3 else x for x in operands)
    if n.input(0).rank != 3 or any(x.rank != 4 for x in (q, k, v)):
        raise n.refuse("MultiHeadAttention with packed or unknown operands")
    past = n.optional(6)
    if past is not None:
        k, v = b.add(Concat(2), past, k), b.add(Concat(2), n.input(7), v)
    masks = Masks()
    if n.has(4):
        padding_mask(b, n, 4, masks, k)
    if n.has(5):
        masks.added.append(n.input(5))
    if n.attr("unidirectional", 0):
        rows = reshape(b, positions(b, length(b, q, 2)), (-1, 1))
        rows = rows if past is None else calc(b, "ADD", rows, length(b, past, 2))
        masks.allowed.append(calc(b, "GREATER_EQUAL", rows, positions(b, length(b, k, 2))))
    result = scores(b, q, k, head_scale(n, q), 0.0, masks)
    y = merge_heads(b, b.add(MatMul(), result.probabilities, v))
    return y, k, v, result.masked


def _bias_parts(n: OnnxNode) -> list[np.ndarray]:
    """The bias [q | k | v] in its three parts; query and key have the same size."""
    bias = n.required_constant(3, "the bias")
    size = (n.input(0).shape or (None,))[-1]
    if not isinstance(size, int):
        raise n.refuse("MultiHeadAttention with a bias needs to know the hidden size", reference="open-size")
    return [bias[:size], bias[size : 2 * size], bias[2 * size :]]


def padding_mask(b: Builder, n: OnnxNode, index: int, masks: Masks, k: Value) -> None:
    """A key padding mask [batch, keys]: where it is 0, `mask_filter_value` is added. [batch] counts the keys to see."""
    mask, batch = n.input(index), k.shape[0] if k.shape is not None else None
    if mask.shape == (batch,) and batch is not None:
        seen = calc(b, "GREATER", reshape(b, mask, (-1, 1)), positions(b, length(b, k, 2)))
        mask = cast(b, seen, I32)
    if mask.rank != 2:
        raise n.refuse(f"{n.op_type} with a key padding mask of rank {mask.rank}")
    wide = reshape(b, mask, (0, 1, 1, -1))
    low = b.floats(n.attr("mask_filter_value", -10000.0))
    masks.added.append(choose(b, calc(b, "GREATER", wide, 0), 0.0, low, low))


# ---------------------------------------------------------------------- rotary embeddings


@onnx_op("RotaryEmbedding", since=23)
def rotary_embedding(b: Builder, n: OnnxNode) -> Value:
    """cos and sin are tables by position (operand 3), or ready per batch and position."""
    return rotate(b, n, n.input(1), n.input(2), n.optional(3))


@onnx_op("RotaryEmbedding", domain="com.microsoft", limits="no packed batches, scale 1")
def rotary_embedding_of_microsoft(b: Builder, n: OnnxNode) -> Value:
    """Operands x, positions, cos, sin. A single position is that of the first element of every sequence."""
    if n.attr("is_packed_batching", 0) or n.attr("scale", 1.0) != 1.0:
        raise n.refuse("RotaryEmbedding with packed batches or a scale")
    x, at = n.input(0), n.input(1)
    if at.rank == 1:
        axis = 1 if x.rank == 3 else 2
        at = reshape(b, calc(b, "ADD", positions(b, length(b, x, axis)), at), (1, -1))
    return rotate(b, n, n.input(2), n.input(3), at)


def rotate(b: Builder, n: OnnxNode, cos: Value, sin: Value, at: Value | None) -> Value:
    """x of the node, rotated; of rank 3 it holds the heads side by side."""
    x, heads, interleaved = n.input(0), n.attr("num_heads", 0), bool(n.attr("interleaved", 0))
    if x.rank != 3:
        return rotate_by(b, n, x, cos, sin, at, interleaved)
    if not heads:
        heads = _counted_heads(n, x, cos)
    return merge_heads(b, rotate_by(b, n, split_heads(b, x, heads), cos, sin, at, interleaved))


def _counted_heads(n: OnnxNode, x: Value, cos: Value) -> int:
    """How many heads there are when all of each is rotated."""
    hidden, half = (x.shape or (None,))[-1], (cos.shape or (None,))[-1]
    if not isinstance(hidden, int) or not isinstance(half, int) or not half:
        raise n.refuse("RotaryEmbedding needs to know the head size", reference="open-size")
    return hidden // (2 * half)


def rotate_by(b: Builder, n: OnnxNode, x: Value, cos: Value, sin: Value, at: Value | None, interleaved: bool) -> Value:
    """Pairs (u, v) of each head of x [batch, heads, length, size] become (u cos - v sin, u sin + v cos).

    A pair is two neighbours when `interleaved`, else element i of the first and of the second half.
    """
    if at is not None:
        cos, sin = b.add(GatherV2(0), cos, at), b.add(GatherV2(0), sin, at)
    half = n.attr("rotary_embedding_dim", 0) // 2 or (cos.shape[-1] if cos.shape else None)
    size = x.shape[3] if x.shape is not None else None
    if not isinstance(half, int) or not isinstance(size, int):
        raise n.refuse("a rotary embedding needs to know the head size and its part", reference="open-size")
    cos, sin = (b.add(Unsqueeze((1,)), t) for t in (cos, sin))
    turned = _turned(b, x, cos, sin, half, interleaved)
    return turned if 2 * half >= size else b.add(Concat(3), turned, _part(b, x, range(2 * half, size)))


def _turned(b: Builder, x: Value, cos: Value, sin: Value, half: int, interleaved: bool) -> Value:
    """The first 2 * half elements of each head, rotated."""
    u = _part(b, x, range(0, 2 * half, 2) if interleaved else range(half))
    v = _part(b, x, range(1, 2 * half, 2) if interleaved else range(half, 2 * half))
    first = calc(b, "SUB", calc(b, "MUL", u, cos), calc(b, "MUL", v, sin))
    second = calc(b, "ADD", calc(b, "MUL", u, sin), calc(b, "MUL", v, cos))
    joined = b.add(Concat(3), first, second)
    order = np.arange(2 * half).reshape(2, half).T.reshape(-1)
    return b.add(GatherV2(3), joined, b.constant(order.astype(I32))) if interleaved else joined


def _part(b: Builder, x: Value, picks: range) -> Value:
    """Elements of the last of four axes."""
    return b.add(GatherV2(3), x, b.ints(np.array(picks)))
