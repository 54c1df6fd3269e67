"""Import rules of rounding to steps, and of numbers that are stored in them."""

from __future__ import annotations

import numpy as np

from mnnconvert.frontends.common.compose import apply, calc, cast, single
from mnnconvert.frontends.common.moves import clip
from mnnconvert.frontends.common.narrow import rounded
from mnnconvert.frontends.tensorflow.node import TfNode
from mnnconvert.frontends.tensorflow.registry import tf_op
from mnnconvert.ir import F32, I8, U8, Builder, Value

KNOWN_RANGE = "the range must be known"
LIMITS = {"qint8": (-128, 127), "quint8": (0, 255)}


def fake_quantized(b: Builder, n: TfNode, x: Value, low: np.ndarray, high: np.ndarray) -> Value:
    """Rounds to `num_bits` steps between low and high (one, or one for each channel); 0 is one of them."""
    bits, narrow = n.int_attr("num_bits", 8), n.flag("narrow_range")
    low, high = np.asarray(low, np.float32), np.asarray(high, np.float32)
    if not 2 <= bits <= 16 or not (low <= 0).all() or not (high >= 0).all() or (low == high).any():
        raise n.refuse(f"{n.op} of {bits} bits between {low.min(initial=0):g} and {high.max(initial=0):g}")
    first, last = np.float32(narrow), np.float32((1 << bits) - 1)
    scale = (high - low) / (last - first)
    zero = np.clip(np.floor(first - low / scale + np.float32(0.5)), first, last).astype(np.float32)
    low, high = (first - zero) * scale, (last - zero) * scale
    y = calc(b, "SUB", clip(b, x, b.floats(low), b.floats(high)), low)
    whole = apply(b, "FLOOR", calc(b, "ADD", calc(b, "MUL", y, 1 / scale), 0.5))
    return calc(b, "ADD", calc(b, "MUL", whole, scale), low)


@tf_op("FakeQuantWithMinMaxArgs", gives="float32")
def fake_quant_with_min_max_args(b: Builder, n: TfNode) -> Value:
    low, high = np.asarray(n.float_attr("min", -6.0)), np.asarray(n.float_attr("max", 6.0))
    return fake_quantized(b, n, n.input(0), low, high)


@tf_op("FakeQuantWithMinMaxVars", "FakeQuantWithMinMaxVarsPerChannel", gives="float32", limits=KNOWN_RANGE)
def fake_quant_with_min_max_vars(b: Builder, n: TfNode) -> Value:
    """The range of a tensor, or of each channel."""
    low, high = (n.required_constant(i, "the range") for i in (1, 2))
    return fake_quantized(b, n, n.input(0), low, high)


@tf_op("QuantizeAndDequantizeV2", "QuantizeAndDequantizeV3", "QuantizeAndDequantizeV4",
       limits="a given range that is known, one for all")  # fmt: skip
def quantize_and_dequantize(b: Builder, n: TfNode) -> Value:
    """Rounds to steps of a power of two of the range, on both sides of 0."""
    bits = n.int_attr("num_bits", 8) if n.op != "QuantizeAndDequantizeV3" else n.ints(3, "the number of bits")[0]
    if not n.flag("range_given") or n.int_attr("axis", -1) != -1:
        raise n.refuse(f"{n.op} without a given range, or with one for each channel, is not supported")
    signed = n.flag("signed_input", True)
    low, high = (float(n.required_constant(i, "the range").reshape(-1)[0]) for i in (1, 2))
    least = -(1 << (bits - 1)) + n.flag("narrow_range") if signed else 0
    most = (1 << (bits - 1)) - 1 if signed else (1 << bits) - 1
    scales = [q / r for q, r in ((least, low), (most, high)) if q * r > 0]
    if not scales:
        raise n.refuse(f"{n.op} between {low:g} and {high:g}")
    scale = min(scales)
    x = clip(b, n.input(0), single(least / scale if signed else 0.0), single(most / scale))
    scaled = calc(b, "MUL", x, single(scale))
    if n.text("round_mode", "HALF_TO_EVEN") == "HALF_UP":
        whole = apply(b, "FLOOR", calc(b, "ADD", scaled, 0.5))
    else:
        whole = rounded(b, scaled)
    return calc(b, "MUL", whole, single(1 / scale))


def _codes(n: TfNode, kind: str, low: float, high: float) -> tuple[float, float]:
    """(scale, code of 0) with which numbers of a range are stored: x = (code - zero) * scale."""
    if kind not in LIMITS or n.int_attr("axis", -1) != -1:
        raise n.refuse(f"{n.op} of {kind}, or along an axis, is not supported", reference="unsupported-type")
    least, most = LIMITS[kind]
    mode = n.text("mode", "MIN_COMBINED")
    if mode == "SCALED":
        narrow = n.flag("narrow_range")
        return (max(-low / (-least - narrow), high / most) if least else high / most), 0.0
    if mode in ("MIN_COMBINED", "MIN_FIRST"):
        scale = (high - low) / (most - least)
        return scale, least - (low / scale if mode == "MIN_COMBINED" else float(np.rint(low / scale)))
    raise n.refuse(f"{n.op} with the mode {mode} is not supported")


@tf_op("Dequantize", gives="dtype", limits="qint8 and quint8, one range that is known")
def dequantize(b: Builder, n: TfNode) -> Value:
    low, high = (float(n.required_constant(i, "the range").reshape(-1)[0]) for i in (1, 2))
    scale, zero = _codes(n, n.type(), low, high)
    return calc(b, "MUL", calc(b, "SUB", cast(b, n.input(0), F32), single(zero)), single(scale))


@tf_op("QuantizeV2", results=("output", "output_min", "output_max"), gives="T float32 float32",
       limits="qint8 and quint8, one range that is known, modes SCALED and MIN_FIRST")  # fmt: skip
def quantize(b: Builder, n: TfNode) -> tuple[Value, Value, Value]:
    """Codes of numbers in a range, which is widened to what they can say."""
    low, high = (float(n.required_constant(i, "the range").reshape(-1)[0]) for i in (1, 2))
    mode, kind = n.text("mode", "MIN_COMBINED"), n.type()
    if mode not in ("SCALED", "MIN_FIRST"):
        raise n.refuse(f"{n.op} with the mode {mode} is not supported")
    low, high = (
        min(low, 0.0),
        max(high, low + max(1.0, abs(low), abs(high)) * n.float_attr("ensure_minimum_range", 0.01)),
    )
    scale, zero = _codes(n, kind, low, high)
    least, most = LIMITS[kind]
    x = calc(b, "MUL", n.input(0), single(1 / scale))
    if mode == "SCALED":
        half_up = n.text("round_mode", "HALF_AWAY_FROM_ZERO") != "HALF_TO_EVEN"
        codes = apply(b, "ROUND", x) if half_up else rounded(b, x)
        low, high = scale * (least + (n.flag("narrow_range") if least else 0)), scale * most
    else:
        codes = calc(b, "ADD", apply(b, "ROUND", x), single(zero))
    kept = cast(b, clip(b, codes, float(least), float(most)), I8 if least else U8)
    return kept, b.floats(low), b.floats(high)
