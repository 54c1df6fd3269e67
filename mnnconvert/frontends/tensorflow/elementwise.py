"""Import rules of arithmetic, comparisons, logic, activations, casts and what passes values on."""

from __future__ import annotations

from typing import Any

import numpy as np

from mnnconvert.frontends.common.channels_last import channels_first, channels_last
from mnnconvert.frontends.common.compose import (
    apply,
    calc,
    cast,
    chain,
    channels,
    choose,
    narrowed,
    reshape,
    single,
    widened,
)
from mnnconvert.frontends.common.moves import clip
from mnnconvert.frontends.common.narrow import float_bits, float_of_bits
from mnnconvert.frontends.common.narrow import rounded as round_to_even
from mnnconvert.frontends.common.nodes import known_rank
from mnnconvert.frontends.tensorflow.compose import has_channels_first
from mnnconvert.frontends.tensorflow.model import STORED
from mnnconvert.frontends.tensorflow.node import TfNode
from mnnconvert.frontends.tensorflow.registry import tf_op
from mnnconvert.frontends.tensorflow.signal import is_complex, product
from mnnconvert.frontends.tensorflow.types import TYPES
from mnnconvert.ir import F32, I8, I32, U8, Builder, Value
from mnnconvert.ir.types import merge
from mnnconvert.ops.activation import ELU, ReLU, ReLU6, Selu
from mnnconvert.ops.elementwise import Cast
from mnnconvert.ops.generators import ZerosLike

UNARY = {
    "Abs": "ABS", "Neg": "NEG", "Floor": "FLOOR", "Ceil": "CEIL", "Square": "SQUARE", "Sqrt": "SQRT",
    "Rsqrt": "RSQRT", "Exp": "EXP", "Log": "LOG", "Sin": "SIN", "Cos": "COS", "Tan": "TAN", "Asin": "ASIN",
    "Acos": "ACOS", "Atan": "ATAN", "Reciprocal": "RECIPROCAL", "Inv": "RECIPROCAL", "Log1p": "LOG1P",
    "Acosh": "ACOSH", "Sinh": "SINH", "Asinh": "ASINH", "Atanh": "ATANH", "Sign": "SIGN", "Cosh": "COSH",
    "Erf": "ERF", "Erfc": "ERFC", "Erfinv": "ERFINV", "Expm1": "EXPM1", "Sigmoid": "SIGMOID", "Tanh": "TANH",
    "Softplus": "BNLL",
}  # fmt: skip
BINARY = {
    "Add": "ADD", "AddV2": "ADD", "Sub": "SUB", "Mul": "MUL", "Div": "REALDIV", "RealDiv": "REALDIV",
    "TruncateDiv": "REALDIV", "FloorDiv": "FLOORDIV", "Pow": "POW", "SquaredDifference": "SquaredDifference",
    "Atan2": "ATAN2", "Maximum": "MAXIMUM", "Minimum": "MINIMUM",
}  # fmt: skip
COMPARISONS = {
    "Equal": "EQUAL", "NotEqual": "NOTEQUAL", "Greater": "GREATER", "GreaterEqual": "GREATER_EQUAL",
    "Less": "LESS", "LessEqual": "LESS_EQUAL",
}  # fmt: skip
LOGIC = {"LogicalAnd": "MUL", "LogicalOr": "LOGICALOR"}
BITWISE = {"BitwiseAnd": "BITWISE_AND", "BitwiseOr": "BITWISE_OR", "BitwiseXor": "BITWISE_XOR"}
PASSING = (
    "Identity", "StopGradient", "PreventGradient", "Snapshot", "CheckNumerics", "CheckNumericsV2", "DebugIdentityV2",
    "ReadVariableOp", "CopyHost", "Copy",
)  # fmt: skip


@tf_op(*PASSING)
def identity(b: Builder, n: TfNode) -> Any:
    return n.any_input(0)


@tf_op("IdentityN")
def identity_n(b: Builder, n: TfNode) -> Any:
    return tuple(n.any_input(i) for i in range(n.input_count))


@tf_op("NoOp", "Assert", "Print")
def nothing(b: Builder, n: TfNode) -> tuple[Any, ...]:
    """What only checks or tells something has no result; Print passes its first operand on."""
    return (n.any_input(0),) if n.op == "Print" else ()


@tf_op("EnsureShape")
def ensure_shape(b: Builder, n: TfNode) -> Value:
    """The promised sizes are believed."""
    x, promised = n.input(0), n.attr("shape")
    if promised is not None and (x.shape is None or len(x.shape) == len(promised)):
        x.spec.shape = merge(x.shape, tuple(None if d < 0 else d for d in promised))
    return x


@tf_op(*UNARY)
def unary(b: Builder, n: TfNode) -> Value:
    x = n.input(0)
    return narrowed(b, apply(b, UNARY[n.op], widened(b, x)), x.dtype, n.type())


@tf_op("Rint", "Round")
def round_halves_to_even(b: Builder, n: TfNode) -> Value:
    x = n.input(0)
    return round_to_even(b, x) if x.dtype == F32 else x


