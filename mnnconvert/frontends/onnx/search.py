"""Import rules of searches: largest elements in a defined order, distinct elements, determinants."""

from __future__ import annotations

from itertools import permutations

import numpy as np

from mnnconvert.frontends.common.compose import apply, calc, cast, widened
from mnnconvert.frontends.common.moves import part, permuted, reduced, reshaped, size_product, unsqueezed
from mnnconvert.frontends.common.run_time import count_up, scalar_size, spread
from mnnconvert.frontends.common.search import by_occurrence, top
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.ir import F32, I32, Builder, Value
from mnnconvert.ir.types import normal_axis
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.reduction import ArgMax
from mnnconvert.ops.search import Unique

LARGEST_MATRIX = 5  # for a determinant written out as a sum over permutations


@onnx_op("TopK", limits="the rank must be known; no more than 2^31 elements times indices")
def top_k(b: Builder, n: OnnxNode) -> tuple[Value, Value]:
    """Values, and indices with the lower one first among equals."""
    x, largest = n.input(0), bool(n.attr("largest", 1))
    if not x.rank:
        raise n.refuse("TopK needs an operand of known rank, 1 or more")
    axis = normal_axis(n.attr("axis", -1), x.rank)
    known = n.constant(1) if n.has(1) else np.asarray(n.attr("k", 0))
    k = n.input(1) if known is None else b.ints([int(np.ravel(known)[0])])
    wide = x if x.dtype in (F32, I32) else cast(b, x, I32)
    size = part(x, axis)
    if known is not None and isinstance(size, int) and not 0 < int(np.ravel(known)[0]) <= size:
        raise n.refuse(f"TopK of {int(np.ravel(known)[0])} among {size} elements")
    values, places = top(b, wide, k, axis, largest)
    return cast(b, values, x.dtype), places


@onnx_op("Unique", limits="slices along an axis are all compared with each other")
def unique(b: Builder, n: OnnxNode) -> tuple[Value, Value, Value, Value]:
    """Distinct elements ascending, or (`sorted` 0) in the order in which they occur first."""
    x = n.input(0)
    if n.has_attr("axis") and x.rank != 1:
        return _unique_slices(b, n, x)
    wide = x if x.dtype in (F32, I32) else cast(b, x, I32)
    results = b.add(Unique(), wide, names=[""] * 4)
    values, first, inverse, counts = results if n.attr("sorted", 1) else by_occurrence(b, *results)
    return cast(b, values, x.dtype), first, inverse, counts


def _unique_slices(b: Builder, n: OnnxNode, x: Value) -> tuple[Value, Value, Value, Value]:
    """The distinct among the numbers of slices in their order, and the slices that they belong to."""
    if x.rank is None:
        raise n.refuse("Unique along an axis needs an operand of known rank")
    axis = normal_axis(n.attr("axis"), x.rank)
    results = b.add(Unique(), _order_of_slices(b, n, x, axis), names=[""] * 4)
    _, first, inverse, counts = results if n.attr("sorted", 1) else by_occurrence(b, *results)
    return b.add(GatherV2(), x, first, b.ints(axis)), first, inverse, counts


def _order_of_slices(b: Builder, n: OnnxNode, x: Value, axis: int) -> Value:
    """For each slice along an axis how many slices come before it: equal for equal ones only.

    Of two slices the first difference decides, so only its sign counts.
    """
    slices, rank = x.shape[axis] if x.shape else None, x.rank or 0
    total = np.prod([s for s in x.shape or () if isinstance(s, int)], dtype=np.int64)
    n.limited(int(total), slices)
    others = [i for i in range(rank) if i != axis]
    in_front = permuted(b, widened(b, x), [axis, *others])
    rows = reshaped(b, in_front, [part(x, axis), size_product(b, [part(x, i) for i in others])])
    more, less = (calc(b, f, unsqueezed(b, rows, 1), unsqueezed(b, rows, 0)) for f in ("GREATER", "LESS"))
    signs = calc(b, "SUB", cast(b, more, F32), cast(b, less, F32))
    first = unsqueezed(b, b.add(ArgMax(2), apply(b, "ABS", signs)), 2)
    columns = spread(b, count_up(b, scalar_size(b, rows, 1)), 2, 3)
    decisive = reduced(b, "SUM", calc(b, "MUL", signs, cast(b, calc(b, "EQUAL", columns, first), F32)), 2, keep=False)
    before = cast(b, calc(b, "GREATER", decisive, 0.0), F32)
    return cast(b, reduced(b, "SUM", before, 1, keep=False), I32)


@onnx_op("Det", limits="matrices up to 5 x 5")
def det(b: Builder, n: OnnxNode) -> Value:
    """The sum over all permutations of the signed products (Leibniz)."""
    x = n.input(0)
    size = x.shape[-1] if x.shape and len(x.shape) > 1 else None
    if not isinstance(size, int) or not 0 < size <= LARGEST_MATRIX:
        raise n.refuse(f"Det of matrices of {size or 'unknown size'} is not supported", hint="only up to 5 x 5")
    orders = np.array(list(permutations(range(size))))
    flat = reshaped(b, x, [*(part(x, i) for i in range((x.rank or 0) - 2)), size * size])
    factors = b.add(GatherV2((x.rank or 0) - 2), flat, b.ints(orders + np.arange(size) * size))
    products = reduced(b, "PROD", factors, (x.rank or 0) - 1, keep=False)
    signs = np.linalg.det(np.eye(size)[orders]).round()
    return reduced(b, "SUM", calc(b, "MUL", products, b.floats(signs)), (x.rank or 0) - 2, keep=False)
