"""What reductions and normalisations mean, for every backend: axes as [outer, n, inner]."""

from __future__ import annotations

import math
from itertools import groupby
from typing import Any

from mnnconvert.ir import F32, Node
from mnnconvert.ir.types import normal_axis
from mnnconvert.ops.elementwise import Binary
from mnnconvert.ops.normalization import LayerNorm
from mnnconvert.runtime_ref.lower import Lowering, Sizes

OPERATIONS = {"SUM": 0, "MEAN": 0, "ASUM": 1, "SUMSQ": 2, "PROD": 3, "MAXIMUM": 4, "MINIMUM": 5, "ANY": 6, "ALL": 7}
"""By the numbers of the kernels."""
AGAIN = {"ASUM": "SUM", "SUMSQ": "SUM", "ANY": "MAXIMUM", "ALL": "MINIMUM"}
"""What is done to results of a first pass, where that is not the same."""


def reduced_axes(ctx: Lowering, node: Node) -> set[int] | None:
    """The axes that a Reduction takes away; None where they depend on data."""
    op: Any = node.op
    rank = len(ctx.shape(node.inputs[0]))
    listed = ctx.constant(node.inputs[1]) if len(node.inputs) > 1 else op.dims
    if listed is None:
        return None if len(node.inputs) > 1 else set(range(rank))
    return {normal_axis(int(a), rank) for a in getattr(listed, "ravel", lambda: listed)()}


def groups(shape: Sizes, axes: set[int]) -> list[tuple[int, bool]]:
    """Sizes of neighbouring axes that are all reduced, or all kept; at least one group is reduced."""
    marked = [(size, i in axes) for i, size in enumerate(shape) if size != 1]
    found = [(math.prod(s for s, _ in members), gone) for gone, members in groupby(marked, key=lambda m: m[1])]
    return found if any(gone for _, gone in found) else [*found, (1, True)]


def around(shape: Sizes, axis: int) -> tuple[int, int, int]:
    """The sizes in front of an axis, of it, and behind it."""
    axis = normal_axis(axis, len(shape))
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def normalized(op: LayerNorm, shape: Sizes) -> tuple[int, int, int] | None:
    """The sizes around the axes that are normalised together; None where they do not follow each other."""
    if op.group > 1:
        outer = shape[0] * op.group
        return outer, math.prod(shape) // max(outer, 1), 1
    axes = sorted({normal_axis(a, len(shape)) for a in op.axes})
    first, last = axes[0], axes[-1] + 1
    if axes != list(range(first, last)):
        return None
    return math.prod(shape[:first]), math.prod(shape[first:last]), math.prod(shape[last:])


def norm_of_sum(ctx: Lowering, node: Node) -> Node | None:
    """The layer norm over the last axes that reads the sum that an Add makes, and can be computed along with it."""
    if not isinstance(node.op, Binary) or node.op.function != "ADD" or node.op.activation:
        return None
    shape = ctx.shape(node.output)
    maps = any(set(ctx.layouts(v)) == {ctx.map_layout} for v in node.inputs)
    if node.output.dtype != F32 or maps or any(ctx.shape(v) != shape for v in node.inputs):
        return None
    norm = next((u for u in node.output.users if isinstance(u.op, LayerNorm)), None)
    if norm is None or norm.inputs[0] is not node.output or len(norm.inputs) not in (1, 3):
        return None
    pending = norm.output in ctx.specs and not ctx.is_ready(norm.output)
    sizes = normalized(norm.op, shape)  # type: ignore[arg-type]
    if not pending or sizes is None or sizes[2] != 1 or not all(ctx.is_ready(v) for v in norm.inputs[1:]):
        return None
    return norm
