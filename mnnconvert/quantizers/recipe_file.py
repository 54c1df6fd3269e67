"""Recipes as TOML files: read with every mistake named, and written so that a person can go on from there."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from mnnconvert.errors import UsageError, unreadable
from mnnconvert.quantizers.recipe import Recipe, Rule, Setting

SETTING: dict[str, type] = {"bits": int, "block": int, "symmetric": bool, "method": str, "half_scales": bool}
MATCH: dict[str, type] = {"name": str, "regex": str, "op": str, "min_bytes": int, "max_bytes": int}
RULE = MATCH | {"skip": bool} | SETTING
TOP = ("default", "rule", "embedding")


def read_recipe(path: Path, default: Setting) -> Recipe:
    """The recipe of a TOML file; what its [default] leaves open is that of `default`.

    Raises `missing-file`, `unreadable-file`, and `bad-recipe` for what is no TOML, no key of a recipe or no value of
    its kind.
    """
    return recipe_from(_parsed(path), default, str(path))


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise unreadable(path, error) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError.of("bad-recipe", f"'{path}' is no TOML: {error}", file=path) from error


def recipe_from(data: Mapping[str, Any], default: Setting, where: str) -> Recipe:
    """The recipe of parsed TOML; `where` names it in errors."""
    _check_keys(data, TOP, where)
    given = _table(data.get("default", {}), SETTING, f"{where}: [default]")
    rules = data.get("rule", [])
    if not isinstance(rules, list):
        raise UsageError.of("bad-recipe", f"{where}: rules are written as [[rule]]")
    embedding = data.get("embedding")
    if embedding is not None and (isinstance(embedding, bool) or embedding not in (0, 4, 8)):
        raise UsageError.of("bad-recipe", f"{where}: 'embedding' is 8 or 4 bits, or 0 for none, not {embedding!r}")
    made = [_rule(_table(r, RULE, f"{where}: rule {i}"), f"{where}: rule {i}") for i, r in enumerate(rules, 1)]
    return checked(where, lambda: Recipe(Setting(**{**vars(default), **given}), tuple(made), embedding=embedding))


def rule_from(text: str) -> Rule:
    """A rule as it is given on the command line: `op=Convolution,bits=8` or `name=head*,skip`. Raises `bad-recipe`."""
    where, values = f"the rule '{text}'", {}
    for part in text.split(","):
        key, equals, value = (p.strip() for p in part.partition("="))
        if key not in RULE:
            _check_keys({key: None}, RULE, where)
        values[key] = _read(RULE[key], value if equals else "true", key, where)
    return _rule(_table(values, RULE, where), where)


def _read(kind: type, text: str, key: str, where: str) -> Any:
    """The value of a key from text."""
    words = {"true": True, "1": True, "false": False, "0": False}
    if kind is bool and text.lower() in words:
        return words[text.lower()]
    if kind is int and re.fullmatch(r"\d{1,18}", text):
        return int(text)
    if kind is str:
        return text
    raise UsageError.of("bad-recipe", f"{where}: '{key}' takes {_KINDS[kind]}, not {text!r}")


_KINDS = {int: "a whole number of at least 0", bool: "true or false", str: "a text"}


def _table(table: Any, kinds: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The keys of a table, each known and of its kind."""
    if not isinstance(table, dict):
        raise UsageError.of("bad-recipe", f"{where} is no table")
    _check_keys(table, kinds, where)
    for key, value in table.items():
        if type(value) is not kinds[key] or (kinds[key] is int and value < 0):
            raise UsageError.of("bad-recipe", f"{where}: '{key}' takes {_KINDS[kinds[key]]}, not {value!r}")
    return table


def _check_keys(given: Iterable[str], known: Iterable[str], where: str) -> None:
    for key in given:
        if key not in known:
            raise UsageError.of("bad-recipe", f"{where}: there is no '{key}'", hint=f"known are {', '.join(known)}")


def _rule(table: Mapping[str, Any], where: str) -> Rule:
    try:
        re.compile(table.get("regex", ""))
    except re.error as error:
        raise UsageError.of("bad-recipe", f"{where}: '{table['regex']}' is no regular expression: {error}") from error
    match = {k: v for k, v in table.items() if k in MATCH or k == "skip"}
    changes = {k: v for k, v in table.items() if k in SETTING}
    if changes and table.get("skip"):
        raise UsageError.of("bad-recipe", f"{where} skips its layers and says how to store them")
    checked(where, lambda: Setting(**changes))
    return Rule(**match, changes=changes)


def checked(where: str, make: Any) -> Any:
    """What `make` makes; its ValueError as a diagnostic."""
    try:
        return make()
    except ValueError as error:
        raise UsageError.of("bad-recipe", f"{where}: {error}") from error


def write_recipe(recipe: Recipe, layers: Iterable[str] = ()) -> str:
    """A recipe as TOML, which reads back as the same recipe; `layers` are lines that follow as comments."""
    lines = ["# How mnnconvert stores the weights of a model. Of several rules that fit a layer, the last one counts."]
    if recipe.embedding is not None:
        lines.append(f"embedding = {recipe.embedding}")
    lines += ["", "[default]", *(_line(name, getattr(recipe.default, name)) for name in SETTING)]
    for rule in recipe.rules:
        given = {f.name: getattr(rule, f.name) for f in fields(rule) if f.name != "changes"}
        kept = {f.name: given[f.name] for f in fields(rule) if f.name in given and given[f.name] != f.default}
        lines += ["", "[[rule]]", *(_line(name, value) for name, value in (kept | rule.changes).items())]
    listed = [f"# {line}" for line in layers]
    return "\n".join([*lines, *(["", "# The layers it was used on:", *listed] if listed else []), ""])


def _line(name: str, value: object) -> str:
    """`name = value`: numbers, truths and texts are written in TOML as in JSON, but for DEL."""
    return f"{name} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f")
