"""The rewriting engine: rules with a pattern, a condition and a replacement, applied until none fits any more.

The engine keeps promises so that no rule repeats them. Commutative ops match in either order. Inner values with readers
outside the match, that are graph outputs or that are operands of the pattern as well, block it. The replacement has the
type of what it replaces. Names of results survive, origins are merged. Every sweep is linear in the graph.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, get_type_hints

import numpy as np

from mnnconvert.errors import ConversionError
from mnnconvert.ir import Builder, Graph, Node, Operation, Value
from mnnconvert.ir.types import F32, format_shape, merge
from mnnconvert.ops.base import OPS
from mnnconvert.passes.base import GraphPass, Notes, same_type, unlink
from mnnconvert.passes.pattern import (
    Call,
    Constant,
    Either,
    Key,
    Match,
    Matcher,
    Pattern,
    Tracer,
    Variable,
    op_key,
    resolve,
)

LITERAL_RTOL = (
    1e-6  # float32 keeps a literal to 6e-8; exporters write constants such as sqrt(2) with seven digits or more
)
SWEEPS = 16  # a rule set that still fires after so many walks over the graph is left where it is
MISSES_KEPT = 5  # near misses that are reported of each rule and graph


class Maker:
    """The `op` of a replacement: `op.Name(...)` adds a node; numbers become constants of the others' type."""

    def __init__(self, builder: Builder):
        self.builder = builder

    def __getattr__(self, name: str) -> Callable[..., Any]:
        kind, function = resolve(name)

        def make(*operands: Value | float, **attributes: Any) -> Any:
            return self.add(OPS[kind](*([function] if function else []), **attributes), *operands)

        return make

    def add(self, op: Operation, *operands: Value | float, name: str = "") -> Any:
        """Apply an op instance; its result is named after the place unless `name` is given."""
        dtype = next((o.dtype for o in operands if isinstance(o, Value)), F32)
        values = [o if isinstance(o, Value) else self.builder.constant(np.asarray(o, dtype)) for o in operands]
        return self.builder.add(op, *values, name=name)

    def constant(self, content: Any, name: str = "") -> Value:
        """A constant from a tensor or array."""
        return self.builder.constant(content, name)


class Rule:
    """A rewrite. The parameters of `pattern` after `op` are the placeholders.

    `check` and `replace` name those they need; they may also ask for bound nodes (`bind="..."`) and for `root`, the
    last node of the match.
    """

    rtol: ClassVar[float] = LITERAL_RTOL  # relative tolerance of the literals in the pattern

    def pattern(self, *operands: Any, **more: Any) -> Pattern:
        """What to find, drawn with `op` and placeholders (a parameter annotated `Constant` takes constants only)."""
        raise NotImplementedError(type(self).__name__)

    def check(self, *bound: Any, **more: Any) -> str | None:
        """Why a match is left alone, or None."""
        return None

    def replace(self, *bound: Any, **more: Any) -> Any:
        """The value (or values) to use instead; None leaves the match alone."""
        raise NotImplementedError(type(self).__name__)


@dataclass(frozen=True)
class _Prepared:
    """A rule with its traced pattern, one per alternative root."""

    rule: Rule
    root: Call
    size: int
    check: tuple[str, ...]
    replace: tuple[str, ...]


@cache
def _prepare(cls: type[Rule]) -> list[_Prepared]:
    """The rule ready to run, once for each op that its pattern may end with."""
    rule = cls()
    hints = get_type_hints(cls.pattern)
    names = list(inspect.signature(rule.pattern).parameters)[1:]
    drawn = rule.pattern(Tracer(), *((Constant if hints.get(n) is Constant else Variable)(n) for n in names))
    parameters = [tuple(inspect.signature(f).parameters) for f in (rule.check, rule.replace)]
    check = () if "bound" in parameters[0] else parameters[0]
    return [_Prepared(rule, root, _size(root, set()), check, parameters[1][1:]) for root in _roots(drawn)]


def _roots(pattern: Pattern) -> list[Call]:
    if isinstance(pattern, Either):
        return [root for choice in pattern.choices for root in _roots(choice)]
    if not isinstance(pattern, Call):
        raise TypeError("a pattern ends with an op")
    return [pattern]


def _size(pattern: Pattern, seen: set[Pattern]) -> int:
    """The number of ops in a pattern, in its first alternative."""
    if pattern in seen:
        return 0
    seen.add(pattern)
    if isinstance(pattern, Either):
        return _size(pattern.choices[0], seen)
    return 1 + sum(_size(o, seen) for o in pattern.operands) if isinstance(pattern, Call) else 0


@dataclass(frozen=True)
class Miss:
    """A place where a rule nearly fitted: how many of its ops were found, and what was wrong with the next one."""

    rule: str
    node: str
    depth: int
    reason: str

    def __str__(self) -> str:
        return f"{self.rule} at '{self.node}': {self.reason}"


@dataclass
class Outcome:
    """What a set of rules did to a graph."""

    fired: int = 0
    misses: list[Miss] = field(default_factory=list)
    settled: bool = True


