"""ONNX model -> graph: walks the nodes, applies the import rules, reports everything that stands in the way at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from mnnconvert.errors import ConversionError, Diagnostic, MnnConvertError
from mnnconvert.frontends.common.borrowing import borrowed
from mnnconvert.frontends.common.signature import UniqueNames, check_names, input_shape
from mnnconvert.frontends.common.tensors import INT32_MAX, to_graph_type
from mnnconvert.frontends.onnx import functions, rules  # noqa: F401  (registers the rules)
from mnnconvert.frontends.onnx.node import OnnxNode, ValueList
from mnnconvert.frontends.onnx.registry import RULES, Rule, find
from mnnconvert.frontends.onnx.signature import faults, float_operands
from mnnconvert.frontends.onnx.source_types import result_types
from mnnconvert.frontends.onnx.tensors import NAMES, graph_type, tensor_of
from mnnconvert.ir import Builder, Dim, Graph, Shape, Tensor, Value
from mnnconvert.ir.types import add, merge
from mnnconvert.ops.plugin import load_plugins

UNNAMED = ("", "?", "-1", "None", "unk", "unknown")  # placeholders that exporters write for any open size
BAD = "bad-onnx-node"
DEEPEST = 100  # functions inside functions
MOST_CALLS = 20_000  # functions that call functions grow exponentially
NODES_NAMED = 3  # nodes named per unsupported op


class Importer:
    """Translates one model. `shapes` fixes input shapes by name, `batch` an open first size.

    `tensors` is the content of initializers of the main graph that do not hold it themselves.
    """

    def __init__(
        self,
        model: Any,
        folder: Path,
        shapes: Mapping[str, Shape] | None = None,
        batch: int = 0,
        tensors: Mapping[str, Tensor] | None = None,
    ):
        self.model = model
        self.folder = folder
        self.shapes = dict(shapes or {})
        self.batch = batch
        self.tensors = dict(tensors or {})
        self.opsets = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in model.opset_import}
        self.functions = {(f.domain, f.name): f for f in model.functions}
        self.problems: list[Diagnostic] = []
        self.graph_name = UniqueNames()
        self.calls = 0  # of functions

    def run(self) -> Graph:
        """The graph; ConversionError with all problems when there are any."""
        self._check_opsets()
        self._check_ops()
        proto = self.model.graph
        builder = Builder(Graph(name=proto.name))
        builder.graph.metadata = {p.key: p.value for p in self.model.metadata_props}
        scope = Scope(self, builder, proto.initializer, proto.sparse_initializer)
        scope.tensors.update(self.tensors)
        scope.declare(proto)
        check_names(self.shapes, [i.name for i in proto.input])
        for info in proto.input:
            if info.name not in scope.initializers:
                self._input(scope, info)
        scope.translate(proto.node)
        if self.problems:
            raise ConversionError(self.problems)
        self._outputs(scope, proto)
        return builder.graph

    def _check_opsets(self) -> None:
        wrong = [f"{d or 'ai.onnx'} {v}" for d, v in self.opsets.items() if not 0 < v <= INT32_MAX]
        if wrong:
            raise ConversionError.of("bad-onnx-file", f"there is no opset {', '.join(wrong)}")

    def _check_ops(self) -> None:
        missing: dict[tuple[str, str, int], list[str]] = {}
        for node, opsets in self._all_nodes(self.model.graph.node, self.opsets):
            domain = "" if node.domain == "ai.onnx" else node.domain
            opset = opsets.get(domain, 1)
            if (node.domain, node.op_type) not in self.functions and not _is_supported(domain, node.op_type, opset):
                missing.setdefault((domain, node.op_type, opset), []).append(node.name or "/".join(node.output))
        if missing and load_plugins():
            self._check_ops()
        elif missing:
            raise ConversionError(_unsupported(*key, nodes) for key, nodes in missing.items())

    def _all_nodes(self, nodes: Iterable[Any], opsets: Mapping[str, int]) -> Iterator[tuple[Any, Mapping[str, int]]]:
        """Every node of a graph, its subgraphs and the functions it calls, with the opsets in force there."""
        called: set[tuple[str, str]] = set()
        stack = [(n, opsets) for n in nodes]
        while stack:
            node, current = stack.pop()
            yield node, current
            for attribute in node.attribute:
                graphs = [attribute.g] if attribute.type == 5 else attribute.graphs
                stack += [(n, current) for g in graphs for n in g.node]
            function = self.functions.get((node.domain, node.op_type))
            if function is not None and (node.domain, node.op_type) not in called:
                called.add((node.domain, node.op_type))
                inner = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in function.opset_import}
                stack += [(n, {**current, **inner}) for n in function.node]

    def _input(self, scope: Scope, info: Any) -> None:
        elem_type = _elem_type(info)
        shape = input_shape(info.name, _shape(info), self.shapes, self.batch)
        value = scope.builder.input(info.name, graph_type(elem_type, info.name), shape)
        scope.values[info.name] = value
        _note_type(scope.builder.graph, info.name, elem_type, value.dtype)

    def _outputs(self, scope: Scope, proto: Any) -> None:
        for info in proto.output:
            value = scope.value(info.name)
            if isinstance(value, ValueList):
                raise ConversionError.of(
                    "unsupported-type", f"the output '{info.name}' is a sequence; MNN returns tensors"
                )
            scope.builder.output(value, info.name)
            if info.type.WhichOneof("value") == "tensor_type" and _elem_type(info):
                _note_type(scope.builder.graph, info.name, _elem_type(info), value.dtype)


class Scope:
    """The names that a list of nodes sees: a graph, the body of a function or of a loop."""

    def __init__(
        self,
        importer: Importer,
        builder: Builder,
        initializers: Iterable[Any] = (),
        sparse: Iterable[Any] = (),
        opsets: Mapping[str, int] | None = None,
        parent: Scope | None = None,
    ):
        self.importer = importer
        self.builder = builder
        self.initializers = {t.name: t for t in initializers}
        for tensor in sparse:
            raise ConversionError.of("unsupported-type", f"'{tensor.values.name}' is a sparse tensor")
        self.opsets = opsets or importer.opsets
        self.parent = parent
        self.calls: tuple[Any, ...] = parent.calls if parent is not None else ()  # the functions this is the body of
        self.values: dict[str, Value] = {}
        self.tensors: dict[str, Tensor] = {}
        self.declared: dict[str, Any] = {}
        self.types: dict[str, str] = {}  # source element types of results
        self.poisoned: set[str] = set()

    def declare(self, proto: Any) -> None:
        """Take note of declared types and shapes; they complete what the rules cannot know."""
        self.declared = {i.name: i for i in (*proto.input, *proto.output, *proto.value_info)}

    def value(self, name: str) -> Value:
        """The value of an ONNX name; an initializer becomes a constant when it is first asked for."""
        if name in self.values:
            return self.values[name]
        tensor = self.source_tensor(name)
        if tensor is not None and name in self.initializers:
            self.values[name] = self.builder.constant(to_graph_type(tensor, name), name)
            return self.values[name]
        if self.parent is not None:
            return self.parent.value(name)
        raise ConversionError.of("bad-onnx-file", f"'{name}' is used before it is computed, or never")

    def source_tensor(self, name: str) -> Tensor | None:
        """The stored tensor of an initializer in its source element type, or None."""
        if name in self.values and name not in self.initializers:
            return None
        if name in self.initializers:
            if name not in self.tensors:
                self.tensors[name] = tensor_of(self.initializers[name], self.importer.folder)
            return self.tensors[name]
        return self.parent.source_tensor(name) if self.parent is not None else None

    def constant(self, name: str) -> np.ndarray | None:
        """The content of a name, in its source type for an initializer."""
        tensor = self.source_tensor(name)
        return tensor.numpy() if tensor is not None else self.value(name).constant

    def source_type(self, name: str) -> str:
        """The source element type of a name: as declared, as the op that makes it has it, or that of its value."""
        if name in self.initializers:
            return NAMES.get(self.initializers[name].data_type, "")
        known = _declared_type(self.declared.get(name)) or self.types.get(name)
        if known:
            return known
        if name in self.values or self.parent is None:
            return str(self.value(name).dtype)
        return self.parent.source_type(name)

    def attribute(self, proto: Any) -> Any:
        """The value of an attribute."""
        kind = proto.type
        if kind == 4:
            return tensor_of(proto.t, self.importer.folder).numpy()
        if kind == 5:
            return proto.g
        plain = {1: proto.f, 2: proto.i, 6: tuple(proto.floats), 7: tuple(proto.ints)}
        if kind in plain:
            return plain[kind]
        if kind == 3:
            return proto.s.decode("utf-8", "replace")
        if kind == 8:
            return tuple(s.decode("utf-8", "replace") for s in proto.strings)
        raise ConversionError.of(
            "unsupported-attribute", f"the attribute '{proto.name}' has a type that is not supported"
        )

    def translate(self, nodes: Sequence[Any]) -> None:
        """Apply the rule of every node. A refused node poisons what depends on it, so that all problems are found."""
        for proto in nodes:
            if any(self.is_poisoned(name) for name in proto.input):
                self.poisoned.update(proto.output)
                continue
            try:
                self._translate(proto)
            except MnnConvertError as error:
                self.importer.problems += [_located(d, proto) for d in error.diagnostics]
                self.poisoned.update(proto.output)

    def is_poisoned(self, name: str) -> bool:
        """Whether a name, of this scope or of one around it, could not be computed."""
        if not name or name in self.poisoned or name in self.values or name in self.initializers or self.parent is None:
            return name in self.poisoned
        return self.parent.is_poisoned(name)

    def run_graph(self, proto: Any, inputs: Sequence[Any]) -> list[Any]:
        """Translate a GraphProto in this scope with `inputs` as its inputs; its outputs.

        An error without diagnostics says that a problem inside was reported already.
        """
        self.declare(proto)
        if len(inputs) != len(proto.input):
            raise ConversionError.of(
                "bad-onnx-file", f"the graph '{proto.name}' takes {len(proto.input)} values, not {len(inputs)}"
            )
        self.values.update(zip((i.name for i in proto.input), inputs, strict=True))
        self.translate(proto.node)
        if any(self.is_poisoned(o.name) for o in proto.output):
            raise ConversionError(())
        return [self.value(o.name) for o in proto.output]

    def inline(self, proto: Any = None) -> Scope:
        """A scope whose nodes go into the same graph, for a GraphProto (or rule) that is known to run."""
        return Scope(self.importer, self.builder, *_tensors(proto), self.opsets, self)

    def subgraph(self, proto: Any, name: str) -> SubgraphScope:
        """A scope whose nodes go into a graph of their own, called `name`."""
        return SubgraphScope(self.importer, Builder(Graph(name=name)), *_tensors(proto), self.opsets, self)

    def take(self, outer: Value) -> Value:
        """A value of the scope around this one, as one of this scope's graph."""
        return outer

    def _translate(self, proto: Any) -> None:
        twice = [name for name in proto.output if name in self.values or name in self.initializers]
        if twice:
            raise ConversionError.of("bad-onnx-file", f"'{twice[0]}' is computed twice")
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        function = self.importer.functions.get((proto.domain, proto.op_type))
        if function is not None:
            self._call(function, proto)
            return
        opset = self.opsets.get(domain, 1)
        node = OnnxNode(self, proto, opset)
        wrong = [*faults(proto, domain, opset), *self._mistyped(proto, domain, opset)]
        if wrong:
            raise node.refuse(f"{proto.op_type} of opset {opset} is not used right: {'; '.join(wrong)}", reference=BAD)
        rule = find(domain, proto.op_type, opset)
        if rule is None and functions.is_function(domain, proto.op_type, opset):
            types = [self._type_of(name) for name in proto.input]
            self._call(
                functions.body(proto, domain, opset, types), proto, functions.defaults(domain, proto.op_type, opset)
            )
            return
        if rule is None:
            raise ConversionError(_unsupported(domain, proto.op_type, opset, [proto.name]))
        first = next((o for o in proto.output if o), proto.op_type)
        with self.builder.at(first, *dict.fromkeys((proto.name or first, first))):
            before = len(self.builder.graph.nodes)
            result = self._apply(rule, node)
        self._bind(proto, result if isinstance(result, tuple | list) else (result,), before)
        self.types.update(zip(proto.output, result_types(proto, domain, opset, self.source_type), strict=False))

    def _mistyped(self, proto: Any, domain: str, opset: int) -> Iterator[str]:
        """Integers where the standard takes floats only. (Codes of quantized values may be floats here.)"""
        for name, floats in zip(proto.input, float_operands(proto.op_type, domain, opset), strict=False):
            if name and floats and self.source_type(name).startswith(("int", "uint", "bool")):
                yield f"the operand '{name}' is {self.source_type(name)}, not a float"

    def _apply(self, rule: Rule, node: OnnxNode) -> Any:
        """The result of a rule. What a computation with the model's own numbers says against them is the model's fault.

        A mistake of ours shows as another kind of exception (a type, a name, a key), which goes through.
        """
        try:
            return rule.function(self.builder, node)
        except (ValueError, IndexError, OverflowError, ZeroDivisionError) as error:
            raise node.refuse(
                f"the operands or attributes of {node.op_type} do not fit each other: {error}",
                hint="if onnxruntime accepts the model, this is our bug: please report it",
                reference=BAD,
            ) from error

    def _bind(self, proto: Any, results: Sequence[Value | None], before: int) -> None:
        """Give the results of a node their ONNX names; all that are asked for have to be there."""
        self._name(proto.output, results, before)
        missing = [
            n for n, v in zip(proto.output, [*results, *[None] * len(proto.output)], strict=False) if n and v is None
        ]
        if missing:
            raise ConversionError.of(
                "unsupported-attribute", f"the output '{missing[0]}' of {proto.op_type} is not supported"
            )

    def _name(self, names: Sequence[str], results: Sequence[Value | None], before: int) -> None:
        """Bind names to values; one that was made since the graph had `before` nodes is called so, too."""
        made = {v for n in self.builder.graph.nodes[before:] for v in n.outputs}
        for name, value in zip(names, results, strict=False):
            if not name or value is None:
                continue
            if value in made:
                made.discard(value)
                self._rename(value, name)
            self.values[name] = value
            self._complete(name, value)

    def _rename(self, value: Value, name: str) -> None:
        producer = value.producer
        self.builder.names.discard(value.name)
        value.name = self.builder.unique(name)
        if producer is not None and producer.output is value:
            producer.name = value.name

    def _complete(self, name: str, value: Value) -> None:
        """Where our rule knows less than the model declares, believe the declaration."""
        info = self.declared.get(name)
        if info is not None and not isinstance(value, ValueList) and info.type.WhichOneof("value") == "tensor_type":
            shape = _shape(info)
            if shape is not None and (value.shape is None or len(value.shape) == len(shape)):
                value.spec.shape = merge(value.shape, tuple(d if isinstance(d, int) else None for d in shape))

    def _type_of(self, name: str) -> functions.TypeOf:
        return (self.source_type(name), self.value(name).shape) if name else ("", None)

    def _call(self, function: Any, proto: Any, standard: Mapping[str, Any] | None = None) -> None:
        """Expand a function of the model, or of the ONNX standard (then with its default attributes), in place."""
        self._count_call(function)
        opsets = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in function.opset_import}
        defaults = {**(standard or {}), **{a.name: a for a in function.attribute_proto}}
        attributes = {**defaults, **{a.name: a for a in proto.attribute}}
        inner = Scope(self.importer, self.builder, opsets={**self.opsets, **opsets}, parent=self)
        inner.calls = (*self.calls, (function.domain, function.name))
        inner.declared = {i.name: i for i in function.value_info}
        for formal, actual in zip(function.input, proto.input, strict=False):
            if actual:
                inner.values[formal] = self.value(actual)
                inner.types[formal] = self.source_type(actual)
        absent = {formal for formal in function.input if formal not in inner.values}
        before = len(self.builder.graph.nodes)
        inner.translate([functions.instance(node, attributes, absent) for node in function.node])
        results: list[Value | None] = []
        for formal, actual in zip(function.output, proto.output, strict=False):
            given = actual and formal not in inner.poisoned
            results.append(inner.value(formal) if given else None)
            if given:
                self.types[actual] = inner.source_type(formal)
            elif actual:
                self.poisoned.add(actual)
        self._name(proto.output, results, before)

    def _count_call(self, function: Any) -> None:
        if (function.domain, function.name) in self.calls:
            raise ConversionError.of("bad-onnx-file", f"the function '{function.name}' calls itself")
        self.importer.calls += 1
        if len(self.calls) >= DEEPEST or self.importer.calls > MOST_CALLS:
            raise ConversionError.of(
                "too-large", f"functions call each other more than {DEEPEST} deep, or {MOST_CALLS} times"
            )


