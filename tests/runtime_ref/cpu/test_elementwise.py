"""Chains of element-wise functions: every function against its definition, every way to lie in memory."""

from __future__ import annotations

import numpy as np
import pytest
from chains import apply, run_chain

from mnnconvert.ops.activation import ELU, ReLU, ReLU6, Threshold
from mnnconvert.ops.elementwise import (
    COMPARISONS,
    FLOAT_BINARY,
    INT_BINARY,
    INT_UNARY,
    UNARY,
    Binary,
    Unary,
    cast_array,
)
from mnnconvert.runtime_ref.chain import Chain
from mnnconvert.runtime_ref.cpu.chain import encode

SIZES = (0, 1, 3, 5, 17, 63, 4099, 20011)
SPECIAL = np.array([0, -0.0, 1, -1, 0.5, -0.5, 1.5, -2.5, 3, -7, np.inf, -np.inf, np.nan, 1e30, -1e-30, 6], np.float32)
INTEGERS = np.array([0, 1, -1, 2, 3, -7, 31, 32, 33, -32, 100, 2**31 - 1, -(2**31)], np.int32)
LOOSE = {"POW", "MUL_SILU", "ATAN2"}  # correct to a few units; everything else in Binary is exact


def _pairs(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.repeat(values, len(values)), np.tile(values, len(values))


@pytest.mark.parametrize("function", sorted(UNARY))
def test_unary(lib, function, rng):
    x = np.concatenate([SPECIAL, rng.normal(size=300).astype(np.float32), np.linspace(-1.2, 4, 99, dtype=np.float32)])
    np.testing.assert_allclose(apply(lib, function, x), Unary(function).ref(x), rtol=1e-6, atol=4e-7)


@pytest.mark.parametrize("function", sorted(INT_UNARY))
def test_unary_on_integers(lib, function):
    x = INTEGERS[:-1]
    assert np.array_equal(apply(lib, f"{function}.i", x, dtype=np.int32), Unary(function).ref(x))


@pytest.mark.parametrize("function", sorted(FLOAT_BINARY))
def test_binary(lib, function):
    a, b = _pairs(SPECIAL)
    want = Binary(function).ref(a, b)
    got = apply(lib, function, a, b, dtype=want.dtype)
    assert function in COMPARISONS or want.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=2e-6 if function in LOOSE else 0, atol=0)


@pytest.mark.parametrize("function", sorted(INT_BINARY))
def test_binary_on_integers(lib, function):
    a, b = _pairs(INTEGERS)
    want = Binary(function).ref(a, b)
    assert np.array_equal(apply(lib, f"{function}.i", a, b, dtype=np.int32), want)


def test_floor_division_of_ordinary_numbers(lib, rng):
    a, b = rng.normal(size=(2, 5000)).astype(np.float32) * np.float32(9)
    for function in ("FLOORDIV", "FLOORMOD", "MOD"):
        assert np.array_equal(apply(lib, function, a, b), Binary(function).ref(a, b))


def test_activations(lib):
    x = np.concatenate([SPECIAL, np.linspace(-9, 9, 77, dtype=np.float32)])
    assert np.array_equal(apply(lib, "RELU", x), ReLU().ref(x), equal_nan=True)
    cases = {"LEAKY": ((0.25,), ReLU(slope=0.25)), "ELU": ((0.75,), ELU(alpha=0.75)), "CLIP": ((-1, 5), ReLU6(-1, 5)),
             "THRESHOLD": ((0.5,), Threshold(alpha=0.5))}  # fmt: skip
    for function, (numbers, op) in cases.items():
        (y,) = run_chain(lib, lambda c, r, f=function, n=numbers: [c.apply(f, r, *(c.constant(v) for v in n))], x)
        np.testing.assert_allclose(y, op.ref(x), rtol=3e-7, err_msg=function)


def test_casts(lib, rng):
    x = np.concatenate([SPECIAL, np.array([3e9, -3e9, 1e19, 255.9, 300, -1.5, 2147483520], np.float32)])
    assert np.array_equal(apply(lib, "TO_INT", x, dtype=np.int32), cast_array(x, np.dtype("int32")))
    assert np.array_equal(apply(lib, "TO_INT", x, dtype=np.uint8), cast_array(x, np.dtype("uint8")))
    assert np.array_equal(apply(lib, "TO_BOOL", x, dtype=np.int32), x != 0)
    for dtype in (np.uint8, np.int8):
        codes = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, (3, 700)).astype(dtype)
        assert np.array_equal(apply(lib, "TO_FLOAT.i", codes), codes.astype(np.float32))
        assert np.array_equal(apply(lib, "COPY", codes[:, None, ::2], dtype=dtype), codes[:, None, ::2])
    assert np.array_equal(apply(lib, "COPY", INTEGERS, dtype=np.int8), INTEGERS.astype(np.int8))
    assert np.array_equal(apply(lib, "TO_FLOAT.i", INTEGERS), INTEGERS.astype(np.float32))
    assert np.array_equal(apply(lib, "TO_BOOL.i", INTEGERS, dtype=np.int32), INTEGERS != 0)


