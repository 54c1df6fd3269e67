"""The one place that prints: commands say what they have, this decides where and how it appears.

Results go to stdout, everything else to stderr. With `--json` stdout carries one JSON document and all text goes to
stderr. Colour and tables through rich are for terminals only; a pipe gets plain lines, never wrapped.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TextIO

from mnnconvert.cli.parser import peek_flag
from mnnconvert.errors import ConversionError, Diagnostic
from mnnconvert.units import size as size

RIGHT = ">"
UNSURE_SECONDS = 3  # no guess how long work takes before
Rows = Sequence[Sequence[object]]


class Output:
    """Text and data of one run of the program."""

    def __init__(self, *, json_mode: bool = False, quiet: bool = False, color: bool = True):
        self.json_mode = json_mode
        self.quiet = quiet
        self.color = color and "NO_COLOR" not in os.environ
        self._progress_shown = False
        self._work = ("", 0.0, 0.0)  # what is being done, since when, and how far it was then

    @classmethod
    def for_words(cls, argv: Sequence[str]) -> Output:
        """As the command line asks, read before (and even if never) the line as a whole is understood."""
        return cls(
            json_mode=peek_flag(argv, "--json"),
            quiet=peek_flag(argv, "-q", "--quiet"),
            color=not peek_flag(argv, "--no-color"),
        )

    def data(self, document: object) -> None:
        """The machine-readable result: shown with --json only, and must be called once there."""
        if self.json_mode:
            text = json.dumps(plain(document), indent=2, ensure_ascii=False, allow_nan=False)
            _print(text, sys.stdout)

    def result(self, text: str, style: str = "") -> None:
        """What was asked for, as text; shown even when quiet."""
        self._line(text, self._result_stream(), style)

    def detail(self, text: str, style: str = "") -> None:
        """A result that a quiet run can do without."""
        if not self.quiet:
            self._line(text, self._result_stream(), style)

    def table(self, columns: Sequence[str], rows: Rows, title: str = "") -> None:
        """Rows under their column names; a name that starts with ">" aligns its column to the right."""
        cells = [[show(cell) for cell in row] for row in rows]
        stream = self._result_stream()
        if title:
            self._line(title, stream, "bold")
        if self._styled(stream):
            self._rich_table(columns, cells, stream)
        else:
            for line in plain_table(columns, cells):
                self._line(line, stream)

    def note(self, text: str) -> None:
        """Something worth knowing that is neither the result nor a problem."""
        if not self.quiet:
            self._line(text, sys.stderr, "dim")

    def warning(self, text: str) -> None:
        self._line(f"warning: {text}", sys.stderr, "yellow")

    def diagnostics(self, problems: Sequence[Diagnostic], exit_code: int) -> None:
        """Problems that ended the run: text on stderr, and the JSON document with --json."""
        for problem in problems:
            self.diagnostic(problem)
        self.data({"ok": False, "exit_code": exit_code, "diagnostics": [problem.to_dict() for problem in problems]})

    def diagnostic(self, problem: Diagnostic, label: str = "error", style: str = "bold red") -> None:
        """One problem: `error[reference]: sentence`, then where, then what to do."""
        self._line(f"{label}[{problem.reference}]: {problem.message}", sys.stderr, style)
        for key, value in problem.context.items():
            self._line(f"  {key}: {value}", sys.stderr)
        if problem.hint:
            self._line(f"  hint: {problem.hint}", sys.stderr, "cyan")

    def progress(self, name: str, fraction: float) -> None:
        """Where long work stands (fraction 0 to 1), on one line of a terminal that the next text replaces.

        With the time left, once some seconds of work tell how fast it goes.
        """
        if self.quiet or not sys.stderr.isatty():
            return
        self._clear_progress()
        sys.stderr.write(f"{clean(name)} {min(max(fraction, 0.0), 1.0):4.0%}{self._time_left(name, fraction)}")
        sys.stderr.flush()
        self._progress_shown = True

    def _time_left(self, name: str, fraction: float) -> str:
        now = time.monotonic()
        if name != self._work[0]:
            self._work = name, now, fraction
        _, started, before = self._work
        if now - started < UNSURE_SECONDS or not before < fraction < 1:
            return ""
        left = round((now - started) * (1 - fraction) / (fraction - before))
        return f", {left // 60}:{left % 60:02} left"

    def _clear_progress(self) -> None:
        if self._progress_shown:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
            self._progress_shown = False

    def _result_stream(self) -> TextIO:
        return sys.stderr if self.json_mode else sys.stdout

    def _styled(self, stream: TextIO) -> bool:
        return self.color and stream.isatty()

    def _line(self, text: str, stream: TextIO, style: str = "") -> None:
        self._clear_progress()
        if style and self._styled(stream):
            from rich.console import Console
            from rich.text import Text

            Console(file=stream, soft_wrap=True).print(Text(clean(text), style=style))
        else:
            _print(clean(text), stream)

    def _rich_table(self, columns: Sequence[str], cells: list[list[str]], stream: TextIO) -> None:
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for column in columns:
            right = column.startswith(RIGHT)
            name = column.removeprefix(RIGHT)
            table.add_column(name, justify="right" if right else "left", no_wrap=right, overflow="fold")
        for row in cells:
            table.add_row(*(Text(cell) for cell in row))
        Console(file=stream).print(table)


def _print(text: str, stream: TextIO) -> None:
    """Print, and know at once whether it arrived. Raises `unwritable-output`, but BrokenPipeError as it is."""
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ConversionError.of("unwritable-output", f"cannot write to {stream.name}: {error.strerror}") from error


def plain_table(columns: Sequence[str], cells: list[list[str]]) -> list[str]:
    """Aligned lines, two spaces between columns, no borders and no wrapping."""
    names = [column.removeprefix(RIGHT) for column in columns]
    widths = [max(len(row[i]) for row in [names, *cells]) for i in range(len(columns))]
    right = [column.startswith(RIGHT) for column in columns]

    def line(row: Sequence[str]) -> str:
        parts = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)]
        return "  ".join(parts).rstrip()

    return [line(names), line(["-" * width for width in widths]), *(line(row) for row in cells)]


def show(cell: object) -> str:
    """One table cell: numbers in at most four digits, nothing for None, no control characters."""
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:.4g}"
    return clean(str(cell)).replace("\n", " ")


def clean(text: str) -> str:
    """Text without control characters: names come from model files, and a terminal obeys what it is sent."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode("ascii") for c in text)


def plain(value: object) -> object:
    """The value as JSON can carry it: NaN and infinities become text, tuples lists, numpy scalars numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes):
        return [plain(item) for item in value]
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return plain(value.item())
    return str(value)
