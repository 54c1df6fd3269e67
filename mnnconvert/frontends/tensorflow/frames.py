"""Import rules of the first generation of control flow, in which conditions and loops are wired from single nodes.

A cond is a Merge of what Switches on one predicate let through. A while loop is a frame: values come in by Enter, stand
at a Merge before each turn, are let on by a Switch on the LoopCond, go around by NextIteration and leave by Exit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mnnconvert.frontends.common.compose import calc, cast
from mnnconvert.frontends.tensorflow.control import widened_condition
from mnnconvert.frontends.tensorflow.model import SourceGraph, SourceNode
from mnnconvert.frontends.tensorflow.node import TfNode
from mnnconvert.frontends.tensorflow.ports import place
from mnnconvert.frontends.tensorflow.registry import tf_op
from mnnconvert.frontends.tensorflow.subgraphs import Inner, conditional, run_loop
from mnnconvert.frontends.tensorflow.wire import BAD
from mnnconvert.ir import I32, Builder, Value

SWITCHES, MERGES, ENTERS = ("Switch", "RefSwitch"), ("Merge", "RefMerge"), ("Enter", "RefEnter")


@dataclass
class Variable:
    """One value that a loop carries: the nodes that it goes through."""

    enter: SourceNode
    merge: SourceNode
    next: str  # what goes around
    switch: str = ""


@dataclass
class Frame:
    """A while loop of a graph."""

    variables: list[Variable] = field(default_factory=list)
    constants: list[SourceNode] = field(default_factory=list)  # Enter nodes of what stays as it is
    condition: str = ""


def frames_of(graph: SourceGraph) -> dict[str, Frame]:
    """All loops of a graph by the name of their frame."""
    frames: dict[str, Frame] = {}
    nodes = graph.nodes
    merged: dict[str, Variable] = {}
    for node in nodes.values():
        if node.op in MERGES and len(node.operands) == 2:
            enter, back = (nodes.get(place(i)[0]) for i in node.operands)
            if enter is not None and enter.op in ENTERS and back is not None and back.op.endswith("NextIteration"):
                merged[node.name] = Variable(enter, node, back.operands[0])
    for node in nodes.values():
        if node.op in SWITCHES and place(node.operands[0])[0] in merged:
            variable = merged[place(node.operands[0])[0]]
            variable.switch = node.name
            test = nodes.get(place(node.operands[1])[0])
            if test is not None and test.op == "LoopCond":
                frames.setdefault(variable.enter.text("frame_name"), Frame()).condition = test.operands[0]
    carried = {v.enter.name for v in merged.values()}
    for variable in merged.values():
        frames.setdefault(variable.enter.text("frame_name"), Frame()).variables.append(variable)
    for node in nodes.values():
        if node.op in ENTERS and node.name not in carried:
            frames.setdefault(node.text("frame_name"), Frame()).constants.append(node)
    return frames


Cut = Any  # a node as something else: (scope, node) -> results


def _fixed(*results: Any) -> Cut:
    return lambda scope, n: results


def _taken(inner: Inner, n: TfNode, reference: str, count: int = 1) -> Cut:
    """A node as what it lets in from outside."""
    return lambda scope, _: (inner.take(n.scope.fetch([reference])[0]),) * count


@tf_op("Exit", "RefExit", lazy=True)
def exit_(b: Builder, n: TfNode) -> Any:
    """What a loop carries at its end. The loop is translated when the first of its Exits is."""
    switch = place(n.reference(0))[0]
    frames = n.scope.importer.frames(n.scope.source)
    names = [name for name, f in frames.items() if any(v.switch == switch for v in f.variables)]
    if not names or not frames[names[0]].condition:
        raise n.refuse("an Exit does not belong to a loop", reference=BAD)
    frame, name = frames[names[0]], names[0]
    entered = [n.scope.get(v.enter.operands[0]) for v in frame.variables]
    for constant in frame.constants:
        n.scope.get(constant.operands[0])
    if name not in n.scope.loops:
        results = _run(b, n, frame, entered)
        n.scope.loops[name] = {v.switch: r for v, r in zip(frame.variables, results, strict=True)}
    return n.scope.loops[name][switch]


def _run(b: Builder, n: TfNode, frame: Frame, entered: list[Any]) -> list[Any]:
    """The loop over what its variables start with."""

    def cuts(inner: Inner, carried: list[Any]) -> dict[str, Cut]:
        made = {c.name: _taken(inner, n, c.operands[0]) for c in frame.constants}
        for variable, value in zip(frame.variables, carried, strict=True):
            made[variable.merge.name] = _fixed(value, None)
            made[variable.switch] = _fixed(value, value)
        return made

    def test(inner: Inner, carried: list[Any]) -> Value:
        scope = n.scope.within(inner.builder, cuts(inner, carried))
        return n.tensor(scope.fetch([frame.condition])[0])

    def turn(inner: Inner, carried: list[Any]) -> list[Any]:
        scope = n.scope.within(inner.builder, cuts(inner, carried))
        return scope.fetch([v.next for v in frame.variables])

    return run_loop(b, n, entered, test, turn)


@tf_op("Switch", "RefSwitch", results=("output_false", "output_true"), lazy=True)
def switch(b: Builder, n: TfNode) -> tuple[Any, Any]:
    """With a known predicate both ways lead on: only the right one is followed (see `merge`)."""
    data, predicate = n.any_input(0), n.input(1)
    if predicate.constant is None:
        raise n.refuse("a Switch on a predicate that only a run knows is read without a Merge")
    return data, data


@tf_op("Merge", "RefMerge", results=("output", "value_index"), gives="T int32", lazy=True)
def merge(b: Builder, n: TfNode) -> tuple[Any, Value]:
    """The value of the branch that its predicate chooses."""
    graph = n.scope.source
    found = [_switch_of(n, graph, reference) for reference in n.source.inputs if not reference.startswith("^")]
    predicates = {_origin(graph, place_of(node.operands[1])) for node, _ in found}
    if len(found) != 2 or {port for _, port in found} != {0, 1} or len(predicates) != 1:
        raise n.refuse("a Merge does not join the two branches of one predicate")
    predicate = n.tensor(n.scope.get(found[0][0].operands[1]))
    no, yes = sorted(range(2), key=lambda i: found[i][1])
    if predicate.constant is not None:
        chosen = yes if predicate.constant.reshape(-1)[0] else no
        return n.any_input(chosen), b.ints(chosen)
    switches = [
        node for node in graph.nodes.values()
        if node.op in SWITCHES and _origin(graph, place_of(node.operands[1])) in predicates
    ]  # fmt: skip

    def branch(index: int) -> Any:
        def run(inner: Inner) -> list[Any]:
            cuts = {s.name: _taken(inner, n, s.operands[0], 2) for s in switches}
            return n.scope.within(inner.builder, cuts).fetch([n.reference(index)])

        return run

    result = conditional(b, n, widened_condition(b, predicate), branch(yes), branch(no))[0]
    return result, calc(b, "NOTEQUAL" if yes else "EQUAL", cast(b, predicate, I32), 0)


def place_of(reference: str) -> str:
    return place(reference)[0]


def _origin(graph: SourceGraph, name: str) -> str:
    """The node behind Identities."""
    for _ in range(len(graph.nodes)):
        node = graph.nodes.get(name)
        if node is None or node.op != "Identity" or not node.operands:
            break
        name = place_of(node.operands[0])
    return name


def _switch_of(n: TfNode, graph: SourceGraph, reference: str) -> tuple[SourceNode, int]:
    """The Switch that lets a value of a branch through, and by which of its ways: the first that is met going back.

    A Merge on the way is the end of a branch within, whose Switch does not count; a loop is stepped over.
    """
    frames = {v.switch: f for f in n.scope.importer.frames(graph).values() for v in f.variables}
    todo, seen = [(reference, 0)], set[tuple[str, int]]()
    for reference, depth in todo:
        name, port = place(reference.removeprefix("^"))
        node = graph.nodes.get(name)
        if node is None or (reference, depth) in seen:
            continue
        seen.add((reference, depth))
        if node.op.endswith("Exit") and place_of(node.operands[0]) in frames:
            frame = frames[place_of(node.operands[0])]
            todo += [(e.operands[0], depth) for e in (*frame.constants, *(v.enter for v in frame.variables))]
        elif node.op in SWITCHES and depth == 0:
            return node, int(port in ("1", "output_true:0"))
        else:
            step = -1 if node.op in SWITCHES else int(node.op in MERGES)
            todo += [(i, depth + step) for i in (node.inputs[:1] if step < 0 else node.inputs)]
    raise n.refuse("a Merge joins something that no Switch lets through")


@tf_op("Enter", "RefEnter", "NextIteration", "RefNextIteration", "LoopCond", lazy=True)
def part_of_loop(b: Builder, n: TfNode) -> Any:
    """Read from outside of their loop; inside they mean what is carried."""
    raise n.refuse(f"{n.op} is read outside of its loop", reference=BAD)
