"""Element by element: unary and binary arithmetic, comparisons, selection, casts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mnnconvert.ir.types import F32, I32, Dim, Spec, broadcast, floordiv, size_content
from mnnconvert.ir.types import add as add_dims
from mnnconvert.ir.types import mul as mul_dims
from mnnconvert.ops.base import Fields, Form, Op, register
from mnnconvert.ops.content import moved
from mnnconvert.ops.samples import exactly, floats, grid, integers

_SQRT_2_OVER_PI = np.float32(np.sqrt(2 / np.pi))
_BLOCK = 1 << 15  # elements worked on at a time, so that intermediate results stay in the cache

# W. J. Cody, Rational Chebyshev approximations for the error function, Math. Comp. 23 (1969): numerators and
# denominators of erf(x) / x in x^2 (first interval) and of erfc(x) exp(x^2) in x (second), highest power first.
_NEAR_P = (
    1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2, 3.77485237685302021e2, 3.20937758913846947e3,
)  # fmt: skip
_NEAR_Q = (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3)
_FAR_P = (
    2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1, 2.98635138197400131e2,
    8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3, 1.23033935479799725e3,
)  # fmt: skip
_FAR_Q = (
    1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
    3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3,
)  # fmt: skip
_BOUNDARY = 0.46875  # between the intervals


def _polynomial(coefficients: tuple[float, ...], x: np.ndarray) -> np.ndarray:
    """Horner's scheme in the element type of `x`."""
    total = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        total *= x
        total += x.dtype.type(c)
    return total


def _by_blocks(function: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    """An element-wise function applied piece by piece; element types other than float64 are computed in float32."""
    flat = np.ascontiguousarray(x, np.float64 if x.dtype == np.float64 else F32).reshape(-1)
    result = np.empty_like(flat)
    for start in range(0, flat.size, _BLOCK):
        result[start : start + _BLOCK] = function(flat[start : start + _BLOCK])
    return result.reshape(x.shape)


def _erf_near(x: np.ndarray) -> np.ndarray:
    square = np.square(np.clip(x, -_BOUNDARY, _BOUNDARY))
    return x * _polynomial(_NEAR_P, square) / _polynomial(_NEAR_Q, square)


def _erfc_far(a: np.ndarray) -> np.ndarray:
    a = np.clip(a, _BOUNDARY, 12.0)  # exp(-144) is below the smallest float32
    return np.exp(-a * a) * _polynomial(_FAR_P, a) / _polynomial(_FAR_Q, a)


def _erf_block(x: np.ndarray) -> np.ndarray:
    a = np.abs(x)
    return np.where(a > _BOUNDARY, np.copysign(1 - _erfc_far(a), x), _erf_near(x))


def _erfc_block(x: np.ndarray) -> np.ndarray:
    a = np.abs(x)
    tail = _erfc_far(a)
    return np.where(a > _BOUNDARY, np.where(x > 0, tail, 2 - tail), 1 - _erf_near(x))


def erf(x: np.ndarray) -> np.ndarray:
    """The error function, exact to a few units in the last place (float32, and float64 for |x| < 4)."""
    return _by_blocks(_erf_block, np.asarray(x))


def erfc(x: np.ndarray) -> np.ndarray:
    """1 - erf(x) without cancellation."""
    return _by_blocks(_erfc_block, np.asarray(x))


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)); where exp overflows the result is 0, as it should be."""
    with np.errstate(over="ignore"):
        return np.reciprocal(1 + np.exp(-x))


def softplus(x: np.ndarray) -> np.ndarray:
    """log(1 + exp(x)), without overflow."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def erfinv(x: np.ndarray) -> np.ndarray:
    """Inverse of erf: Winitzki's closed form as a start, then three Newton steps in float64."""
    x64 = np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        log = np.log((1 - x64) * (1 + x64))
        t = 2 / (np.pi * 0.147) + log / 2
        y = np.copysign(np.sqrt(np.sqrt(t * t - log / 0.147) - t), x64)
        for _ in range(3):
            y = y - (erf(y) - x64) * np.sqrt(np.pi) / 2 * np.exp(y * y)
    y = np.where(np.abs(x64) == 1, np.copysign(np.inf, x64), y)
    return y.astype(np.asarray(x).dtype)


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(_SQRT_2_OVER_PI * (x + np.float32(0.044715) * x * x * x)))


def _round_away(x: np.ndarray) -> np.ndarray:
    whole = np.trunc(x)
    return whole + np.where(np.abs(x - whole) >= 0.5, np.sign(x), 0)


