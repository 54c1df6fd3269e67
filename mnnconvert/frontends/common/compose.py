"""Arithmetic on values while a graph is built: what import rules compose ops from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce

import numpy as np

from mnnconvert.ir import F32, I8, I32, U8, Builder, Value
from mnnconvert.ops.elementwise import TYPE_NAMES, Binary, Cast, Select, Unary
from mnnconvert.ops.reduction import Reduction
from mnnconvert.ops.shape import Reshape

Number = Value | float | np.ndarray


def single(value: float) -> float:
    """A number as float32 holds it, which is what a file can hold."""
    return float(np.float32(value))


def like(b: Builder, value: Number, x: Value) -> Value:
    """A number or array as a constant in the element type of `x`; a value as it is."""
    return value if isinstance(value, Value) else b.constant(np.asarray(value, x.dtype))


def calc(b: Builder, function: str, x: Value, y: Number) -> Value:
    """The binary function of MNN with this name; a number takes the element type of `x`."""
    return b.add(Binary(function), x, like(b, y, x))


def apply(b: Builder, function: str, x: Value) -> Value:
    """The unary function of MNN with this name."""
    return b.add(Unary(function), x)


def chain(b: Builder, function: str, values: Iterable[Value]) -> Value:
    """A binary function over any number of values, from left to right."""
    return reduce(lambda x, y: calc(b, function, x, y), values)


def choose(b: Builder, condition: Value, yes: Number, no: Number, like_value: Value) -> Value:
    """`yes` where the condition is not 0, else `no`, in the element type of `like_value`."""
    return b.add(Select(), condition, like(b, yes, like_value), like(b, no, like_value))


def along(b: Builder, operation: str, x: Value, axes: Sequence[int]) -> Value:
    """A reduction over axes that stay, with size 1."""
    return b.add(Reduction(operation, tuple(axes), True), x)


def reshape(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    """Another shape: 0 copies a size, -1 (once) is inferred."""
    return b.add(Reshape(tuple(dims)), x)


def cast(b: Builder, x: Value, dtype: np.dtype) -> Value:
    """`x` in another element type of the graph; itself when it has it already."""
    return x if x.dtype == dtype else b.add(Cast(TYPE_NAMES[dtype]), x)


def widened(b: Builder, x: Value) -> Value:
    """`x` in a type that arithmetic is defined on: 8-bit integers become int32."""
    return x if x.dtype in (F32, I32) else cast(b, x, I32)


def narrowed(b: Builder, x: Value, dtype: np.dtype, source_type: str) -> Value:
    """The int32 result of arithmetic on a narrower integer type, wrapped around as that type does."""
    if dtype in (U8, I8):
        return cast(b, x, dtype)
    if x.dtype == I32 and source_type == "uint16":
        return calc(b, "BITWISE_AND", x, 0xFFFF)
    if x.dtype == I32 and source_type == "int16":
        return calc(b, "SUB", calc(b, "BITWISE_AND", calc(b, "ADD", x, 0x8000), 0xFFFF), 0x8000)
    return x


def channels(array: np.ndarray, rank: int) -> np.ndarray:
    """A vector over the channels, shaped so that it broadcasts against [N,C,...] of this rank."""
    return np.reshape(array, (-1, *(1,) * max(0, rank - 2)))