class SubgraphScope(Scope):
    """The names inside a subgraph. It sees nothing of the outside: what it takes from there becomes an input."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.captured: dict[Value, Value] = {}  # value outside -> input of this graph
        self.borrowed: dict[str, Value] = {}  # what names from outside mean here

    def value(self, name: str) -> Value:
        if name in self.values or name in self.initializers or self.parent is None:
            return super().value(name)
        if name not in self.borrowed:
            self.borrowed[name] = self.take(self.parent.value(name))
        return self.borrowed[name]

    def take(self, outer: Value) -> Value:
        """A value from outside as one of this graph: a constant that shares its data, or an input."""
        if isinstance(outer, ValueList):
            return ValueList([self.take(value) for value in outer])
        return borrowed(self.builder, outer, self.captured)


def _tensors(proto: Any) -> tuple[Any, Any]:
    """The initializers of a GraphProto, dense and sparse."""
    return ((), ()) if proto is None else (proto.initializer, proto.sparse_initializer)


def _located(diagnostic: Diagnostic, proto: Any) -> Diagnostic:
    """The diagnostic with the node's name and op, where it does not name them already."""
    context = {"node": proto.name or "/".join(proto.output), "op": proto.op_type, **diagnostic.context}
    return Diagnostic(diagnostic.reference, diagnostic.message, context, diagnostic.hint)


