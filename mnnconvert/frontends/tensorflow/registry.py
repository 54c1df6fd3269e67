"""The table of import rules: which function translates which TensorFlow op."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mnnconvert.frontends.tensorflow.node import TfNode
    from mnnconvert.ir import Builder

RuleFunction = Callable[["Builder", "TfNode"], Any]


@dataclass(frozen=True)
class Rule:
    """How an op is translated. `limits` says in a sentence what is refused.

    `results` are the names of its results where it has several: functions refer to them by name. `gives` is the
    element type of results that no attribute tells. `lazy`: it asks for what it needs of its operands, one by one.
    """

    op: str
    function: RuleFunction
    limits: str = ""
    results: tuple[str, ...] = ()
    gives: str = ""
    lazy: bool = False


RULES: dict[str, Rule] = {}


def tf_op(
    *names: str, limits: str = "", results: tuple[str, ...] = (), gives: str = "", lazy: bool = False
) -> Callable[[RuleFunction], RuleFunction]:
    """Register a rule: `rule(builder, node)` returns the value, or the tuple of values, of the op's results."""

    def add(function: RuleFunction) -> RuleFunction:
        for name in names:
            if name in RULES:
                raise TypeError(f"two rules for {name}")
            RULES[name] = Rule(name, function, limits, results, gives, lazy)
        return function

    return add
