"""One option of a command: how it is spelled, what it takes, and how a value is read from text or from Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from mnnconvert.errors import Diagnostic, UsageError

TRUE_WORDS = ("1", "true")
FALSE_WORDS = ("0", "false")

Kind = Literal["flag", "int", "float", "choice", "path", "text", "texts", "shapes"]


@dataclass(frozen=True)
class Option:
    """One option: its spelling, what it takes, and what it is for.

    `kind` "texts" and "shapes" may be given several times. `choices` closes the set of values; `low` and `high`
    bound a number (both ends included); `accepts` replaces the words made from them. `alias` is a shorter keyword
    for Python.
    """

    flag: str
    field: str
    kind: Kind
    help: str
    group: str = ""
    default: object = None
    choices: tuple[str | int, ...] = ()
    low: float | None = None
    high: float | None = None
    accepts: str = ""
    metavar: str = ""
    short: str = ""
    alias: str = ""

    @property
    def repeatable(self) -> bool:
        return self.kind in ("texts", "shapes")

    @property
    def names(self) -> tuple[str, ...]:
        return (self.short, self.flag) if self.short else (self.flag,)

    def takes(self) -> str:
        """The accepted values in words, e.g. "a whole number from 0 to 2"."""
        if self.accepts:
            return self.accepts
        if self.choices:
            return "one of " + ", ".join(str(choice) for choice in self.choices)
        if self.kind in ("int", "float"):
            return ("a whole number" if self.kind == "int" else "a number") + self._bounds()
        return _TAKES[self.kind]

    def _bounds(self) -> str:
        if self.low is not None and self.high is not None:
            return f" from {self.low:g} to {self.high:g}"
        if self.low is not None:
            return f" of at least {self.low:g}"
        return ""

    def read(self, value: object) -> object:
        """The value as its field's type, from command-line text or from Python; UsageError when it is neither."""
        try:
            read = _READERS[self.kind](value)
        except (TypeError, ValueError):
            raise UsageError.of("bad-option-value", f"{self.flag} takes {self.takes()}, not {value!r}.") from None
        if self.kind == "choice":
            return self._choose(str(read))
        return read

    def _choose(self, text: str) -> str:
        for choice in self.choices:
            if str(choice).lower() == text.lower():
                return str(choice)
        raise UsageError.of(
            "bad-option-value",
            f"{self.flag} takes {self.takes()}, not {text!r}.",
            hint=did_you_mean(text, [str(choice) for choice in self.choices]),
        )

    def range_problem(self, value: object) -> Diagnostic | None:
        """Why a number of the right type is still outside what the option allows, if it is."""
        if not isinstance(value, int | float):
            return None
        inside = value in self.choices if self.choices else True
        # Written so that NaN, which compares false with everything, counts as outside.
        inside = inside and (self.low is None or value >= self.low) and (self.high is None or value <= self.high)
        if inside and value == value:
            return None
        return Diagnostic("out-of-range", f"{self.flag} takes {self.takes()}, not {value}.")


_TAKES = {
    "flag": "1, 0, true or false",
    "path": "a file or folder",
    "text": "a text",
    "texts": "a text",
    "shapes": "NAME:SIZExSIZE..., such as input:1x3x224x224",
}


def _read_flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).lower()
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    raise ValueError(word)


def _read_int(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(value)
    return int(value)


def _read_float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(value)
    return float(value)


def _read_path(value: object) -> str:
    if not isinstance(value, str | os.PathLike):
        raise TypeError(value)
    text = os.fspath(value)
    if not isinstance(text, str) or not text or "\0" in text:
        raise ValueError(value)
    return os.path.expanduser(text)  # no shell does it behind `--option=`


def _read_text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(value)
    return value


def _read_texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (_read_text(value),)
    if not isinstance(value, Iterable):
        raise TypeError(value)
    return tuple(_read_text(item) for item in value)


def _read_shapes(value: object) -> dict[str, tuple[int, ...]]:
    """`name:1x3x224x224` (the last colon counts: TensorFlow names contain colons) or a mapping of name to sizes."""
    if isinstance(value, Mapping):
        return {_read_text(name): tuple(_size(size) for size in sizes) for name, sizes in value.items()}
    name, colon, sizes = _read_text(value).rpartition(":")
    if not colon or not name:
        raise ValueError(value)
    return {name: tuple(_size(size) for size in sizes.lower().replace(",", "x").split("x"))}


def _size(value: object) -> int:
    size = _read_int(value)
    if size < 0:
        raise ValueError(value)
    return size


_READERS: dict[str, Callable[[object], object]] = {
    "flag": _read_flag,
    "int": _read_int,
    "float": _read_float,
    "choice": _read_text,
    "path": _read_path,
    "text": _read_text,
    "texts": _read_texts,
    "shapes": _read_shapes,
}


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """`Did you mean X?` for the nearest candidate, or an empty text when none is near."""
    from difflib import get_close_matches

    by_folded = {candidate.lower().replace("_", "-"): candidate for candidate in candidates}
    near = get_close_matches(word.lower().replace("_", "-"), list(by_folded), n=1, cutoff=0.6)
    return f"Did you mean {by_folded[near[0]]}?" if near else ""