def _is_supported(domain: str, op: str, opset: int) -> bool:
    return find(domain, op, opset) is not None or functions.is_function(domain, op, opset)


def _unsupported(domain: str, op: str, opset: int, nodes: Sequence[str]) -> Diagnostic:
    name = f"{domain}.{op}" if domain else op
    newer = [r.since for r in RULES.get((domain, op), ())]
    message = f"there is no import rule for {name}"
    if newer:
        message += f" of opset {opset} (the oldest is for opset {min(newer)})"
    shown = ", ".join(nodes[:NODES_NAMED]) + (", ..." if len(nodes) > NODES_NAMED else "")
    context = {"op": name, "opset": str(opset), "uses": str(len(nodes)), "nodes": shown}
    return Diagnostic("unsupported-op", message, context, "`mnnconvert ops --framework ONNX` lists what is supported")


def _elem_type(info: Any) -> int:
    kind = info.type.WhichOneof("value")
    if kind not in ("tensor_type", None):
        raise ConversionError.of("unsupported-type", f"'{info.name}' is a {kind.replace('_type', '')}, not a tensor")
    return info.type.tensor_type.elem_type if kind else 0


def _declared_type(info: Any) -> str:
    """The element type of a declared tensor, "" for anything else."""
    if info is None or info.type.WhichOneof("value") != "tensor_type":
        return ""
    return NAMES.get(info.type.tensor_type.elem_type, "")


