"""Matrix products, by `products.py`."""

from __future__ import annotations

from mnnconvert.ir import Node
from mnnconvert.ops.matmul import InnerProduct, MatMul
from mnnconvert.runtime_ref import products
from mnnconvert.runtime_ref.lower import Rule
from mnnconvert.runtime_ref.opencl.lower import Lowering, lowers

FIRST: list[Rule] = []
"""Rules that may take a MatMul, and what follows it, before it is lowered as a product: coded weights."""


@lowers(MatMul)
def matmul(ctx: Lowering, node: Node) -> bool:
    return any(rule(ctx, node) for rule in FIRST) or products.matmul(ctx, node)


@lowers(InnerProduct)
def inner_product(ctx: Lowering, node: Node) -> bool:
    return products.inner_product(ctx, node)
