"""What users see when something cannot be done: diagnostics with a stable reference, a sentence, context and a hint.

This module imports nothing from the package, so every layer may raise from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self


@dataclass(frozen=True)
class Diagnostic:
    """One problem (or note) a user can act on.

    `reference` is a stable kebab-case name that `mnnconvert explain` knows; `message` is one sentence; `context`
    names where it happened (file, node, op, opset, shapes); `hint` says what to do about it.
    """

    reference: str
    message: str
    context: dict[str, str] = field(default_factory=dict)
    hint: str = ""

    def __str__(self) -> str:
        where = ", ".join(f"{key} {value}" for key, value in self.context.items())
        text = f"{self.reference}: {self.message}"
        if where:
            text += f" ({where})"
        if self.hint:
            text += f"\n  hint: {self.hint}"
        return text

    def to_dict(self) -> dict[str, object]:
        return {"reference": self.reference, "message": self.message, "context": dict(self.context), "hint": self.hint}


class MnnConvertError(Exception):
    """A known failure: one or more diagnostics and the exit code that the command line ends with."""

    exit_code = 1

    def __init__(self, diagnostics: Iterable[Diagnostic] | Diagnostic):
        self.diagnostics = [diagnostics] if isinstance(diagnostics, Diagnostic) else list(diagnostics)
        super().__init__("\n".join(str(d) for d in self.diagnostics))

    @classmethod
    def of(cls, reference: str, message: str, *, hint: str = "", **context: object) -> Self:
        """An error of one diagnostic; keyword arguments become its context."""
        return cls(Diagnostic(reference, message, {k: str(v) for k, v in context.items()}, hint))


class ConversionError(MnnConvertError):
    """The model cannot be converted, read, written or run (exit code 1)."""


class UsageError(ConversionError):
    """The request contradicts itself or names something that does not exist (exit code 2)."""

    exit_code = 2


class GateError(ConversionError):
    """The result is not accurate enough (exit code 3)."""

    exit_code = 3


def unreadable(path: object, error: OSError) -> ConversionError:
    """The diagnostic for a file that the system does not give: `missing-file` or `unreadable-file`."""
    if isinstance(error, FileNotFoundError):
        return ConversionError.of("missing-file", f"'{path}' does not exist", file=path)
    return ConversionError.of("unreadable-file", f"cannot read '{path}': {error.strerror or error}", file=path)
