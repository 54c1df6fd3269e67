"""Attention: the op, where no keys are kept from run to run, and patterns of it."""

from __future__ import annotations

import math

from mnnconvert.ir import Node
from mnnconvert.ops.attention import Attention
from mnnconvert.ops.matmul import MatMul
from mnnconvert.runtime_ref import attention as shared
from mnnconvert.runtime_ref.attention_patterns import find_attention
from mnnconvert.runtime_ref.opencl.lower import MOST_ELEMENTS, Lowering, finds, lowers

finds(MatMul)(find_attention)


@lowers(Attention)
def attention(ctx: Lowering, node: Node) -> bool:
    kept = ctx.caches is not None and ctx.caches.of(node) is not None
    large = any(math.prod(ctx.shape(v)) >= MOST_ELEMENTS for v in (*node.inputs, node.output))
    return not kept and not large and shared.attention(ctx, node)
