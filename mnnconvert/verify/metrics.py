"""How far one array is from another: shapes, kinds of element type, and the numbers that gates and reports quote.

Conventions, so that every number has one meaning:

* Floats are compared in float64. Positions where the expected value is NaN or infinite must hold the same NaN or
  infinity and take no part in the numbers below. Where they do not, or where only the obtained value is not finite,
  the position counts in `odd` and the pair is as bad as can be: `max_abs` and `max_rel` infinite, `sqnr` minus
  infinity, `cosine` 0.
* `max_rel` is `max_abs / largest`; over an all-zero reference it is 0 for an exact answer, else infinite.
* `sqnr = 10 log10(sum want^2 / sum (got - want)^2)` in dB: infinite for an exact answer, minus infinity for an
  inexact one over an all-zero reference.
* `cosine` is 1 for an exact answer (two zero vectors included), 0 when only one of the vectors is zero.
* Empty arrays are exact. A scalar is an array of one element.
* Different shapes, or a number where a bool or text is wanted, leave nothing to measure: all numbers are None.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

Array = np.ndarray
Index = tuple[int, ...]


@dataclass(frozen=True)
class ArrayComparison:
    """The measured difference of two arrays; see the module's conventions for the corner cases.

    `largest` is the largest finite expected magnitude; `top1` the share of rows (0 to 1) whose largest entry is at the
    same place, `top5` that where it is among the five largest, None where the last axis does not look like classes;
    `wrong` counts elements of another value, `odd` those with a NaN or infinity on one side only. `where` is the
    position to look at first: the first odd one, else the largest error; `got` and `want` are the values there.
    """

    got_shape: Index
    want_shape: Index
    got_dtype: str
    want_dtype: str
    max_abs: float | None = None
    max_rel: float | None = None
    sqnr: float | None = None
    cosine: float | None = None
    top1: float | None = None
    largest: float | None = None
    wrong: int = 0
    odd: int = 0
    where: Index | None = None
    got: float | int | None = None
    want: float | int | None = None
    top5: float | None = None

    @property
    def same_shape(self) -> bool:
        return self.got_shape == self.want_shape

    @property
    def same_kind(self) -> bool:
        """Whether both are floats, signed integers, unsigned integers or bools; widths may differ."""
        return kind_of(self.got_dtype) == kind_of(self.want_dtype)

    def to_dict(self) -> dict[str, object]:
        """The fields as JSON values: infinities and NaN become the texts "inf", "-inf" and "nan"."""
        return {name: plain(value) for name, value in asdict(self).items()}


def plain(value: object) -> object:
    """As a JSON value: infinities and NaN become texts, tuples lists."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def kind_of(dtype: np.dtype | str) -> str:
    """ "bool", "int", "uint", "float" or "text": what two element types must have in common to be compared."""
    name = str(dtype)
    for kind in ("bool", "uint", "int"):
        if name.startswith(kind):
            return kind
    return "float" if "float" in name else "text"


def compare_arrays(got: Array, want: Array) -> ArrayComparison:
    """Measures `got` against `want`; never raises on a difference, however large."""
    facts = ArrayComparison(got.shape, want.shape, str(got.dtype), str(want.dtype))
    kinds = {kind_of(got.dtype), kind_of(want.dtype)}
    if not facts.same_shape or ("text" in kinds and len(kinds) > 1):
        return facts
    if kinds == {"text"}:
        return _compare_texts(facts, got, want)
    return _compare_numbers(facts, got, want)


def _compare_texts(facts: ArrayComparison, got: Array, want: Array) -> ArrayComparison:
    differs = np.atleast_1d(got != want)
    where = _first(differs.reshape(got.shape))
    return ArrayComparison(*_head(facts), wrong=int(differs.sum()), where=where)


