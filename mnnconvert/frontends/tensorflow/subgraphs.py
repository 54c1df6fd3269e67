"""Ifs and loops of the graph: what runs inside sees nothing of the outside, so that all it needs is passed to it.

What is known when the model is converted is decided then: a branch whose condition is known is put in place, and a loop
of few turns is written out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mnnconvert.frontends.common.borrowing import borrowed
from mnnconvert.frontends.common.compose import calc
from mnnconvert.frontends.common.run_time import scalar
from mnnconvert.frontends.tensorflow.node import TfNode
from mnnconvert.frontends.tensorflow.tensor_list import TensorList
from mnnconvert.ir import Builder, Graph, Spec, Value
from mnnconvert.ops.control import If, While, join, truth
from mnnconvert.ops.layout import Identity

MAX_TURNS = 64  # loops of more turns are not written out
MAX_NODES = 2048  # nor are those that would take more nodes


class Inner:
    """A graph that is run by another one, or (without a graph of its own) what is written out in place."""

    def __init__(self, builder: Builder, inline: bool = False):
        self.builder = builder
        self.inline = inline
        self.captured: dict[Value, Value] = {}  # value outside -> input of this graph

    def take(self, outer: Any) -> Any:
        """Something from outside as something of this graph: a constant that shares its data, or an input."""
        if isinstance(outer, TensorList):
            return outer.moved(self.take)
        if self.inline or not isinstance(outer, Value):
            return outer
        return borrowed(self.builder, outer, self.captured)

    def give(self, values: Sequence[Any], n: TfNode) -> None:
        """Make values the results of this graph."""
        inputs = set(self.builder.graph.inputs)
        given: set[Value] = set()
        for value in values:
            if not isinstance(value, Value):
                raise n.refuse(f"a branch of {n.op} gives a list of tensors", reference="unsupported-type")
            same = value in inputs or value in given or value.is_constant
            self.builder.output(self.builder.add(Identity(), value) if same else value)
            given.add(value)


class Nested(Inner):
    """A graph inside of another one, in the terms of what is outside of both."""

    def __init__(self, deeper: Inner, around: Inner):
        super().__init__(deeper.builder, deeper.inline)
        self._deeper, self._around = deeper, around

    def take(self, outer: Any) -> Any:
        return self._deeper.take(self._around.take(outer))


Branch = Callable[[Inner], list[Any]]


def _graph(n: TfNode, word: str) -> Inner:
    return Inner(Builder(Graph(name=n.scope.importer.graph_name(f"{n.name}/{word}"))))


def conditional(b: Builder, n: TfNode, condition: Value, then: Branch, otherwise: Branch) -> list[Any]:
    """The results of one of two branches. The condition is a single number, true where it is not 0."""
    if condition.constant is not None:
        return (then if truth(condition.constant != 0) else otherwise)(Inner(b, inline=True))
    graphs = [_graph(n, word) for word in ("then", "else")]
    for inner, branch in zip(graphs, (then, otherwise), strict=True):
        with inner.builder.at(n.name):
            inner.give(branch(inner), n)
    outer = list(dict.fromkeys(v for inner in graphs for v in inner.captured))
    for inner in graphs:
        inner.builder.graph.inputs = [inner.take(v) for v in outer]
        b.graph.subgraphs[inner.builder.graph.name] = inner.builder.graph
    names = [inner.builder.graph.name for inner in graphs]
    count = len(graphs[0].builder.graph.outputs)
    chosen = calc(b, "NOTEQUAL", scalar(b, condition), 0)
    return list(b.add(If(names[0], names[1]), chosen, *outer, names=[""] * count))


Test = Callable[[Inner, list[Any]], Value]
Turn = Callable[[Inner, list[Any]], list[Any]]


def run_loop(b: Builder, n: TfNode, state: list[Any], test: Test, turn: Turn) -> list[Any]:
    """What is carried through `turn` while `test` holds. Lists of tensors become tensors where the loop stays one."""
    written = _written_out(b, n, state, test, turn)
    return written if written is not None else _Loop(b, n, state, test, turn).build()


def _written_out(b: Builder, n: TfNode, state: list[Any], test: Test, turn: Turn) -> list[Any] | None:
    """The loop as a sequence of its turns; None where its end is not known, or far."""
    importer, inner = n.scope.importer, Inner(b, inline=True)
    before, problems, graphs = len(b.graph.nodes), len(importer.problems), set(b.graph.subgraphs)
    done = False
    for _ in range(MAX_TURNS + 1):
        condition = test(inner, state).constant
        done = condition is not None and not truth(condition)
        if done or condition is None or len(b.graph.nodes) - before > MAX_NODES:
            break
        state = turn(inner, state)
    if done:
        return state
    b.graph.remove(b.graph.nodes[before:])
    del importer.problems[problems:]
    b.graph.subgraphs = {k: g for k, g in b.graph.subgraphs.items() if k in graphs}
    return None


class _Loop:
    """A loop that stays one: a While with its condition and its body."""

    def __init__(self, b: Builder, n: TfNode, state: list[Any], test: Test, turn: Turn):
        self.b, self.n, self.test, self.turn = b, n, test, turn
        self.state = state
        self.lists = {k: s for k, s in enumerate(state) if isinstance(s, TensorList)}
        foreign = [s for s in state if not isinstance(s, Value | TensorList)]
        if foreign:
            raise n.refuse(f"{n.op} carries something that is no tensor", reference="unsupported-type")

    def build(self) -> list[Any]:
        b, n = self.b, self.n
        carried = self._tensors()
        body, results = self._settled_body([Spec(v.dtype, v.shape) for v in carried])
        check = _graph(n, "condition")
        first = body.builder.graph.inputs
        inputs = [check.builder.input(f"carried_{k}", v.dtype, v.shape) for k, v in enumerate(first)]
        with check.builder.at(n.name):
            condition = self.test(check, self._wrapped(inputs))
        outer = list(dict.fromkeys((*body.captured, *check.captured)))
        for inner, own in ((body, first), (check, inputs)):
            inner.builder.graph.inputs = [*own, *(inner.take(v) for v in outer)]
        body.give([*results, *(body.take(v) for v in outer)], n)
        check.give([condition], n)
        for inner in (body, check):
            b.graph.subgraphs[inner.builder.graph.name] = inner.builder.graph
        operands = [*carried, *outer]
        op = While(body.builder.graph.name, check.builder.graph.name)
        made = b.add(op, *operands, names=[""] * len(operands))
        return self._wrapped(made[: len(carried)])

    def _wrapped(self, values: Sequence[Value]) -> list[Any]:
        """Tensors that stand for lists as lists."""
        return [TensorList.of(v) if k in self.lists else v for k, v in enumerate(values)]

    def _tensors(self) -> list[Value]:
        """What is carried as tensors. A body that is translated to that end tells what the elements of lists are."""
        if any(not found.has_known_elements for found in self.lists.values()):
            probe = _graph(self.n, "probe")
            problems = len(self.n.scope.importer.problems)
            state = [
                probe.take(s).probing() if isinstance(s, TensorList) and not s.has_known_elements
                else _input(probe, s, k, self.b, self.n)
                for k, s in enumerate(self.state)
            ]  # fmt: skip
            with probe.builder.at(self.n.name):
                self.turn(probe, list(state))
            del self.n.scope.importer.problems[problems:]
            for k, seen in enumerate(state):
                if isinstance(seen, TensorList) and seen.seen:
                    self.lists[k].learn(seen.seen[0])
        return [s.tensor(self.b, self.n) if isinstance(s, TensorList) else s for s in self.state]

    def _settled_body(self, specs: list[Spec]) -> tuple[Inner, list[Value]]:
        """The body, for what is true of the carried values in every turn: sizes that a turn changes are not known."""
        importer, n = self.n.scope.importer, self.n
        while True:
            problems = len(importer.problems)
            body = _graph(n, "body")
            inputs = [body.builder.input(f"carried_{k}", s.dtype, s.shape) for k, s in enumerate(specs)]
            with body.builder.at(n.name):
                given = self.turn(body, self._wrapped(inputs))
                results = [r.tensor(body.builder, n) if isinstance(r, TensorList) else n.tensor(r) for r in given]
            body.builder.graph.inputs = [v for v in body.builder.graph.inputs if v in inputs]
            wrong = [k for k, (s, r) in enumerate(zip(specs, results, strict=True)) if s.dtype != r.dtype]
            if wrong:
                raise n.refuse(f"the value {wrong[0]} that {n.op} carries changes its type")
            wider = [join(s, Spec(r.dtype, r.shape)) for s, r in zip(specs, results, strict=True)]
            if [s.shape for s in wider] == [s.shape for s in specs]:
                return body, results
            del importer.problems[problems:]
            specs = wider


def _input(inner: Inner, state: Any, k: int, b: Builder, n: TfNode) -> Any:
    """A carried value as an input of a graph that is made to be looked at."""
    if isinstance(state, TensorList):
        return TensorList.of(_input(inner, state.tensor(b, n), k, b, n))
    return inner.builder.input(f"carried_{k}", state.dtype, state.shape)