@tf_op("Softsign")
def softsign(b: Builder, n: TfNode) -> Value:
    x = n.input(0)
    return calc(b, "REALDIV", x, calc(b, "ADD", apply(b, "ABS", x), 1.0))


@tf_op("Ndtri")
def ndtri(b: Builder, n: TfNode) -> Value:
    """The quantiles of the normal distribution: sqrt(2) * erfinv(2 x - 1)."""
    y = calc(b, "SUB", calc(b, "MUL", n.input(0), 2.0), 1.0)
    return calc(b, "MUL", apply(b, "ERFINV", y), float(np.sqrt(2)))


@tf_op("Relu", "Relu6")
def relu(b: Builder, n: TfNode) -> Value:
    x = n.input(0)
    if x.dtype == F32:
        return b.add(ReLU() if n.op == "Relu" else ReLU6(), x)
    low = calc(b, "MAXIMUM", widened(b, x), 0)
    return cast(b, low if n.op == "Relu" else calc(b, "MINIMUM", low, 6), x.dtype)


@tf_op("LeakyRelu")
def leaky_relu(b: Builder, n: TfNode) -> Value:
    return b.add(ReLU(single(n.float_attr("alpha", 0.2))), n.input(0))


@tf_op("Elu")
def elu(b: Builder, n: TfNode) -> Value:
    return b.add(ELU(1.0), n.input(0))


@tf_op("Selu")
def selu(b: Builder, n: TfNode) -> Value:
    """With the constants of G. Klambauer et al., Self-Normalizing Neural Networks, 2017."""
    return b.add(Selu(single(1.0507009873554805), single(1.6732632423543772)), n.input(0))


@tf_op(*BINARY)
def arithmetic(b: Builder, n: TfNode) -> Any:
    """Broadcasting arithmetic. Integer division truncates; narrow integers are computed in int32 and wrap."""
    if n.op == "Mul" and is_complex(n):
        return product(b, n)
    x, y = n.input(0), n.input(1)
    result = calc(b, BINARY[n.op], widened(b, x), widened(b, y))
    return narrowed(b, result, x.dtype, n.type())


@tf_op("FloorMod", "Mod", "TruncateMod")
def remainder(b: Builder, n: TfNode) -> Value:
    """With the sign of the divisor, or (Mod, TruncateMod) of the dividend. On integers MNN's names are exchanged."""
    x, y = n.input(0), n.input(1)
    result = calc(b, "FLOORMOD" if (n.op == "FloorMod") == (x.dtype == F32) else "MOD", widened(b, x), widened(b, y))
    return narrowed(b, result, x.dtype, n.type())


@tf_op("DivNoNan")
def div_no_nan(b: Builder, n: TfNode) -> Value:
    """x / y, and 0 where y is 0."""
    x, y = n.input(0), n.input(1)
    none = calc(b, "EQUAL", y, 0.0)
    return choose(b, none, 0.0, calc(b, "REALDIV", x, choose(b, none, 1.0, y, y)), x)


@tf_op("MulNoNan")
def mul_no_nan(b: Builder, n: TfNode) -> Value:
    """x * y, and 0 where y is 0, whatever x is."""
    x, y = n.input(0), n.input(1)
    return choose(b, calc(b, "EQUAL", y, 0.0), 0.0, calc(b, "MUL", x, y), x)


@tf_op("Xdivy", "Xlogy", "Xlog1py")
def zero_wins(b: Builder, n: TfNode) -> Value:
    """x / y, x * log(y) or x * log(1 + y), and 0 where x is 0."""
    x, y = n.input(0), n.input(1)
    if n.op == "Xdivy":
        result = calc(b, "REALDIV", x, y)
    else:
        result = calc(b, "MUL", x, apply(b, "LOG" if n.op == "Xlogy" else "LOG1P", y))
    return choose(b, calc(b, "EQUAL", x, 0.0), 0.0, result, x)


@tf_op("AddN", "AccumulateNV2")
def add_n(b: Builder, n: TfNode) -> Value:
    x = n.input(0)
    return narrowed(b, chain(b, "ADD", [widened(b, v) for v in n.inputs]), x.dtype, n.type())


@tf_op("BiasAdd", "BiasAddV1")
def bias_add(b: Builder, n: TfNode) -> Value:
    """One number for each channel; on images it is added where channels are the second axis, as in convolutions."""
    x, bias = n.input(0), n.input(1)
    rank, first = known_rank(n, x), n.op == "BiasAdd" and has_channels_first(n)
    known = bias.constant
    if rank <= 2 or (not first and (known is None or rank != 4)):
        return calc(b, "ADD", x, bias)
    spread = b.constant(channels(known, rank)) if known is not None else reshape(b, bias, (-1, *(1,) * (rank - 2)))
    y = calc(b, "ADD", x if first else channels_first(b, n, x), spread)
    return y if first else channels_last(b, y)


