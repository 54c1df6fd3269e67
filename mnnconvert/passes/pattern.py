"""Patterns that read like the maths: an ordinary function traced over placeholders, and the matcher for what it drew.

`op.Mul(x, op.Erf(y) + 1.0)` is a `Call` of a `Variable` and another `Call`. A name is a class of op, or a function of
`Unary` and `Binary` in CamelCase (`Erf`, `RealDiv` or `Div`, `SquaredDifference`). Keyword arguments constrain
attributes (a value, or a predicate); `bind="conv"` hands the matched node to `check` and `replace`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from mnnconvert.ir import Node, Operation, Value
from mnnconvert.ops.base import OPS
from mnnconvert.ops.elementwise import COMMUTATIVE, FLOAT_BINARY, INT_BINARY, UNARY

Key = tuple[str, str]  # kind of op, and its function where the kind is Unary or Binary
ALIASES = {"div": ("Binary", "REALDIV")}


def op_key(op: Operation) -> Key:
    """What an op is found by: its kind and, of a unary or binary op, its function."""
    return op.kind, op.function if op.kind in ("Unary", "Binary") else ""  # type: ignore[attr-defined]


@cache
def resolve(name: str) -> Key:
    """The key of a friendly name; AttributeError when there is no such op or function."""
    if name in OPS:
        return name, ""
    found = _functions().get(name.lower())
    if found is None:
        raise AttributeError(f"there is no op or function {name}")
    return found


@cache
def _functions() -> dict[str, Key]:
    functions = {f: ("Binary", f) for f in (*INT_BINARY, *FLOAT_BINARY)} | {f: ("Unary", f) for f in UNARY}
    return {f.replace("_", "").lower(): key for f, key in functions.items()} | ALIASES


class Pattern:
    """A value to be found. Infix arithmetic makes the pattern of the binary op."""

    def __add__(self, other: Operand) -> Call:
        return Call(("Binary", "ADD"), (self, as_pattern(other)))

    def __radd__(self, other: Operand) -> Call:
        return as_pattern(other) + self

    def __sub__(self, other: Operand) -> Call:
        return Call(("Binary", "SUB"), (self, as_pattern(other)))

    def __rsub__(self, other: Operand) -> Call:
        return as_pattern(other) - self

    def __mul__(self, other: Operand) -> Call:
        return Call(("Binary", "MUL"), (self, as_pattern(other)))

    def __rmul__(self, other: Operand) -> Call:
        return as_pattern(other) * self

    def __truediv__(self, other: Operand) -> Call:
        return Call(("Binary", "REALDIV"), (self, as_pattern(other)))

    def __rtruediv__(self, other: Operand) -> Call:
        return as_pattern(other) / self


Operand = Pattern | float


@dataclass(eq=False)
class Variable(Pattern):
    """Any value; the same name is the same value everywhere."""

    name: str

    def refuses(self, value: Value) -> str:
        """Why this value cannot be bound, or nothing."""
        return ""


class Constant(Variable):
    """A value that is a constant of the graph."""

    def refuses(self, value: Value) -> str:
        return "" if value.is_constant or value.spec.constant is not None else f"'{value.name}' is not a constant"


@dataclass(eq=False)
class Literal(Pattern):
    """A constant of one element with this value."""

    value: float


@dataclass(eq=False)
class Call(Pattern):
    """The first result of an op on exactly these operands."""

    key: Key
    operands: tuple[Pattern, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    bind: str = ""

    @property
    def commutative(self) -> bool:
        return self.key[0] == "Binary" and self.key[1] in COMMUTATIVE


@dataclass(eq=False)
class Either(Pattern):
    """Any of several patterns; the first that matches is taken."""

    choices: tuple[Pattern, ...]


def as_pattern(operand: Operand) -> Pattern:
    """A number as a literal."""
    return operand if isinstance(operand, Pattern) else Literal(float(operand))


class Tracer:
    """The `op` of a pattern function: `op.Name(...)` draws an op instead of running it."""

    def __getattr__(self, name: str) -> Callable[..., Call]:
        key = resolve(name)

        def draw(*operands: Operand, bind: str = "", **attributes: Any) -> Call:
            return Call(key, tuple(as_pattern(o) for o in operands), attributes, bind)

        return draw

    def either(self, *choices: Operand) -> Either:
        """Any of these."""
        return Either(tuple(as_pattern(c) for c in choices))

    def product(self, a: Operand, b: Operand, c: Operand) -> Either:
        """a * b * c, whichever product is taken first."""
        x, y, z = as_pattern(a), as_pattern(b), as_pattern(c)
        return Either((x * (y * z), y * (x * z), z * (x * y)))


@dataclass(frozen=True)
class Match:
    """What a pattern was found to be: values and nodes by name, and all nodes in it."""

    bound: dict[str, Any]
    nodes: tuple[Node, ...]


class Matcher:
    """Finds the ways in which a pattern ends at a node, and remembers how far the best failed attempt came.

    Literals match within the relative tolerance `rtol`, and only where the rank of the result cannot hide in them.
    """

    def __init__(self, rtol: float):
        self.rtol = rtol
        self.depth = 0  # nodes matched by the best failed attempt, and why it failed
        self.reason = ""
        self._bound: dict[str, Any] = {}
        self._nodes: dict[Call, Node] = {}
        self._scalars_only = False

    def matches(self, pattern: Call, node: Node) -> Iterator[Match]:
        """Every match of `pattern` whose last node is `node`."""
        self.depth, self.reason = 0, ""
        self._scalars_only = node.output.shape is None
        for _ in self._call(pattern, node.output):
            yield Match(dict(self._bound), tuple(dict.fromkeys(self._nodes.values())))

    def fail(self, reason: str, depth: int | None = None) -> None:
        """Take note of a failure; the deepest, and of equals the latest, is kept."""
        depth = len(self._nodes) if depth is None else depth
        if depth >= self.depth:
            self.depth, self.reason = depth, reason

    def _value(self, pattern: Pattern, value: Value) -> Iterator[None]:
        if isinstance(pattern, Call):
            yield from self._call(pattern, value)
        elif isinstance(pattern, Variable):
            yield from self._variable(pattern, value)
        elif isinstance(pattern, Literal):
            if self._equal(pattern.value, value):
                yield
        elif isinstance(pattern, Either):
            for choice in pattern.choices:
                yield from self._value(choice, value)

    def _variable(self, pattern: Variable, value: Value) -> Iterator[None]:
        bound = self._bound.get(pattern.name)
        if bound is None:
            reason = pattern.refuses(value)
            if reason:
                self.fail(reason)
                return
            self._bound[pattern.name] = value
            yield
            del self._bound[pattern.name]
        elif bound is value:
            yield
        else:
            self.fail(f"'{value.name}' is not '{bound.name}'")

    def _equal(self, wanted: float, value: Value) -> bool:
        if (value.producer is not None and value.spec.constant is None) or value.spec.shape is None:
            self.fail(f"'{value.name}' is not the constant {wanted:g}")
            return False
        single = math.prod(d if isinstance(d, int) else 0 for d in value.spec.shape) == 1
        if not single or value.constant is None or (self._scalars_only and value.spec.shape):
            self.fail(f"'{value.name}' is not a single number")
            return False
        found = float(value.constant.reshape(-1)[0])
        if not math.isclose(found, wanted, rel_tol=self.rtol):
            self.fail(f"'{value.name}' is {found:g}, not {wanted:g}")
            return False
        return True

    def _call(self, pattern: Call, value: Value) -> Iterator[None]:
        node = value.producer
        if pattern in self._nodes:
            if self._nodes[pattern] is node:
                yield
            return
        if node is None or op_key(node.op) != pattern.key or node.output is not value:
            self.fail(f"'{value.name}' is not made by {pattern.key[1] or pattern.key[0]}")
            return
        if not self._attributes(pattern, node) or not self._producers(pattern, node):
            return
        self._nodes[pattern] = node
        if pattern.bind:
            self._bound[pattern.bind] = node
        for values in _orders(pattern, node):
            yield from self._operands(pattern.operands, values)
        self._bound.pop(pattern.bind, None)
        del self._nodes[pattern]

    def _attributes(self, pattern: Call, node: Node) -> bool:
        for name, wanted in pattern.attributes.items():
            found = getattr(node.op, name)
            if not (wanted(found) if callable(wanted) else found == wanted):
                self.fail(f"'{node.name}' has {name} {found!r}")
                return False
        if node.op.kind == "Binary" and node.op.activation and "activation" not in pattern.attributes:  # type: ignore[attr-defined]
            self.fail(f"'{node.name}' has an activation")
            return False
        if len(node.inputs) != len(pattern.operands):
            self.fail(f"'{node.name}' has {len(node.inputs)} operands")
            return False
        return True

    def _producers(self, pattern: Call, node: Node) -> bool:
        """Whether the operands that the pattern draws as ops are made by these: most candidates fail here, cheaply."""
        keys = [None if v.producer is None else op_key(v.producer.op) for v in node.inputs]
        for drawn, value, key in zip(pattern.operands, node.inputs, keys, strict=True):
            if isinstance(drawn, Call) and (drawn.key not in keys if pattern.commutative else drawn.key != key):
                self.fail(f"'{value.name}' is not made by {drawn.key[1] or drawn.key[0]}", len(self._nodes) + 1)
                return False
        return True

    def _operands(self, patterns: tuple[Pattern, ...], values: list[Value]) -> Iterator[None]:
        if not patterns:
            yield
            return
        for _ in self._value(patterns[0], values[0]):
            yield from self._operands(patterns[1:], values[1:])


def _orders(pattern: Call, node: Node) -> list[list[Value]]:
    if pattern.commutative and node.inputs[0] is not node.inputs[1]:
        return [node.inputs, node.inputs[::-1]]
    return [node.inputs]
