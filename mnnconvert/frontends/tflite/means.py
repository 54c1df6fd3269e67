"""Means of codes as LiteRT has them: in integers, and rounded twice, so that a quarter over is a whole one more.

A mean of n codes c on steps (scale, zero) is `zero_out + r(T, scale / scale_out / n)`, where T is the sum of c - zero.
The factor f is written as q 2^-s with whole q 2^31, and the product r(T, f) = (T q) 2^-s is rounded to whole numbers
behind each of the two factors: halves go up behind the first, and away from zero behind the second.

Of rows and columns of pictures that stay as axes of size 1 another kernel takes means. It multiplies the sum of the
codes themselves, and rounds zero scale / scale_out by itself; halves go up behind both factors where 16 channels are
computed together. Of C channels it computes C mod 16 one by one, and rounds as the first kernel does: here these are
not told apart where there are more than 16.

All of it was measured with LiteRT 2.3.0. Here the same is done with float32 numbers that are whole, which is exact but
for products that are halves up to a millionth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mnnconvert.frontends.common.channels_last import channels_first, channels_last
from mnnconvert.frontends.common.compose import apply, calc
from mnnconvert.frontends.common.moves import squeezed
from mnnconvert.frontends.common.nodes import axis_of
from mnnconvert.frontends.tflite.model import SourceTensor
from mnnconvert.frontends.tflite.node import TfliteNode
from mnnconvert.ir import Builder, Value
from mnnconvert.ops.reduction import Reduction

TOGETHER = 16  # channels
BITS = 31  # of q
LEAST = 1e-15  # and its reciprocal: no scales beyond them are taken to be any


def mean_of_codes(b: Builder, n: TfliteNode, axes: Sequence[int], keep: bool) -> Value | None:
    """The mean that an operator takes of its quantized operand, as a number; None where sizes are not known."""
    x, source, result = n.input(0), n.source(0), n.result()
    known = sorted({axis_of(n, a, x.rank) for a in axes}) if x.rank is not None else []
    sizes = [(x.shape or ())[a] for a in known]
    if not sizes or not _single(source) or not _single(result) or not all(isinstance(d, int) for d in sizes):
        return None
    count = math.prod(int(d) for d in sizes if isinstance(d, int))
    scale, zero, given = float(source.scale[0]), int(source.zero[0]), float(result.scale[0])
    total = apply(b, "ROUND", calc(b, "MUL", _sum(b, n, x, known, keep), 1 / scale))
    if keep and known == [1, 2] and x.rank == 4 and source.type != "int16":
        channels = (x.shape or ())[3]
        together = not isinstance(channels, int) or channels >= TOGETHER or source.type == "uint8"
        factor, shift = _parts(scale / (count * given))
        moved = calc(b, "ADD", total, float(count * zero))
        code = calc(b, "SUB", _scaled(b, moved, factor, shift, together), math.floor(zero * scale / given + 0.5))
    else:
        factor, shift = _parts(scale / given, count)
        code = _scaled(b, total, factor, shift, False)
    return calc(b, "MUL", code, given)


def _single(tensor: SourceTensor) -> bool:
    kept = tensor.quantized and tensor.scale.size == 1 and tensor.type in ("int8", "uint8", "int16")
    return kept and LEAST < float(tensor.scale[0]) < 1 / LEAST


def _sum(b: Builder, n: TfliteNode, x: Value, axes: list[int], keep: bool) -> Value:
    """Planes are summed as convolutions leave them. Not by pooling, to whose results the runtime lends steps."""
    if axes != [1, 2] or x.rank != 4:
        return b.add(Reduction("SUM", tuple(axes), keep), x)
    y = channels_last(b, b.add(Reduction("SUM", (2, 3), True), channels_first(b, n, x)))
    return y if keep else squeezed(b, y, 1, 2)


def _parts(factor: float, count: int = 1) -> tuple[float, int]:
    """q and s of factor / count = q 2^-s, as LiteRT finds them: first of the factor, then q is divided and cut."""
    mantissa, exponent = math.frexp(factor)
    whole = math.floor(mantissa * (1 << BITS) + 0.5)
    shift = max(0, min(count.bit_length() - 1, 32, BITS + exponent))
    return (whole << shift) // count / (1 << BITS), shift - exponent


def _scaled(b: Builder, x: Value, factor: float, shift: int, up: bool) -> Value:
    """x q 2^-s, rounded behind each of the two; a shift to the left comes first."""
    product = _halves_up(b, calc(b, "MUL", x, factor * 2.0 ** max(0, -shift)))
    if shift <= 0:
        return product
    shifted = calc(b, "MUL", product, 2.0**-shift)
    return _halves_up(b, shifted) if up else apply(b, "ROUND", shifted)


def _halves_up(b: Builder, x: Value) -> Value:
    return apply(b, "FLOOR", calc(b, "ADD", x, 0.5))
