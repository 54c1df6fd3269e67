"""Import rules of casts."""

from __future__ import annotations

from mnnconvert.frontends.common.compose import cast, narrowed, widened
from mnnconvert.frontends.common.narrow import (
    BITS,
    FLOATS,
    SCALE,
    float_bits,
    float_of_bits,
    to_narrow_float,
    to_scale,
    wrapped,
)
from mnnconvert.frontends.onnx.integers import refuse_wide_constant
from mnnconvert.frontends.onnx.node import OnnxNode
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.frontends.onnx.tensors import NAMES, graph_type
from mnnconvert.ir import F32, I8, I32, U8, Builder, Value
from mnnconvert.ops.elementwise import Cast

NUMBERS = {name: number for number, name in NAMES.items()}
OLD_NAMES = {"FLOAT": "float32", "DOUBLE": "float64"}  # other names of opset 1 are ours in capitals


@onnx_op("Cast", since=1)
def cast_by_name(b: Builder, n: OnnxNode) -> Value:
    name = n.attr("to", "")
    return convert(b, n, NUMBERS.get(OLD_NAMES.get(name, name.lower()), 0))


@onnx_op("Cast", since=6, limits="not to strings; floats of 16 bits keep the precision of 32")
def cast_by_number(b: Builder, n: OnnxNode) -> Value:
    return convert(b, n, n.attr("to"))


@onnx_op("CastLike", limits="as Cast")
def cast_like(b: Builder, n: OnnxNode) -> Value:
    return convert(b, n, NUMBERS.get(n.source_type(1), 1))


def convert(b: Builder, n: OnnxNode, to: int) -> Value:
    """Another element type: float to integer truncates, integers wrap, and anything but zero is true."""
    x, kind = n.input(0), NAMES.get(to, f"type {to}")
    if kind == n.source_type(0):
        return x
    if kind in FLOATS:
        return to_narrow_float(b, x, kind, bool(n.attr("saturate", 1)))
    if kind == SCALE:
        return to_scale(b, x, n.attr("round_mode", "up"))
    dtype = graph_type(to, n.proto.output[0])
    if kind == "bool":
        return x if n.source_type(0) == "bool" else b.add(Cast("DT_BOOL"), widened(b, x))
    if dtype == I32 and x.dtype == F32:
        refuse_wide_constant(n, n.constant(0))
    if kind in BITS:
        return cast(b, wrapped(b, x, kind), dtype)
    if {x.dtype, dtype} == {U8, I8}:
        x = cast(b, x, I32)
    narrow = kind in ("int16", "uint16") and n.source_type(0) not in ("bool", "uint8", kind)
    result = cast(b, x, dtype)
    return narrowed(b, result, dtype, kind) if narrow else result


BIT_TYPES = {"bool": "uint8", "uint16": "int16", "uint32": "int32", "uint64": "int64", "uint8": "int8"}


@onnx_op("BitCast", since=26, limits="between integers of one width, and between int32 and float32")
def bit_cast(b: Builder, n: OnnxNode) -> Value:
    """The same bits as another integer type are what a cast that wraps around gives; those of floats are computed."""
    source, to = n.source_type(0), NAMES.get(n.attr("to"), "")
    if source == to:
        return n.input(0)
    if (source, to) == ("float32", "int32"):
        return float_bits(b, n.input(0))
    if (source, to) == ("int32", "float32"):
        return float_of_bits(b, n.input(0))
    if BIT_TYPES.get(source) != to and BIT_TYPES.get(to) != source:
        raise n.refuse(f"MNN cannot read the bits of {source} as {to}", reference="unsupported-type")
    return convert(b, n, n.attr("to"))
