"""Import rules of arithmetic, comparisons, logic and activations, element by element."""

from __future__ import annotations

import numpy as np

from mnnconvert.frontends.common.channels_last import channels_first, channels_last
from mnnconvert.frontends.common.compose import apply, calc, cast, chain, choose, narrowed, reshape, single, widened
from mnnconvert.frontends.common.moves import clip
from mnnconvert.frontends.common.narrow import float_bits, float_of_bits
from mnnconvert.frontends.common.narrow import rounded as round_to_even
from mnnconvert.frontends.common.nodes import known_rank
from mnnconvert.frontends.tflite.compose import ACTIVATIONS, activated
from mnnconvert.frontends.tflite.node import TfliteNode
from mnnconvert.frontends.tflite.registry import tflite_op
from mnnconvert.frontends.tflite.steps import entering, leaving
from mnnconvert.frontends.tflite.types import TYPES
from mnnconvert.ir import F32, I8, I32, U8, Builder, Value
from mnnconvert.ops.activation import ELU, PReLU, ReLU
from mnnconvert.ops.elementwise import Cast
from mnnconvert.ops.generators import ZerosLike

UNARY = {
    "ABS": "ABS", "CEIL": "CEIL", "COS": "COS", "EXP": "EXP", "FLOOR": "FLOOR", "LOG": "LOG", "NEG": "NEG",
    "RSQRT": "RSQRT", "SIN": "SIN", "SQRT": "SQRT", "SQUARE": "SQUARE", "LOGISTIC": "SIGMOID", "TANH": "TANH",
    "SIGN": "SIGN", "HARD_SWISH": "HARDSWISH",
}  # fmt: skip
PICKS = {"MAXIMUM": "MAXIMUM", "MINIMUM": "MINIMUM"}
BINARY = {
    "ADD": "ADD", "SUB": "SUB", "MUL": "MUL", "DIV": "REALDIV", "POW": "POW",
    "SQUARED_DIFFERENCE": "SquaredDifference", "FLOOR_DIV": "FLOORDIV", "ATAN2": "ATAN2",
}  # fmt: skip
COMPARISONS = {
    "EQUAL": "EQUAL", "NOT_EQUAL": "NOTEQUAL", "GREATER": "GREATER", "GREATER_EQUAL": "GREATER_EQUAL",
    "LESS": "LESS", "LESS_EQUAL": "LESS_EQUAL",
}  # fmt: skip
LOGIC = {"LOGICAL_AND": "MUL", "LOGICAL_OR": "LOGICALOR"}


@tflite_op(*UNARY)
def unary(b: Builder, n: TfliteNode) -> Value:
    x = n.input(0)
    return narrowed(b, apply(b, UNARY[n.op], widened(b, x)), x.dtype, n.source(0).type)


@tflite_op("ROUND")
def round_halves_to_even(b: Builder, n: TfliteNode) -> Value:
    return round_to_even(b, n.input(0))


@tflite_op(*BINARY)
def arithmetic(b: Builder, n: TfliteNode) -> Value:
    """Broadcasting arithmetic. Integer division truncates; narrow integers are computed in int32 and wrap."""
    x, y = n.input(0), n.input(1)
    result = calc(b, BINARY[n.op], widened(b, x), widened(b, y))
    return narrowed(b, activated(b, n, result), x.dtype, n.source(0).type)


@tflite_op(*PICKS, moves=True)
def extreme(b: Builder, n: TfliteNode) -> Value:
    x, y = n.input(0), n.input(1)
    return cast(b, calc(b, PICKS[n.op], widened(b, x), widened(b, y)), x.dtype)


@tflite_op("FLOOR_MOD")
def floor_mod(b: Builder, n: TfliteNode) -> Value:
    """The remainder with the sign of the divisor. On integers MNN's two names are exchanged."""
    x, y = n.input(0), n.input(1)
    result = calc(b, "FLOORMOD" if x.dtype == F32 else "MOD", widened(b, x), widened(b, y))
    return narrowed(b, result, x.dtype, n.source(0).type)


@tflite_op("ADD_N")
def add_n(b: Builder, n: TfliteNode) -> Value:
    return chain(b, "ADD", n.inputs)


@tflite_op(*COMPARISONS)
def comparison(b: Builder, n: TfliteNode) -> Value:
    return calc(b, COMPARISONS[n.op], widened(b, n.input(0)), widened(b, n.input(1)))


@tflite_op(*LOGIC)
def logic(b: Builder, n: TfliteNode) -> Value:
    return calc(b, LOGIC[n.op], n.input(0), n.input(1))


@tflite_op("LOGICAL_NOT")
def logical_not(b: Builder, n: TfliteNode) -> Value:
    return calc(b, "EQUAL", n.input(0), 0)


@tflite_op("BITWISE_XOR")
def bitwise_xor(b: Builder, n: TfliteNode) -> Value:
    x, y = n.input(0), n.input(1)
    return cast(b, calc(b, "BITWISE_XOR", widened(b, x), widened(b, y)), x.dtype)


@tflite_op("RIGHT_SHIFT")
def right_shift(b: Builder, n: TfliteNode) -> Value:
    """A shift by the width or more leaves the sign only, one by a negative amount nothing is done by."""
    x, y = widened(b, n.input(0)), widened(b, n.input(1))
    return cast(b, calc(b, "RIGHTSHIFT", x, clip(b, y, 0, 31)), n.input(0).dtype)


@tflite_op("RELU", "RELU6", "RELU_N1_TO_1")
def relu(b: Builder, n: TfliteNode) -> Value:
    return ACTIVATIONS[n.op](b, n.input(0))


