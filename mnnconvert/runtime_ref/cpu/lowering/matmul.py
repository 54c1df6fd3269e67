"""Matrix products, by `products.py`; weights that stay codes are asked for first."""

from __future__ import annotations

from mnnconvert.ir import Node
from mnnconvert.ops.matmul import InnerProduct, MatMul
from mnnconvert.runtime_ref import products
from mnnconvert.runtime_ref.cpu.lower import Lowering, lowers
from mnnconvert.runtime_ref.cpu.lowering.coded import coded_matmul


@lowers(MatMul)
def matmul(ctx: Lowering, node: Node) -> bool:
    return coded_matmul(ctx, node) or products.matmul(ctx, node)


@lowers(InnerProduct)
def inner_product(ctx: Lowering, node: Node) -> bool:
    return products.inner_product(ctx, node)
