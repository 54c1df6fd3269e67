"""The table of import rules: which function translates which ONNX op from which opset on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mnnconvert.frontends.onnx.node import OnnxNode
    from mnnconvert.ir import Builder

RuleFunction = Callable[["Builder", "OnnxNode"], Any]


@dataclass(frozen=True)
class Rule:
    """How an op is translated from opset `since` on. `limits` says in a sentence what is refused."""

    op: str
    domain: str
    since: int
    function: RuleFunction
    limits: str = ""


RULES: dict[tuple[str, str], list[Rule]] = {}


def onnx_op(*names: str, since: int = 1, domain: str = "", limits: str = "") -> Callable[[RuleFunction], RuleFunction]:
    """Register a rule: `rule(builder, node)` returns the value, or the tuple of values, of the node's outputs."""

    def add(function: RuleFunction) -> RuleFunction:
        for name in names:
            rules = RULES.setdefault((domain, name), [])
            if any(r.since == since for r in rules):
                raise TypeError(f"two rules for {domain}::{name} since {since}")
            rules.append(Rule(name, domain, since, function, limits))
            rules.sort(key=lambda r: r.since)
        return function

    return add


def find(domain: str, op: str, opset: int) -> Rule | None:
    """The newest rule that is not newer than `opset`."""
    rules = [r for r in RULES.get(("" if domain == "ai.onnx" else domain, op), ()) if r.since <= opset]
    return rules[-1] if rules else None


def supported() -> Iterator[Rule]:
    """All rules, by domain, op and opset."""
    for key in sorted(RULES):
        yield from RULES[key]
