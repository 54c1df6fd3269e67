"""64-bit integers are 32-bit ones in the graph: arithmetic that is likely to leave them is refused by name."""

from __future__ import annotations

import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.ir import Value

WIDE = ("int64", "uint64", "uint32")
LIMITS = {"Mul": 1 << 16, "Add": 1 << 30, "Sub": 1 << 30}  # a constant beyond it is suspicious
SYMBOLS = {"Mul": "*", "Add": "+", "Sub": "-"}
BOUNDED = {"ShapeOf", "Size", "Rank", "ArgMax", "ArgMin", "OneHot"}  # ops whose integer results are small
INT32 = np.iinfo(np.int32)


def refuse_overflow(n: OnnxNode) -> None:
    """Refuse integer arithmetic with a large constant on values of which nothing is known."""
    limit = LIMITS.get(n.op_type)
    if limit is None or not any(n.source_type(i) in WIDE for i in (0, 1)):
        return
    for i in (0, 1):
        constant, other = n.constant(i), n.input(1 - i)
        if constant is None or not constant.size or other.constant is not None or _bounded(other):
            continue
        largest = max((int(v) for v in np.ravel(constant)), key=abs)
        if abs(largest) > limit:
            raise _refusal(n, i, largest)


def _bounded(value: Value) -> bool:
    """Whether a value is a size, an index or the like."""
    return value.sizes is not None or (value.producer is not None and value.producer.op.kind in BOUNDED)


def _refusal(n: OnnxNode, index: int, constant: int) -> ConversionError:
    shape = n.input(1 - index).shape
    sizes = "[*]" if shape is None else "[" + ",".join("?" if d is None else str(d) for d in shape) + "]"
    operand = f"({n.source_type(1 - index)}{sizes} {n.proto.input[1 - index]})"
    pair = (operand, str(constant)) if index else (str(constant), operand)
    return n.refuse(
        f"{pair[0]} {SYMBOLS[n.op_type]} {pair[1]} can leave the 32 bits that MNN computes with",
        hint="the range of the operand is not known: do this on smaller numbers, or in float",
        reference="int64-range",
    )


def refuse_wide_constant(n: OnnxNode, array: np.ndarray | None) -> None:
    """Refuse a known number that becomes an integer and has no place in 32 bits."""
    if array is None or not array.size or array.dtype.kind != "f":
        return
    finite = array[np.isfinite(array)]
    if finite.size and (finite.max() > INT32.max or finite.min() < INT32.min):
        largest = max(finite.max(), -finite.min())
        raise n.refuse(f"{largest:g} becomes an integer beyond the 32 bits that MNN has", reference="int64-range")
