"""Attention of several heads as one op, which may keep the keys and values of earlier calls."""

from __future__ import annotations

import numpy as np

from mnnconvert.ir.types import Dim, Spec, mul
from mnnconvert.ops.base import Fields, Form, Op, register
from mnnconvert.ops.samples import exactly, grid, integers


@register()
class Attention(Op):
    """softmax(scale q k^T + mask) v for each head; `scale` 0 stands for 1 / sqrt(D).

    Operands q [B,S,H,D], k [B,T,K,D], v [B,T,K,W], mask [B or 1, H or 1, S or 1, M], sinks [H]; the result is
    [B,S,H*W]. K divides H, and each key head serves H / K query heads in a row. T is S and, with a cache, as many more
    in front as it holds: queries belong to the last S keys. The mask is float and added to the scores; its columns
    stand for the last M keys, and the keys before them are seen. Axes in front may be absent. Without a mask, or with
    a scalar one, query i sees the first T - S + i + 1 keys. Sinks, which need an operand in the place of the mask, are
    one more score per head that counts in the sum of the softmax only. A row that sees no key becomes NaN. A mask of
    integers is not looked at, as in the released runtime: all keys are seen.

    `kv_cache` lets a host keep k and v, so that later calls see the keys of this one; a call on its own begins afresh.
    """

    kv_cache: bool = True
    layer_index: int = -1
    scale: float = 0.0

    form = Form(
        "Attention", "AttentionParam",
        {"kv_cache": "kv_cache", "layer_index": "layer_index", "scale": "attnScale"},
    )  # fmt: skip

    @property
    def pure(self) -> bool:  # type: ignore[override]
        """Whether results follow from the operands alone: not where keys and values are kept."""
        return not self.kv_cache

    def infer(self, q: Spec, k: Spec, v: Spec, *rest: Spec) -> Spec:
        """float32 [B,S,H*W]; ValueError where ranks, heads, sizes or types do not fit."""
        if any(x.dtype != np.float32 for x in (q, k, v, *rest[1:])) or len(rest) > 2:
            raise ValueError("attention takes float32 operands q, k, v, a mask, and sinks")
        if any(x.shape is not None and len(x.shape) != 4 for x in (q, k, v)):
            raise ValueError("q, k and v have four axes: batch, position, head, element")
        if len(rest) > 1 and rest[1].shape is not None and len(rest[1].shape) != 1:
            raise ValueError("sinks have one axis: head")
        if q.shape is None:
            return Spec(q.dtype)
        if len(rest) > 1 and rest[1].shape is not None:
            _agree(q.shape[2:3], rest[1].shape)
        batch, queries, heads, depth = q.shape
        if k.shape is not None and v.shape is not None:
            _agree(k.shape[:3], v.shape[:3])
        if k.shape is not None:
            _agree((batch, depth), (k.shape[0], k.shape[3]))
        shared = k.shape[2] if k.shape is not None else None
        if isinstance(heads, int) and isinstance(shared, int) and (shared < 1 or heads % shared):
            raise ValueError(f"{heads} query heads on {shared} key heads")
        keys = k.shape[1] if k.shape is not None else None
        if isinstance(keys, int) and isinstance(queries, int) and keys < queries:
            raise ValueError(f"{queries} queries on {keys} keys")
        width = v.shape[3] if v.shape is not None else None
        return Spec(q.dtype, (batch, queries, mul(heads, width)))

    def ref(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, *rest: np.ndarray) -> np.ndarray:
        """The result for all keys, those of earlier calls in front."""
        batch, queries, heads, depth = q.shape
        keys, group = k.shape[1], heads // k.shape[2]
        q, k, v = (np.moveaxis(x, 2, 1) for x in (q, k, v))
        k, v = (np.repeat(x, group, 1) for x in (k, v))
        scores = q @ np.swapaxes(k, -1, -2) * np.float32(self.factor(depth)) + self._added(rest, queries, keys)
        if len(rest) > 1:
            sinks = np.broadcast_to(rest[1].reshape(-1, 1, 1), (*scores.shape[:-1], 1))
            scores = np.concatenate([scores, sinks], -1)
        with np.errstate(invalid="ignore"):
            weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
            weights = weights / weights.sum(-1, keepdims=True)
        return np.moveaxis(weights[..., :keys] @ v, 1, 2).reshape(batch, queries, heads * v.shape[-1])

    def factor(self, depth: int) -> float:
        """What scores of heads of this size are multiplied by."""
        return self.scale or float(1 / np.sqrt(max(depth, 1)))

    def _added(self, rest: tuple[np.ndarray, ...], queries: int, keys: int) -> np.ndarray:
        """What is added to scores [..., S, T]."""
        if is_causal(rest[0].shape if rest else ()):
            hidden = np.triu(np.ones((queries, keys), bool), keys - queries + 1)
            return np.where(hidden, np.float32(-np.inf), np.float32(0))
        mask = rest[0]
        if mask.dtype.kind != "f":
            return np.zeros((), np.float32)
        if mask.shape[-1] > keys:
            raise ValueError(f"a mask of {mask.shape[-1]} columns on {keys} keys")
        return np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(keys - mask.shape[-1], 0)])

    @classmethod
    def reads(cls, fields: Fields) -> bool:
        """Not what shares the cache of another layer, quantises it, or makes a blocked result."""
        shares = fields.get("kv_shared_layer") or (fields.get("kv_shared_layer_index", -1) or 0) >= 0
        return not shares and not fields.get("mhq_quant") and not fields.get("output_c4")

    samples = (
        grid(kv_cache=[True, False], layer_index=[3], q=[(1, 5, 4, 8)], k=[(1, 5, 2, 8)], v=[(1, 5, 2, 8)])
        + grid(kv_cache=[False], scale=[0.0, 0.5], q=[(1, 9, 6, 16)], k=[(1, 9, 6, 16)], v=[(1, 9, 6, 16)],
               mask=[(9, 9), (1, 1, 9, 9), exactly(0.0, "float32"), integers(1, 1, 9, 9, low=0, high=2)])
        + grid(kv_cache=[False], q=[(1, 5, 4, 8)], k=[(1, 5, 2, 8)], v=[(1, 5, 2, 8)],
               mask=[(1, 1, 1, 5), exactly(0.0, "float32")], sinks=[(4,)])
        + grid(q=[(1, 1, 4, 3)], k=[(1, 1, 1, 3)], v=[(1, 1, 1, 3)], mask=[(1, 1, 1, 1)], sinks=[(4,)])
        + grid(q=[(1, 6, 4, 8)], k=[(1, 6, 4, 8)], v=[(1, 6, 4, 8)], mask=[(1, 6, 6)], sinks=[(4,)])
        + grid(kv_cache=[False], q=[(2, 3, 4, 8)], k=[(2, 3, 2, 8)], v=[(2, 3, 2, 5)],
               mask=[(2, 4, 3, 3), (2, 1, 1, 3), (2, 1, 3, 2), exactly(0.0, "float32")])
        + grid(kv_cache=[False], q=[(2, 3, 4, 8)], k=[(2, 7, 2, 8)], v=[(2, 7, 2, 5)],
               mask=[(1, 1, 3, 7), (3, 3), exactly(0.0, "float32")], sinks=[(4,)])
    )  # fmt: skip


def is_causal(mask: tuple[Dim, ...] | None) -> bool:
    """Whether a mask of this shape, () for none, stands for causality."""
    return mask == ()


def _agree(one: tuple[Dim, ...], other: tuple[Dim, ...]) -> None:
    """ValueError where two sizes are known and differ."""
    if any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(one, other, strict=True)):
        raise ValueError(f"the sizes {list(one)} and {list(other)} of operands differ")
