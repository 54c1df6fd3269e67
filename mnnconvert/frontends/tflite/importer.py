"""TFLite model -> graph: walks the operators, applies the import rules, reports everything that stands in the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mnnconvert.errors import ConversionError, Diagnostic, MnnConvertError
from mnnconvert.frontends.common.compose import cast
from mnnconvert.frontends.common.moves import permuted
from mnnconvert.frontends.common.signature import UniqueNames, check_names, input_shape, open_sizes
from mnnconvert.frontends.tflite import rules  # noqa: F401  (registers the rules)
from mnnconvert.frontends.tflite.model import ABSENT, BAD, SourceGraph, SourceModel, SourceOperator, SourceTensor
from mnnconvert.frontends.tflite.node import TfliteNode
from mnnconvert.frontends.tflite.registry import RULES, Rule
from mnnconvert.frontends.tflite.state import States
from mnnconvert.frontends.tflite.steps import alike, constant_of, entering, leaving, rounded, weight_of
from mnnconvert.frontends.tflite.types import graph_type, note_type, port_type
from mnnconvert.ir import F32, Builder, Graph, Shape, Value
from mnnconvert.ir.types import known, merge

DECODERS = ("DEQUANTIZE", "DENSIFY")
ACTIVATION = "ActivationFunctionType"
COMPLEX_OPS = ("RFFT2D", "REAL", "IMAG", "COMPLEX_ABS")
DEEPEST = 32  # graphs inside graphs
MOST_CALLS = 20_000  # graphs that run graphs grow exponentially
NODES_NAMED = 3  # operators named per unsupported op


class Importer:
    """Translates one model. `shapes` fixes open sizes of inputs by name, `batch` an open first size."""

    def __init__(self, model: SourceModel, shapes: Mapping[str, Shape] | None = None, batch: int = 0):
        self.model = model
        self.shapes = dict(shapes or {})
        self.batch = batch
        self.problems: list[Diagnostic] = []
        self.graph_name = UniqueNames()
        self.calls = 0  # of subgraphs
        self.static = True  # declared sizes hold: no input has an open one

    def run(self) -> Graph:
        """The graph; ConversionError with all problems when there are any."""
        self._check_ops()
        source = self.model.graphs[0]
        builder = Builder(Graph(name=source.name or "main", source="TFLITE"))
        if self.model.description:
            builder.graph.metadata = {"description": self.model.description}
        scope = Scope(self, builder, source)
        scope.states = States(scope)
        self._inputs(scope, source)
        scope.translate()
        if self.problems:
            raise ConversionError(self.problems)
        for name, index in zip(self.model.output_names(), source.outputs, strict=True):
            scope.leave(name, index)
        scope.states.leave()
        return builder.graph

    def _check_ops(self) -> None:
        missing: dict[tuple[str, bool], list[str]] = {}
        for graph in self.model.graphs:
            for operator in graph.operators:
                if (operator.name, operator.custom) not in RULES:
                    first = graph.tensors[operator.outputs[0]].name if operator.outputs else graph.name
                    missing.setdefault((operator.name, operator.custom), []).append(first)
        if missing:
            raise ConversionError(_unsupported(*key, nodes) for key, nodes in missing.items())

    def _inputs(self, scope: Scope, source: SourceGraph) -> None:
        names = self.model.input_names()
        check_names(self.shapes, names)
        declared = [open_sizes(n, source.tensors[i].shape or ()) for n, i in zip(names, source.inputs, strict=True)]
        shapes = [input_shape(n, d, self.shapes, self.batch) or () for n, d in zip(names, declared, strict=True)]
        self.static = all(known(shape) for shape in shapes)
        for name, index, shape in zip(names, source.inputs, shapes, strict=True):
            scope.enter(name, index, shape)


class Scope:
    """The tensors of one subgraph as values of one graph."""

    def __init__(self, importer: Importer, builder: Builder, source: SourceGraph, outer: tuple[SourceGraph, ...] = ()):
        self.importer = importer
        self.builder = builder
        self.source = source
        self.outer = outer  # the subgraphs that this one is run by
        self.values: dict[int, Value] = {}
        self.weights: dict[tuple[int, tuple[int, ...]], Value] = {}
        self.decoders = {
            o.outputs[0]: o.inputs[0] for o in source.operators if o.name in DECODERS and o.outputs and o.inputs
        }
        self.poisoned: set[int] = set()
        self.states: States | None = None  # of the main graph only

    def inner(self, builder: Builder, source: SourceGraph) -> Scope:
        """A scope for a subgraph whose nodes go to `builder`."""
        outer = (*self.outer, self.source)
        if any(source is graph for graph in outer):
            raise ConversionError.of(BAD, f"the subgraph '{source.name}' runs itself")
        self.importer.calls += 1
        if len(outer) > DEEPEST or self.importer.calls > MOST_CALLS:
            raise ConversionError.of(
                "too-large", f"subgraphs run each other more than {DEEPEST} deep, or {MOST_CALLS} times"
            )
        return Scope(self.importer, builder, source, outer)

    def require_states(self, node: TfliteNode) -> States:
        """The variables; refused inside of subgraphs."""
        if self.states is None:
            raise node.refuse(
                f"{node.op} inside a subgraph is not supported", hint="assign variables in the main graph"
            )
        return self.states

    def tensor(self, index: int) -> SourceTensor:
        return self.source.tensors[index]

    def value(self, index: int) -> Value:
        """The value of a tensor; a constant when it is first asked for."""
        if index not in self.values:
            tensor = self.tensor(index)
            if tensor.data is not None:
                self.values[index] = self.builder.constant(constant_of(tensor), tensor.name)
            elif tensor.variable and self.states is not None:
                self.values[index] = self.states.tensor(index)
            else:
                raise ConversionError.of(BAD, f"'{tensor.name}' is used before it is computed, or never")
        return self.values[index]

    def weight(self, b: Builder, index: int, order: tuple[int, ...], rows: int) -> Value:
        """See `TfliteNode.weight`."""
        index = self._stored_as(index)
        source = self.tensor(index)
        if source.data is None:
            return permuted(b, self.value(index), order)
        key = (index, order)
        if key not in self.weights:
            self.weights[key] = b.constant(weight_of(source, order, rows), source.name)
        return self.weights[key]

    def _stored_as(self, index: int) -> int:
        """The tensor that holds the stored form of a weight, where that is decoded by operators of its own."""
        found, seen = index, set[int]()
        while self.tensor(found).data is None and found in self.decoders and found not in seen:
            seen.add(found)
            found = self.decoders[found]
        return index if found == ABSENT or found in seen else found

    def enter(self, name: str, index: int, shape: Shape) -> Value:
        """A graph input that stands for a tensor; the value that operators see of it."""
        tensor = self.tensor(index)
        value = self.builder.input(name, port_type(tensor), shape)
        note_type(self.builder.graph, value.name, tensor, value.dtype)
        with self.builder.at(value.name):
            inner = entering(self.builder, value, tensor) if _stepped(tensor) else value
            self.values[index] = inner if inner.dtype == F32 else cast(self.builder, inner, graph_type(tensor))
        return self.values[index]

    def leave(self, name: str, index: int) -> None:
        """A tensor as a graph output, in the type of the source."""
        self.leave_value(name, self.value(index), self.tensor(index))

    def leave_value(self, name: str, value: Value, tensor: SourceTensor) -> None:
        with self.builder.at(f"{name}/codes", tensor.name):
            if _stepped(tensor) and value.dtype == F32:
                value = leaving(self.builder, value, tensor)
            elif value.dtype != F32:
                value = cast(self.builder, value, port_type(tensor))
        self.builder.output(value, name)
        note_type(self.builder.graph, name, tensor, value.dtype)

    def translate(self) -> None:
        """Apply the rule of every operator. A refused one poisons what depends on it, so that all problems show."""
        for operator in self.source.operators:
            if any(i in self.poisoned for i in operator.inputs):
                self.poisoned.update(operator.outputs)
                continue
            try:
                self._translate(operator)
            except MnnConvertError as error:
                self.importer.problems += [self._located(d, operator) for d in error.diagnostics]
                self.poisoned.update(operator.outputs)

    def run_graph(self, inputs: Sequence[Value]) -> list[Value]:
        """Translate the subgraph with `inputs` as its inputs; its outputs.

        An error without diagnostics says that a problem inside was reported already.
        """
        if len(inputs) != len(self.source.inputs):
            raise ConversionError.of(
                BAD, f"the subgraph '{self.source.name}' takes {len(self.source.inputs)} values, not {len(inputs)}"
            )
        self.values.update(zip(self.source.inputs, inputs, strict=True))
        self.translate()
        if any(i in self.poisoned for i in self.source.outputs):
            raise ConversionError(())
        return [self.value(i) for i in self.source.outputs]

    def _located(self, diagnostic: Diagnostic, operator: SourceOperator) -> Diagnostic:
        name = self.tensor(operator.outputs[0]).name if operator.outputs else operator.name
        context = {"node": name, "op": operator.name, **diagnostic.context}
        return Diagnostic(diagnostic.reference, diagnostic.message, context, diagnostic.hint)

    def _translate(self, operator: SourceOperator) -> None:
        rule = RULES[operator.name, operator.custom]
        node = TfliteNode(self, operator)
        twice = [i for i in operator.outputs if i in self.values]
        if twice:
            raise ConversionError.of(BAD, f"'{self.tensor(twice[0]).name}' is computed twice")
        self._refuse_complex(node)
        with self.builder.at(node.name):
            before = len(self.builder.graph.nodes)
            results = self._apply(rule, node)
            results = results if isinstance(results, tuple | list) else (results,)
            if len(results) < len(operator.outputs) and operator.name != "VAR_HANDLE":
                raise node.refuse(f"{node.op} has {len(operator.outputs)} results, and {len(results)} are computed")
            moves = rule.moves and node.choice("FusedActivationFunction", ACTIVATION, "NONE") in ("NONE", "RELU")
            results = [self._stored(r, i, moves, operator) for r, i in zip(results, operator.outputs, strict=False)]
        self._bind(operator.outputs, results, before)

    def _refuse_complex(self, node: TfliteNode) -> None:
        """Complex numbers are pairs of floats in the graph: only ops that know it may see them."""
        kinds = {self.tensor(i).type for i in (*node.operator.inputs, *node.operator.outputs) if i >= 0}
        if kinds & {"complex64", "complex128"} and node.op not in COMPLEX_OPS:
            raise node.refuse(f"{node.op} on complex numbers is not supported", reference="unsupported-type")

    def _apply(self, rule: Rule, node: TfliteNode) -> Any:
        """The result of a rule. What a computation with the model's own numbers says against them is its fault."""
        try:
            return rule.function(self.builder, node)
        except (ValueError, IndexError, OverflowError, ZeroDivisionError) as error:
            raise node.refuse(
                f"the operands or options of {node.op} do not fit each other: {error}", reference=BAD
            ) from error

    def _stored(self, value: Value, index: int, moves: bool, operator: SourceOperator) -> Value:
        """A result as it is stored: rounded to the steps of its tensor, unless it only was moved there."""
        tensor = self.tensor(index)
        if not _stepped(tensor) or value.dtype != F32:
            return value
        moved = [self.tensor(i) for i in operator.inputs if i >= 0 and self.tensor(i).quantized]
        if moves and all(alike(m, tensor) for m in moved):
            return value
        return rounded(self.builder, value, tensor)

    def _bind(self, indices: Sequence[int], results: Sequence[Value], before: int) -> None:
        """Bind results to their tensors; what was made since the graph had `before` nodes is called like them."""
        made = {v for n in self.builder.graph.nodes[before:] for v in n.outputs}
        for index, value in zip(indices, results, strict=False):
            name = self.tensor(index).name
            if value in made and name:
                made.discard(value)
                self.builder.names.discard(value.name)
                value.name = self.builder.unique(name)
                if value.producer is not None and value.producer.output is value:
                    value.producer.name = value.name
            self.values[index] = value
            self._complete(index, value)

    def _complete(self, index: int, value: Value) -> None:
        """Where our rule knows less than the model declares, believe the declaration."""
        declared = self.tensor(index).shape
        if self.importer.static and declared and (value.shape is None or len(value.shape) == len(declared)):
            value.spec.shape = merge(value.shape, tuple(None if d < 0 else d for d in declared))


def _stepped(tensor: SourceTensor) -> bool:
    """Whether a tensor that is computed is stored in codes."""
    return tensor.quantized and tensor.scale.size == 1 and tensor.type in ("int8", "uint8", "int16", "int4")


def _unsupported(name: str, custom: bool, nodes: Sequence[str]) -> Diagnostic:
    shown = ", ".join(nodes[:NODES_NAMED]) + (", ..." if len(nodes) > NODES_NAMED else "")
    context = {"op": name, "uses": str(len(nodes)), "nodes": shown}
    what = f"the custom operator '{name}'" if custom else name
    hint = "`mnnconvert ops --framework TFLITE` lists what is supported"
    return Diagnostic("unsupported-op", f"there is no import rule for {what}", context, hint)
