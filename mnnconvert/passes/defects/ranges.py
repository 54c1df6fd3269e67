"""How large the integers of a graph can be, and products that stay exact where float32 does not hold them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mnnconvert.ir import I8, I32, U8, Builder, Node, Value
from mnnconvert.ir.types import known
from mnnconvert.ops.arrange import Pack
from mnnconvert.ops.elementwise import COMPARISONS, Binary
from mnnconvert.ops.reduction import Reduction

EXACT = 1 << 24  # float32 holds all integers up to it
DEPTH = 12  # ops that are looked back over
FIRST = {
    "Reshape", "Squeeze", "Unsqueeze", "ExpandDims", "Flatten", "Permute", "Transpose", "Identity", "BroadcastTo",
    "Slice", "StridedSlice", "Tile", "Reverse", "Gather", "GatherV2", "GatherElements", "GatherND",
}  # fmt: skip
PLACES = {"ArgMax", "ArgMin", "Where", "NonMaxSuppressionV2"}
SIZES = {"ShapeOf", "Size", "Rank"}

Bound = int | None


def magnitude(value: Value, depth: int = DEPTH) -> Bound:
    """A bound of the absolute values of integers, or None. Sizes that are not known yet count as 1.

    So products of sizes and of what counts along axes are taken to be small, as tensors of more than 2^24 elements
    along one axis are not to be expected.
    """
    if value.dtype in (U8, I8):
        return 255
    if value.dtype != I32 or depth == 0:
        return None
    constant = value.constant
    if constant is not None:
        return int(np.abs(constant.astype(np.int64)).max(initial=0))
    sizes = value.sizes
    if sizes and None not in sizes:
        return max(abs(s) if isinstance(s, int) else 1 for s in sizes)
    node = value.producer
    return None if node is None else _of_result(node, value, depth - 1)


def _of_result(node: Node, value: Value, depth: int) -> Bound:
    kind = node.op.kind
    if kind in SIZES:
        return 1
    if kind in PLACES or (kind == "TopKV2" and value is not node.outputs[0]):
        return _longest(node.inputs[0])
    if kind in FIRST or kind == "TopKV2":
        return magnitude(node.inputs[0], depth)
    if kind in ("Concat", "Pack", "Range"):
        return _largest(node.inputs, depth)
    rule = RULES.get(kind)
    return None if rule is None else rule(node, depth)


def _longest(value: Value) -> int:
    """The largest size; those that are not known count as 1."""
    return max((s for s in value.shape or () if isinstance(s, int)), default=1)


def _largest(values: Sequence[Value], depth: int) -> Bound:
    bounds = [magnitude(v, depth) for v in values]
    return None if None in bounds else max(b for b in bounds if b is not None)


def _select(node: Node, depth: int) -> Bound:
    return _largest(node.inputs[1:], depth)


def _cast(node: Node, depth: int) -> Bound:
    return 1 if getattr(node.op, "to", "") == "DT_BOOL" else magnitude(node.inputs[0], depth)


def _unary(node: Node, depth: int) -> Bound:
    function = getattr(node.op, "function", "")
    return 1 if function == "SIGN" else magnitude(node.inputs[0], depth) if function in ("ABS", "NEG") else None


def _sum(node: Node, depth: int) -> Bound:
    """A sum over any axes, or up to any place on one."""
    operation = getattr(node.op, "operation", "SUM")
    if operation in ("ANY", "ALL"):
        return 1
    bound = magnitude(node.inputs[0], depth)
    if bound is None or operation in ("MAXIMUM", "MINIMUM", "MEAN"):
        return bound
    count = int(np.prod([s for s in node.inputs[0].shape or () if isinstance(s, int)], dtype=np.int64))
    return bound * max(count, 1) if operation == "SUM" else None


def _binary(node: Node, depth: int) -> Bound:
    function = getattr(node.op, "function", "")
    if function in COMPARISONS or function.startswith("LOGICAL"):
        return 1
    if function not in BINARY:
        return None
    a, b = (magnitude(v, depth) for v in node.inputs)
    if function in ("FLOORDIV", "REALDIV", "RIGHTSHIFT"):
        return a
    if function in ("MOD", "FLOORMOD"):
        return b
    return None if a is None or b is None else BINARY[function](a, b)


BINARY: dict[str, Callable[[int, int], int]] = {
    "ADD": int.__add__, "SUB": int.__add__, "MUL": int.__mul__, "MINIMUM": max, "MAXIMUM": max, "FLOORDIV": max,
    "REALDIV": max, "RIGHTSHIFT": max, "MOD": max, "FLOORMOD": max,
}  # fmt: skip
RULES: dict[str, Callable[[Node, int], Bound]] = {
    "Select": _select, "Cast": _cast, "Unary": _unary, "Binary": _binary, "Reduction": _sum, "CumSum": _sum,
}  # fmt: skip


def exact_product(b: Builder, x: Value, y: Value) -> Value:
    """x * y, wrapping around as int32 does: a shift, or PROD over both, which the runtime computes on integers."""
    for value, factor in ((x, y), (y, x)):
        shift = _power_of_two(factor)
        if shift is not None:
            return b.add(Binary("LEFTSHIFT"), value, b.ints(np.full(factor.shape or (), shift)))
    if not (known(x.shape) and x.shape == y.shape):
        x, y = b.add(Binary("ADD"), x, b.add(Binary("SUB"), y, y)), b.add(Binary("ADD"), y, b.add(Binary("SUB"), x, x))
    return b.add(Reduction("PROD", (0,)), b.add(Pack(0), x, y))


def product(b: Builder, x: Value, y: Value) -> Value:
    """x * y, in the plain form where that is exact."""
    return b.add(Binary("MUL"), x, y) if is_exact(x, y) else exact_product(b, x, y)


def is_exact(x: Value, y: Value) -> bool:
    """Whether float32 holds the products of two int32 values."""
    bounds = magnitude(x), magnitude(y)
    return bounds[0] is not None and bounds[1] is not None and bounds[0] * bounds[1] <= EXACT


def _power_of_two(value: Value) -> int | None:
    """The exponent of a constant that is one positive power of two."""
    if value.shape not in ((), (1,)) or value.constant is None:
        return None
    number = int(value.constant.reshape(-1)[0])
    return number.bit_length() - 1 if number > 0 and number & (number - 1) == 0 else None
