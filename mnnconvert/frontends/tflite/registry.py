"""The table of import rules: which function translates which TFLite operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mnnconvert.frontends.tflite.node import TfliteNode
    from mnnconvert.ir import Builder

RuleFunction = Callable[["Builder", "TfliteNode"], Any]


@dataclass(frozen=True)
class Rule:
    """How an operator is translated. `limits` says in a sentence what is refused.

    `moves`: it moves or picks values and makes no new ones, so that those of equal steps need no rounding. `custom`: an
    op without a number in the schema, known by its name.
    """

    op: str
    function: RuleFunction
    limits: str = ""
    moves: bool = False
    custom: bool = False


RULES: dict[tuple[str, bool], Rule] = {}


def tflite_op(
    *names: str, limits: str = "", moves: bool = False, custom: bool = False
) -> Callable[[RuleFunction], RuleFunction]:
    """Register a rule: `rule(builder, node)` returns the value, or the tuple of values, of the operator's results."""

    def add(function: RuleFunction) -> RuleFunction:
        for name in names:
            if (name, custom) in RULES:
                raise TypeError(f"two rules for {name}")
            RULES[name, custom] = Rule(name, function, limits, moves, custom)
        return function

    return add
