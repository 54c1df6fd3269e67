"""Import rules of control flow by functions: calls, If, Case, While."""

from __future__ import annotations

from functools import partial
from typing import Any

from mnnconvert.frontends.common.compose import calc, widened
from mnnconvert.frontends.tensorflow.node import TfNode
from mnnconvert.frontends.tensorflow.registry import tf_op
from mnnconvert.frontends.tensorflow.subgraphs import Branch, Inner, Nested, conditional, run_loop
from mnnconvert.frontends.tensorflow.wire import BAD
from mnnconvert.ir import Builder, Value


@tf_op("PartitionedCall", "StatefulPartitionedCall", "RemoteCall")
def call(b: Builder, n: TfNode) -> tuple[Any, ...]:
    return tuple(n.scope.call(str(n.attr("f")), _operands(n, 0), n.name))


def _operands(n: TfNode, first: int) -> list[Any]:
    return [n.any_input(i) for i in range(first, n.input_count)]


def _branch(n: TfNode, function: str, operands: list[Any]) -> Branch:
    """A function as a branch: what it takes from outside becomes an input of its graph."""
    return lambda inner: n.scope.inner(inner.builder, function, n.name).run([inner.take(v) for v in operands])


@tf_op("If", "StatelessIf")
def if_(b: Builder, n: TfNode) -> tuple[Any, ...]:
    branches = [_branch(n, str(n.attr(f"{word}_branch")), _operands(n, 1)) for word in ("then", "else")]
    return tuple(conditional(b, n, widened_condition(b, n.input(0)), *branches))


def widened_condition(b: Builder, condition: Value) -> Value:
    """A condition as a number that is compared with 0."""
    return condition if condition.dtype.kind == "f" else widened(b, condition)


@tf_op("Case", "StatelessCase")
def case(b: Builder, n: TfNode) -> tuple[Any, ...]:
    """The branch with the given number; the last one for all other numbers."""
    functions = n.attr("branches")
    if not functions:
        raise n.refuse(f"{n.op} has no branches", reference=BAD)
    return tuple(_case(b, n, n.input(0), [_branch(n, f, _operands(n, 1)) for f in functions], 0))


def _case(b: Builder, n: TfNode, index: Value, branches: list[Branch], first: int) -> list[Any]:
    if len(branches) == 1:
        return branches[0](Inner(b, inline=True))

    def rest(inner: Inner) -> list[Any]:
        later: list[Branch] = [partial(_through, inner, branch) for branch in branches[1:]]
        return _case(inner.builder, n, inner.take(index), later, first + 1)

    return conditional(b, n, calc(b, "EQUAL", index, first), branches[0], rest)


def _through(around: Inner, branch: Branch, deeper: Inner) -> list[Any]:
    """A branch inside of another graph: what it takes goes through that."""
    return branch(Nested(deeper, around))


@tf_op("While", "StatelessWhile")
def while_(b: Builder, n: TfNode) -> tuple[Any, ...]:
    """What no turn changes is not carried but passed: constants stay constants in the body."""
    state = _operands(n, 0)
    names = {word: str(n.attr(word)) for word in ("cond", "body")}
    body = n.scope.importer.model.functions.get(names["body"])
    if body is None or len(body.results) != len(state) or len(body.arguments) != len(state):
        raise n.refuse(f"the body of {n.op} does not give what it takes", reference=BAD)
    kept = [a != r for a, r in zip(body.arguments, body.results, strict=True)]

    def all_of(inner: Inner, carried: list[Any]) -> list[Any]:
        moving = iter(carried)
        return [next(moving) if changes else inner.take(v) for v, changes in zip(state, kept, strict=True)]

    def test(inner: Inner, carried: list[Any]) -> Value:
        scope = n.scope.inner(inner.builder, names["cond"], n.name)
        return n.tensor(scope.run(all_of(inner, carried))[0])

    def turn(inner: Inner, carried: list[Any]) -> list[Any]:
        results = n.scope.inner(inner.builder, names["body"], n.name).run(all_of(inner, carried))
        return [r for r, changes in zip(results, kept, strict=True) if changes]

    made = iter(run_loop(b, n, [v for v, changes in zip(state, kept, strict=True) if changes], test, turn))
    return tuple(next(made) if changes else v for v, changes in zip(state, kept, strict=True))
