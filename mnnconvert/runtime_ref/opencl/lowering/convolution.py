"""Convolution."""

from __future__ import annotations

from mnnconvert.ir import Node
from mnnconvert.ops.convolution import Convolution
from mnnconvert.runtime_ref.opencl.lower import Lowering, lowers
from mnnconvert.runtime_ref.opencl.lowering.spatial import spatial_convolution


@lowers(Convolution)
def convolution(ctx: Lowering, node: Node) -> bool:
    return spatial_convolution(ctx, node)
