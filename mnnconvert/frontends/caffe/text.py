"""The text form of protocol buffers, as a tree: what a prototxt is written in.

Fields are looked up by name and read as what the asker takes them for, so that no table of all fields of all forks of
Caffe is needed. What stands in the text and is never asked for can be told (`Message.unread`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from mnnconvert.errors import ConversionError

BAD = "bad-caffe-file"
DEEPEST = 32  # messages inside messages
TOKEN = re.compile(
    r"""(?P<space>(?:[\s]|\#[^\n]*)+)|(?P<word>[\w.+-]+)|(?P<mark>[{}<>:;,\[\]])"""
    r"""|"(?P<double>(?:[^"\\\n]|\\.)*)"|'(?P<single>(?:[^'\\\n]|\\.)*)'"""
)
ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)")
ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
CLOSING = {"{": "}", "<": ">"}


class Token(NamedTuple):
    """A word, a mark, or (with kind "text") the content of quotes, and its line."""

    kind: str
    text: str
    line: int


@dataclass
class Message:
    """The fields of a message in order, by name: texts and messages."""

    line: int = 0
    fields: dict[str, list[str | Message]] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)

    def __contains__(self, name: str) -> bool:
        return name in self.fields

    def add(self, name: str, value: str | Message) -> None:
        self.fields.setdefault(name, []).append(value)

    def texts(self, name: str) -> list[str]:
        """All values of a field that is no message."""
        self.asked.add(name)
        values = self.fields.get(name, [])
        found = [v for v in values if isinstance(v, str)]
        if len(found) < len(values):
            raise ConversionError.of(BAD, f"'{name}' is a message where a value is meant", line=self.line)
        return found

    def text(self, name: str, default: str = "") -> str:
        """The value of a field that is given once, or not at all."""
        found = self.texts(name)
        if len(found) > 1:
            raise ConversionError.of(BAD, f"'{name}' is given {len(found)} times", line=self.line)
        return found[0] if found else default

    def messages(self, name: str) -> list[Message]:
        """All values of a field that is a message."""
        self.asked.add(name)
        values = self.fields.get(name, [])
        found = [v for v in values if isinstance(v, Message)]
        if len(found) < len(values):
            raise ConversionError.of(BAD, f"'{name}' is a value where a message is meant", line=self.line)
        return found

    def message(self, name: str) -> Message:
        """A field that is a message; one without fields where it is not there, the last one's fields after others'."""
        merged = Message(self.line)
        for found in self.messages(name):
            merged.line = found.line
            for key, values in found.fields.items():
                merged.fields.setdefault(key, []).extend(values)
        return merged

    @property
    def unread(self) -> list[str]:
        """Names of fields that nobody asked for."""
        return [name for name in self.fields if name not in self.asked]


def integer(text: str, what: str) -> int:
    """A whole number as the text form writes it (decimal, octal, hexadecimal)."""
    try:
        return int(text, 8) if re.fullmatch(r"-?0[0-7]+", text) else int(text, 0)
    except ValueError:
        raise ConversionError.of(BAD, f"{what} is '{text}', which is no whole number") from None


def number(text: str, what: str) -> float:
    """A number; `inf` and `nan` are numbers as well."""
    try:
        return float(text[:-1] if re.fullmatch(r"[\d.+-]+(e[+-]?\d+)?f", text, re.I) else text)
    except ValueError:
        raise ConversionError.of(BAD, f"{what} is '{text}', which is no number") from None


def truth(text: str, what: str) -> bool:
    """True or false in one of their spellings."""
    word = text.lower()
    if word in ("true", "t", "1"):
        return True
    if word in ("false", "f", "0"):
        return False
    raise ConversionError.of(BAD, f"{what} is '{text}', which is neither true nor false")


def parse(text: str) -> Message:
    """The tree of a text; `bad-caffe-file` with the line of what cannot be read."""
    return _Parser(text).run()


class _Parser:
    def __init__(self, text: str):
        self.tokens = _tokens(text)
        self.next = next(self.tokens)

    def run(self) -> Message:
        root = Message(1)
        self._fields(root, "", 0)
        return root

    def _take(self) -> Token:
        taken = self.next
        if taken.kind:
            self.next = next(self.tokens)
        return taken

    def _skip(self, *marks: str) -> bool:
        if self.next.kind == "mark" and self.next.text in marks:
            self._take()
            return True
        return False

    def _fields(self, message: Message, end: str, depth: int) -> None:
        """Fields up to the closing mark, or to the end of the text where that is empty."""
        if depth > DEEPEST:
            raise ConversionError.of(BAD, f"messages are nested more than {DEEPEST} deep", line=self.next.line)
        while True:
            token = self._take()
            if token.text == end and token.kind in ("mark", ""):
                return
            if token.kind != "word":
                _unexpected(token, "the name of a field")
            self._field(message, token.text, depth)
            self._skip(";", ",")

    def _field(self, message: Message, name: str, depth: int) -> None:
        colon = self._skip(":")
        if self.next.kind == "mark" and self.next.text in CLOSING:
            message.add(name, self._message(depth))
        elif not colon:
            _unexpected(self.next, f"':' or '{{' after '{name}'")
        elif self._skip("["):
            self._list(message, name, depth)
        else:
            message.add(name, self._value())

    def _message(self, depth: int) -> Message:
        opening = self._take()
        inner = Message(opening.line)
        self._fields(inner, CLOSING[opening.text], depth + 1)
        return inner

    def _list(self, message: Message, name: str, depth: int) -> None:
        while not self._skip("]"):
            opens = self.next.kind == "mark" and self.next.text in CLOSING
            message.add(name, self._message(depth) if opens else self._value())
            if not self._skip(",") and self.next.text != "]":
                _unexpected(self.next, "',' or ']'")

    def _value(self) -> str:
        token = self._take()
        if token.kind == "word":
            return token.text
        if token.kind != "text":
            _unexpected(token, "a value")
        parts = [token.text]
        while self.next.kind == "text":  # adjacent texts are one
            parts.append(self._take().text)
        return "".join(parts)


def _unexpected(token: Token, wanted: str) -> NoReturn:
    found = f"'{token.text}'" if token.kind else "the end of the file"
    raise ConversionError.of(BAD, f"line {token.line} has {found} where {wanted} is expected", line=token.line)


def _tokens(text: str) -> Iterator[Token]:
    position, line = 0, 1
    while position < len(text):
        match = TOKEN.match(text, position)
        if match is None:
            raise ConversionError.of(BAD, f"line {line} has {text[position]!r}, which cannot be read", line=line)
        if match.lastgroup in ("double", "single"):
            yield Token("text", ESCAPE.sub(_unescaped, match.group(match.lastgroup)), line)
        elif match.lastgroup != "space":
            yield Token(str(match.lastgroup), match.group(), line)
        line += match.group().count("\n")
        position = match.end()
    while True:
        yield Token("", "", line)


def _unescaped(match: re.Match[str]) -> str:
    code = match.group(1)
    if code[0] == "x" and len(code) > 1:
        return chr(int(code[1:], 16))
    return chr(int(code, 8)) if code[0] in "01234567" else ESCAPED.get(code, code)
