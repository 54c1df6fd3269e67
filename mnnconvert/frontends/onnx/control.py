"""Import rules of control flow: If, Loop and Scan.

What is known when the model is converted is not left to run time: a branch whose condition is known is put in place,
and a loop of few turns is written out. The rest becomes If and While, whose graphs get every value from outside as an
input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mnnconvert.frontends.onnx.node import OnnxNode, ValueList
from mnnconvert.frontends.onnx.registry import onnx_op
from mnnconvert.ir import I32, Builder, Graph, Spec, Value
from mnnconvert.ir.types import normal_axis
from mnnconvert.ops.arrange import Pack, Reverse
from mnnconvert.ops.control import If, While, join, truth
from mnnconvert.ops.elementwise import Binary
from mnnconvert.ops.gather import GatherV2
from mnnconvert.ops.shape import Permute, ShapeOf, Squeeze

MAX_TURNS = 64  # loops of more turns are not written out
MAX_NODES = 2048  # nor are those that would take more nodes
ENDLESS = 1 << 30  # the number of turns where a loop has no limit

# Translates one turn into a scope: (scope, number of the turn, condition, carried) -> [condition, carried..., scans...]
Turn = Callable[[Any, Value, Value, list[Value]], list[Value]]


@onnx_op("If", limits="branches that give sequences, unless the condition is known")
def if_(b: Builder, n: OnnxNode) -> Any:
    condition = n.constant(0)
    branches = n.attr("then_branch"), n.attr("else_branch")
    if condition is not None:
        chosen = branches[0 if truth(condition) else 1]
        return tuple(n.scope.inline(chosen).run_graph(chosen, []))
    scopes = [
        n.scope.subgraph(g, n.scope.importer.graph_name(f"{n.name}/{w}"))
        for g, w in zip(branches, ("then", "else"), strict=True)
    ]
    results = [s.run_graph(g, []) for s, g in zip(scopes, branches, strict=True)]
    for scope, values in zip(scopes, results, strict=True):
        _give(n, scope.builder, values)
    outer = list(dict.fromkeys(v for s in scopes for v in s.captured))
    for scope in scopes:
        scope.builder.graph.inputs = [scope.take(v) for v in outer]
        b.graph.subgraphs[scope.builder.graph.name] = scope.builder.graph
    names = [s.builder.graph.name for s in scopes]
    return b.add(If(names[0], names[1]), n.input(0), *outer, names=[""] * len(results[0]))


def _give(n: OnnxNode, b: Builder, values: Sequence[Any]) -> None:
    """Make values the outputs of a subgraph."""
    for value in values:
        if isinstance(value, ValueList):
            raise n.refuse(
                f"a graph of {n.op_type} gives a sequence; MNN's graphs give tensors", reference="unsupported-type"
            )
        b.output(value)


@onnx_op("Loop", limits="carried sequences, unless the turns are few and known")
def loop(b: Builder, n: OnnxNode) -> Any:
    body = n.attr("body")
    limit = n.constant(0)
    turns: Value | int = ENDLESS
    if limit is not None:
        turns = min(int(limit.reshape(-1)[0]), ENDLESS)
    elif n.has(0):
        turns = n.input(0)
    carried: list[Any] = [n.any_input(i) for i in range(2, len(n.proto.input))]

    def turn(scope: Any, i: Value, condition: Value, state: list[Value]) -> list[Value]:
        return list(scope.run_graph(body, [i, condition, *state]))

    return run_loop(b, n, turns, n.optional(1), carried, turn, body)


@onnx_op("Scan", since=9)
def scan(b: Builder, n: OnnxNode) -> Any:
    body, count = n.attr("body"), n.attr("num_scan_inputs")
    inputs = n.inputs
    carried, whole = inputs[: len(inputs) - count], inputs[len(inputs) - count :]
    axes, backwards = (n.attr(f"scan_input_{a}", (0,) * count) for a in ("axes", "directions"))
    rows = [_rows_first(b, n, x, axis, back) for x, axis, back in zip(whole, axes, backwards, strict=True)]
    results = _scan_rows(b, n, body, carried, rows)
    scans = results[len(carried) :]
    axes, backwards = (n.attr(f"scan_output_{a}", (0,) * len(scans)) for a in ("axes", "directions"))
    placed = [_rows_at(b, n, y, axis, back) for y, axis, back in zip(scans, axes, backwards, strict=True)]
    return (*results[: len(carried)], *placed)


def _scan_rows(b: Builder, n: OnnxNode, body: Any, carried: list[Value], rows: list[Value]) -> tuple[Value, ...]:
    """A loop over the rows of all of `rows`."""

    def turn(scope: Any, i: Value, condition: Value, state: list[Value]) -> list[Value]:
        row = [scope.builder.add(GatherV2(0), scope.take(x), i) for x in rows]
        return [condition, *scope.run_graph(body, [*state, *row])]

    return run_loop(b, n, turns_over(b, rows[0]), None, carried, turn, body)


@onnx_op("Scan", since=8, limits="the batch must be known, and all sequences whole")
def scan_of_batch(b: Builder, n: OnnxNode) -> Any:
    """Before opset 9: every operand has a batch on axis 0 and its rows on axis 1, and is scanned entry by entry."""
    body, count = n.attr("body"), n.attr("num_scan_inputs")
    operands = [n.input(i) for i in range(1, len(n.proto.input))]
    carried = len(operands) - count
    batch = operands[0].shape[0] if operands and operands[0].shape else None
    if n.has(0) or not isinstance(batch, int):
        raise n.refuse("Scan of opset 8 needs a known batch, and no sequence_lens")
    n.limited(batch, len(body.node))
    backwards = n.attr("directions", (0,) * count)
    entries = []
    for i in range(batch):
        entry = [b.add(GatherV2(0), x, b.ints(i)) for x in operands]
        rows = [_rows_first(b, n, x, 0, back) for x, back in zip(entry[carried:], backwards, strict=True)]
        entries.append(_scan_rows(b, n, body, entry[:carried], rows))
    return tuple(b.add(Pack(0), *column) for column in zip(*entries, strict=True))


def turns_over(b: Builder, x: Value) -> Value | int:
    """The size of axis 0, as a number where it is known."""
    size = x.shape[0] if x.shape else None
    return size if isinstance(size, int) else b.add(GatherV2(0), b.add(ShapeOf(), x), b.ints(0))


def _rows_first(b: Builder, n: OnnxNode, x: Value, axis: int, backwards: int) -> Value:
    """`x` with `axis` in front, turned around where it is walked backwards."""
    if axis != 0:
        if x.rank is None:
            raise n.refuse("the rank of a scanned value is not known")
        axis = normal_axis(axis, x.rank)
        x = b.add(Permute((axis, *(a for a in range(x.rank) if a != axis))), x)
    return b.add(Reverse(), x, b.ints([0])) if backwards else x


def _rows_at(b: Builder, n: OnnxNode, y: Value, axis: int, backwards: int) -> Value:
    """Rows that are stacked on axis 0, on `axis` instead."""
    y = b.add(Reverse(), y, b.ints([0])) if backwards else y
    if axis == 0:
        return y
    if y.rank is None:
        raise n.refuse("the rank of a scan output that does not lie on axis 0 is not known")
    axis = normal_axis(axis, y.rank)
    order = list(range(1, y.rank))
    order.insert(axis, 0)
    return b.add(Permute(tuple(order)), y)


def run_loop(
    b: Builder,
    n: OnnxNode,
    turns: Value | int,
    condition: Value | None,
    carried: list[Value],
    turn: Turn,
    body: Any = None,
) -> tuple[Value, ...]:
    """A loop in the sense of ONNX: the final carried values and the stacked scan outputs of `turn`.

    `body` is the GraphProto, if any, that lends its initializers to the scopes in which `turn` works.
    """
    start = condition if condition is not None else b.ints(1)
    if isinstance(turns, int) and start.constant is not None:
        written = _written_out(b, n, turns, start, carried, turn, body)
        if written is not None:
            return written
    return _Loop(b, n, turns, start, carried, turn, body).build()


def _written_out(
    b: Builder, n: OnnxNode, turns: int, condition: Value, state: list[Value], turn: Turn, body: Any
) -> tuple[Value, ...] | None:
    """The loop as a sequence of its turns; None where its end is not known, or far."""
    before, problems, graphs = len(b.graph.nodes), len(n.scope.importer.problems), set(b.graph.subgraphs)
    rows: list[list[Value]] = []
    while len(rows) < turns and condition.constant is not None and truth(condition.constant):
        if len(rows) == MAX_TURNS or (len(b.graph.nodes) - before) * min(turns, MAX_TURNS) > MAX_NODES * max(
            1, len(rows)
        ):
            break
        condition, *results = turn(n.scope.inline(body), b.ints(len(rows)), condition, state)
        state, row = results[: len(state)], results[len(state) :]
        rows.append(row)
    done = len(rows) >= turns or (condition.constant is not None and not truth(condition.constant))
    if not done or not rows:
        b.graph.remove(b.graph.nodes[before:])
        del n.scope.importer.problems[problems:]
        b.graph.subgraphs = {k: g for k, g in b.graph.subgraphs.items() if k in graphs}
        return None
    return (*state, *(b.add(Pack(0), *column) for column in zip(*rows, strict=True)))


class _Loop:
    """A loop that stays one: a While with its body, inside an If where it may end before the first turn.

    The released runtime ends on a While with scan outputs that makes no turn.
    """

    def __init__(
        self, b: Builder, n: OnnxNode, turns: Value | int, condition: Value, carried: list[Value], turn: Turn, body: Any
    ):
        self.b, self.n, self.turn, self.body = b, n, turn, body
        self.limit = turns if isinstance(turns, Value) else b.ints(turns)
        self.condition = condition
        if any(isinstance(v, ValueList) for v in carried):
            raise n.refuse(
                "the loop carries a sequence, and how often it turns is not known", reference="unsupported-type"
            )
        self.carried = carried
        self.count = len(carried)

    def build(self) -> tuple[Value, ...]:
        scope, outputs = self._settled_body()
        graph = scope.builder.graph
        for value in (*outputs[: 1 + self.count], *scope.captured.values(), *outputs[1 + self.count :]):
            _give(self.n, scope.builder, [value])
        operands = [self.limit, self.condition, *self.carried, *scope.captured]
        scans = outputs[1 + self.count :]
        runs = self._runs()
        if runs is False:
            return (*self.carried, *(self.b.constant(_no_rows(v)) for v in scans))
        if not scans or runs:
            self.b.graph.subgraphs[graph.name] = graph
            results = self.b.add(While(graph.name), *operands, names=[""] * (len(operands) - 2 + len(scans)))
        else:
            results = self._guarded(graph, operands, scans)
        return (*results[: self.count], *results[len(operands) - 2 :])

    def _runs(self) -> bool | None:
        """Whether it makes a turn, as far as that is known."""
        known = [v.constant for v in (self.limit, self.condition)]
        if any(c is not None and not truth(c) for c in known):
            return False
        return None if any(c is None for c in known) else True

    def _settled_body(self) -> tuple[Any, list[Value]]:
        """The body, for what is true of the carried values in every turn: sizes that a turn changes are not known."""
        importer, name = self.n.scope.importer, self.n.scope.importer.graph_name(f"{self.n.name}/body")
        specs = [Spec(v.dtype, v.shape) for v in self.carried]
        while True:
            problems = len(importer.problems)
            scope = self.n.scope.subgraph(self.body, name)
            outputs = self._translated(scope, specs)
            results = outputs[1 : 1 + self.count]
            wider = [join(s, Spec(v.dtype, v.shape)) for s, v in zip(specs, results, strict=True)]
            if [s.shape for s in wider] == [s.shape for s in specs]:
                return scope, outputs
            del importer.problems[problems:]
            specs = wider

    def _translated(self, scope: Any, specs: Sequence[Spec]) -> list[Value]:
        b: Builder = scope.builder
        i, condition = b.input("turn", I32, ()), b.input("condition", I32, self.condition.shape)
        state = [b.input(f"carried_{k}", s.dtype, s.shape) for k, s in enumerate(specs)]
        with b.at(self.n.name):
            outputs = [_kept(b, v, i) for v in self.turn(scope, i, condition, state)]
        for k, (spec, value) in enumerate(zip(specs, outputs[1:], strict=False)):
            if isinstance(value, ValueList) or value.dtype != spec.dtype:
                raise self.n.refuse(
                    f"the value {k} that the loop carries is {spec.dtype} before it and {value.dtype} after a turn"
                )
        return outputs

    def _guarded(self, body: Graph, operands: list[Value], scans: list[Value]) -> tuple[Value, ...]:
        """The loop if it makes a turn at all, else the values it starts from and scan outputs without a row."""
        b, n = self.b, self.n
        count = len(operands) - 2
        names = [n.scope.importer.graph_name(f"{n.name}/{suffix}") for suffix in ("turns", "no_turn")]
        inner = [Builder(Graph(name=name)) for name in names]
        inputs = [[g.input(v.name, v.dtype, v.shape) for v in operands] for g in inner]
        inner[0].graph.subgraphs[body.name] = body
        results = inner[0].add(While(body.name), *inputs[0], names=[""] * (count + len(scans)))
        _give(n, inner[0], results)
        _give(n, inner[1], inputs[1][2:])
        _give(n, inner[1], [inner[1].constant(_no_rows(v)) for v in scans])
        for g in inner:
            b.graph.subgraphs[g.graph.name] = g.graph
        some = b.add(Binary("GREATER"), self.limit, b.ints(0))
        runs = b.add(Binary("MUL"), some, _scalar(b, self.condition))
        return b.add(If(names[0], names[1]), runs, *operands, names=[""] * (count + len(scans)))


VIEWS = {"Identity", "Reshape", "Squeeze", "Unsqueeze", "ExpandDims", "Flatten", "Permute", "Transpose", "Cast"}


def _kept(b: Builder, result: Value, turn: Value) -> Value:
    """A result that is the number of the turn itself, computed anew: the released runtime counts in place."""
    source = result
    while isinstance(source, Value) and source.producer is not None and source.producer.op.kind in VIEWS:
        source = source.producer.inputs[0]
    return b.add(Binary("MAXIMUM"), result, b.ints(0)) if source is turn and result.dtype == I32 else result


def _scalar(b: Builder, x: Value) -> Value:
    """A condition of one element as a scalar."""
    return x if x.rank in (0, None) else b.add(Squeeze(tuple(range(x.rank or 0))), x)


def _no_rows(row: Value) -> np.ndarray:
    """The stack of no rows like `row`; sizes that are not known are 0."""
    return np.zeros((0, *(d if isinstance(d, int) else 0 for d in row.shape or ())), row.dtype)
