"""Import rules of control flow and state.

A condition that is known when the model is converted chooses its branch then. The rest becomes If and While, whose
graphs get what they need as inputs. Variables are the matter of `state.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from mnnconvert.frontends.tflite.model import ABSENT, BAD, SourceGraph
from mnnconvert.frontends.tflite.node import TfliteNode
from mnnconvert.frontends.tflite.registry import tflite_op
from mnnconvert.frontends.tflite.state import variable_names
from mnnconvert.ir import Builder, Graph, Spec, Value
from mnnconvert.ops.control import If, While, join, truth
from mnnconvert.ops.layout import Identity


def subgraph(n: TfliteNode, option: str) -> SourceGraph:
    """The subgraph whose number an option holds."""
    graphs, index = n.scope.importer.model.graphs, int(n.option(option, -1))
    if not 0 < index < len(graphs):
        raise n.refuse(f"{n.op} runs the subgraph {index} of {len(graphs)}", reference=BAD)
    return graphs[index]


def _translated(n: TfliteNode, source: SourceGraph, specs: Sequence[Spec], name: str) -> Graph:
    """A subgraph as a graph of its own, for inputs of which this is known."""
    b = Builder(Graph(name=n.scope.importer.graph_name(name)))
    scope = n.scope.inner(b, source)
    inputs = [b.input(f"operand_{i}", s.dtype, s.shape) for i, s in enumerate(specs)]
    for value in scope.run_graph(inputs):
        b.output(b.add(Identity(), value) if value in inputs or value.is_constant else value)
    return b.graph


@tflite_op("IF")
def if_(b: Builder, n: TfliteNode) -> tuple[Value, ...]:
    condition, operands = n.constant(0), [n.input(i) for i in range(1, n.input_count)]
    branches = [subgraph(n, f"{w}SubgraphIndex") for w in ("Then", "Else")]
    if condition is not None:
        chosen = branches[0 if truth(condition) else 1]
        return tuple(n.scope.inner(b, chosen).run_graph(operands))
    specs = [Spec(v.dtype, v.shape) for v in operands]
    names = []
    for source, word in zip(branches, ("then", "else"), strict=True):
        graph = _translated(n, source, specs, f"{n.name}/{word}")
        b.graph.subgraphs[graph.name] = graph
        names.append(graph.name)
    return b.add(If(names[0], names[1]), n.input(0), *operands, names=[""] * n.output_count)


@tflite_op("WHILE")
def while_(b: Builder, n: TfliteNode) -> tuple[Value, ...]:
    """The carried values are known to a turn as far as no turn changes that: their sizes may have to be forgotten."""
    condition, body = subgraph(n, "CondSubgraphIndex"), subgraph(n, "BodySubgraphIndex")
    state = n.inputs
    specs = [Spec(v.dtype, v.shape) for v in state]
    while True:
        problems = len(n.scope.importer.problems)
        made = _translated(n, body, specs, f"{n.name}/body")
        results = [Spec(v.dtype, v.shape) for _, v in made.outputs]
        wider = [join(s, r) for s, r in zip(specs, results, strict=True)]
        if [s.shape for s in wider] == [s.shape for s in specs]:
            break
        del n.scope.importer.problems[problems:]
        specs = wider
    test = _translated(n, condition, specs, f"{n.name}/condition")
    for graph in (made, test):
        b.graph.subgraphs[graph.name] = graph
    return b.add(While(made.name, test.name), *state, names=[""] * len(state))


@tflite_op("VAR_HANDLE")
def var_handle(b: Builder, n: TfliteNode) -> tuple[Value, ...]:
    """A handle is no value: whoever reads or assigns by it looks its name up."""
    return ()


@tflite_op("READ_VARIABLE", moves=True)
def read_variable(b: Builder, n: TfliteNode) -> Value:
    return n.scope.require_states(n).read(n.operator.inputs[0], n.operator.outputs[0])


@tflite_op("ASSIGN_VARIABLE")
def assign_variable(b: Builder, n: TfliteNode) -> tuple[Value, ...]:
    n.scope.require_states(n).assign(n.operator.inputs[0], n.operator.inputs[1])
    return ()


@tflite_op("CALL_ONCE", limits="a subgraph that assigns constants to variables")
def call_once(b: Builder, n: TfliteNode) -> tuple[Value, ...]:
    """What the initializing subgraph assigns is what variables start with."""
    source = subgraph(n, "InitSubgraphIndex")
    names = variable_names(source)
    for operator in source.operators:
        if operator.name == "VAR_HANDLE":
            continue
        handle, value = (*operator.inputs, ABSENT, ABSENT)[:2]
        known = operator.name == "ASSIGN_VARIABLE" and handle in names and value != ABSENT
        if not known or source.tensors[value].data is None:
            raise n.refuse(f"the initializing subgraph runs {operator.name} on something computed")
        n.scope.require_states(n).start(names[handle], source.tensors[value].array())
    return ()


@tflite_op("CALL")
def call(b: Builder, n: TfliteNode) -> tuple[Value, ...]:
    return tuple(n.scope.inner(b, subgraph(n, "Subgraph")).run_graph(n.inputs))
