"""The sink: streams, plain tables, terminals, and text that cannot harm a terminal."""

from __future__ import annotations

import io
import json
import sys

import numpy as np
import pytest

from mnnconvert.cli.output import Output, clean, plain, plain_table, show, size


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_tables_are_aligned_and_never_wrapped() -> None:
    long = "x" * 300
    assert plain_table(("Name", ">Count"), [["a", "1"], [long, "-"]]) == [
        "Name" + " " * 296 + "  Count",
        "-" * 300 + "  -----",
        "a" + " " * 299 + "      1",
        long + "      -",
    ]


def test_a_table_without_rows_still_has_its_head() -> None:
    assert plain_table(("A", "B"), []) == ["A  B", "-  -"]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (12_345, "12.3 kB"), (4_560_000, "4.56 MB"), (2.2e9, "2.2 GB"),
     (5e12, "5,000 GB")],
)  # fmt: skip
def test_sizes_for_people(count: float, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("cell", "text"), [(None, "-"), (0.123456, "0.1235"), (7, "7"), ("a\nb", "a b"), ("\x1b[2J", "\\x1b[2J")]
)
def test_cells(cell: object, text: str) -> None:
    assert show(cell) == text


def test_control_characters_and_lone_surrogates_are_escaped() -> None:
    assert clean("a\x07b\u202ec\ud800 é中\n\t") == "a\\x07b\\u202ec\\ud800 é中\n\t"


def test_json_carries_what_json_cannot() -> None:
    value = {1: (np.float32(0.5), float("nan"), np.int64(3)), "s": {2}, "b": None}
    assert json.loads(json.dumps(plain(value))) == {"1": [0.5, "nan", 3], "s": [2], "b": None}


def test_json_mode_moves_text_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output(json_mode=True)
    out.data({"a": 1})
    out.result("text")
    out.table(("A",), [["x"]])
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"a": 1}
    assert printed.err.splitlines() == ["text", "A", "-", "x"]


def test_quiet_keeps_results_and_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output(quiet=True)
    out.result("asked for")
    out.detail("nice to have")
    out.note("by the way")
    out.warning("careful")
    assert capsys.readouterr() == ("asked for\n", "warning: careful\n")


@pytest.mark.parametrize(("color", "escapes"), [(True, True), (False, False)])
def test_colour_is_for_terminals_that_want_it(monkeypatch: pytest.MonkeyPatch, color: bool, escapes: bool) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    out = Output(color=color)
    out.result("[bold]name[/bold]", "green")
    out.table(("Layer", ">Bits"), [["[red]conv", 4]], title="Weights")
    assert "[bold]name[/bold]" in terminal.getvalue()
    assert "[red]conv" in terminal.getvalue()
    assert ("\x1b[" in terminal.getvalue()) is escapes


def test_progress_is_one_line_that_the_next_text_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    out = Output(color=False)
    out.progress("reading", 0.25)
    out.warning("x")
    assert terminal.getvalue() == "reading  25%\r\x1b[2Kwarning: x\n"


def test_progress_tells_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, clock = Terminal(), iter([10.0, 12.0, 70.0, 75.0])
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    out = Output(color=False)
    for name, fraction in (("calibrate", 0.1), ("calibrate", 0.2), ("calibrate", 0.4), ("write", 0.5)):
        out.progress(name, fraction)
    lines = terminal.getvalue().split("\r\x1b[2K")
    assert lines == ["calibrate  10%", "calibrate  20%", "calibrate  40%, 2:00 left", "write  50%"]


def test_progress_is_silent_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    Output().progress("reading", 0.25)
    assert capsys.readouterr() == ("", "")
