"""The text of `--help`, made from the option table and the command table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from textwrap import wrap

from mnnconvert.cli.parser import HELP, Syntax
from mnnconvert.option_types import Option

WIDTH = 100
COLUMN = 34

EXIT_CODES = (
    ("0", "done, and the written file gives the answers of the source"),
    ("1", "cannot be converted; the reasons are named"),
    ("2", "wrong usage"),
    ("3", "not accurate enough"),
    ("4", "a bug of ours; a report file is written"),
)


def command_help(syntax: Syntax) -> str:
    """Help of one command."""
    parts = [f"Usage: {syntax.usage}", syntax.summary, _options(syntax.options), _examples(syntax.examples)]
    return "\n\n".join(part for part in parts if part)


def program_help(syntax: Syntax, commands: Mapping[str, str]) -> str:
    """Help of the program: `commands` maps the name of each command to what it does."""
    parts = [
        f"Usage: {syntax.usage}\n       mnnconvert COMMAND ...",
        syntax.summary,
        _examples(syntax.examples),
        "Commands (mnnconvert COMMAND --help says more):\n" + _rows(commands.items()),
        _options(syntax.options),
        "Exit codes:\n" + _rows(EXIT_CODES),
        "Values are given as --flag value or --flag=value. Switches are given bare, =1 or =0.",
    ]
    return "\n\n".join(parts)


def _options(options: tuple[Option, ...]) -> str:
    options = (*options, HELP)
    groups = dict.fromkeys(option.group for option in options)
    sections = []
    for group in groups:
        rows = [(_spelling(option), _meaning(option)) for option in options if option.group == group]
        sections.append(f"{group or 'Options'}:\n{_rows(rows)}")
    return "\n\n".join(sections)


def _spelling(option: Option) -> str:
    metavar = "" if option.kind == "flag" else f" {option.metavar or 'VALUE'}"
    return ", ".join(option.names) + metavar


def _meaning(option: Option) -> str:
    facts = []
    if option.choices and not option.accepts:
        facts.append(" ".join(str(choice) for choice in option.choices))
    if option.kind == "flag":
        facts.extend(["on by default"] if option.default else [])
    elif option.default not in (None, (), {}):
        facts.append(f"default {option.default}")
    return option.help + (f" [{'; '.join(facts)}]" if facts else "")


def _rows(rows: Iterable[tuple[str, str]]) -> str:
    return "\n".join(line for left, right in rows for line in _row(left, right))


def _row(left: str, right: str) -> list[str]:
    """One entry: the meaning starts in its column, or on the next line when the spelling is too long."""
    first, *more = wrap(right, WIDTH - COLUMN)
    indent = " " * COLUMN
    spelling = f"  {left}"
    if len(spelling) > COLUMN - 2:
        return [spelling, indent + first, *(indent + line for line in more)]
    return [spelling.ljust(COLUMN) + first, *(indent + line for line in more)]


def _examples(examples: tuple[str, ...]) -> str:
    return "Examples:\n" + "\n".join(f"  {example}" for example in examples) if examples else ""