def test_select(lib, rng):
    condition = rng.integers(0, 2, (5, 1, 9)).astype(np.int32)
    a, b = rng.normal(size=(4, 9)).astype(np.float32), np.float32(3).reshape(())
    assert np.array_equal(apply(lib, "SELECT", condition, a, b), np.where(condition != 0, a, b))


@pytest.mark.parametrize("size", SIZES)
def test_sizes(lib, size, rng):
    a, b = rng.normal(size=(2, size)).astype(np.float32)
    assert np.array_equal(apply(lib, "SUB", a, b), a - b)
    assert np.array_equal(apply(lib, "SUB", a, np.float32(2).reshape(1)), a - 2)


@pytest.mark.parametrize(("x", "b"), [
    ((2, 5, 7, 7), (1, 5, 1, 1)), ((2, 5, 7, 7), (5, 1, 1)), ((2, 5, 7, 7), (7,)), ((2, 5, 7, 7), (2, 1, 7, 7)),
    ((33, 400), (400,)), ((33, 400), (33, 1)), ((3, 5000), (5000,)), ((3, 5000), (3, 1)), ((4, 1, 900), (6, 1)),
    ((2, 3, 1, 5, 1, 7), (1, 3, 4, 1, 6, 1)), ((2, 3, 5, 8), (2, 3, 1, 8)), ((2, 3, 5, 8), (2, 1, 5, 1)),
    ((2, 3, 5, 16), (3, 1, 16)), ((2, 3, 5, 4), (5, 1)), ((1, 1), (9000, 1)), ((), (3, 4)), ((2, 3), ()),
])  # fmt: skip
def test_broadcasting(lib, x, b, rng):
    a, c = rng.normal(size=x).astype(np.float32), rng.normal(size=b).astype(np.float32)
    assert np.array_equal(apply(lib, "SUB", a, c), a - c)
    assert np.array_equal(apply(lib, "SUB", c, a), c - a)


def test_blocked_maps_with_a_number_per_channel(lib, rng):
    x = rng.normal(size=(2, 3, 35, lib.lanes)).astype(np.float32)
    channels = rng.normal(size=(3, 1, lib.lanes)).astype(np.float32)
    pixels = rng.normal(size=(2, 1, 35, 1)).astype(np.float32)
    assert np.array_equal(apply(lib, "MUL", x, channels), x * channels)
    assert np.array_equal(apply(lib, "MUL", x, pixels), x * pixels)


def test_strided_operands(lib, rng):
    x = rng.normal(size=(40, 30, 20)).astype(np.float32)
    for view in (x.transpose(2, 0, 1), x[::2, ::-1], x[:, 3:5, 1:], x[..., ::3], x[::-1, ::-1, ::-1]):
        assert np.array_equal(apply(lib, "NEG", view), -view)


def test_long_chain_keeps_few_tiles(lib, rng):
    """Registers are used again; operands, constants and two results of different types take part."""
    x = rng.normal(size=(3, 17, 301)).astype(np.float32)
    b = rng.normal(size=(17, 1)).astype(np.float32)

    def build(chain: Chain, r, s):
        total = r
        for i in range(1, 40):
            total = chain.apply("ADD" if i % 2 else "MAXIMUM", chain.apply("MUL", total, s), chain.constant(i / 8))
        return [total, chain.apply("GREATER", total, r), chain.apply("TO_INT", total)]

    want = x
    for i in range(1, 40):
        want = want * b + np.float32(i / 8) if i % 2 else np.maximum(want * b, np.float32(i / 8))
    y, larger, codes = run_chain(lib, build, x, b, dtypes=[np.float32, np.int32, np.uint8])
    assert np.array_equal(y, want)
    assert np.array_equal(larger, want > x)
    assert np.array_equal(codes, cast_array(want, np.dtype("uint8")))


def test_result_in_place_of_an_operand(lib, rng):
    x = rng.normal(size=50000).astype(np.float32)
    want = (x + 1) * x
    chain = Chain(x.shape)
    r = chain.operand(x)
    chain.result(chain.apply("MUL", chain.apply("ADD", r, chain.constant(1)), r))
    code, constants = encode(chain, lib)
    lib.call("chain", lib.pool(2), code=code, constants=constants, x0=x, y0=x, count=x.size)
    assert np.array_equal(x, want)


def test_programs_too_large_are_refused(lib):
    chain = Chain((4,))
    x = np.zeros(4, np.float32)
    for _ in range(13):
        r = chain.operand(x)
    chain.result(r)
    with pytest.raises(ValueError, match="registers"):
        encode(chain, lib)
    chain = Chain((2,) * 9)
    chain.result(chain.operand(np.zeros((2, 1) * 4 + (2,), np.float32)))
    with pytest.raises(ValueError, match="axes"):
        encode(chain, lib)