@tflite_op("RELU_0_TO_1")
def relu_0_to_1(b: Builder, n: TfliteNode) -> Value:
    return clip(b, n.input(0), 0.0, 1.0)


@tflite_op("LEAKY_RELU")
def leaky_relu(b: Builder, n: TfliteNode) -> Value:
    return b.add(ReLU(single(n.option("Alpha", 0.0))), n.input(0))


@tflite_op("ELU")
def elu(b: Builder, n: TfliteNode) -> Value:
    return b.add(ELU(1.0), n.input(0))


@tflite_op("GELU")
def gelu(b: Builder, n: TfliteNode) -> Value:
    return apply(b, "GELU" if n.option("Approximate", False) else "GELU_STANDARD", n.input(0))


@tflite_op("PRELU")
def prelu(b: Builder, n: TfliteNode) -> Value:
    """x where x >= 0, else slope * x; the slopes broadcast. One per channel is what MNN has an op for."""
    x, slope = n.input(0), n.input(1)
    known = slope.constant
    if known is not None and x.rank == 4 and known.size in (1, *known.shape[-1:]):
        y = b.add(PReLU(), channels_first(b, n, x), b.constant(known.reshape(-1).astype(np.float32)))
        return channels_last(b, y)
    low = calc(b, "MUL", calc(b, "MINIMUM", x, 0.0), slope)
    return calc(b, "ADD", calc(b, "MAXIMUM", x, 0.0), low)


@tflite_op("ZEROS_LIKE")
def zeros_like(b: Builder, n: TfliteNode) -> Value:
    return b.add(ZerosLike(), n.input(0))


@tflite_op("CAST", limits="not to and from complex numbers and strings")
def convert(b: Builder, n: TfliteNode) -> Value:
    """Another element type: floats lose their fraction, integers wrap, anything but zero is true."""
    x, kind, source = n.input(0), n.result().type, n.source(0).type
    if kind not in TYPES or source not in TYPES or n.result().quantized:
        raise n.refuse(f"{n.op} from {source} to {kind} is not supported", reference="unsupported-type")
    if n.source(0).quantized:  # the codes are what is cast
        x = leaving(b, x, n.source(0))
    if kind == source:
        return x
    if kind == "bool":
        return b.add(Cast("DT_BOOL"), widened(b, x))
    dtype = TYPES[kind]
    if {x.dtype, dtype} == {U8, I8}:
        x = cast(b, x, I32)
    result = cast(b, x, dtype)
    return (
        narrowed(b, result, dtype, kind) if kind in ("int16", "uint16") and source not in ("bool", "uint8") else result
    )


@tflite_op("DEQUANTIZE")
def dequantize(b: Builder, n: TfliteNode) -> Value:
    """The graph holds the numbers that codes stand for already, and float16 numbers as float32."""
    source = n.source(0)
    return entering(b, n.input(0), source) if source.scale.size == 1 and not source.quantized else n.input(0)


@tflite_op("QUANTIZE")
def quantize(b: Builder, n: TfliteNode) -> Value:
    """Rounding to the steps of the result is what every quantized result goes through."""
    return n.input(0)


@tflite_op("DENSIFY")
def densify(b: Builder, n: TfliteNode) -> Value:
    """Sparse constants are dense once they are read."""
    return n.input(0)


@tflite_op("FAKE_QUANT")
def fake_quant(b: Builder, n: TfliteNode) -> Value:
    """Rounds to `NumBits` steps between min and max, moved so that 0 is one of them."""
    bits, narrow = int(n.option("NumBits", 8)), bool(n.option("NarrowRange", False))
    low, high = np.float32(n.option("Min", 0.0)), np.float32(n.option("Max", 0.0))
    if not 2 <= bits <= 16 or not low <= 0 <= high or low == high:
        raise n.refuse(f"FAKE_QUANT of {bits} bits between {low:g} and {high:g}")
    first, last = np.float32(narrow), np.float32((1 << bits) - 1)
    scale = np.float32((high - low) / (last - first))
    zero = np.float32(np.clip(np.floor(first - low / scale + np.float32(0.5)), first, last))
    low, high = np.float32((first - zero) * scale), np.float32((last - zero) * scale)
    y = calc(b, "SUB", clip(b, n.input(0), float(low), float(high)), float(low))
    whole = apply(b, "FLOOR", calc(b, "ADD", calc(b, "MUL", y, single(float(1 / scale))), 0.5))
    return calc(b, "ADD", calc(b, "MUL", whole, float(scale)), float(low))


@tflite_op("SELECT", "SELECT_V2", limits="SELECT by rows needs a known rank")
def select(b: Builder, n: TfliteNode) -> Value:
    """SELECT with a vector chooses whole rows; the later form broadcasts."""
    condition, x, y = n.input(0), n.input(1), n.input(2)
    if n.op == "SELECT" and condition.rank == 1 and known_rank(n, x) > 1:
        condition = reshape(b, condition, (-1, *(1,) * (known_rank(n, x) - 1)))
    return choose(b, condition, x, y, x)


@tflite_op("BITCAST", limits="between integers of one width, and between int32 and float32")
def bit_cast(b: Builder, n: TfliteNode) -> Value:
    x, pair = n.input(0), (n.source(0).type, n.result().type)
    if pair[0] == pair[1] or set(pair) in ({"int32", "uint32"}, {"int64", "uint64"}):
        return x
    if pair == ("float32", "int32"):
        return float_bits(b, x)
    if pair == ("int32", "float32"):
        return float_of_bits(b, x)
    if set(pair) == {"int8", "uint8"}:
        return cast(b, cast(b, x, I32), TYPES[pair[1]])
    raise n.refuse(f"MNN cannot read the bits of {pair[0]} as {pair[1]}", reference="unsupported-type")
