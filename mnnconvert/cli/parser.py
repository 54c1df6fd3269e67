"""Command-line words to values: any order, `--flag value` or `--flag=value`, every mistake reported at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mnnconvert.errors import Diagnostic, UsageError
from mnnconvert.option_types import FALSE_WORDS, TRUE_WORDS, Option, did_you_mean

HELP = Option("--help", "help", "flag", "show this text", "Output", False, short="-h")


@dataclass(frozen=True)
class Syntax:
    """What a command accepts: `words` are its files in order; those after the first `required` may be left out."""

    usage: str
    summary: str
    options: tuple[Option, ...]
    words: tuple[str, ...] = ()
    required: int = 0
    examples: tuple[str, ...] = ()


@dataclass
class Arguments:
    """The values that were given, by option field, and the words that belong to no option."""

    syntax: Syntax
    values: dict[str, object] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)

    def __getitem__(self, name: str) -> object:
        """The value of an option, or its default."""
        if name in self.values:
            return self.values[name]
        return next(option.default for option in self.syntax.options if option.field == name)

    def text(self, name: str) -> str | None:
        value = self[name]
        return None if value is None else str(value)

    def number(self, name: str) -> int:
        value = self[name]
        assert isinstance(value, int)
        return value

    def real(self, name: str) -> float:
        value = self[name]
        assert isinstance(value, int | float)
        return float(value)

    def texts(self, name: str) -> tuple[str, ...]:
        value = self[name]
        return value if isinstance(value, tuple) else ()

    def word(self, position: int) -> str | None:
        return self.words[position] if position < len(self.words) else None


def parse(argv: Sequence[str], syntax: Syntax) -> Arguments:
    """Read `argv`; UsageError lists every unknown, repeated, unreadable or missing word."""
    reader = _Reader(list(argv), syntax)
    reader.read_all()
    reader.check_ranges()
    reader.check_words()
    if reader.problems:
        raise UsageError(reader.problems)
    return reader.arguments


def wants_help(argv: Sequence[str]) -> bool:
    return any(word in HELP.names for word in argv)


def peek_flag(argv: Sequence[str], *names: str) -> bool:
    """Whether a bare-or-boolean flag is on, before (and even if never) the whole line can be read."""
    for position, word in enumerate(argv):
        name, _, value = word.partition("=")
        if name in names:
            following = argv[position + 1] if position + 1 < len(argv) else ""
            return (value or following).lower() not in FALSE_WORDS
    return False


class _Reader:
    """One pass over the words, from left to right."""

    def __init__(self, argv: list[str], syntax: Syntax):
        self.argv = argv
        self.position = 0
        self.names = {name: option for option in syntax.options for name in option.names}
        self.arguments = Arguments(syntax)
        self.problems: list[Diagnostic] = []

    def read_all(self) -> None:
        while self.position < len(self.argv):
            word = self.argv[self.position]
            self.position += 1
            if word.startswith("-") and word != "-":
                self._read_option(word)
            else:
                self.arguments.words.append(word)

    def _read_option(self, word: str) -> None:
        name, equals, value = word.partition("=")
        option = self.names.get(name)
        if option is None:
            self._unknown(name)
            return
        given = value if equals else self._following(option)
        if not given:
            self._no_value(name, option)
            return
        try:
            self._store(option, option.read(given))
        except UsageError as error:
            self.problems.extend(error.diagnostics)

    def _unknown(self, name: str) -> None:
        self._problem("unknown-option", f"There is no option {name}.", _nearest(name, list(self.names)))
        # Its value, if it has one, would only be reported as a stray word on top.
        if self.position < len(self.argv) and not self.argv[self.position].startswith("-"):
            self.position += 1

    def _no_value(self, name: str, option: Option) -> None:
        dashed = self._blocked() and self.argv[self.position].partition("=")[0] not in self.names
        hint = f"Write {name}=VALUE when the value starts with a dash." if dashed else ""
        self.position += dashed
        self._problem("missing-value", f"{name} needs a value: {option.takes()}.", hint)

    def _following(self, option: Option) -> str:
        """The value in the next word; a flag takes it only where it is a literal 0, 1, true or false."""
        following = self.argv[self.position] if self.position < len(self.argv) else ""
        if option.kind == "flag":
            if following.lower() not in TRUE_WORDS + FALSE_WORDS:
                return "true"
        elif self._blocked():
            return ""
        self.position += 1
        return following

    def _blocked(self) -> bool:
        """Whether the next word looks like an option (a negative number does not)."""
        following = self.argv[self.position] if self.position < len(self.argv) else ""
        return following.startswith("-") and not following[1:2].isdigit() and following != "-"

    def _store(self, option: Option, value: object) -> None:
        values = self.arguments.values
        if option.field not in values:
            values[option.field] = value
            return
        before = values[option.field]
        if isinstance(before, tuple) and isinstance(value, tuple):
            values[option.field] = before + value
        elif isinstance(before, dict) and isinstance(value, dict):
            for name in before.keys() & value.keys():
                self._problem("repeated-option", f"{option.flag} gives {name!r} twice.", "Keep the one you mean.")
            values[option.field] = before | value
        else:
            self._problem("repeated-option", f"{option.flag} is given twice.", "Keep the one you mean.")

    def check_ranges(self) -> None:
        for option in self.arguments.syntax.options:
            problem = option.range_problem(self.arguments.values.get(option.field))
            if problem is not None:
                self.problems.append(problem)

    def check_words(self) -> None:
        syntax, words = self.arguments.syntax, self.arguments.words
        for name in syntax.words[len(words) : syntax.required]:
            self._problem("missing-word", f"{name} is missing.", f"Usage: {syntax.usage}")
        for word in words[len(syntax.words) :]:
            self._problem("unexpected-word", f"{word!r} belongs to no option.", f"Usage: {syntax.usage}")

    def _problem(self, reference: str, message: str, hint: str = "") -> None:
        self.problems.append(Diagnostic(reference, message, hint=hint))


def _nearest(name: str, known: list[str]) -> str:
    """The nearest option, letters compared without their dashes so that -modelFile finds --modelFile."""
    bare = {option.lstrip("-"): option for option in known}
    hint = did_you_mean(name.lstrip("-"), bare)
    near = hint.removeprefix("Did you mean ").removesuffix("?")
    return f"Did you mean {bare[near]}?" if near else "mnnconvert --help lists all."