def _shape(info: Any) -> Shape | None:
    tensor = info.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(_dim(d, f"{info.name}.{i}") for i, d in enumerate(tensor.shape.dim))


def _dim(dim: Any, unnamed: str) -> Dim:
    if dim.HasField("dim_value") and dim.dim_value > INT32_MAX:
        raise ConversionError.of("int64-range", f"the size '{unnamed}' is {dim.dim_value}, MNN has 32-bit sizes")
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return int(dim.dim_value)
    named = dim.dim_param.strip()
    return _sum(named) if named not in UNNAMED else unnamed


def _sum(named: str) -> Dim:
    """A size such as "past + sequence" in the spelling in which sums of sizes are written here."""
    terms: list[Dim] = [int(term) if term.strip().isdigit() else term.strip() for term in named.split("+")]
    plain = len(terms) > 1 and all(isinstance(term, int) or str(term).isidentifier() for term in terms)
    return reduce(add, terms) if plain else named


def _note_type(graph: Graph, name: str, elem_type: int, dtype: np.dtype) -> None:
    """Remember the source type of an input or output where the graph has none like it."""
    declared = NAMES.get(elem_type, "")
    if declared != str(dtype) and declared in (
        "bool",
        "int64",
        "float16",
        "float64",
        "int16",
        "uint16",
        "uint32",
        "uint64",
    ):
        graph.source_types[name] = declared