UNARY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "ABS": np.abs, "NEG": np.negative, "FLOOR": np.floor, "CEIL": np.ceil, "SQUARE": np.square, "SQRT": np.sqrt,
    "RSQRT": lambda x: 1 / np.sqrt(x), "EXP": np.exp, "LOG": np.log, "SIN": np.sin, "COS": np.cos, "TAN": np.tan,
    "ASIN": np.arcsin, "ACOS": np.arccos, "ATAN": np.arctan, "RECIPROCAL": lambda x: 1 / x, "LOG1P": np.log1p,
    "BNLL": softplus, "ACOSH": np.arccosh, "SINH": np.sinh, "ASINH": np.arcsinh,
    "ATANH": np.arctanh, "SIGN": np.sign, "ROUND": _round_away, "COSH": np.cosh, "ERF": erf, "ERFC": erfc,
    "ERFINV": erfinv, "EXPM1": np.expm1, "SIGMOID": sigmoid, "TANH": np.tanh,
    "HARDSWISH": lambda x: x * np.clip(x + 3, 0, 6) / 6, "GELU": _gelu_tanh,
    "GELU_STANDARD": lambda x: 0.5 * x * (1 + erf(x * np.float32(np.sqrt(0.5)))), "SILU": lambda x: x * sigmoid(x),
}  # fmt: skip

POSITIVE = {"SQRT", "RSQRT", "LOG", "RECIPROCAL", "LOG1P", "ACOSH"}
UNIT = {"ASIN", "ACOS", "ATANH", "ERFINV"}


INT_UNARY = {"ABS", "NEG", "SQUARE", "SIGN"}


