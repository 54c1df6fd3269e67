"""Attention: the runtime takes one sequence, a whole mask for all heads, and as many keys as queries."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mnnconvert.ir import Builder, Node, Value
from mnnconvert.ops.arrange import BroadcastTo
from mnnconvert.ops.attention import Attention, is_causal
from mnnconvert.ops.elementwise import Binary
from mnnconvert.passes.defects.base import Defect, RefusedError


def _scaled(b: Builder, node: Node) -> Sequence[Value] | None:
    """The factor of the scores goes into the queries, but for the one that the runtime has anyway."""
    op, (q, *rest) = node.op, node.inputs
    assert isinstance(op, Attention)
    depth = q.shape[3] if q.shape is not None else None
    if not op.scale:
        return None
    if not isinstance(depth, int):
        raise RefusedError("a scale of attention needs to know the head size")
    factor = op.scale * math.sqrt(depth)
    plain = Attention(op.kv_cache, op.layer_index)
    if abs(factor - 1) > 1e-6:
        q = b.add(Binary("MUL"), q, b.constant(np.array([factor], np.float32)))
    return [b.add(plain, q, *rest)]


def _sizes(b: Builder, node: Node) -> Sequence[Value] | None:
    q, k, v = (value.shape or (None,) * 4 for value in node.inputs[:3])
    if isinstance(q[0], int) and q[0] != 1:
        raise RefusedError(f"attention of {q[0]} sequences at once")
    if all(isinstance(size, int) for size in (q[1], k[1])) and q[1] != k[1]:
        raise RefusedError(f"attention of {q[1]} queries on {k[1]} keys")
    if all(isinstance(size, int) for size in (q[3], v[3])) and q[3] != v[3]:
        raise RefusedError(f"attention with keys of {q[3]} and values of {v[3]} elements")
    return None


def _mask(b: Builder, node: Node) -> Sequence[Value] | None:
    """A mask with a row for every query and a column for every key."""
    q, k, v, *rest = node.inputs
    if rest and rest[0].dtype.kind != "f":
        return None
    shape = rest[0].shape if rest else ()
    if shape is None or (not is_causal(shape) and math.prod(d for d in shape[:-2] if isinstance(d, int)) != 1):
        raise RefusedError("attention whose mask differs from head to head, or is not known to be one for all")
    queries = (q.shape or (None, None))[1]
    if is_causal(shape):
        if len(rest) < 2:
            return None
        if not isinstance(queries, int):
            raise RefusedError("causal attention with sinks needs to know how many queries there are")
        hidden = np.triu(np.ones((queries, queries), bool), 1)
        mask = b.constant(np.where(hidden, -np.inf, 0).astype(np.float32))
        return [b.add(node.op, q, k, v, mask, *rest[1:])]
    columns, keys = shape[-1], (k.shape or (None, None))[1]
    if isinstance(columns, int) and isinstance(keys, int) and columns != keys:
        raise RefusedError(f"attention with a mask of {columns} columns on {keys} keys")
    rows = shape[-2] if len(shape) > 1 else 1
    if rows != 1 or queries == 1:
        return None
    if not isinstance(queries, int) or not isinstance(columns, int):
        raise RefusedError("attention with a mask of one row needs to know how many queries there are")
    whole = b.add(BroadcastTo(), rest[0], b.ints(np.array([1, 1, queries, columns])))
    return [b.add(node.op, q, k, v, whole, *rest[1:])]


DEFECTS = (
    Defect("Attention", "a scale of its own is not looked at", _scaled),
    Defect("Attention", "only one sequence with as many keys as queries is computed", _sizes),
    Defect("Attention", "a mask is read as one row per query, for all heads", _mask),
)
