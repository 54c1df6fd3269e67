"""Element types and (partly symbolic) shapes: what is known of a value before it is computed.

A size is an `int`, a `str` (a symbol: equal text means equal size, whatever it is) or `None` (unknown). A shape is a
tuple of sizes, or `None` where not even the rank is known. Arithmetic on symbols builds canonical text, so that two
branches that compute the same size from the same input are seen to agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

F32 = np.dtype("float32")
F16 = np.dtype("float16")
I32 = np.dtype("int32")
I8 = np.dtype("int8")
U8 = np.dtype("uint8")

Dim = int | str | None
Shape = tuple[Dim, ...]

LONGEST_SYMBOL = 160  # beyond this a derived size is treated as unknown


@dataclass(slots=True)
class Spec:
    """Element type, shape and, where it is known, the content of a value.

    `content` is a numpy array; with dtype `object` it is partly known and holds sizes (`int`, symbol or `None`).
    """

    dtype: np.dtype
    shape: Shape | None = None
    content: np.ndarray | None = None

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    @property
    def constant(self) -> np.ndarray | None:
        """The content when every element of it is known."""
        return self.content if self.content is not None and self.content.dtype != object else None

    @property
    def sizes(self) -> list[Dim] | None:
        """The content of a small integer tensor as sizes, in flat order; `None` when nothing is known."""
        if self.content is None or self.content.size > 64 or self.dtype.kind == "f":
            return None
        return [d if d is None or isinstance(d, str) else int(d) for d in self.content.reshape(-1)]


def round_away(x: Any) -> Any:
    """The nearest whole number, halves away from zero: x +- 0.5 in float32, truncated."""
    return np.trunc(x + np.copysign(F32.type(0.5), x))


def to_codes(x: np.ndarray | np.floating, low: int, high: int, dtype: np.dtype = I8) -> np.ndarray:
    """clamp(round(x), low, high) as integers, halves away from zero; NaN becomes the highest code, as in MNN."""
    return np.fmax(np.fmin(round_away(x), high), low).astype(dtype)


@dataclass(frozen=True)
class Steps:
    """How a value is stored in 8 (or 16) bits where its readers and its writer compute in them.

    code = clamp(round(x * (1 / scale) + zero), low, high) (`to_codes`) and x = (code - zero) * scale, in float32.
    """

    scale: float
    zero: float = 0.0
    low: int = -128
    high: int = 127
    dtype: np.dtype = I8

    def encode(self, x: np.ndarray | np.floating) -> np.ndarray:
        """The codes of float32 numbers."""
        y = x * (F32.type(1) / F32.type(self.scale)) + F32.type(self.zero)
        return to_codes(y, self.low, self.high, self.dtype)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """What codes stand for, in float32."""
        return (codes.astype(F32) - F32.type(self.zero)) * F32.type(self.scale)


def size_content(sizes: Sequence[Dim], scalar: bool = False) -> np.ndarray:
    """The content of an int32 tensor that holds sizes: int32 when all are known, else an object array."""
    exact = all(isinstance(s, int) for s in sizes)
    array: np.ndarray = np.empty(len(sizes), dtype=I32 if exact else object)
    array[:] = sizes
    return array.reshape(()) if scalar else array


def _symbol(text: str) -> Dim:
    return text if len(text) <= LONGEST_SYMBOL else None


def add(a: Dim, b: Dim) -> Dim:
    """a + b on sizes."""
    if a is None or b is None:
        return None
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if a == 0 or b == 0:
        return b if a == 0 else a
    if isinstance(a, int):
        a, b = b, a
    if isinstance(b, int):
        base, offset = _split_offset(str(a))
        return base if offset + b == 0 else _symbol(f"({base}{offset + b:+d})")
    first, second = sorted((str(a), str(b)))
    return _symbol(f"({first}+{second})")


def _split_offset(text: str) -> tuple[str, int]:
    """`(h+3)` -> ("h", 3); anything else -> (text, 0)."""
    if text.startswith("(") and text.endswith(")"):
        inner = text[1:-1]
        cut = max(inner.rfind("+"), inner.rfind("-"))
        if cut > 0 and inner[cut + 1 :].isdigit() and inner[:cut].count("(") == inner[:cut].count(")"):
            return inner[:cut], int(inner[cut:])
    return text, 0


def mul(a: Dim, b: Dim) -> Dim:
    """a * b on sizes."""
    if a == 0 or b == 0:
        return 0
    if a is None or b is None:
        return None
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if a == 1 or b == 1:
        return b if a == 1 else a
    factors = sorted(_factors(a) + _factors(b), key=lambda f: (isinstance(f, str), str(f)))
    number = math.prod(f for f in factors if isinstance(f, int))
    symbols = [f for f in factors if isinstance(f, str)]
    text = "*".join(([str(number)] if number != 1 else []) + symbols)
    return _symbol(text if len(symbols) == 1 and number == 1 else f"({text})")


def _factors(dim: int | str) -> list[int | str]:
    """The factors of a product written by `mul`."""
    if isinstance(dim, int):
        return [dim]
    if dim.startswith("(") and dim.endswith(")") and "*" in dim:
        parts, depth, start = [], 0, 1
        for i, c in enumerate(dim[1:-1], 1):
            depth += (c == "(") - (c == ")")
            if depth < 0 or (depth == 0 and c in "+-/"):
                return [dim]
            if depth == 0 and c == "*":
                parts.append(dim[start:i])
                start = i + 1
        parts.append(dim[start:-1])
        return [int(p) if p.isdigit() else p for p in parts]
    return [dim]


def floordiv(a: Dim, b: Dim) -> Dim:
    """a // b on sizes (b positive)."""
    if isinstance(a, int) and isinstance(b, int) and b != 0:
        return a // b
    if b == 1:
        return a
    if a is None or b is None or b == 0:
        return None
    if a == b:
        return 1
    rest, by = _factors(a), _factors(b)
    number, divisor = (math.prod(f for f in fs if isinstance(f, int)) for fs in (rest, by))
    symbols, wanted = ([f for f in fs if isinstance(f, str)] for fs in (rest, by))
    if number % divisor == 0 and all(symbols.count(f) >= wanted.count(f) for f in wanted):
        for f in wanted:
            symbols.remove(f)
        return product([number // divisor, *symbols])
    return _symbol(f"({a}/{b})")


def ceildiv(a: Dim, b: int) -> Dim:
    """ceil(a / b) on sizes."""
    return floordiv(add(a, b - 1), b)


def product(dims: Iterable[Dim]) -> Dim:
    """The product of sizes."""
    result: Dim = 1
    for d in dims:
        result = mul(result, d)
    return result


def known(shape: Shape | None) -> bool:
    """Whether every size is a number."""
    return shape is not None and all(isinstance(d, int) for d in shape)


def element_count(shape: Shape | None) -> Dim:
    """Number of elements of a shape."""
    return None if shape is None else product(shape)


def broadcast(*shapes: Shape | None) -> Shape | None:
    """The numpy broadcast of shapes; ValueError where they cannot be reconciled.

    A symbol against a number other than 1 takes the number; two different symbols leave the size unknown.
    """
    ranks = [len(s) for s in shapes if s is not None]
    if len(ranks) < len(shapes):
        return None
    rank = max(ranks, default=0)
    padded = [(1,) * (rank - len(s)) + s for s in shapes if s is not None]
    return tuple(_broadcast_dim(dims) for dims in zip(*padded, strict=True))


def _broadcast_dim(dims: Sequence[Dim]) -> Dim:
    others = {d for d in dims if d != 1}
    numbers = {d for d in others if isinstance(d, int)}
    if len(numbers) > 1:
        raise ValueError(f"sizes {sorted(numbers)} do not broadcast")
    if numbers:
        return numbers.pop()
    if not others:
        return 1
    return others.pop() if len(others) == 1 else None


def merge(a: Shape | None, b: Shape | None) -> Shape | None:
    """What is known when both shapes describe the same value: numbers beat symbols, symbols beat unknown."""
    if a is None or b is None or len(a) != len(b):
        return b if a is None else a
    return tuple(_more_exact(x, y) for x, y in zip(a, b, strict=True))


def _more_exact(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) or b is None:
        return a
    return b if isinstance(b, int) or a is None else a


def format_shape(shape: Shape | None) -> str:
    """`[1,3,h,w]`, `?` for what is unknown."""
    return "[*]" if shape is None else "[" + ",".join("?" if d is None else str(d) for d in shape) + "]"


def normal_axis(axis: int, rank: int | None) -> int:
    """A non-negative axis; ValueError when it is out of range, or when the rank is not known."""
    if rank is None:
        raise ValueError(f"axis {axis} has no meaning while the rank is not known")
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} is out of range for rank {rank}")
    return axis + rank if axis < 0 else axis