@tf_op(*COMPARISONS, gives="bool")
def comparison(b: Builder, n: TfNode) -> Value:
    return calc(b, COMPARISONS[n.op], widened(b, n.input(0)), widened(b, n.input(1)))


@tf_op("ApproximateEqual", gives="bool")
def approximate_equal(b: Builder, n: TfNode) -> Value:
    apart = apply(b, "ABS", calc(b, "SUB", n.input(0), n.input(1)))
    return calc(b, "LESS", apart, n.float_attr("tolerance", 1e-5))


@tf_op(*LOGIC, gives="bool")
def logic(b: Builder, n: TfNode) -> Value:
    return calc(b, LOGIC[n.op], n.input(0), n.input(1))


@tf_op("LogicalNot", gives="bool")
def logical_not(b: Builder, n: TfNode) -> Value:
    return calc(b, "EQUAL", n.input(0), 0)


@tf_op("IsNan", gives="bool")
def is_nan(b: Builder, n: TfNode) -> Value:
    return calc(b, "NOTEQUAL", n.input(0), n.input(0))


@tf_op("IsInf", gives="bool")
def is_inf(b: Builder, n: TfNode) -> Value:
    return calc(b, "EQUAL", apply(b, "ABS", n.input(0)), np.inf)


@tf_op("IsFinite", gives="bool")
def is_finite(b: Builder, n: TfNode) -> Value:
    return calc(b, "EQUAL", calc(b, "SUB", n.input(0), n.input(0)), 0.0)


@tf_op(*BITWISE)
def bitwise(b: Builder, n: TfNode) -> Value:
    x, y = n.input(0), n.input(1)
    return cast(b, calc(b, BITWISE[n.op], widened(b, x), widened(b, y)), x.dtype)


@tf_op("Invert")
def invert(b: Builder, n: TfNode) -> Value:
    x = n.input(0)
    return narrowed(b, calc(b, "BITWISE_XOR", widened(b, x), -1), x.dtype, n.type())


@tf_op("LeftShift", "RightShift")
def shift(b: Builder, n: TfNode) -> Value:
    x, y = n.input(0), n.input(1)
    function = "LEFTSHIFT" if n.op == "LeftShift" else "RIGHTSHIFT"
    return narrowed(b, calc(b, function, widened(b, x), widened(b, y)), x.dtype, n.type())


@tf_op("ClipByValue")
def clip_by_value(b: Builder, n: TfNode) -> Value:
    return clip(b, n.input(0), n.input(1), n.input(2))


@tf_op("Select", "SelectV2", limits="Select by rows needs a known rank")
def select(b: Builder, n: TfNode) -> Value:
    """Select with a vector chooses whole rows; the later form broadcasts."""
    condition, x, y = n.input(0), n.input(1), n.input(2)
    if n.op == "Select" and condition.rank == 1 and known_rank(n, x) > 1:
        condition = reshape(b, condition, (-1, *(1,) * (known_rank(n, x) - 1)))
    return choose(b, condition, x, y, x)


@tf_op("ZerosLike", "OnesLike")
def filled_like(b: Builder, n: TfNode) -> Value:
    zeros = b.add(ZerosLike(), n.input(0))
    return zeros if n.op == "ZerosLike" else cast(b, calc(b, "ADD", widened(b, zeros), 1), zeros.dtype)


@tf_op("Cast", gives="DstT", limits="not to and from complex numbers and strings")
def convert(b: Builder, n: TfNode) -> Value:
    """Another element type: floats lose their fraction, integers wrap, anything but zero is true."""
    x, kind, source = n.input(0), n.type("DstT"), n.type("SrcT")
    if kind not in TYPES or source not in TYPES:
        raise n.refuse(f"{n.op} from {source} to {kind} is not supported", reference="unsupported-type")
    if kind == source:
        return x
    if kind == "bool":
        return b.add(Cast("DT_BOOL"), widened(b, x))
    dtype = TYPES[kind]
    if {x.dtype, dtype} == {U8, I8}:
        x = cast(b, x, I32)
    result = cast(b, x, dtype)
    narrow = kind in ("int16", "uint16") and source not in ("bool", "uint8")
    return narrowed(b, result, dtype, kind) if narrow else result


@tf_op("Bitcast", gives="type", limits="between integers of one width, and between int32 and float32")
def bit_cast(b: Builder, n: TfNode) -> Value:
    x, pair = n.input(0), (STORED.get(n.type(), n.type()), STORED.get(n.type("type"), n.type("type")))
    if pair[0] == pair[1] or set(pair) in ({"int32", "uint32"}, {"int64", "uint64"}):
        return x
    if pair == ("float32", "int32"):
        return float_bits(b, x)
    if pair == ("int32", "float32"):
        return float_of_bits(b, x)
    if set(pair) == {"int8", "uint8"}:
        return cast(b, cast(b, x, I32), TYPES[pair[1]])
    raise n.refuse(f"MNN cannot read the bits of {pair[0]} as {pair[1]}", reference="unsupported-type")