@register("Sigmoid", "TanH")
class Unary(Op):
    """y = f(x). `function` is a key of `UNARY`; the runtime has only those of `INT_UNARY` on int32."""

    function: str

    form = Form("UnaryOp", "UnaryOp", {"function": "opType"})
    layout = "any"

    def infer(self, x: Spec) -> Spec:
        if self.function not in UNARY or x.dtype not in (F32, I32):
            raise ValueError(f"there is no {self.function} on {x.dtype}")
        return Spec(x.dtype, x.shape, self._negated_sizes(x))

    def _negated_sizes(self, x: Spec) -> np.ndarray | None:
        """The content of NEG on sizes that are only partly known: bounds of slices that count from the end."""
        if self.function != "NEG" or x.dtype != I32 or x.constant is not None or x.sizes is None or (x.rank or 0) > 1:
            return None
        return size_content([mul_dims(-1, d) for d in x.sizes], scalar=x.rank == 0)

    def ref(self, x: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(UNARY[self.function](x)).astype(x.dtype, copy=False)

    def emit(self, x: Spec) -> Any:
        made = super().emit(x)
        if x.dtype == I32:
            made.fields["T"] = "DT_INT32"
        return made

    @classmethod
    def parse(cls, type: str, fields: Fields) -> Unary:
        """Sigmoid and TanH are op types of their own as well."""
        return cls({"Sigmoid": "SIGMOID", "TanH": "TANH"}.get(type) or fields["opType"])

    samples = (
        grid(function=sorted(set(UNARY) - POSITIVE - UNIT), x=[(), (7,), (2, 3, 4)])
        + grid(function=sorted(POSITIVE), x=[floats(2, 3, low=1.0, high=4.0)])
        + grid(function=sorted(UNIT), x=[floats(2, 3, low=-0.9, high=0.9)])
        + grid(function=sorted(INT_UNARY), x=[integers(5)])
    )


def _int_divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Integer division that truncates towards zero; division by zero gives 0."""
    wide, safe = a.astype(np.int64), np.where(b == 0, 1, b).astype(np.int64)
    return np.where(b == 0, 0, np.sign(wide) * np.sign(safe) * (np.abs(wide) // np.abs(safe)))


def _shift(shift: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    return lambda a, b: np.where((b < 0) | (b > 31), 0, shift(a, np.clip(b, 0, 31)))


FLOAT_BINARY: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "ADD": np.add, "SUB": np.subtract, "MUL": np.multiply, "REALDIV": np.divide, "POW": np.power,
    "MINIMUM": np.minimum, "MAXIMUM": np.maximum, "GREATER": np.greater, "GREATER_EQUAL": np.greater_equal,
    "LESS": np.less, "LESS_EQUAL": np.less_equal, "EQUAL": np.equal, "NOTEQUAL": np.not_equal,
    "FLOORDIV": np.floor_divide, "SquaredDifference": lambda a, b: np.square(a - b), "FLOORMOD": np.mod,
    "MOD": np.fmod, "ATAN2": np.arctan2, "MUL_SILU": lambda a, b: a * b * sigmoid(b),
}  # fmt: skip

# On int32 the names MOD and FLOORMOD are exchanged against their meaning on floats.
INT_BINARY: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    **{k: FLOAT_BINARY[k] for k in ("ADD", "SUB", "MUL", "MINIMUM", "MAXIMUM", "GREATER", "GREATER_EQUAL", "LESS",
                                    "LESS_EQUAL", "EQUAL", "NOTEQUAL", "SquaredDifference")},
    "REALDIV": _int_divide, "FLOORDIV": np.floor_divide, "MOD": np.mod, "FLOORMOD": np.fmod,
    "POW": lambda a, b: np.power(a.astype(np.float64), b), "BITWISE_AND": np.bitwise_and,
    "BITWISE_OR": np.bitwise_or, "BITWISE_XOR": np.bitwise_xor, "LEFTSHIFT": _shift(np.left_shift),
    "RIGHTSHIFT": _shift(np.right_shift), "LOGICALOR": lambda a, b: (a != 0) | (b != 0),
    "LOGICALXOR": lambda a, b: (a != 0) ^ (b != 0),
}  # fmt: skip

COMPARISONS = {"GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL", "EQUAL", "NOTEQUAL"}
COMMUTATIVE = {"ADD", "MUL", "MINIMUM", "MAXIMUM", "EQUAL", "NOTEQUAL", "SquaredDifference", "BITWISE_AND",
               "BITWISE_OR", "BITWISE_XOR", "LOGICALOR", "LOGICALXOR"}  # fmt: skip
_SIZE_ARITHMETIC: dict[str, Callable[[Dim, Dim], Dim]] = {"ADD": add_dims, "MUL": mul_dims}


def _size_subtract(a: Dim, b: Dim) -> Dim:
    return 0 if a == b and a is not None else add_dims(a, -b) if isinstance(b, int) else None


def _size_divide(a: Dim, b: Dim) -> Dim:
    return floordiv(a, b) if (isinstance(b, int) and b > 0) or a == b else None


def _size_equal(a: Dim, b: Dim) -> Dim:
    """1 or 0 where that is certain: a size without a subtraction is not negative."""
    if a is None or b is None:
        return None
    if a == b or (isinstance(a, int) and isinstance(b, int)):
        return int(a == b)
    number, symbol = (a, b) if isinstance(a, int) else (b, a)
    return 0 if isinstance(number, int) and number < 0 and "-" not in str(symbol) else None


_SIZE_ARITHMETIC |= {
    "SUB": _size_subtract, "REALDIV": _size_divide, "FLOORDIV": _size_divide, "EQUAL": _size_equal,
}  # fmt: skip


@register()
class Binary(Op):
    """y = f(a, b) with numpy broadcasting; both operands have the same element type (float32 or int32).

    Comparisons give int32 0/1. `activation` 1 applies ReLU to the result.
    """

    function: str
    activation: int = 0

    form = Form("BinaryOp", "BinaryOp", {"function": "opType", "activation": "activationType"})
    layout = "any"

    @property
    def commutative(self) -> bool:  # type: ignore[override]
        return self.function in COMMUTATIVE

    def infer(self, a: Spec, b: Spec) -> Spec:
        if a.dtype != b.dtype:
            raise ValueError(f"the operands are {a.dtype} and {b.dtype}")
        if a.dtype not in (F32, I32) or self.function not in (INT_BINARY if a.dtype == I32 else FLOAT_BINARY):
            raise ValueError(f"there is no {self.function} on {a.dtype}")
        dtype = I32 if self.function in COMPARISONS else a.dtype
        return Spec(dtype, broadcast(a.shape, b.shape), self._size_arithmetic(a, b))

    def _size_arithmetic(self, a: Spec, b: Spec) -> np.ndarray | None:
        """The content when the operands are small integer tensors that are only partly known."""
        rule = _SIZE_ARITHMETIC.get(self.function)
        if rule is None or a.dtype != I32 or (a.constant is not None and b.constant is not None):
            return None
        x, y = a.sizes, b.sizes
        if x is None or y is None:
            return None
        count = max(len(x), len(y))
        if min(len(x), len(y)) not in (1, count) or (a.rank or 0) > 1 or (b.rank or 0) > 1:
            return None
        pairs = zip(x * (count // len(x)), y * (count // len(y)), strict=True)
        return size_content([rule(p, q) for p, q in pairs], scalar=a.rank == 0 and b.rank == 0)

    def ref(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        table = INT_BINARY if a.dtype == I32 else FLOAT_BINARY
        with np.errstate(all="ignore"):
            y = np.asarray(table[self.function](a, b))
            y = y.astype(I32 if self.function in COMPARISONS else a.dtype, copy=False)
        return np.maximum(y, 0) if self.activation else y

    def emit(self, a: Spec, b: Spec) -> Any:
        made = super().emit(a, b)
        made.fields["T"] = "DT_INT32" if a.dtype == I32 else "DT_FLOAT"
        return made

    samples = (
        grid(function=sorted(set(FLOAT_BINARY) - {"POW"}), a=[(2, 3, 4), (3, 1)], b=[(3, 4)])
        + grid(function=["POW"], a=[floats(2, 3, low=0.1)], b=[(3,)])
        + grid(function=sorted(set(INT_BINARY) - {"LEFTSHIFT", "RIGHTSHIFT", "POW"}), a=[integers(2, 4)],
               b=[exactly([1, -2, 3, -4])])
        + grid(function=["LEFTSHIFT", "RIGHTSHIFT", "POW"], a=[integers(2, 3, low=0, high=9)], b=[exactly([0, 1, 3])])
        + grid(function=["ADD"], activation=[1], a=[(2, 3)], b=[()])
    )  # fmt: skip


DATA_TYPES: dict[str, np.dtype] = {
    "DT_FLOAT": F32, "DT_INT32": I32, "DT_UINT8": np.dtype("uint8"), "DT_INT8": np.dtype("int8"),
    "DT_HALF": F32, "DT_DOUBLE": F32, "DT_BFLOAT16": F32, "DT_INT64": I32, "DT_BOOL": I32,
}  # fmt: skip
TYPE_NAMES = {F32: "DT_FLOAT", I32: "DT_INT32", np.dtype("uint8"): "DT_UINT8", np.dtype("int8"): "DT_INT8"}


def cast_array(x: np.ndarray, to: np.dtype) -> np.ndarray:
    """Float to integer truncates (NaN and out of range give the lowest int32); integer to integer wraps."""
    if x.dtype.kind == "f" and to.kind in "iu":
        with np.errstate(all="ignore"):
            whole = np.trunc(np.nan_to_num(x.astype(np.float64), nan=-(2.0**31)))
        return np.clip(whole, -(2**63), 2**63 - 1024).astype(np.int64).astype(to)
    return x.astype(to)


@register()
class Cast(Op):
    """Another element type: float32, int32, uint8 or int8."""

    to: str = "DT_FLOAT"

    form = Form("Cast", "CastParam", {"to": "dstT"})
    layout = "any"

    def infer(self, x: Spec) -> Spec:
        if self.to not in DATA_TYPES:
            raise ValueError(f"there is no element type {self.to}")
        dtype = DATA_TYPES[self.to]
        keep = x.content if x.content is not None and x.content.dtype == object and dtype == I32 else None
        return Spec(dtype, x.shape, keep)

    def ref(self, x: np.ndarray) -> np.ndarray:
        if self.to == "DT_BOOL":
            return (x != 0).astype(I32)
        return cast_array(x, DATA_TYPES[self.to])

    def emit(self, x: Spec) -> Any:
        made = super().emit(x)
        made.fields["srcT"] = TYPE_NAMES[x.dtype]
        return made

    @classmethod
    def parse(cls, type: str, fields: Fields) -> Cast:
        return cls(fields["dstT"])

    samples = grid(
        to=["DT_FLOAT", "DT_INT32"], x=[(2, 3), integers(4), integers(4, low=0, high=200, dtype="uint8")]
    ) + grid(to=["DT_UINT8"], x=[integers(6, low=0, high=250), floats(5, low=0, high=99)])


@register()
class Select(Op):
    """y = a where condition is not zero, else b; all three broadcast."""

    form = Form("Select")

    def infer(self, condition: Spec, a: Spec, b: Spec) -> Spec:
        if a.dtype != b.dtype:
            raise ValueError(f"the choices are {a.dtype} and {b.dtype}")
        sizes = moved(lambda x, y, chosen: self.ref(chosen, x, y), [a, b], condition.constant)
        return Spec(a.dtype, broadcast(condition.shape, a.shape, b.shape), sizes)

    def ref(self, condition: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.where(condition != 0, a, b)

    samples = grid(condition=[integers(2, 3, low=0, high=2), exactly(1)], a=[(2, 3), (3,)], b=[(), (2, 1)])


@register()
class CastLike(Op):
    """x in the element type of `like`."""

    form = Form("CastLike")

    def infer(self, x: Spec, like: Spec) -> Spec:
        return Spec(like.dtype, x.shape)

    def ref(self, x: np.ndarray, like: np.ndarray) -> np.ndarray:
        return cast_array(x, like.dtype)

    samples = grid(x=[(2, 3), integers(4)], like=[(1,), integers(2)])
