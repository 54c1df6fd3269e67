"""Types narrower than MNN has, as values that they can hold: floats of 8 and 4 bits, integers of 4 and 2 bits.

The graph holds such a float as a float32. A cast to it rounds to the nearest value of the type, halves to even, which
is arithmetic on multiples of the power of two that the last bit of the mantissa stands for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mnnconvert.frontends.common.compose import apply, calc, cast, choose
from mnnconvert.frontends.common.moves import clip
from mnnconvert.ir import F32, I32, Builder, Value
from mnnconvert.ops.gather import GatherV2


@dataclass(frozen=True)
class NarrowFloat:
    """Bits of the mantissa, exponent of the smallest normal number, largest number, and what is beyond and what NaN."""

    mantissa: int
    low: int
    largest: float
    beyond: float = np.nan
    nan: float = np.nan

    @property
    def high(self) -> int:
        """The exponent of the largest number."""
        return int(np.floor(np.log2(self.largest)))


FLOATS = {
    "float8e4m3fn": NarrowFloat(3, -6, 448.0),
    "float8e4m3fnuz": NarrowFloat(3, -7, 240.0),
    "float8e5m2": NarrowFloat(2, -14, 57344.0, beyond=np.inf),
    "float8e5m2fnuz": NarrowFloat(2, -15, 57344.0),
    "float4e2m1": NarrowFloat(1, 0, 6.0, beyond=6.0, nan=0.0),
}
BITS = {"int4": (4, True), "uint4": (4, False), "int2": (2, True), "uint2": (2, False)}
SIGN = -(2**31)  # the bit of the sign
SCALE = "float8e8m0"  # powers of two, 2^-127 to 2^127
LOWEST, HIGHEST = -127, 127


def rounded(b: Builder, x: Value) -> Value:
    """`x` rounded to whole numbers, halves to even: a half becomes twice the rounded half of it."""
    near = apply(b, "ROUND", x)  # halves go away from zero
    even = calc(b, "MUL", apply(b, "ROUND", calc(b, "MUL", x, 0.5)), 2.0)
    half = calc(b, "EQUAL", apply(b, "ABS", calc(b, "SUB", x, near)), 0.5)
    return choose(b, half, even, near, x)


def exponents(b: Builder, x: Value, low: int, high: int) -> Value:
    """floor(log2(|x|)) - low, kept between 0 and high - low, as int32. Exact: the logarithm is only a first guess."""
    size = clip(b, apply(b, "ABS", x), 2.0**low, 2.0**high)
    logarithm = calc(b, "MUL", apply(b, "LOG", size), float(1 / np.log(2)))
    guess = calc(b, "SUB", cast(b, apply(b, "FLOOR", logarithm), I32), low)
    guess = clip(b, guess, 0, high - low)
    power = _power(b, guess, low, high)
    higher = calc(b, "GREATER_EQUAL", size, calc(b, "MUL", power, 2.0))
    lower = calc(b, "GREATER", power, size)
    return clip(b, calc(b, "SUB", calc(b, "ADD", guess, higher), lower), 0, high - low)


def _power(b: Builder, index: Value, low: int, high: int) -> Value:
    """2^(low + index): a table, as powers that a runtime computes are not exact."""
    return b.add(GatherV2(), b.floats(2.0 ** np.arange(low, high + 1)), index, b.ints(0))


def to_narrow_float(b: Builder, x: Value, kind: str, saturate: bool) -> Value:
    """The nearest value of a type of `FLOATS`; what is too large becomes the largest, or what the type has for it."""
    made, x = FLOATS[kind], cast(b, x, F32)
    limit = made.largest if saturate else 4 * made.largest
    kept = clip(b, x, -limit, limit)
    index = exponents(b, kept, made.low, made.high + (0 if saturate else 2))
    step = calc(b, "MUL", _power(b, index, made.low, made.high + (0 if saturate else 2)), 2.0**-made.mantissa)
    y = calc(b, "MUL", rounded(b, calc(b, "REALDIV", kept, step)), step)
    if not saturate:
        signed = calc(b, "MUL", apply(b, "SIGN", kept), made.beyond)
        y = choose(b, calc(b, "GREATER", apply(b, "ABS", y), made.largest), signed, y, x)
    return choose(b, calc(b, "NOTEQUAL", x, x), made.nan, y, x)


def to_scale(b: Builder, x: Value, mode: str) -> Value:
    """The power of two at, above ("up"), below ("down") or next to |x|; a half of the way is nearest to the larger."""
    x = cast(b, x, F32)
    size = apply(b, "ABS", x)
    index = exponents(b, size, LOWEST, HIGHEST)
    starts = 2.0 ** np.arange(LOWEST, HIGHEST + 1)
    starts[0] = 0  # below the normal numbers a power stands for all from zero on
    start = b.add(GatherV2(), b.floats(starts), index, b.ints(0))
    if mode == "up":
        index = calc(b, "ADD", index, calc(b, "GREATER", size, start))
    elif mode == "nearest":
        index = calc(b, "ADD", index, calc(b, "GREATER_EQUAL", size, calc(b, "MUL", start, 1.5)))
    power = _power(b, clip(b, index, 0, HIGHEST - LOWEST), LOWEST, HIGHEST)
    special = calc(b, "NOTEQUAL", calc(b, "SUB", x, x), 0.0)  # infinity and NaN
    return choose(b, special, np.nan, power, x)


def wrapped(b: Builder, x: Value, kind: str) -> Value:
    """The low bits of an integer, or of a float without its fraction, as int32: what a type of `BITS` keeps of it."""
    bits, signed = BITS[kind]
    whole, half = cast(b, x, I32), (1 << bits) // 2 if signed else 0
    moved = calc(b, "ADD", whole, half) if signed else whole
    kept = calc(b, "BITWISE_AND", moved, (1 << bits) - 1)
    return calc(b, "SUB", kept, half) if signed else kept


def float_bits(b: Builder, x: Value) -> Value:
    """The bits of float32 numbers as int32; every NaN has those of the usual one."""
    size, least = apply(b, "ABS", x), -126
    index = exponents(b, size, least, 127)
    normal = calc(b, "GREATER_EQUAL", size, 2.0**least)
    fraction = calc(b, "SUB", calc(b, "REALDIV", size, _power(b, index, least, 127)), cast(b, normal, F32))
    exponent = calc(b, "MUL", calc(b, "ADD", index, normal), 1 << 23)
    bits = calc(b, "ADD", exponent, cast(b, calc(b, "MUL", fraction, 2.0**23), I32))
    bits = choose(b, calc(b, "EQUAL", size, np.inf), 0x7F800000, bits, bits)
    bits = choose(b, calc(b, "NOTEQUAL", x, x), 0x7FC00000, bits, bits)
    below = calc(b, "GREATER", b.floats(0.0), calc(b, "REALDIV", b.floats(1.0), x))  # holds for -0 too
    below = calc(b, "MAXIMUM", below, calc(b, "EQUAL", x, -np.inf))
    return calc(b, "ADD", bits, choose(b, below, SIGN, 0, bits))


def float_of_bits(b: Builder, bits: Value) -> Value:
    """int32 numbers as the float32 ones that have their bits."""
    below = calc(b, "LESS", bits, 0)
    rest = calc(b, "SUB", bits, choose(b, below, SIGN, 0, bits))
    field, fraction = calc(b, "RIGHTSHIFT", rest, 23), calc(b, "BITWISE_AND", rest, (1 << 23) - 1)
    normal = cast(b, calc(b, "GREATER", field, 0), F32)
    power = _power(b, clip(b, calc(b, "SUB", field, 1), 0, 253), -126, 127)
    y = calc(b, "MUL", calc(b, "ADD", calc(b, "MUL", cast(b, fraction, F32), 2.0**-23), normal), power)
    last = choose(b, calc(b, "EQUAL", fraction, 0), np.inf, np.nan, y)
    y = choose(b, calc(b, "EQUAL", field, 255), last, y, y)
    return calc(b, "MUL", y, calc(b, "SUB", b.floats(1.0), calc(b, "MUL", cast(b, below, F32), 2.0)))
