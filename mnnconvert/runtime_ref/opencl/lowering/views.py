"""Ops that leave the elements in order: nothing moves."""

from __future__ import annotations

from mnnconvert.ir import Node
from mnnconvert.ops.layout import Identity
from mnnconvert.ops.shape import ExpandDims, Flatten, Reshape, Squeeze, Unsqueeze
from mnnconvert.runtime_ref.opencl.lower import Lowering, lowers


@lowers(Reshape, Squeeze, Unsqueeze, ExpandDims, Flatten)
def reshape(ctx: Lowering, node: Node) -> bool:
    ctx.define(node.output, ctx.view(ctx.read(node.inputs[0]), ctx.shape(node.output)))
    return True


@lowers(Identity)
def identity(ctx: Lowering, node: Node) -> bool:
    ctx.alias(node.output, node.inputs[0])
    return True