def _compare_numbers(facts: ArrayComparison, got: Array, want: Array) -> ArrayComparison:
    exact = _exact(got, want)
    g, w = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(w)
    odd = (~finite & ~exact) | (finite & ~np.isfinite(g))
    difference = np.where(exact | odd | ~finite, 0.0, np.abs(np.where(odd, 0.0, g) - np.where(finite, w, 0.0)))
    where = _first(odd) if odd.any() else _worst(difference, exact)
    numbers = _numbers(g[finite], w[finite], difference, bool(odd.any()))
    return ArrayComparison(
        *_head(facts),
        **numbers,
        top1=_top(g, w, 1) if kind_of(want.dtype) == "float" else None,
        top5=_top(g, w, 5) if kind_of(want.dtype) == "float" else None,
        wrong=int(exact.size - np.count_nonzero(exact)),
        odd=int(np.count_nonzero(odd)),
        where=where,
        got=None if where is None else got[where].item(),
        want=None if where is None else want[where].item(),
    )


def _head(facts: ArrayComparison) -> tuple[Index, Index, str, str]:
    return facts.got_shape, facts.want_shape, facts.got_dtype, facts.want_dtype


def _exact(got: Array, want: Array) -> Array:
    """Elements of equal value; NaN equals NaN. Integers are compared as integers: 2^53 + 1 is not 2^53."""
    equal = np.asarray(got == want)
    if "float" not in (kind_of(got.dtype), kind_of(want.dtype)):
        return equal
    with np.errstate(invalid="ignore"):
        return equal | (np.isnan(got.astype(np.float64)) & np.isnan(want.astype(np.float64)))


def _first(mask: Array) -> Index | None:
    """Position of the first true element in row-major order."""
    if not mask.any():
        return None
    return tuple(int(i) for i in np.unravel_index(int(mask.argmax()), mask.shape))


def _worst(difference: Array, exact: Array) -> Index | None:
    """Position of the largest error; integers that differ by less than a double can tell give the first one."""
    if exact.all():
        return None
    if not difference.any():
        return _first(~exact)
    return tuple(int(i) for i in np.unravel_index(int(difference.argmax()), difference.shape))


def _numbers(got: Array, want: Array, difference: Array, odd: bool) -> dict[str, Any]:
    """The norms over positions with a finite expected value; `got` and `want` are flat."""
    largest = float(np.abs(want).max(initial=0.0))
    if odd:
        return {"max_abs": math.inf, "max_rel": math.inf, "sqnr": -math.inf, "cosine": 0.0, "largest": largest}
    max_abs = float(difference.max(initial=0.0))
    return {
        "max_abs": max_abs,
        "max_rel": _ratio(max_abs, largest),
        "sqnr": _sqnr(want, difference),
        "cosine": _cosine(got, want) if max_abs else 1.0,
        "largest": largest,
    }


def _ratio(part: float, whole: float) -> float:
    if part == 0.0:
        return 0.0
    return part / whole if whole else math.inf


def _sqnr(want: Array, difference: Array) -> float:
    """Scaled by the largest magnitude first, so that squares neither overflow nor vanish."""
    scale = max(float(np.abs(want).max(initial=0.0)), float(difference.max(initial=0.0))) or 1.0
    signal, noise = float(np.square(want / scale).sum()), float(np.square(difference / scale).sum())
    if noise == 0.0:
        return math.inf
    return 10.0 * math.log10(signal / noise) if signal else -math.inf


def _cosine(a: Array, b: Array) -> float:
    peak_a, peak_b = float(np.abs(a).max(initial=0.0)), float(np.abs(b).max(initial=0.0))
    if peak_a == 0.0 or peak_b == 0.0:
        return 0.0
    a, b = a / peak_a, b / peak_b
    return float(a @ b / math.sqrt(float(a @ a) * float(b @ b)))


def _top(got: Array, want: Array, places: int) -> float | None:
    """Share of rows whose winner is among the first `places` of `got`.

    Looks like classes: rank 1 to 3 and at least two entries (more than `places`) on the last axis. Where several
    classes share the largest expected value, each of them counts as right. NaN never wins.
    """
    if not 1 <= want.ndim <= 3 or want.shape[-1] < max(2, places + 1) or want.size == 0:
        return None
    got, want = (np.where(np.isnan(a), -np.inf, a).reshape(-1, want.shape[-1]) for a in (got, want))
    if places == 1:
        best = got.argmax(axis=1)[:, None]
    else:
        best = np.argpartition(-got, places - 1, axis=1)[:, :places]
    return float(np.mean((np.take_along_axis(want, best, 1) == want.max(axis=1, keepdims=True)).any(axis=1)))
