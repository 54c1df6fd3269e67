"""The table of import rules: which function translates which Caffe layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mnnconvert.frontends.caffe.node import CaffeNode
    from mnnconvert.ir import Builder

RuleFunction = Callable[["Builder", "CaffeNode"], Any]


@dataclass(frozen=True)
class Rule:
    """How a layer is translated. `limits` says in a sentence what is refused."""

    op: str
    function: RuleFunction
    limits: str = ""


RULES: dict[str, Rule] = {}


def caffe_op(*names: str, limits: str = "") -> Callable[[RuleFunction], RuleFunction]:
    """Register a rule: `rule(builder, node)` returns the value, or the tuple of values, of the layer's tops."""

    def add(function: RuleFunction) -> RuleFunction:
        for name in names:
            if name in RULES:
                raise TypeError(f"two rules for {name}")
            RULES[name] = Rule(name, function, limits)
        return function

    return add
