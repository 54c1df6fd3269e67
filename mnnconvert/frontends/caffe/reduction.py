"""Import rules of reductions and of the search for largest elements."""

from __future__ import annotations

import math

from mnnconvert.frontends.caffe.node import CaffeNode
from mnnconvert.frontends.caffe.registry import caffe_op
from mnnconvert.frontends.common.compose import calc, cast, reshape
from mnnconvert.frontends.common.moves import reduced, unsqueezed
from mnnconvert.frontends.common.search import top
from mnnconvert.ir import F32, Builder, Value
from mnnconvert.ops.arrange import Concat, Reverse

REDUCTIONS = ("SUM", "ASUM", "SUMSQ", "MEAN")  # in the order of their numbers, which begin with 1


@caffe_op("Reduction")
def reduction(b: Builder, n: CaffeNode) -> Value:
    """Sum, sum of magnitudes or squares, or mean, of all axes from `axis` on, times a coefficient."""
    p, x = n.params("reduction_param"), n.input()
    operation = p.choice("operation", "SUM", *REDUCTIONS)
    axis, coefficient = n.axis(p.integer("axis", 0), n.rank(x)), p.number("coeff", 1.0)
    y = reduced(b, operation, x, *range(axis, n.rank(x)), keep=False)
    return y if coefficient == 1 else calc(b, "MUL", y, coefficient)


@caffe_op("ArgMax")
def arg_max(b: Builder, n: CaffeNode) -> Value:
    """Indices of the `top_k` largest along an axis, as floats, or their values; of equal elements the last.

    Without an axis the images are searched as a whole, and the result [N, 1 or 2, top_k] may hold both.
    """
    p, x = n.params("argmax_param"), n.input()
    count, values_too = p.integer("top_k", 1), p.flag("out_max_val", False)
    along = n.axis(p.integer("axis", 0), n.rank(x)) if "axis" in p else None
    if along is None:
        x, axis = reshape(b, x, (0, math.prod(n.sizes(x, 1)))), 1
    else:
        axis = along
    size = n.sizes(x, axis, axis + 1)[0]
    if not 1 <= count <= size:
        raise n.refuse(f"ArgMax of the {count} largest of {size}")
    largest, places = top(b, b.add(Reverse(), x, b.ints([axis])), b.ints([count]), axis, True)
    indices = calc(b, "ADD", calc(b, "MUL", cast(b, places, F32), -1.0), float(size - 1))
    if along is not None:
        return largest if values_too else indices
    parts = [unsqueezed(b, part, 1) for part in ((indices, largest) if values_too else (indices,))]
    return b.add(Concat(1), *parts) if values_too else parts[0]