class Rewriter:
    """One set of rules at work on one graph."""

    def __init__(self, rules: Iterable[type[Rule]], graph: Graph):
        self.graph = graph
        self.builder = Builder(graph)
        self.builder.graph = Graph()  # new nodes are collected apart, then put in the place of the old
        self.index: dict[Key, list[_Prepared]] = {}
        for prepared in (p for cls in rules for p in _prepare(cls)):  # type: ignore[arg-type]
            self.index.setdefault(prepared.root.key, []).append(prepared)
        self.outputs = graph.output_values
        self.dead: set[Node] = set()
        self.fresh: dict[Node, list[Node]] = {}
        self.misses: list[Miss] = []

    def run(self) -> Outcome:
        """Sweep until nothing fires."""
        fired = 0
        for _ in range(SWEEPS):
            now = self._sweep()
            fired += now
            if not now:
                return Outcome(fired, _closest(self.misses))
        return Outcome(fired, _closest(self.misses), settled=False)

    def _sweep(self) -> int:
        fired = 0
        self.misses = []
        for node in self.graph.nodes:
            candidates = self.index.get(op_key(node.op), ()) if len(node.outputs) == 1 else ()
            fired += node not in self.dead and any(self._try(prepared, node) for prepared in candidates)
        if fired:
            self._commit()
        return fired

    def _try(self, prepared: _Prepared, node: Node) -> bool:
        matcher = Matcher(prepared.rule.rtol)
        for match in matcher.matches(prepared.root, node):
            reason = self._escape(match, node) or self._apply(prepared, match, node)
            if not reason:
                return True
            matcher.fail(reason, prepared.size)
        if matcher.depth * 2 > prepared.size or (matcher.depth == prepared.size):
            self.misses.append(Miss(type(prepared.rule).__name__, node.name, matcher.depth, matcher.reason))
        return False

    def _escape(self, match: Match, root: Node) -> str:
        """Why an inner value cannot go away, or nothing."""
        inside, bound = set(match.nodes), {id(v) for v in match.bound.values()}
        for node in match.nodes:
            if node is root:
                continue
            for value in node.outputs:
                if value in self.outputs:
                    return f"'{value.name}' is an output of the graph"
                if id(value) in bound or any(u not in inside and u not in self.dead for u in value.users):
                    return f"'{value.name}' has other readers"
        return ""

    def _apply(self, prepared: _Prepared, match: Match, root: Node) -> str:
        """Replace the match; returns why not, or nothing."""
        bound = {"root": root, **match.bound}
        reason = prepared.rule.check(*(bound.get(n) for n in prepared.check))
        if reason:
            return reason
        scratch = self.builder.graph.nodes = []
        with self.builder.at(root.name, *_origins(match)):
            try:
                result = prepared.rule.replace(Maker(self.builder), *(bound.get(n) for n in prepared.replace))
            except ConversionError as error:
                reason = error.diagnostics[0].message
        if not reason:
            reason = "there is nothing to replace it with" if result is None else _mismatch(root.output, result)
        if reason:
            _discard(scratch)
            return reason
        self._substitute(root, result, match, scratch)
        return ""

    def _substitute(self, root: Node, new: Value, match: Match, made: list[Node]) -> None:
        old = root.output
        self.dead.update(match.nodes)
        new.steps = new.steps or old.steps
        if new.producer in made:
            new.spec.shape = merge(new.shape, old.shape)
            new.name = old.name
            new.producer.name = root.name
        self.fresh[root] = made
        self.graph.replace_value(old, new)
        if old in self.outputs:
            self.outputs.discard(old)
            self.outputs.add(new)

    def _commit(self) -> None:
        """Put new nodes in the places of the last nodes of their matches and take out the old."""
        self.graph.nodes = [m for n in self.graph.nodes for m in (*self.fresh.get(n, ()), n)]
        unlink(self.graph, self.dead)
        self.dead, self.fresh = set(), {}
        self.graph.prune()


def _origins(match: Match) -> tuple[str, ...]:
    """The source nodes of all matched nodes, in the order of computation."""
    return tuple(dict.fromkeys(o for node in reversed(match.nodes) for o in node.origin))


def _discard(nodes: list[Node]) -> None:
    for node in nodes:
        for value in node.inputs:
            value.users.remove(node)


def _mismatch(old: Value, new: Value) -> str:
    if same_type(old.spec, new.spec):
        return ""
    return f"the replacement is {new.dtype}{format_shape(new.shape)} instead of {old.dtype}{format_shape(old.shape)}"


def _closest(misses: list[Miss]) -> list[Miss]:
    """The misses that came furthest, a few of each rule."""
    by_rule: dict[str, list[Miss]] = {}
    for miss in sorted(misses, key=lambda m: -m.depth):
        kept = by_rule.setdefault(miss.rule, [])
        if len(kept) < MISSES_KEPT:
            kept.append(miss)
    return [m for kept in by_rule.values() for m in kept]


def apply(rules: type[Rule] | Iterable[type[Rule]], graph: Graph) -> Outcome:
    """Apply rules to one graph, to a fixed point."""
    return Rewriter([rules] if isinstance(rules, type) else rules, graph).run()


class RewritePass(GraphPass):
    """A pass that is a set of rules."""

    rules: ClassVar[tuple[type[Rule], ...]]

    def change(self, graph: Graph, notes: Notes) -> int:
        outcome = apply(self.rules, graph)
        notes.misses += [str(m) for m in outcome.misses]
        if not outcome.settled:
            notes.notes.append(f"stopped after {SWEEPS} sweeps that each changed something")
        return outcome.fired
