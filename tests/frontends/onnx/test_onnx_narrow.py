"""Casts to floats of 8 and 4 bits and to integers of 4 and 2 bits, against the types of ml_dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, numpy_helper
from onnx_cases import check, model

from mnnconvert.frontends.onnx.importer import Importer
from mnnconvert.runtime_ref.session import Session

FLOATS = {
    "float8e4m3fn": (17, "float8_e4m3fn"),
    "float8e4m3fnuz": (18, "float8_e4m3fnuz"),
    "float8e5m2": (19, "float8_e5m2"),
    "float8e5m2fnuz": (20, "float8_e5m2fnuz"),
    "float4e2m1": (23, "float4_e2m1fn"),
}
INTEGERS = {"uint4": 21, "int4": 22, "uint2": 25, "int2": 26}


def _numbers(seed=0):
    """Numbers of every size, exact halves of steps among them, and the special ones."""
    rng = np.random.default_rng(seed)
    wide = rng.normal(size=600) * 2.0 ** rng.integers(-20, 20, 600)
    halves = rng.integers(-64, 64, 600) * 2.0 ** rng.integers(-18, 14, 600)
    return np.concatenate([wide, halves, [0.0, -0.0, np.inf, -np.inf, np.nan, 448, 464, 465, 6, 57344]]).astype("f4")


def _cast(kind, x, attributes=""):
    proto, feeds = model(f"(float[n] x) => ({kind} y) {{ y = Cast<{attributes}>(x) }}", {"x": x}, opset=25)
    return Session(Importer(proto, None).run()).run(feeds)["y"]


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("kind", FLOATS)
def test_floats_are_rounded_to_the_nearest_and_halves_to_even(kind, saturate):
    number, name = FLOATS[kind]
    dtype, x = np.dtype(getattr(ml_dtypes, name)), _numbers()
    largest = float(ml_dtypes.finfo(dtype).max)
    want = (np.clip(x, -largest, largest) if saturate else x).astype(dtype).astype(np.float32)
    got = _cast("float", x, f"to: int = {number}, saturate: int = {saturate}")
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kind", INTEGERS)
def test_integers_keep_their_low_bits(kind):
    x = np.arange(-40, 41).astype(np.float32) * np.float32(1.25)
    dtype = np.dtype(getattr(ml_dtypes, kind))
    want = x.astype(np.int32).astype(dtype).astype(np.int8)
    got = _cast("uint8" if kind[0] == "u" else "int8", x, f"to: int = {INTEGERS[kind]}")
    np.testing.assert_array_equal(got.astype(np.int8), want)


@pytest.mark.parametrize(("mode", "want"), [("up", [4, 4, 8, 8]), ("down", [4, 2, 4, 4]), ("nearest", [4, 4, 4, 8])])
def test_scales_are_powers_of_two(mode, want):
    x = np.array([4, 3, 5, -6], np.float32)
    got = _cast("float", x, f'to: int = 24, round_mode = "{mode}"')
    np.testing.assert_array_equal(got, np.array(want, np.float32))


def test_scales_reach_from_the_smallest_to_not_a_number():
    x = np.array([0, 1e-39, 1.5 * 2.0**127, np.inf, np.nan], np.float32)
    got = _cast("float", x, 'to: int = 24, round_mode = "up"')
    np.testing.assert_array_equal(got, np.array([2.0**-127, 2.0**-126, 2.0**127, np.nan, np.nan], np.float32))


@pytest.mark.parametrize("kind", ["float8e4m3fn", "float8e5m2"])
def test_quantisation_to_narrow_floats_and_back(kind):
    dtype = np.dtype(getattr(ml_dtypes, FLOATS[kind][1]))
    x = np.linspace(-900, 900, 64).astype(np.float32)
    zero = numpy_helper.from_array(np.zeros((), dtype))
    limit = float(ml_dtypes.finfo(dtype).max)
    want = np.clip(x / np.float32(1.5), -limit, limit).astype(dtype).astype(np.float32) * np.float32(1.5)
    text = "(float[n] x) => (float[n] y) { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"
    arrays = {"x": x, "s": np.float32(1.5), "z": zero}
    check(text, arrays, opset=21, rtol=1e-7, want={"y": want})


def test_stored_four_bit_floats_are_read():
    values = np.array([0.5, -6, 3, 1, -1.5], np.float32)
    packed = numpy_helper.from_array(values.astype(ml_dtypes.float4_e2m1fn))
    assert packed.data_type == TensorProto.FLOAT4E2M1
    text = "(float[5] x) => (float[5] y) { w = Cast<to: int = 1>(p) y = Mul(x, w) }"
    check(text, {"x": np.ones(5, np.float32), "p": packed}, opset=23, rtol=0, want={"y": values})


def test_bits_of_floats_and_back():
    bits = np.random.default_rng(0).integers(-(2**31), 2**31, 2000, dtype=np.int64).astype(np.int32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, 1e-40, -1e-45, 1.0, -1.5, 3.4e38, 1.2e-38], np.float32)
    x = np.concatenate([bits.view(np.float32), special])
    x = x[~np.isnan(x)]
    there = "(float[n] x) => (int32[n] y) { y = BitCast<to: int = 6>(x) }"
    check(there, {"x": x}, opset=26, rtol=0, want={"y": x.view(np.int32)})
    proto, feeds = model("(int32[n] x) => (float[n] y) { y = BitCast<to: int = 1>(x) }", {"x": x.view(np.int32)}, 26)
    got = Session(Importer(proto, None).run()).run(feeds)["y"]
    np.testing.assert_array_equal(got.view(np.int32), x.view(np.int32))
