"""The program: chooses the command, and turns every way of ending into an exit code and words a user can act on."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from typing import TextIO

from mnnconvert.cli.output import Output
from mnnconvert.cli.parser import parse, peek_flag, wants_help
from mnnconvert.errors import Diagnostic, MnnConvertError, UsageError
from mnnconvert.option_types import did_you_mean

INTERRUPTED = 130
TERMINATED = 143
BROKEN_PIPE = 141
OUR_BUG = 4


class Terminated(BaseException):
    """The system asked the program to end."""


COMMANDS: dict[str, tuple[str, str]] = {
    "verify": ("mnnconvert.cli.verify", "compare a converted model with its source"),
    "compress": ("mnnconvert.cli.compress", "convert with bits chosen for each weight, within a budget"),
    "llm": ("mnnconvert.cli.llm", "a language model as the folder that MNN's runtime for them loads"),
    "perplexity": ("mnnconvert.cli.perplexity", "how surprised a language model is by a text"),
    "run": ("mnnconvert.cli.run", "run a model"),
    "bench": ("mnnconvert.cli.bench", "time a model, alone or against its source"),
    "quantize": ("mnnconvert.cli.quantize", "full int8 from samples, with the configuration of MNN's mnnquant"),
    "show": ("mnnconvert.cli.show", "what is inside a model: layers, bits, sizes, histograms"),
    "diff": ("mnnconvert.cli.diff", "two models, layer by layer and output by output"),
    "ops": ("mnnconvert.cli.ops", "which source operators are supported"),
    "explain": ("mnnconvert.cli.explain", "what an error means and what to do"),
}
"""Name -> module (with `SYNTAX` and `run(arguments, out) -> exit code`, imported when chosen) and what it does."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program on `argv` (default: the process's own) and give its exit code; nothing is raised."""
    words = list(sys.argv[1:] if argv is None else argv)
    _open_closed_streams()
    _let_every_character_through()
    _unwind_when_terminated()
    out = Output.for_words(words)
    try:
        return _run(words, out)
    except BrokenPipeError:
        _mute(sys.stdout)
        return BROKEN_PIPE
    except MnnConvertError:  # stdout took no more: what can be said on stderr was said
        _mute(sys.stdout)
        return 1


def _run(words: list[str], out: Output) -> int:
    """The exit code, whatever happens; only a stream that breaks is raised."""
    try:
        code = _dispatch(words, out)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        raise
    except MnnConvertError as error:
        return _fail(out, error.diagnostics, error.exit_code)
    except MemoryError:
        return _fail(out, [Diagnostic("out-of-memory", "There is not enough memory for this model.")], 1)
    except KeyboardInterrupt:
        return _fail(out, [Diagnostic("interrupted", "Stopped by you; nothing was written.")], INTERRUPTED)
    except Terminated:
        return _fail(out, [Diagnostic("interrupted", "Stopped by the system; nothing was written.")], TERMINATED)
    except Exception as bug:  # noqa: BLE001  # the last line of defence: users get a report, not a traceback
        return _fail(out, [_report(bug, words)], OUR_BUG)


def _dispatch(words: list[str], out: Output) -> int:
    if words and words[0] in COMMANDS:
        return _command(words[0], words[1:], out)
    if words and not words[0].startswith("-") and not peek_flag(words, "--info"):
        _reject_word(words[0])
    from mnnconvert.cli import convert

    if wants_help(words):
        from mnnconvert.cli.help import program_help

        return _help(program_help(convert.SYNTAX, {name: does for name, (_, does) in COMMANDS.items()}), out)
    return convert.run(parse(words, convert.SYNTAX), out)


def _command(name: str, words: list[str], out: Output) -> int:
    module = import_module(COMMANDS[name][0])
    if wants_help(words):
        from mnnconvert.cli.help import command_help

        return _help(command_help(module.SYNTAX), out)
    return int(module.run(parse(words, module.SYNTAX), out))


def _help(text: str, out: Output) -> int:
    out.data({"ok": True, "exit_code": 0, "help": text})
    out.result(text)
    return 0


def _reject_word(word: str) -> None:
    """A first word that is no command: a misspelt one, or a file given without its option."""
    if os.path.exists(word) or os.path.splitext(word)[1]:
        hint = f"To convert a file: mnnconvert --modelFile {word} --MNNModel OUT.mnn"
    else:
        hint = did_you_mean(word, COMMANDS) or f"The commands are {', '.join(COMMANDS)}."
    raise UsageError.of("unknown-command", f"There is no command {word!r}.", hint=hint)


def _fail(out: Output, diagnostics: list[Diagnostic], code: int) -> int:
    out.diagnostics(diagnostics, code)
    return code


def _report(bug: Exception, words: list[str]) -> Diagnostic:
    from mnnconvert.cli.report import write_report

    path = write_report(bug, words)
    saved = f"Please send us {path}; nothing has been sent." if path else "The report could not be written to a file."
    return Diagnostic("internal-error", f"This is a bug of ours: {type(bug).__name__}: {bug}", hint=saved)


def _open_closed_streams() -> None:
    """Streams that the caller closed lead nowhere. Left closed, the next file would get their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115


def _mute(stream: TextIO) -> None:
    """Let what is still to be written vanish: Python flushes once more at exit, and nobody is left to read it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _unwind_when_terminated() -> None:
    """SIGTERM ends the program like an exception, so that temporary files go."""

    def stop(number: int, frame: object) -> None:
        raise Terminated

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, stop)


def _let_every_character_through() -> None:
    """Names from models and paths may hold what the terminal's encoding cannot say; escape it instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    raise SystemExit(main())
